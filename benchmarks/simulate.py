"""How fast the simulator is, in units of a plain CPython loop taken in the same run. Prints one JSON line.

    python benchmarks/simulate.py [--trace CSV] [--requests 4096] [--fleet-seconds 120] [--scaling] [--soak-hours 24]

`trace`: one replica of Llama-3-8B on an A100, window 16,384, the first requests of the conversation trace with arrivals rescaled to 6.45 requests
per second, every metric on, 5 s scrapes kept. Peers on the same machine class, in the same units: Vidur 160, BLIS 24. `fleet`: 8 replicas at a
busy load, simulated seconds per CPU second. `scaling` (with --scaling): how it grows with replicas, running sequences and blocks.
`soak` (with --soak-hours): resident memory of 8 busy replicas over so many simulated hours.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from sim_backend.run import run  # noqa: E402
from sim_backend.scenario import Scenario, parse_scenario  # noqa: E402

UNIT_TURNS = 1_000_000
PEERS_UNITS = {"vidur": 160, "blis": 24}


def unit_seconds() -> float:
    """CPU seconds of one million turns of `s += i*i`, the best of five."""
    taken = []
    for _ in range(5):
        start = time.process_time()
        s = 0
        for i in range(UNIT_TURNS):
            s += i * i
        taken.append(time.process_time() - start)
    return min(taken)


def scenario(**parts: Any) -> Scenario:
    expect = {"outcome": "silent", "cause": "healthy"}
    return parse_scenario("benchmark", {"what": "benchmark", "expect": expect, **parts})


def simulate(chosen: Scenario, seconds: float) -> dict[str, float]:
    """One run with every scrape kept; CPU seconds, steps, scrapes and what was finished."""
    start = time.process_time()
    simulated = run(chosen, seconds, 1, None, 5.0, 1_790_000_000_000)
    kept = list(simulated)
    cpu_seconds = time.process_time() - start
    cluster = simulated.cluster
    finished = sum(sum(e.success.values()) for r in cluster.replicas for e in r.metrics.engines.values())
    return {
        "cpu_seconds": cpu_seconds,
        "simulated_seconds": seconds,
        "engine_steps": simulated.engine_steps,
        "requests": cluster.calls,
        "finished": finished,
        "scrapes": len(kept),
        "samples": sum(len(scrape.values) for scrape in kept),
    }


def trace_run(path: Path, requests: int) -> dict[str, float]:
    arrivals = {"kind": "trace", "file": str(path), "limit": requests, "rescale_rate": 6.45}
    fleet = {"replicas": 1, "profile": "llama-3-8b-a100"}
    return simulate(scenario(fleet=fleet, load=[{"arrivals": arrivals}]), requests / 6.45 + 60)


def busy(replicas: int, *, seats: int = 256, rate: float = 6.0, **engine: Any) -> Scenario:
    load = {
        "arrivals": {"rate": rate * replicas},
        "prompt": {"kind": "lognormal", "mean": 1155, "cv": 0.96, "high": 8000},
        "output": {"kind": "lognormal", "mean": 211, "cv": 0.77, "high": 1000},
    }
    fleet = {"replicas": replicas, "profile": "llama-3-8b-a100", "engine": {"max_num_seqs": seats, **engine}}
    return scenario(fleet=fleet, load=[load])


def scaling() -> dict[str, Any]:
    """Simulated seconds per CPU second while one thing grows."""

    def rate(chosen: Scenario, seconds: float = 60.0) -> float:
        result = simulate(chosen, seconds)
        return round(seconds / result["cpu_seconds"], 1)

    return {
        "replicas": {count: rate(busy(count)) for count in (1, 4, 16)},
        "running": {seats: rate(busy(1, seats=seats, rate=40.0)) for seats in (16, 64, 256)},
        "blocks": {blocks: rate(busy(1, num_gpu_blocks_override=blocks)) for blocks in (8_000, 32_000, 128_000)},
    }


def soak(hours: float) -> dict[str, Any]:
    """Resident megabytes along a long run of 8 busy replicas whose scrapes are dropped as a file writer would."""
    import psutil

    process = psutil.Process()
    seconds = hours * 3600
    simulated = run(busy(8), seconds, 1, None, 5.0, 1_790_000_000_000)
    marks = [seconds * share for share in (0.1, 0.25, 0.5, 0.75, 0.999)]
    rss: dict[str, float] = {}
    for scrape in simulated:
        elapsed = (scrape.t_ms - 1_790_000_000_000) / 1000
        if marks and elapsed >= marks[0]:
            rss[f"{marks.pop(0) / 3600:.2f} h"] = round(process.memory_info().rss / 1e6, 1)
    return {"hours": hours, "rss_mb": rss, "requests": simulated.cluster.calls}


def best(work: Callable[[], dict[str, float]], times: int) -> dict[str, float]:
    return min((work() for _ in range(times)), key=lambda result: result["cpu_seconds"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = Path(os.environ.get("PAGEWATCH_SHARED") or ROOT.parent / "shared")
    parser.add_argument("--trace", type=Path, default=shared / "traces" / "azure-2023-conv.csv")
    parser.add_argument("--requests", type=int, default=4096)
    parser.add_argument("--fleet-seconds", type=float, default=120.0)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--scaling", action="store_true")
    parser.add_argument("--soak-hours", type=float, default=0.0)
    options = parser.parse_args()
    unit = unit_seconds()
    result: dict[str, Any] = {"benchmark": "simulate", "unit_seconds": round(unit, 4), "peers_units": PEERS_UNITS}
    if options.trace.exists():
        trace = best(lambda: trace_run(options.trace, options.requests), options.repeat)
        result["trace"] = {
            **trace,
            "units": round(trace["cpu_seconds"] / unit, 1),
            "simulated_seconds_per_cpu_second": round(trace["simulated_seconds"] / trace["cpu_seconds"], 1),
        }
    else:
        result["trace"] = f"no trace at {options.trace}: give one with --trace"
    fleet = best(lambda: simulate(busy(8), options.fleet_seconds), options.repeat)
    result["fleet_8_replicas"] = {
        **fleet,
        "simulated_seconds_per_cpu_second": round(fleet["simulated_seconds"] / fleet["cpu_seconds"], 1),
        "unit_now_seconds": round(statistics.mean([unit, unit_seconds()]), 4),
    }
    if options.scaling:
        result["scaling_simulated_seconds_per_cpu_second"] = scaling()
    if options.soak_hours:
        result["soak"] = soak(options.soak_hours)
    result["max_rss_mb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
