"""The same numbers as a real Prometheus gives, on recordings of a real engine, at every scrape interval."""

import math

import numpy as np
import pytest

from collectors.asking import Answers
from collectors.discovery import discover
from collectors.fleet import fleet_picture
from collectors.histograms import merged_histogram
from collectors.latency import SIGNALS, latency_picture
from collectors.model import Window
from collectors.prometheus import RemoteSource
from collectors.settings import Settings, SourceSettings
from collectors.signals import duration_text
from tests.collectors.fleet_data import embedded, read_recording, thinned
from tests.collectors.store.real_prometheus import RealPrometheus, binary_or_skip
from tests.collectors.store.remote_write import send
from tests.shared_data import ROOT, shared_files

pytestmark = pytest.mark.real
QUANTILES = (0.5, 0.9, 0.95, 0.99)
COPIES = ROOT / "tests" / "data" / "recordings"
RECORDINGS = shared_files("recordings", "vllm-0.11.0-cpu", pattern="*.json.gz") or sorted(COPIES.glob("*.json.gz"))
CASES = [
    path
    for path in shared_files("cases", "queue", pattern="*.json.gz")
    if path.name.startswith(("overload", "rank", "crash"))
]


@pytest.fixture(scope="module")
def server():
    """One server for all; each recording's series carry its name, so that they do not mix."""
    with RealPrometheus(binary_or_skip("prometheus")) as prometheus:
        yield prometheus


def remote(server, samples, scope):
    from collectors.scope import ScopedSource

    send(server.url, [type(one)({**one.labels, "recording": scope}, one.times_ms, one.values) for one in samples])
    return ScopedSource(RemoteSource.from_settings(SourceSettings(name="real", url=server.url)), {"recording": scope})


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda p: p.name.split(".")[0])
def test_estimates_equal_histogram_quantile(path):
    samples, start, end = read_recording(path)
    with RealPrometheus(binary_or_skip("prometheus")) as server:
        source = remote(server, samples, "this")
        window = Window(start + 40_000, end, 5_000)
        answers = Answers(source)
        plan = discover(answers, Settings(), end).plan()
        compared = 0
        for signal in SIGNALS:
            for rate_ms in (30_000, 60_000):
                promql = plan.buckets(signal, duration_text(rate_ms))
                answers._answers[signal] = source.range(promql, window)
                series = merged_histogram(answers, signal, signal, plan, window, rate_ms).quantiles(QUANTILES)
                for row, q in enumerate(QUANTILES):
                    told = source.range(f"histogram_quantile({q}, {promql})", window)
                    theirs = told.values[0] if len(told) else np.full(window.steps, np.nan)
                    ours = series.estimate[row]
                    assert (np.isnan(ours) == np.isnan(theirs)).all(), (signal, q)
                    sound = ~np.isnan(ours) & ~series.flags["non_monotone"][row]
                    np.testing.assert_allclose(ours[sound], theirs[sound], rtol=1e-9, err_msg=f"{signal} q={q}")
                    assert (series.lo[row][sound] <= theirs[sound] * (1 + 1e-12)).all()
                    assert (theirs[sound] <= series.hi[row][sound] * (1 + 1e-12)).all()
                    compared += int(sound.sum())
        assert compared > 100


def numbers(picture):
    """The figures that two sources must agree on."""
    totals = picture.totals
    told = {"scrape": picture.scrape_interval_seconds, "window": picture.rate_window_ms, "engine": picture.engine_text}
    for name in (
        "waiting",
        "running",
        "first_tokens",
        "finished",
        "generation_tokens",
        "arrivals",
        "preemptions",
        "worst_wait",
        "capacity_requests",
    ):
        told[name] = getattr(totals, name).value
    for figure in (*totals.time_to_first_token, totals.inter_token_latency_p99):
        told[f"p{figure.interval.q if figure.interval else ''}"] = figure.interval.estimate if figure.interval else None
    for row in picture.replicas:
        told[row.key] = row.scraped
        for name in (
            "waiting",
            "running",
            "kv_cache_usage",
            "wait",
            "first_tokens",
            "generation_tokens",
            "prefix_hit_ratio",
            "seats",
        ):
            told[row.key, name] = getattr(row, name).value
        told[row.key, "p99"] = (
            row.time_to_first_token_p99.interval.estimate if row.time_to_first_token_p99.interval else None
        )
    return told


def same(left, right):
    assert left.keys() == right.keys()
    for name, value in left.items():
        if isinstance(value, float) and isinstance(right[name], float):
            assert math.isclose(value, right[name], rel_tol=1e-9, abs_tol=1e-9), (name, value, right[name])
        else:
            assert value == right[name], (name, value, right[name])


@pytest.mark.parametrize("path", RECORDINGS + CASES, ids=lambda p: p.name.split(".")[0])
@pytest.mark.parametrize("every", [1, 3, 15])
def test_a_picture_is_the_same_from_prometheus_and_from_the_store(path, every):
    samples, start, end = read_recording(path)
    thin = thinned(samples, every)
    interval = round(float(np.median(np.diff(next(s.times_ms for s in thin if s.labels["__name__"] == "up")))) / 1000)
    if interval > 60:
        pytest.skip(f"thinned to {interval} s: beyond the intervals that must work")
    at = (
        start + (end - start) * 2 // 3 // 1000 * 1000 + 137
    )  # off every scrape, where 2.x and 3.x windows hold the same samples
    window = Window(at - 600_000, at, 10_000)
    with RealPrometheus(binary_or_skip("prometheus")) as server:
        source = remote(server, thin, "this")
        real = fleet_picture(source, window, Settings())
        latency = latency_picture(source, window, Settings(), earlier_ms=(60_000,))
    own = fleet_picture(embedded(thin, at, semantics="2.x"), window, Settings())
    same(numbers(own), numbers(real))
    assert len(real.asked) <= 12
    if at - start > 5_000 * interval:  # three samples are too few to tell an interval by
        assert real.scrape_interval_seconds == pytest.approx(interval, rel=0.35)
    assert latency.ranking.fleet_p99.status in ("value", "no_data")
    assert not real.warnings


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda p: p.name.split(".")[0])
def test_totals_add_up_to_what_the_recording_counts(path):
    """Fleet rates times the window, summed over the recording, against the counters' own growth."""
    samples, start, end = read_recording(path)
    window = Window(start, end, 2_000)
    seen = fleet_picture(embedded(samples, end), window, Settings())
    stride = seen.flow.rate_window_ms // window.step_ms
    line = seen.flow.line("completions").values[::-1][::stride]
    told = np.nansum(line) * seen.flow.rate_window_ms / 1000
    covered = (
        end - np.count_nonzero(~np.isnan(line)) * seen.flow.rate_window_ms
    )  # rates begin with the first whole window
    grown = 0.0
    for one in samples:
        if one.labels["__name__"] == "vllm:request_success_total":
            steps = np.diff(one.values)[one.times_ms[1:] > covered]
            grown += float(np.where(steps < 0, one.values[1:][one.times_ms[1:] > covered], steps).sum())
    assert told == pytest.approx(grown, rel=0.1, abs=3)
