"""Makes the incident files that are shipped in `incidents/`: python docs/incidents/make.py [--recordings FOLDER] [--out FOLDER] [NAME ...]

The simulated ones come from the simulator alone: same scenario and seed, same bytes. The real ones are made from recordings of a real
vLLM 0.11.0 (JSON of the Prometheus API, gzipped); without their folder they are left as they are.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from collectors.capsule import SUFFIX
from collectors.capsule.convert import import_file
from collectors.capsule.simulated import write_simulated
from collectors.settings import Settings
from collectors.sources import open_source
from runbooks.recording import record_incident
from sim_backend.run import run

ROOT = Path(__file__).resolve().parents[2]
START_MS = 1_796_000_000_000
DURATION_SECONDS = 600.0
SCRAPE_SECONDS = 5.0


@dataclass(frozen=True)
class Simulated:
    """An incident file of ten minutes out of a scenario."""

    name: str
    title: str
    scenario: str
    replicas: int
    seed: int = 1


@dataclass(frozen=True)
class Recorded:
    """An incident file out of a recording of a real engine."""

    name: str
    title: str
    recording: str


SIMULATED = (
    Simulated("kv_pool_too_small", "The KV pool is too small for the answers", "kv_limited", 2),
    Simulated("worker_hangs", "A worker hangs, and its server looks well", "engine_stalled", 3),
    Simulated("cache_flushed", "Long documents push shared prompts out of the cache", "cold_prefix_cache", 2),
)
RECORDED = (
    Recorded("seats_full", "A queue behind sixteen seats", "b_waiting_growth"),
    Recorded("preemption_thrash", "Requests chase each other out of the KV pool", "c_preemption"),
    Recorded("prompts_refused", "More prompts are refused than answered", "d_admission_rejects"),
    Recorded("replica_killed", "A replica is killed and starts again", "f_replica_restart"),
)


def make_simulated(incident: Simulated, out: Path) -> Path:
    """The file of a simulated incident in folder `out`."""
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / f"{incident.name}{SUFFIX}"
        write_simulated(
            run(
                incident.scenario,
                duration_seconds=DURATION_SECONDS,
                seed=incident.seed,
                replicas=incident.replicas,
                scrape_interval_seconds=SCRAPE_SECONDS,
                start_ms=START_MS,
            ),
            raw,
        )
        return _recorded(raw, incident.title, out)


def make_recorded(incident: Recorded, recordings: Path, out: Path) -> Path:
    """The file of a real incident in folder `out`."""
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / f"{incident.name}{SUFFIX}"
        import_file(recordings / f"{incident.recording}.json.gz", raw)
        return _recorded(raw, incident.title, out)


def _recorded(raw: Path, title: str, out: Path) -> Path:
    settings = Settings()
    source = open_source(str(raw), settings)
    start_ms, end_ms = source.extent_ms() or (0, 0)
    goal = out / raw.name
    record_incident(source, start_ms, end_ms, goal, settings, title=title)
    return goal


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="default: all")
    parser.add_argument("--recordings", type=Path, help="folder with the recordings of the real engine")
    parser.add_argument("--out", type=Path, default=ROOT / "incidents")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    known = {incident.name for incident in (*SIMULATED, *RECORDED)}
    if unknown := set(given.names) - known:
        print(f"no incident {sorted(unknown)[0]!r}; there are: {', '.join(sorted(known))}", file=sys.stderr)
        return 2
    for simulated in SIMULATED:
        if not given.names or simulated.name in given.names:
            print(made := make_simulated(simulated, given.out), made.stat().st_size, "bytes")
    for recorded in RECORDED:
        if given.recordings is not None and (not given.names or recorded.name in given.names):
            print(made := make_recorded(recorded, given.recordings, given.out), made.stat().st_size, "bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
