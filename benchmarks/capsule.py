"""Opening an incident file until the first page answer, against promtool's backfill, a Prometheus started on it and the same answer.

    python benchmarks/capsule.py [--replicas 4] [--minutes 30] [--passes 5] [--day]

Two sets of samples of the same shape, each with one object of figures: `generated` by the shared fleet generator (random counts for every family, restarts, nothing that a
scheduler would tie together) and `simulated` by the simulated fleet's demo scenario. Prints one JSON line; medians of interleaved passes, wall clock:
  open_seconds       a running program (a console) opens the file: checks its hash, answers the page's queries (a fresh reader each pass)
  process_seconds    the same from nothing: a new Python that has its bytecode, its imports, then as above
  prometheus_seconds promtool's backfill of the same samples (OpenMetrics made beforehand), Prometheus started on the blocks, the same queries
  open_ratio, process_ratio     against prometheus_seconds; target: open_ratio at most 0.1. An operator opens a file in a console that runs; the second figure
                     is for scripts, and mostly Python with numpy and pydantic starting
  *_cpu_seconds      processor time of the same work, all processes of it: what a busy machine changes least
  size_ratio         bytes of the incident file / bytes of the TSDB blocks; target: at most 0.6
  answers_equal      both gave the same numbers to 1e-9
  day                (--day) a file of 64 replicas x 24 h at 5 s (--day-interval): its size; seconds and peak memory until a fleet quantile stands,
                     and until the fleet picture of the first screen at a cursor does; how often progress was told. Target: below 2048 MiB
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from collectors.capsule import CapsuleSource, read_capsule  # noqa: E402
from collectors.capsule.body_writer import sorted_series  # noqa: E402
from collectors.capsule.convert import export_capsule, import_file  # noqa: E402
from collectors.capsule.file import open_parts, write_capsule  # noqa: E402
from collectors.capsule.manifest import Manifest  # noqa: E402
from collectors.model import Samples  # noqa: E402
from collectors.prometheus import RemoteSource  # noqa: E402
from collectors.series_lines import sort_key  # noqa: E402
from collectors.settings import SourceSettings  # noqa: E402
from collectors.source import Source  # noqa: E402
from tests.real_programs import backfill, prometheus  # noqa: E402

SHARED = Path(os.environ.get("PAGEWATCH_SHARED") or ROOT.parent / "shared").resolve()
COUNTED = ("_total", "_bucket", "_count", "_sum")
START_MS = 1_780_000_000_000
PAGE = (
    '{__name__=~"vllm:(num_requests_waiting|num_requests_running|kv_cache_usage_perc)"}',
    "sum by (instance) (rate(vllm:prompt_tokens_total[1m]))",
    "sum by (instance) (rate(vllm:generation_tokens_total[1m]))",
    "sum(rate(vllm:time_to_first_token_seconds_count[1m]))",
    "histogram_quantile(0.99, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket[1m])))",
    "histogram_quantile(0.99, sum by (le) (rate(vllm:inter_token_latency_seconds_bucket[1m])))",
    "sum by (instance) (increase(vllm:num_preemptions_total[5m]))",
)
CHILD = """
import sys, time
from collectors.capsule import CapsuleSource, read_capsule
source = CapsuleSource(read_capsule(sys.argv[1]), semantics="2.x")
for query in sys.argv[3:]:
    source.instant(query, int(sys.argv[2]))
"""
DAY_CHILD = """
import json, resource, sys, time
from collectors.capsule import CapsuleSource, read_capsule
from collectors.fleet import fleet_picture
from collectors.model import Window
from collectors.settings import Settings
told = []
began = time.perf_counter()
capsule = read_capsule(sys.argv[1], progress=lambda done, note: told.append((done, note)))
found = {"open_seconds": round(time.perf_counter() - began, 2), "open_progress": len(told)}
def reached(name):
    found[name + "_seconds"] = round(time.perf_counter() - began, 2)
    found[name + "_peak_mib"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
reached("opened")
source = CapsuleSource(capsule)
assert len(source.instant(sys.argv[2], source.now_ms())) == 1
reached("quantile")
cursor_ms = source.now_ms() - 6 * 3_600_000
picture = fleet_picture(CapsuleSource(capsule, cursor_ms), Window(cursor_ms - 3_600_000, cursor_ms, 15_000), Settings())
assert len(picture.replicas) == 64, len(picture.replicas)
reached("picture")
print(json.dumps(found))
"""


def answers(source: Source, at_ms: int) -> dict[tuple[Any, ...], float]:
    """Every number of the page's queries, by query and labels."""
    found = {}
    for query in PAGE:
        vector = source.instant(query, at_ms)
        for labels, value in zip(vector.labels, vector.values.tolist(), strict=True):
            found[(query, *sorted(labels.items()))] = value
    return found


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def cpu_seconds() -> float:
    """Processor time of this process and of the children it has waited for."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def generated(folder: Path, replicas: int, minutes: float) -> Path:
    """An incident file of the shared fleet generator's samples, 5 s apart."""
    lines = folder / "generated.jsonl"
    generator = SHARED / "bench" / "make_fleet_data.py"
    facts = SHARED / "facts" / "vllm-0.11.0-metrics.csv"
    wanted = ["--replicas", str(replicas), "--hours", str(minutes / 60), "--interval", "5", "--format", "vmjson"]
    wanted += ["--facts", str(facts)]
    subprocess.run([sys.executable, generator, *wanted, "-o", lines], check=True, capture_output=True)
    import_file(lines, folder / "generated.capsule")
    lines.unlink()
    return folder / "generated.capsule"


def simulated(folder: Path, replicas: int, minutes: float) -> Path:
    """An incident file that `pagewatch sim run` writes, 5 s apart."""
    out = folder / "simulated.capsule"
    command = [sys.executable, "cli.py", "sim", "run", "--scenario", "demo", "--replicas", str(replicas)]
    command += ["--duration", f"{round(minutes * 60)}s", "--scrape-interval", "5", "--out", str(out)]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    return out


def measure(folder: Path, capsule: Path, passes: int) -> dict[str, Any]:
    manifest = read_capsule(capsule).manifest
    at_ms = manifest.window.end_ms
    export_capsule(capsule, "openmetrics", folder / "fleet.om")
    figures: dict[str, list[float]] = {"open": [], "process": [], "prometheus": []}
    spent: dict[str, list[float]] = {"open": [], "process": [], "prometheus": []}
    ours: dict[tuple[Any, ...], float] = {}
    theirs: dict[tuple[Any, ...], float] = {}

    def opened() -> None:
        ours.update(answers(CapsuleSource(read_capsule(capsule), semantics="2.x"), at_ms))

    kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    kept["PYTHONPYCACHEPREFIX"] = str(folder.parent / "bytecode")

    def in_a_process() -> None:
        command = [sys.executable, "-c", CHILD, str(capsule), str(at_ms), *PAGE]
        subprocess.run(command, check=True, cwd=ROOT, env=kept)

    data = folder / "data"

    def backfilled() -> None:
        backfill(folder / "fleet.om", data)
        with prometheus(data) as url:
            theirs.update(answers(RemoteSource.from_settings(SourceSettings.for_address(url)), at_ms))
            figures["prometheus"].append(time.perf_counter() - began)

    in_a_process()
    for _ in range(passes):
        shutil.rmtree(data, ignore_errors=True)
        cpu = cpu_seconds()
        figures["open"].append(seconds(opened))
        spent["open"].append(cpu_seconds() - cpu)
        cpu = cpu_seconds()
        figures["process"].append(seconds(in_a_process))
        spent["process"].append(cpu_seconds() - cpu)
        cpu = cpu_seconds()
        began = time.perf_counter()
        backfilled()
        spent["prometheus"].append(cpu_seconds() - cpu)
    blocks = sum(file.stat().st_size for block in data.glob("0*") for file in block.rglob("*") if file.is_file())
    middle = {name: statistics.median(times) for name, times in figures.items()}
    return {
        "series": manifest.body.series,
        "samples": manifest.body.samples,
        "open_seconds": round(middle["open"], 4),
        "process_seconds": round(middle["process"], 4),
        "prometheus_seconds": round(middle["prometheus"], 4),
        "open_ratio": round(middle["open"] / middle["prometheus"], 4),
        "process_ratio": round(middle["process"] / middle["prometheus"], 4),
        **{f"{name}_cpu_seconds": round(statistics.median(times), 4) for name, times in spent.items()},
        "capsule_bytes": capsule.stat().st_size,
        "block_bytes": blocks,
        "size_ratio": round(capsule.stat().st_size / blocks, 4),
        "answers_equal": ours.keys() == theirs.keys()
        and all(math.isclose(ours[key], theirs[key], rel_tol=1e-9, abs_tol=1e-12) for key in ours),
    }


def whole_day(template: Path, replicas: int, interval_ms: int) -> Iterator[Samples]:
    """The template's series stretched to 24 h and to many replicas, in file order and one at a time."""
    _, reader = open_parts(template)
    scrapes = 86_400_000 // interval_ms
    by_name = {
        name: sorted(group, key=lambda each: sort_key(each.labels))
        for name, group in groupby(sorted_series(reader.read()), key=lambda each: each.labels["__name__"])
    }
    for group in by_name.values():
        instances = sorted({each.labels["instance"] for each in group})
        wanted = []
        for number in range(replicas):
            source = instances[number % len(instances)]
            for each in group:
                if each.labels["instance"] == source:
                    wanted.append(({**each.labels, "instance": f"replica-{number:03d}:8000"}, each.values, number))
        for labels, values, number in sorted(wanted, key=lambda each: sort_key(each[0])):
            rounds = -(-scrapes // values.size)
            rise = max(0.0, float(values[-1] - values[0])) if labels["__name__"].endswith(COUNTED) else 0.0
            day = (values[None, :] + rise * np.arange(rounds)[:, None]).ravel()[:scrapes]
            yield Samples(labels, START_MS + 37 * number + interval_ms * np.arange(scrapes, dtype=np.int64), day)


def measure_day(folder: Path, template: Path, interval_seconds: int) -> dict[str, Any]:
    """64 replicas x 24 h, as a day-long recording would hold it."""
    capsule = folder / "day.capsule"
    began = time.perf_counter()
    stretched = whole_day(template, 64, interval_seconds * 1000)
    manifest = write_capsule(capsule, Manifest(title="a day"), stretched, presorted=True)
    wrote = time.perf_counter() - began
    done = subprocess.run(
        [sys.executable, "-c", DAY_CHILD, str(capsule), PAGE[4]], check=True, cwd=ROOT, capture_output=True, text=True
    )
    return {
        "series": manifest.body.series,
        "samples": manifest.body.samples,
        "capsule_bytes": capsule.stat().st_size,
        "write_seconds": round(wrote, 1),
        **json.loads(done.stdout),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument(
        "--day", action="store_true", help="also open a file of 64 replicas x 24 h (takes minutes to make)"
    )
    parser.add_argument("--day-interval", type=int, default=5, help="seconds between its scrapes")
    asked = parser.parse_args()
    figures: dict[str, Any] = {"benchmark": "capsule", "replicas": asked.replicas, "minutes": asked.minutes}
    with tempfile.TemporaryDirectory(prefix="pagewatch-bench-") as name:
        for kind, made in (("generated", generated), ("simulated", simulated)):
            folder = Path(name) / kind
            folder.mkdir()
            figures[kind] = measure(folder, made(folder, asked.replicas, asked.minutes), asked.passes)
        if asked.day:
            template = Path(name) / "generated" / "generated.capsule"
            figures["day"] = measure_day(Path(name), template, asked.day_interval)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
