"""Few queries for many signals; windows that four scrapes fill at any interval."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.dialect import UnknownSignal, load_dialect
from collectors.identity import fleet_tree
from collectors.promql_text import selectors_of
from collectors.settings import Settings
from collectors.signals import (
    Part,
    duration_text,
    panel_window_ms,
    plan_for,
    rate_window_ms,
    scrape_interval_seconds,
)
from tests.collectors.test_identity import replica, target, tree

VLLM = load_dialect()


@pytest.mark.parametrize(
    ("interval", "window"),
    [(2, "30s"), (5, "1m"), (15, "1m"), (30, "2m"), (60, "4m"), (None, "1m"), (10, "1m"), (20, "80s")],
)
def test_rate_windows_follow_the_scrape_interval(interval, window):
    assert duration_text(rate_window_ms(interval)) == window


@settings(deadline=None, max_examples=60)
@given(st.sampled_from([1, 2, 5, 10, 15, 30, 60, 120]), st.integers(1_000, 3_600_000))
def test_panel_windows_are_whole_steps_and_hold_four_scrapes(interval, step_ms):
    window = panel_window_ms(interval, step_ms)
    assert window % step_ms == 0
    assert window >= max(step_ms, 4000 * min(interval, 7))
    assert window >= rate_window_ms(interval)


@settings(deadline=None, max_examples=150)
@given(
    st.sampled_from([2, 5, 15, 30, 60]), st.floats(0, 0.999), st.booleans(), st.integers(0, 3), st.integers(130, 2000)
)
def test_the_scrape_interval_is_told_from_counts(interval, phase, closed, missed, age):
    """Counts as left-open (3.x) or closed (2.x) windows give them; a few scrapes missed on one of two targets; data that begin late."""
    behind = [phase * interval + k * interval for k in range(1000) if phase * interval + k * interval <= age]
    counts = {}
    for span in (60, 120, 300):
        full = sum(1 for t in behind if t < span or (closed and t == span))
        counts[span] = [full, max(full - missed, 0)]
    told = scrape_interval_seconds(counts)
    assert told == interval or (interval == 60 and age < 300 and told >= 60)


@settings(deadline=None, max_examples=100)
@given(st.sampled_from([2, 5, 15, 30]), st.integers(0, 59))
def test_data_younger_than_the_shortest_span_tell_no_interval(interval, age):
    """12 s after the first of scrapes every 5 s, three samples in a minute would read as one every 20 or 30 s."""
    count = age // interval + 1
    assert scrape_interval_seconds({60: [count], 120: [count], 300: [count]}) is None


def test_without_samples_there_is_no_interval():
    assert scrape_interval_seconds({60: [], 300: []}) is None
    assert scrape_interval_seconds({60: [1], 300: [1]}) is None


def test_a_uniform_fleet_is_asked_plainly():
    plan = plan_for(tree(replica("a:8000"), [target("a:8000")]))
    assert (
        plan.buckets("time_to_first_token", "1m") == "sum by (le) (rate(vllm:time_to_first_token_seconds_bucket[1m]))"
    )
    assert plan.spellings("inter_token_latency") == ("vllm:inter_token_latency_seconds",)
    assert plan.spellings("kv_cache_usage") == ("vllm:kv_cache_usage_perc",)
    assert plan.spellings("admission_rejections") == ()
    assert plan.buckets("request_preemptions", "1m") == ""
    with pytest.raises(UnknownSignal):
        plan.spellings("queue_depth")


def test_every_generated_query_is_promql_and_carries_the_exclusions():
    router = [
        s for s in replica("router:80", job="router", server="http://a:8000") if s.family == "vllm:num_requests_running"
    ]
    twice = [s for x in ("0", "1") for s in replica("a:8000", prometheus_replica=x)]
    plan = plan_for(fleet_tree([*twice, *router], [target("a:8000")], Settings(), dialect=VLLM))
    queries = [
        plan.gauges(("requests_running", "requests_waiting", "kv_cache_usage")),
        plan.chain(
            [Part("finished", "requests_finished", keep=("finished_reason",)), Part("x", "prompt_tokens")],
            "1m",
            ("instance",),
        ),
        plan.buckets("time_to_first_token", "1m"),
        plan.layouts(("time_to_first_token",)),
    ]
    for query in queries:
        for selector in selectors_of(query):
            assert all(
                any(m.label == "server" and m.value == "" for m in branch) for branch in selector.alternatives
            ), query
    assert "max by (instance, engine, model_name, finished_reason)" in queries[1]


def test_durations_are_promql():
    assert [duration_text(ms) for ms in (3_600_000, 60_000, 90_000, 1_500)] == ["1h", "1m", "90s", "1500ms"]
