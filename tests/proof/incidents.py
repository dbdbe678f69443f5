"""Simulated incidents as incident files: one for each scenario, seed, length and version of the simulator, made once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from collectors.capsule import read_capsule
from collectors.capsule.simulated import write_simulated
from collectors.settings import Settings
from collectors.source import Source
from collectors.sources import open_source
from sim_backend.run import run
from sim_backend.scenario import Scenario

START_MS = 1_796_000_000_000
SIMULATOR = Path(__file__).resolve().parents[2] / "sim_backend"


@dataclass(frozen=True)
class Incident:
    """One thing that is really wrong. Seconds from the start of the run; `stop` is the end of the run while it lasts."""

    cause: str
    scope: str
    places: frozenset[tuple[str, str]]
    """(instance, engine)."""
    start: float
    stop: float

    @property
    def instances(self) -> frozenset[str]:
        return frozenset(instance for instance, _ in self.places)


@dataclass(frozen=True)
class Recorded:
    """A simulated run that can be asked like any other source, and its truth."""

    scenario: Scenario
    seed: int
    source: Source
    truth: Mapping[str, Any]
    seconds: float

    @property
    def incidents(self) -> tuple[Incident, ...]:
        """What was wrong, in order of time."""
        found = [
            Incident(
                cause=known["cause"],
                scope=known["where"]["scope"],
                places=frozenset((place["instance"], place["engine"]) for place in known["where"]["replicas"]),
                start=(known["from_ms"] - START_MS) / 1000,
                stop=self.seconds if known["to_ms"] is None else min((known["to_ms"] - START_MS) / 1000, self.seconds),
            )
            for known in self.truth["incidents"]
        ]
        return tuple(sorted(found, key=lambda incident: (incident.start, incident.cause)))

    def moments(self, step_seconds: float) -> Iterator[float]:
        """Instants at which an on-call might ask, from the first that has three scrapes."""
        moment = step_seconds
        while moment <= self.seconds:
            yield moment
            moment += step_seconds


def recorded(scenario: Scenario, seed: int, folder: Path, seconds: float | None = None) -> Recorded:
    """The run of a scenario, 5 s scrapes, from `folder` when it was made there before. Raises ScenarioError, SourceError."""
    length = seconds if seconds is not None else scenario.duration_seconds
    name = hashlib.sha256(f"{_version()} {scenario.model_dump_json()} {seed} {length}".encode()).hexdigest()[:16]
    file = folder / f"{scenario.name}-{seed}-{name}.capsule"
    if not file.exists():
        unfinished = file.with_suffix(".part")
        write_simulated(run(scenario, length, seed, start_ms=START_MS), unfinished)
        unfinished.rename(file)
    source = open_source(str(file), Settings(), {})
    return Recorded(scenario, seed, source, _truth_of(file), length)


def _truth_of(file: Path) -> Mapping[str, Any]:
    truth: Mapping[str, Any] = read_capsule(file).manifest.ground_truth
    return truth


@lru_cache(maxsize=1)
def _version() -> str:
    digest = hashlib.sha256()
    for file in sorted(path for end in ("*.py", "*.toml") for path in SIMULATOR.rglob(end)):
        digest.update(file.read_bytes())
    return digest.hexdigest()
