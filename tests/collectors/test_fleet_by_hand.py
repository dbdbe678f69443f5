"""The Fleet page's figures, worked out by hand: PromQL as an engineer would type it, put to a real Prometheus on a real recording."""

import math

import numpy as np
import pytest

from collectors.fleet import fleet_picture
from collectors.model import Window
from collectors.prometheus import RemoteSource
from collectors.scope import ScopedSource
from collectors.settings import Settings, SourceSettings
from tests.collectors.fleet_data import read_recording
from tests.collectors.store.real_prometheus import RealPrometheus, binary_or_skip
from tests.collectors.store.remote_write import send
from tests.shared_data import ROOT, shared_files

pytestmark = pytest.mark.real
COPIES = sorted((ROOT / "tests" / "data" / "recordings").glob("*.json.gz"))
FULL = [p for p in shared_files("cases", "queue", pattern="*.json.gz") if p.name.startswith(("kv_limited", "preempt"))]
REAL = shared_files("recordings", "vllm-0.11.0-cpu", pattern="*.json.gz") or COPIES
RECORDINGS = [*REAL, *FULL]
TTFT = "vllm:time_to_first_token_seconds"


@pytest.fixture(scope="module")
def server():
    with RealPrometheus(binary_or_skip("prometheus")) as prometheus:
        yield prometheus


@pytest.fixture(scope="module")
def hands(server):
    """Each recording is sent once."""
    kept = {}
    return lambda path: kept.get(path) or kept.setdefault(path, Hand(server, path))


class Hand:
    """A recording in a real Prometheus, and a pencil."""

    def __init__(self, server, path):
        self.samples, self.start, self.end = read_recording(path)
        name = path.name.split(".")[0]
        send(
            server.url, [type(one)({**one.labels, "recording": name}, one.times_ms, one.values) for one in self.samples]
        )
        self.source = ScopedSource(
            RemoteSource.from_settings(SourceSettings(name="real", url=server.url)), {"recording": name}
        )

    def one(self, promql, at):
        told = self.source.instant(promql, at)
        return float(told.values[0]) if len(told) else None

    def each(self, promql, at):
        told = self.source.instant(promql, at)
        return {labels["instance"]: value for labels, value in zip(told.labels, told.values.tolist(), strict=True)}


def close(ours, theirs):
    if ours is None or theirs is None or math.isnan(theirs):
        return ours is None and (theirs is None or math.isnan(theirs))
    return math.isclose(ours, theirs, rel_tol=1e-9, abs_tol=1e-9)


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda p: p.name.split(".")[0])
@pytest.mark.parametrize("part", [0.5, 0.9])
def test_the_figures_of_the_fleet_page_are_what_promql_gives(hands, path, part):
    hand = hands(path)
    at = int(hand.start + (hand.end - hand.start) * part) // 1000 * 1000 + 137  # off every scrape
    length = min(600_000, at - hand.start) // 2_000 * 2_000
    seen = fleet_picture(hand.source, Window(at - length, at, 2_000), Settings())
    w = f"[{seen.rate_window_ms // 1000}s]"
    wide_ms = seen.flow.rate_window_ms
    wide = f"[{wide_ms // 1000}s]"
    totals, fleet = seen.totals, seen.fleet
    waiting = hand.one("sum(vllm:num_requests_waiting)", at)
    by_replica = {
        "waiting": hand.each("sum by (instance) (vllm:num_requests_waiting)", at),
        "running": hand.each("sum by (instance) (vllm:num_requests_running)", at),
        "kv_cache_usage": hand.each("max by (instance) (vllm:kv_cache_usage_perc)", at),
        "first_tokens": hand.each(f"sum by (instance) (rate({TTFT}_count{w}))", at),
        "finished": hand.each(f"sum by (instance) (rate(vllm:request_success_total{w}))", at),
        "prompt_tokens": hand.each(f"sum by (instance) (rate(vllm:prompt_tokens_total{w}))", at),
        "generation_tokens": hand.each(f"sum by (instance) (rate(vllm:generation_tokens_total{w}))", at),
        "preemptions": hand.each(f"60 * sum by (instance) (rate(vllm:num_preemptions_total{w}))", at),
        "prefix_hit_ratio": hand.each(
            f"sum by (instance) (rate(vllm:prefix_cache_hits_total{w})) / sum by (instance) (rate(vllm:prefix_cache_queries_total{w}) > 0)",
            at,
        ),
    }
    p99s = hand.each(f"histogram_quantile(0.99, sum by (instance, le) (rate({TTFT}_bucket{w})))", at)
    waits = hand.each(
        f"sum by (instance) (vllm:num_requests_waiting > 0) / (sum by (instance) (rate({TTFT}_count{w})) >= {4.5 / seen.rate_window_ms * 1000})",
        at,
    )
    before = hand.each(f"sum by (instance) (vllm:num_requests_waiting offset {wide_ms // 1000}s)", at)
    for row in seen.replicas:
        if row.scraped != "up":
            continue
        for name, hand_values in by_replica.items():
            assert close(getattr(row, name).value, hand_values.get(row.key)), (row.key, name)
        assert close(row.wait.value, waits.get(row.key))
        p99 = row.time_to_first_token_p99.interval
        assert close(p99 and p99.estimate, p99s.get(row.key))
        moved = (by_replica["waiting"][row.key] - before[row.key]) / (wide_ms / 1000) if row.key in before else None
        if moved is not None and row.arrivals.value is not None:
            assert close(row.arrivals.value, max(by_replica["first_tokens"][row.key] + moved, 0.0))
        if row.drain.kind == "clears":
            assert close(row.drain.seconds, by_replica["waiting"][row.key] / -moved)
        elif row.drain.kind == "never":
            assert row.waiting.value > 0
            assert close(row.drain.excess_per_second, moved)
    assert close(totals.waiting.value, waiting)
    assert close(totals.finished.value, hand.one(f"sum(rate(vllm:request_success_total{wide}))", at))
    assert close(totals.generation_tokens.value, hand.one(f"sum(rate(vllm:generation_tokens_total{wide}))", at))
    if totals.arrivals.value is not None:
        moved = sum(by_replica["waiting"][key] - old for key, old in before.items() if key in by_replica["waiting"])
        first = hand.one(f"sum(rate({TTFT}_count{wide}))", at)
        assert close(totals.arrivals.value, max(first + moved / (wide_ms / 1000), 0.0))
    fleet_p99 = hand.one(f"histogram_quantile(0.99, sum by (le) (rate({TTFT}_bucket{w})))", at)
    told = fleet.time_to_first_token_p99.interval
    assert close(told and told.estimate, fleet_p99)
    if told is not None:
        assert told.lo <= fleet_p99 <= told.hi
        assert close(told.observations, hand.one(f"sum(increase({TTFT}_count{w}))", at))
    assert close(
        fleet.mean_of_p99s.value,
        hand.one(f"avg(histogram_quantile(0.99, sum by (instance, le) (rate({TTFT}_bucket{w}))) >= 0)", at),
    )
    inside = hand.one(f'sum(rate({TTFT}_bucket{{le="2.5"}}{wide})) / (sum(rate({TTFT}_count{wide})) > 0)', at)
    assert close(totals.time_to_first_token_slo.share.value, inside)
    forecast_by_hand(hand, seen, at)


def forecast_by_hand(hand, seen, at):
    """The straight line through a replica's last five minutes of usage, one point per scrape."""
    for row in seen.replicas:
        if row.kv_forecast.kind not in ("fills", "steady") or row.kv_forecast.slope_per_second is None:
            continue
        step = 2_000 * max(round((seen.scrape_interval_seconds or 2) / 2), 1)
        points = [
            (at - back, hand.each("max by (instance) (vllm:kv_cache_usage_perc)", at - back).get(row.key))
            for back in range(0, min(300_000, at - seen.window.start_ms) + 1, step)
        ]
        known = [(t / 1000, v) for t, v in points if v is not None]
        slope = float(np.polyfit([t - at / 1000 for t, _ in known], [v for _, v in known], 1)[0])
        assert row.kv_forecast.slope_per_second == pytest.approx(slope, rel=1e-6, abs=1e-9)
        if row.kv_forecast.kind == "fills":
            assert row.kv_forecast.seconds == pytest.approx((1 - row.kv_cache_usage.value) / slope, rel=1e-6)
        return
