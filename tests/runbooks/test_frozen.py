"""Gauges at rest: broken where the account of requests contradicts them, kept or unknown where an honest engine shows the same."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from collectors.model import Samples
from tests.runbooks.queue_cases import diagnosed, thinned
from tests.runbooks.recorded_source import RecordedSource
from tests.runbooks.test_simulated_incidents import START_MS, load, simulated

GAUGES = {
    "running": ("vllm:num_requests_running",),
    "usage": ("vllm:kv_cache_usage_perc",),
    "waiting": ("vllm:num_requests_waiting",),
    "all": ("vllm:num_requests_running", "vllm:kv_cache_usage_perc", "vllm:num_requests_waiting"),
}
FREEZES = 300
SIGNALS = {
    "running": "requests_running",
    "usage": "kv_cache_usage",
    "waiting": "requests_waiting",
    "all": "requests_running",
}


@lru_cache(maxsize=8)
def busy(seed_rate: float, seats: int = 0) -> RecordedSource:
    """A fleet of two under chat load; with few seats a queue comes and goes."""
    engine = {"engine": {"max_num_seqs": seats}} if seats else {}
    streams = [load(seed_rate)]
    if seats:
        streams.append(
            load(0, arrivals={"kind": "closed", "clients": 10 * seats, "think_seconds": 3}, start_seconds=60)
        )
    return simulated({"fleet": {"replicas": 2, **engine}, "load": streams, "duration_seconds": 660})


@lru_cache(maxsize=16)
def closed_loop(clients: int, output: int, block: int = 16, leaving: float = 0.0) -> RecordedSource:
    """Clients that never pause; every answer is equally long, so that requests come and go in step or spread out."""
    stream = {
        "arrivals": {"kind": "closed", "clients": clients, "think_seconds": 0},
        "prompt": {"kind": "lognormal", "mean": 60, "cv": 0.3, "low": 8, "high": 100},
        "output": {"kind": "uniform", "low": max(2, output // 2), "high": output},
        **({"aborts": {"ratio": leaving, "mean_seconds": 1}} if leaving else {}),
    }
    warm = load(2, 60, 30, stop_seconds=120)
    fleet = {"replicas": 1, "engine": {"block_size": block}}
    return simulated({"fleet": fleet, "load": [warm, {**stream, "start_seconds": 60}], "duration_seconds": 500})


def frozen(source: RecordedSource, names: tuple[str, ...], at: float | None = None) -> RecordedSource:
    """Every series of the first replica with these names keeps the value it had at FREEZES (or the value `at`)."""
    kept = []
    first = min(s.labels["instance"] for s in source.all_samples())
    for series in source.all_samples():
        if series.labels["__name__"] in names and series.labels["instance"] == first:
            seconds = (series.times_ms - START_MS) / 1000
            value = at if at is not None else series.values[seconds <= FREEZES][-1]
            series = Samples(series.labels, series.times_ms, np.where(seconds > FREEZES, value, series.values))
        kept.append(series)
    return RecordedSource(kept, source.name)


def law(source: RecordedSource, second: float) -> dict[str, dict[str, Any]]:
    """instance -> finding of gauges_move_with_steps."""
    answer = diagnosed(source, START_MS / 1000 + second)
    found = [finding for finding in answer["laws"] if finding["id"] == "gauges_move_with_steps"]
    return {finding["where"]["replicas"][0]["instance"]: finding for finding in found}


@pytest.mark.parametrize("scrape_seconds", [5, 15, 30])
@pytest.mark.parametrize("what", ["running", "usage", "all"])
def test_a_frozen_gauge_is_contradicted_whatever_value_it_froze_at(what: str, scrape_seconds: int) -> None:
    for rate in (5.0, 16.0):
        source = frozen(busy(rate), GAUGES[what])
        if scrape_seconds > 5:
            source = thinned(source, scrape_seconds // 5)
        sick, well = sorted(law(source, FREEZES + max(90, 11 * scrape_seconds)).items())
        if rate == 5.0 and scrape_seconds == 30:  # three requests on board and eleven scrapes: chance would do
            assert sick[1]["status"] in ("broken", "unknown")
            continue
        assert sick[1]["status"] == "broken", sick[1]["evidence"]
        assert SIGNALS[what] in sick[1]["taints"]
        assert well[1]["status"] == "kept"


def test_running_frozen_in_the_middle_of_what_runs_is_found_within_a_minute() -> None:
    source = busy(12.0)
    running = np.concatenate([s.values for s in source.all_samples() if s.labels["__name__"] == GAUGES["running"][0]])
    source = frozen(source, GAUGES["running"], at=float(np.median(running)))
    sick = min(law(source, FREEZES + 60).items())[1]
    assert sick["status"] == "broken"
    assert sick["taints"] == ["requests_running"]


def test_a_gauge_that_has_just_stopped_is_unknown_and_not_kept() -> None:
    source = frozen(busy(12.0), GAUGES["usage"])
    statuses = [min(law(source, FREEZES + seconds).items())[1]["status"] for seconds in (22, 60)]
    assert statuses == ["unknown", "broken"]


def test_a_frozen_queue_is_contradicted_by_the_times_that_requests_wait() -> None:
    source = busy(6.0, seats=12)
    waits = [s for s in source.all_samples() if s.labels["__name__"] == GAUGES["waiting"][0]]
    assert max(float(s.values[-40:].min()) for s in waits) > 5, "the load must queue, or the test shows nothing"
    sick, well = sorted(law(frozen(source, GAUGES["waiting"], at=0.0), FREEZES + 340).items())
    assert sick[1]["status"] == "broken"
    assert sick[1]["taints"] == ["requests_waiting"]
    assert well[1]["status"] != "broken"


@pytest.mark.parametrize("scrape_seconds", [5, 15, 30])
@pytest.mark.parametrize(
    ("clients", "output", "block"), [(1, 40, 16), (8, 200, 16), (8, 20, 128), (32, 60, 128), (64, 400, 16)]
)
def test_a_closed_loop_of_clients_breaks_no_law(clients: int, output: int, block: int, scrape_seconds: int) -> None:
    source = closed_loop(clients, output, block)
    if scrape_seconds > 5:
        source = thinned(source, scrape_seconds // 5)
    for second in range(150, 500, 50):
        answer = diagnosed(source, START_MS / 1000 + second)
        assert [f["id"] for f in answer["laws"] if f["status"] == "broken"] == []
        assert [v["cause"] for v in answer["verdicts"] if v["cause"].startswith(("stale", "metrics"))] == []


def test_a_closed_loop_whose_clients_hang_up_breaks_no_law() -> None:
    source = closed_loop(12, 120, leaving=0.3)
    for second in range(150, 500, 50):
        assert min(law(source, second).items())[1]["status"] != "broken"


def test_running_that_truly_stands_still_is_confirmed_by_the_counters() -> None:
    """Twelve clients that replace each other at once: as many first tokens as finished requests and twelve, at every scrape."""
    source, clients = busy(12.0), 12
    first = min(s.labels["instance"] for s in source.all_samples())
    finished = sum(
        s.values
        for s in source.all_samples()
        if s.labels["__name__"] == "vllm:request_success_total" and s.labels["instance"] == first
    )
    kept = []
    for series in source.all_samples():
        if series.labels["__name__"] == "vllm:time_to_first_token_seconds_count" and series.labels["instance"] == first:
            late = series.times_ms > START_MS + FREEZES * 1000
            at_freeze = (series.values - finished)[~late][-1]
            series = Samples(series.labels, series.times_ms, np.where(late, finished + at_freeze, series.values))
        kept.append(series)
    source = frozen(RecordedSource(kept), GAUGES["running"], at=float(clients))
    assert [min(law(source, second).items())[1]["status"] for second in (400, 480, 580)] == ["kept"] * 3


@pytest.mark.parametrize("scrape_seconds", [2, 16, 30])
def test_requests_that_come_and_go_in_fours_break_no_law(scrape_seconds: int) -> None:
    """Several answers each: the same low number at four scrapes in a row is chance, though more are on board on average."""
    source = simulated({"fleet": {"replicas": 2}, "load": [load(2, 300, 150, n=4)], "duration_seconds": 420}, 2.0)
    source = thinned(source, scrape_seconds // 2) if scrape_seconds > 2 else source
    for second in range(60, 420, 40):
        assert {finding["status"] for finding in law(source, second).values()} <= {"kept", "unknown"}
