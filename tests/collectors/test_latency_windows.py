"""One page, one window: what the Latency page counts adds up, says where it counts another stretch, and compares like with like."""

import numpy as np
import pytest

from collectors.capsule import CapsuleSource, read_capsule
from collectors.capsule.convert import import_file
from collectors.latency import DAY_MS, HOUR_MS, WEEK_MS, latency_picture
from collectors.model import Samples, Window
from collectors.prometheus import RemoteSource
from collectors.scope import ScopedSource
from collectors.settings import Settings, SourceSettings
from tests.collectors.fleet_data import START_MS, PretendReplica, embedded, pretend, read_recording
from tests.collectors.store.real_prometheus import RealPrometheus, binary_or_skip
from tests.collectors.store.remote_write import send
from tests.shared_data import ROOT

RECORDING = ROOT / "tests" / "data" / "recordings" / "b_waiting_growth.json.gz"


def seen_over(length_ms, *replicas, seconds, chosen="time_to_first_token", step_ms=15_000):
    at = START_MS + seconds * 1000
    source = embedded(pretend(*(PretendReplica(seconds=seconds, **told) for told in replicas)), at)
    return latency_picture(source, Window(at - length_ms, at, step_ms), Settings(), chosen)


SLOW = {"instance": "slow:8000", "latencies": (6.0, 0.3), "first_tokens": 1.0, "interval_seconds": 15}
FAST = {"instance": "fast:8000", "latencies": (0.05,), "first_tokens": 9.0, "interval_seconds": 15}


@pytest.mark.parametrize("length_ms", [300_000, 900_000, HOUR_MS])
@pytest.mark.parametrize("chosen", ["time_to_first_token", "e2e_request_latency"])
def test_within_an_hour_everything_counts_the_same_window(length_ms, chosen):
    seen = seen_over(length_ms, SLOW, FAST, seconds=2 * 3600, chosen=chosen)
    ranking = seen.ranking
    assert seen.whole_ms == ranking.over_ms == length_ms
    counts = [replica.observations for replica in ranking.replicas]
    assert ranking.fleet_observations == sum(counts)
    assert counts == pytest.approx([length_ms / 1000, 9 * length_ms / 1000], rel=1e-6)
    for told in (ranking.fleet_p50, ranking.fleet_p99, *seen.whole):
        assert told.interval.observations == pytest.approx(sum(counts))
    assert seen.whole[0].interval.text() == ranking.fleet_p50.interval.text()
    assert seen.whole[2].interval == ranking.fleet_p99.interval
    if seen.slo is not None:
        assert seen.slo.observations == pytest.approx(sum(counts))
        assert seen.slo.share.value == pytest.approx(0.95)


def test_beyond_an_hour_the_ranking_says_that_it_counts_less():
    seen = seen_over(6 * HOUR_MS, SLOW, FAST, seconds=7 * 3600, step_ms=120_000)
    assert (seen.whole_ms, seen.ranking.over_ms) == (6 * HOUR_MS, HOUR_MS)
    assert seen.ranking.fleet_observations == pytest.approx(10 * 3600, rel=1e-6)
    assert seen.whole[0].interval.observations == pytest.approx(10 * 6 * 3600, rel=0.02)
    assert seen.slo.observations == pytest.approx(seen.whole[0].interval.observations)


def test_replicas_with_different_buckets_are_counted_on_the_bounds_they_share():
    other = {**FAST, "bounds": (0.1, 2.5, 10.0), "instance": "other:8000"}
    seen = seen_over(900_000, SLOW, other, seconds=3600)
    assert seen.ranking.fleet_observations == pytest.approx(9000, rel=1e-6)
    assert "mixed_layouts" in seen.whole[2].interval.flags
    assert seen.slo.share.value == pytest.approx(0.95)


def test_a_replica_that_joined_within_the_window_counts_from_then_on():
    late = {**FAST, "from_seconds": 3600 - 300}
    seen = seen_over(900_000, SLOW, late, seconds=3600)
    counts = {replica.key: replica.observations for replica in seen.ranking.replicas}
    assert counts["fast:8000"] == pytest.approx(9 * 300, rel=0.06)
    assert seen.ranking.fleet_observations == pytest.approx(sum(counts.values()))


def test_an_earlier_window_that_was_never_recorded_says_since_when_there_are_samples(tmp_path):
    import_file(RECORDING, tmp_path / "short.capsule")
    capsule = read_capsule(tmp_path / "short.capsule")
    start, end = capsule.manifest.window.start_ms, capsule.manifest.window.end_ms
    seen = latency_picture(CapsuleSource(capsule, end), Window(start, end, 2_000), Settings())
    for earlier in seen.earlier:
        assert {told.status for told in earlier.quantiles} == {"no_data"}
        assert "samples begin at 2026-11-30T02:36" in earlier.quantiles[0].note


def test_an_earlier_window_that_is_only_partly_recorded_says_so():
    seen = seen_over(900_000, SLOW, FAST, seconds=3600 + 400)
    hour, day, _ = seen.earlier
    assert hour.quantiles[0].interval.observations == pytest.approx(10 * 400, rel=0.06)
    assert "samples begin at" in hour.note
    assert "samples begin at" in day.quantiles[0].note


def moved(samples, shift_ms, factor=1):
    """The same samples some time ago; with a factor, counters grew that much faster."""
    return [
        Samples({**one.labels, "recording": "this"}, one.times_ms - shift_ms, one.values * factor) for one in samples
    ]


@pytest.mark.real
def test_the_same_window_earlier_as_a_real_prometheus_counts_it():
    samples, start, end = read_recording(RECORDING)
    at = end - 5_137
    window = Window(start + 20_000, at, 2_000)
    seconds = (at - (start + 20_000)) // 2_000 * 2  # the window that is looked at ends on its last step
    with RealPrometheus(binary_or_skip("prometheus")) as server:
        for shift, factor in ((WEEK_MS, 3), (HOUR_MS, 2), (0, 1)):  # nothing was kept from a day ago
            send(server.url, moved(samples, shift, factor))
        source = ScopedSource(
            RemoteSource.from_settings(SourceSettings(name="real", url=server.url)), {"recording": "this"}
        )
        seen = latency_picture(source, window, Settings())
        name = "vllm:time_to_first_token_seconds_bucket"

        def by_hand(q, offset):
            told = source.instant(f"histogram_quantile({q}, sum by (le) (rate({name}[{seconds}s]{offset})))", at)
            return float(told.values[0])

        def count(offset):
            text = name.replace("_bucket", "_count")
            return float(source.instant(f"sum(increase({text}[{seconds}s]{offset}))", at).values[0])

        for earlier, offset in ((seen.earlier[0], " offset 1h"), (seen.earlier[2], " offset 1w")):
            for told, q in zip(earlier.quantiles, (0.5, 0.95, 0.99), strict=True):
                assert told.interval.estimate == pytest.approx(by_hand(q, offset), rel=1e-9)
                assert told.interval.observations == pytest.approx(count(offset), rel=1e-9)
        for told, q in zip(seen.whole, (0.5, 0.95, 0.99), strict=True):
            assert told.interval.estimate == pytest.approx(by_hand(q, ""), rel=1e-9)
            assert told.interval.observations == pytest.approx(count(""), rel=1e-9)
        assert np.isclose(count(" offset 1h"), 2 * count(""))
        day = seen.earlier[1]
        assert {told.status for told in day.quantiles} == {"no_data"}
        assert day.quantiles[0].note == "no samples from then"
        assert day.shift_ms == DAY_MS
