"""One fetch per diagnosis: what is found, what is mended, and how few queries it takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.model import STALE, Samples
from collectors.observations import observe
from collectors.observed import Counter, Observations
from collectors.observed_counters import mended
from collectors.settings import Identity, Settings
from tests.runbooks.recorded_source import RecordedSource

TIMES = np.arange(0, 100_000, 5_000, dtype=np.int64) + 1_700_000_000_000


def series(name: str, values: Sequence[float], start: int = 0, **labels: str) -> Samples:
    """A series from the given scrape on, of target a:1 unless told otherwise."""
    own = {"__name__": name, "job": "vllm", "instance": "a:1", **labels}
    return Samples(own, TIMES[start : start + len(values)], np.array(values, dtype=float))


def engine(instance: str = "a:1", number: str = "0", **labels: str) -> list[Samples]:
    """The least that makes a target a vLLM replica."""
    count = len(TIMES)
    where = {"instance": instance, "engine": number, "model_name": "m", **labels}
    outside = {"instance": instance, **labels}
    return [
        series("vllm:num_requests_running", np.arange(count) % 3, **where),
        series("vllm:num_requests_waiting", np.zeros(count), **where),
        series("vllm:kv_cache_usage_perc", np.linspace(0, 0.5, count), **where),
        series("vllm:generation_tokens_total", np.arange(count) * 10.0, **where),
        series("up", np.ones(count), **outside),
        series("process_start_time_seconds", np.full(count, 1_699_999_000.0), **outside),
    ]


def seen(samples: Sequence[Samples], config: Settings | None = None) -> Observations:
    return observe(RecordedSource(list(samples)), int(TIMES[-1]), config or Settings())


def test_a_replica_is_found_with_its_gauges_on_its_scrape_times() -> None:
    observed = seen(engine())
    (replica,) = observed.replicas
    assert (replica.instance, replica.interval_ms, observed.interval_ms) == ("a:1", 5000, 5000)
    assert replica.ranks[0].gauge("requests_running", int(TIMES[0]) - 1, int(TIMES[2])).tolist() == [0, 1, 2]
    assert replica.ranks[0].rate("generation_tokens", int(TIMES[0]), int(TIMES[-1])) == pytest.approx(2.0)


@pytest.mark.parametrize("prefix", ["vllm:", "ray_vllm:", "ray_vllm_", "kserve_vllm:", "vllm_"])
def test_republished_names_resolve_to_the_same_signals(prefix: str) -> None:
    renamed = [
        Samples({**s.labels, "__name__": s.labels["__name__"].replace("vllm:", prefix)}, s.times_ms, s.values)
        for s in engine()
    ]
    assert set(seen(renamed).replicas[0].ranks[0].gauges) == {"requests_running", "requests_waiting", "kv_cache_usage"}


def test_the_old_name_of_a_signal_serves_where_the_new_one_is_absent_and_is_never_added_to_it() -> None:
    old = series("vllm:gpu_cache_usage_perc", np.full(len(TIMES), 0.9), engine="0", model_name="m")
    without_new = [s for s in engine() if "kv_cache" not in s.labels["__name__"]]
    assert seen([*without_new, old]).replicas[0].ranks[0].last("kv_cache_usage", int(TIMES[-1])) == 0.9
    assert seen([*engine(), old]).replicas[0].ranks[0].last("kv_cache_usage", int(TIMES[-1])) == 0.5


def test_ranks_are_ordered_by_number() -> None:
    observed = seen([s for number in ("10", "2", "0") for s in engine(number=number)][:])
    assert [rank.engine for rank in observed.replicas[0].ranks] == ["0", "2", "10"]


def test_a_target_that_was_down_all_the_time_is_kept() -> None:
    observed = seen([*engine(), series("up", np.zeros(len(TIMES)), instance="b:1")])
    assert [r.instance for r in observed.replicas] == ["a:1", "b:1"]
    assert observed.replicas[1].ranks == ()


def test_targets_of_other_jobs_are_left_alone() -> None:
    other = Samples({"__name__": "up", "job": "node", "instance": "n:9"}, TIMES, np.ones(len(TIMES)))
    assert [r.instance for r in seen([*engine(), other]).replicas] == ["a:1"]


def test_one_process_under_two_jobs_is_one_replica_and_two_processes_are_two() -> None:
    twice = seen([*engine(), *engine(job="again")])
    assert len(twice.replicas) == 1
    assert len(twice.replicas[0].duplicates) == 1
    other_start = [
        Samples(s.labels, s.times_ms, s.values + 77) if s.labels["__name__"] == "process_start_time_seconds" else s
        for s in engine(cluster="eu")
    ]
    names = [r.instance for r in seen([*engine(cluster="us"), *other_start]).replicas]
    assert len(set(names)) == 2
    assert all(name.startswith("a:1 (") for name in names)


def test_identity_labels_name_the_replica() -> None:
    config = Settings(identity=Identity(replica=("namespace", "pod")))
    observed = seen(engine(namespace="prod", pod="vllm-7"), config)
    assert observed.replicas[0].instance == "prod/vllm-7"
    assert observed.replicas[0].ranks[0].instance == "prod/vllm-7"


def test_a_source_without_vllm_has_no_replicas() -> None:
    assert (
        seen([Samples({"__name__": "up", "job": "node", "instance": "n"}, TIMES, np.ones(len(TIMES)))]).replicas == ()
    )


def test_a_counter_born_above_zero_counts_from_zero() -> None:
    late = series("http_requests_total", [40.0, 50.0], start=10, handler="/v1/completions", method="POST", status="4xx")
    (http,) = seen([*engine(), late]).replicas[0].http
    assert http.counter.born_ms == TIMES[10]
    assert http.counter.increase(int(TIMES[0]), int(TIMES[-1])) == 50.0


def test_the_first_sample_of_the_window_is_history() -> None:
    old = series("http_requests_total", [40.0, 50.0], handler="/v1/completions", method="POST", status="2xx")
    assert seen([*engine(), old]).replicas[0].http[0].counter.increase(int(TIMES[0]), int(TIMES[-1])) == 10.0


def test_staleness_markers_are_gaps_not_values() -> None:
    values = np.arange(len(TIMES), dtype=float)
    values[5] = STALE
    observed = seen([*engine()[1:], series("vllm:num_requests_running", values, engine="0", model_name="m")])
    assert np.isnan(observed.replicas[0].ranks[0].gauges["requests_running"][5])


def test_restarts_are_changes_of_the_start_time_and_going_back_is_something_else() -> None:
    def with_starts(starts: np.ndarray) -> Observations:  # type: ignore[type-arg]
        return seen([*engine()[:-1], series("process_start_time_seconds", starts)])

    once = np.where(np.arange(len(TIMES)) < 7, 1_699_999_000.0, 1_700_000_030.0)
    assert with_starts(once).replicas[0].restarts_ms == (int(TIMES[7]),)
    assert not with_starts(once).replicas[0].start_times_alternate
    turns = np.where(np.arange(len(TIMES)) % 2 == 0, 1_699_999_000.0, 1_699_999_500.0)
    assert with_starts(turns).replicas[0].start_times_alternate


@pytest.mark.parametrize("replicas", [1, 12])
def test_the_number_of_queries_does_not_grow_with_the_fleet(replicas: int) -> None:
    source = RecordedSource([s for number in range(replicas) for s in engine(instance=f"r{number}:1")])
    observed = observe(source, int(TIMES[-1]), Settings())
    assert len(observed.replicas) == replicas
    assert source.queries == observed.query_count <= 8


@given(
    st.lists(st.floats(0, 1e6, allow_nan=False), min_size=2, max_size=30),
    st.lists(st.booleans(), min_size=30, max_size=30),
    st.sets(st.integers(1, 29), max_size=4),
)
@settings(deadline=None, max_examples=150)
def test_the_running_total_is_the_sum_of_what_was_counted(
    steps: list[float], missing: list[bool], restarts: set[int]
) -> None:
    """Property: whatever is lost between the last scrape and a restart aside, increase = sum of the increments seen."""
    count = len(steps)
    times = np.arange(count, dtype=np.int64) * 5000 + 1_700_000_000_000
    values = np.empty(count)
    running = 100.0
    for index, step in enumerate(steps):
        running = step if index in restarts else running + step
        values[index] = running
    scraped = np.where(np.array(missing[:count]), np.nan, values)
    counter = mended(times, scraped, np.ones(count, dtype=bool), np.full(count, np.nan))
    seen_values = scraped[~np.isnan(scraped)]
    expected = sum(now - was if now >= was else now for was, now in zip(seen_values[:-1], seen_values[1:], strict=True))
    born = float(seen_values[0]) if len(seen_values) and np.isnan(scraped[0]) else 0.0
    assert (np.diff(counter.total) >= 0).all()
    assert counter.total[-1] == pytest.approx(expected + born)


def test_a_bucket_with_timestamps_of_its_own_harms_nothing() -> None:
    bucket = "vllm:time_to_first_token_seconds_bucket"
    where = {"engine": "0", "model_name": "m"}
    together = [series(bucket, np.arange(len(TIMES)) * 1.0, le=le, **where) for le in ("0.1", "+Inf")]
    late = Samples({**together[0].labels, "le": "0.5"}, TIMES + 700, together[0].values)
    odd = Samples({**together[0].labels, "le": "fast"}, TIMES, together[0].values)
    outer = [series(bucket.replace("bucket", end), np.arange(len(TIMES)) * 1.0, **where) for end in ("sum", "count")]
    histogram = seen([*engine(), *outer, *together, late, odd]).replicas[0].ranks[0].histograms["time_to_first_token"]
    assert histogram.edges.tolist() == [0.1, 0.5, np.inf]
    on_time = np.isin(histogram.bucket_times_ms, TIMES)
    assert not np.isnan(histogram.buckets[on_time][:, [0, 2]]).any()
    assert np.isnan(histogram.buckets[on_time][:, 1]).all()


def test_rates_and_increases_need_two_scrapes() -> None:
    counter = Counter(TIMES[:1], np.array([5.0]), np.array([0.0]))
    assert np.isnan(counter.increase(0, int(TIMES[0])))
    assert np.isnan(counter.rate(0, int(TIMES[0])))
    assert counter.last_rise_ms(int(TIMES[0])) is None
