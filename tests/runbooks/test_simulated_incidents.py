"""Incidents that no shared recording holds, and loads that are unusual but well, made by the simulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from collectors.model import Samples
from sim_backend.run import run
from sim_backend.scenario import parse_scenario
from tests.runbooks.queue_cases import diagnosed
from tests.runbooks.recorded_source import RecordedSource

START_MS = 1_796_000_000_000


def simulated(scenario: dict[str, Any], interval_seconds: float = 5.0) -> RecordedSource:
    """A run of a scenario as raw samples."""
    load = [{"name": f"load{number}", **stream} for number, stream in enumerate(scenario.get("load", ()))]
    expect = {"outcome": "fires", "cause": "healthy"}
    parsed = parse_scenario("made here", {"what": "made here", "expect": expect, **scenario, "load": load})
    times: dict[tuple[Any, ...], list[int]] = {}
    values: dict[tuple[Any, ...], list[float]] = {}
    for scrape in run(parsed, start_ms=START_MS, scrape_interval_seconds=interval_seconds):
        for name, labels, value in zip(scrape.layout.names, scrape.layout.labels, scrape.values, strict=True):
            key = (name, *sorted(labels.items()))
            times.setdefault(key, []).append(scrape.t_ms)
            values.setdefault(key, []).append(float(value))
    return RecordedSource(
        [
            Samples({"__name__": key[0], **dict(key[1:])}, np.array(times[key], dtype=np.int64), np.array(values[key]))
            for key in times
        ],
        "simulated",
    )


def load(rate: float, prompt: int = 400, output: int = 150, **more: Any) -> dict[str, Any]:
    """A stream of Poisson arrivals with log-normal lengths."""
    arrivals = more.pop("arrivals", {"kind": "poisson", "rate": rate})
    lengths = {
        side: {"kind": "lognormal", "mean": mean, "cv": 0.7, "low": 4, "high": 8000}
        for side, mean in (("prompt", prompt), ("output", output))
    }
    return {"arrivals": arrivals, **lengths, **more}


def likely(source: RecordedSource, second: float) -> list[tuple[str, tuple[int, ...]]]:
    """(cause, replica numbers) of the likely verdicts at a second of the run."""
    return [
        (
            v["cause"],
            tuple(sorted({int(r["instance"].split(":")[0].rsplit("-", 1)[1]) for r in v["where"]["replicas"]})),
        )
        for v in diagnosed(source, START_MS / 1000 + second)["verdicts"]
        if v["confidence"] == "likely" and v["cause"] != "healthy"
    ]


@pytest.mark.parametrize(("factor", "interval"), [(1.8, 5.0), (3.0, 5.0), (3.0, 15.0)])
def test_one_slow_engine_is_named_slow_and_not_overloaded(factor: float, interval: float) -> None:
    slow = {"kind": "slow", "start_seconds": 300, "stop_seconds": 620, "replicas": [0], "factor": factor}
    source = simulated(
        {"fleet": {"replicas": 2}, "load": [load(6)], "fault": [slow], "duration_seconds": 700}, interval
    )
    assert likely(source, 280) == []
    assert likely(source, 540) == [("engine_slow", (0,))]


def test_a_slow_engine_with_a_queue_is_still_slow() -> None:
    slow = {"kind": "slow", "start_seconds": 300, "stop_seconds": 600, "factor": 6}
    fleet = {"replicas": 1, "engine": {"max_num_seqs": 16}}
    source = simulated({"fleet": fleet, "load": [load(5)], "fault": [slow], "duration_seconds": 520})
    assert likely(source, 500) == [("engine_slow", (0,))]


def test_an_earlier_overload_is_no_yardstick_for_slowness() -> None:
    slow = {"kind": "slow", "start_seconds": 500, "stop_seconds": 800, "replicas": [0], "factor": 3}
    streams = [load(5), load(22, start_seconds=150, stop_seconds=220)]
    fleet = {"replicas": 2, "engine": {"max_num_seqs": 24}}
    source = simulated({"fleet": fleet, "load": streams, "fault": [slow], "duration_seconds": 760})
    assert likely(source, 740) == [("engine_slow", (0,))]


def test_a_target_that_answers_now_and_then_lacks_metrics_and_is_not_down() -> None:
    lost = {"kind": "missing_scrape", "ratio": 0.6, "start_seconds": 100, "stop_seconds": 400, "replicas": [1]}
    source = simulated({"fleet": {"replicas": 2}, "load": [load(6)], "fault": [lost], "duration_seconds": 400})
    assert [likely(source, at) for at in (240, 300, 360)] == [[("metrics_missing", (1,))]] * 3


def test_gauges_that_stand_still_while_tokens_flow_are_stale() -> None:
    frozen = {"kind": "frozen_gauges", "start_seconds": 120, "replicas": [0]}
    source = simulated({"fleet": {"replicas": 2}, "load": [load(6)], "fault": [frozen], "duration_seconds": 320})
    assert likely(source, 300) == [("stale_gauges", (0,))]


def test_a_halted_engine_and_a_queue_elsewhere_are_two_incidents() -> None:
    halt = {"kind": "halt", "start_seconds": 200, "stop_seconds": 500, "replicas": [2]}
    streams = [load(9), load(12, start_seconds=150, stop_seconds=500, replicas=[0])]
    fleet = {"replicas": 3, "engine": {"max_num_seqs": 16}}
    source = simulated({"fleet": fleet, "load": streams, "fault": [halt], "duration_seconds": 400})
    found = dict(likely(source, 380))
    assert found.pop("engine_stalled") == (2,)
    assert set(found) <= {"seat_limited", "overload", "replica_imbalance"}
    assert set(found.values()) == {(0,)}


def test_traffic_that_moves_to_one_of_three_is_imbalance() -> None:
    streams = [
        load(12, stop_seconds=200),
        load(12, start_seconds=200, replicas=[1]),
        load(2, start_seconds=200),
    ]
    fleet = {"replicas": 3, "engine": {"max_num_seqs": 16}}
    source = simulated({"fleet": fleet, "load": streams, "duration_seconds": 400})
    assert likely(source, 380) == [("replica_imbalance", (1,))]


def test_a_head_that_never_fits_is_only_suspected_without_prefix_caching() -> None:
    giant = {
        "arrivals": {"kind": "burst", "count": 1},
        "prompt": {"kind": "fixed", "mean": 9000},
        "output": {"kind": "fixed", "mean": 20},
        "start_seconds": 150,
    }
    for caching in (True, False):
        engine = {"num_gpu_blocks_override": 500, "enable_prefix_caching": caching}
        scenario = {"fleet": {"replicas": 1, "engine": engine}, "load": [load(2, 300), giant], "duration_seconds": 300}
        verdict = diagnosed(simulated(scenario), START_MS / 1000 + 280)["verdicts"][0]
        assert (verdict["cause"], verdict["confidence"]) == ("unadmittable_head", "likely" if caching else "possible")


WELL: dict[str, dict[str, Any]] = {
    "bursts": {"load": [load(0, arrivals={"kind": "gamma", "rate": 12, "cv": 4})]},
    "closed loop": {"load": [load(0, arrivals={"kind": "closed", "clients": 20, "think_seconds": 2})]},
    "several answers each": {"load": [load(3, n=4)]},
    "long prompts, long answers": {"load": [load(2, 3000, 30), load(0.3, 200, 1500)]},
    "some clients leave": {"load": [load(6, 400, 300, aborts={"ratio": 0.08, "mean_seconds": 2})]},
    "steps of load": {"load": [load(0, arrivals={"kind": "steps", "steps": [[90, 2], [90, 20], [60, 8]]})]},
}


@pytest.mark.parametrize("interval", [2.0, 15.0])
@pytest.mark.parametrize("name", sorted(WELL))
def test_unusual_but_well(name: str, interval: float) -> None:
    scenario = {"fleet": {"replicas": 2}, "duration_seconds": 400, **WELL[name]}
    source = simulated(scenario, interval)
    for second in range(60, 400, 55):
        answer = diagnosed(source, START_MS / 1000 + second)
        assert [v["cause"] for v in answer["verdicts"]] == ["healthy"], f"{name} at {second} s"
        assert answer["anomalies"] == []
