"""Intervals hold the true quantile; estimates are Prometheus's; every doubt is flagged."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.dialect import load_dialect
from collectors.quantile_values import QuantileInterval
from collectors.quantiles import (
    bucket_rates,
    bucket_rows,
    common_bounds,
    mean_of_quantiles,
    merge,
    quantile_series,
    share_under,
    snap_threshold,
)

INF = math.inf
QUANTILES = (0.0, 0.01, 0.5, 0.9, 0.95, 0.99, 1.0)
TTFT = load_dialect().signal("time_to_first_token", "0.11.0")[0].buckets
GAP = load_dialect().signal("inter_token_latency", "0.11.0")[0].buckets


def cumulative_counts(latencies, bounds):
    """What a histogram with these bounds counts, +Inf last."""
    return np.array([np.sum(latencies <= bound) for bound in bounds], dtype=float)


def sample_quantile(latencies, q):
    """The smallest observation whose rank is at least q * n."""
    ordered = np.sort(latencies)
    return ordered[max(math.ceil(q * len(ordered) - 1e-9 * len(ordered)), 1) - 1]


def classic_quantile(q, bounds, counts):
    """An independent, scalar reading of Prometheus's documented interpolation."""
    counts = np.maximum.accumulate(counts)
    if counts[-1] == 0:
        return math.nan
    rank = q * counts[-1]
    b = next((i for i in range(len(bounds) - 1) if counts[i] >= rank), len(bounds) - 1)
    if b == len(bounds) - 1:
        return bounds[-2]
    if b == 0 and bounds[0] <= 0:
        return bounds[0]
    start, before = (bounds[b - 1], counts[b - 1]) if b else (0.0, 0.0)
    inside = counts[b] - before
    return start + (bounds[b] - start) * ((rank - before) / inside) if inside else math.nan


layouts = st.one_of(
    st.sampled_from([TTFT, GAP]),
    st.lists(st.floats(0.001, 100), min_size=1, max_size=12, unique=True).map(lambda bounds: tuple(sorted(bounds))),
)
latencies_strategy = st.lists(st.floats(0.0001, 300), min_size=1, max_size=60)


@st.composite
def fleets(draw):
    """Replicas with their own layouts, each a list of scrape-to-scrape batches; some reset, some join late."""
    first = draw(layouts)
    replicas = []
    for _ in range(draw(st.integers(1, 5))):
        layout = first if draw(st.booleans()) else draw(layouts)
        batches = draw(st.lists(st.lists(st.floats(0.0001, 300), max_size=15), min_size=1, max_size=5))
        resets = draw(st.sets(st.integers(1, 4)))
        replicas.append((layout, batches, resets))
    return replicas


def increase(layout, batches, resets):
    """Reset-corrected increase of the cumulative counters that these batches make when scraped after each."""
    bounds = np.array([*layout, INF])
    counter, last, total = np.zeros(len(bounds)), np.zeros(len(bounds)), np.zeros(len(bounds))
    for index, batch in enumerate(batches):
        if index in resets:
            counter = np.zeros(len(bounds))
        counter = counter + cumulative_counts(np.array(batch), bounds)
        total += counter if index in resets else counter - last
        last = counter
    return bounds, total


@settings(deadline=None, max_examples=150)
@given(fleets())
def test_the_true_sample_quantile_lies_in_the_interval(fleet):
    parts = []
    for layout, batches, resets in fleet:
        bounds, counts = increase(layout, batches, resets)
        parts.append((bounds, counts[:, None] / 60.0))
    observed = np.array([value for _, batches, _ in fleet for batch in batches for value in batch])
    bounds, merged, mixed = merge(parts)
    series = quantile_series(bounds, merged, 60.0, QUANTILES)
    if len(bounds) < 2:
        assert mixed  # no finite bound in common: nothing can be said
        assert series.at(0.5) is None
        return
    for q in QUANTILES:
        interval = series.at(q)
        if not len(observed):
            assert interval is None
            continue
        truth = sample_quantile(observed, q)
        assert interval.lo <= truth <= interval.hi, (q, truth, interval)
        assert interval.observations == pytest.approx(len(observed))
        if q > 0:
            assert interval.lo - 1e-12 <= interval.estimate
            assert interval.estimate <= interval.hi
    assert mixed == (len({tuple(layout) for layout, _, _ in fleet}) > 1)


@settings(deadline=None, max_examples=150)
@given(layouts, st.lists(latencies_strategy, min_size=1, max_size=6), st.sampled_from(QUANTILES))
def test_estimates_are_the_classic_interpolation(layout, steps, q):
    bounds = np.array([*layout, INF])
    table = np.stack([cumulative_counts(np.array(step), bounds) for step in steps], axis=1)
    series = quantile_series(bounds, table, 1.0, [q])
    for j in range(len(steps)):
        expected = classic_quantile(q, bounds, table[:, j])
        if math.isnan(expected):
            assert math.isnan(series.estimate[0, j]) or q == 0
        else:
            assert series.estimate[0, j] == pytest.approx(expected, rel=1e-12)


def test_flags_name_every_doubt():
    bounds = np.array([0.3, 0.5, 1.0, INF])
    table = np.array([[1000.0, 0, 0, 4], [1000, 1, 0, 5], [1000, 900, 400, 3], [1000, 1000, 1000, 6]])
    series = quantile_series(bounds, table, 1.0, [0.5, 0.99])
    assert series.at(0.5, 0).flags == ("first_bucket",)
    assert series.at(0.5, 0).text("s") == "<= 0.3 s"
    assert series.at(0.5, 1).flags == ()
    assert series.at(0.5, 1).text("s") == "0.5-1 s"
    assert series.at(0.99, 1).flags == ("last_bucket",)
    assert series.at(0.99, 2).text("s") == "> 1 s"
    assert series.at(0.99, 2).estimate == 1.0
    assert set(series.at(0.99, 3).flags) == {"few_observations", "non_monotone", "last_bucket"}
    assert series.at(0.99, 3).repaired_share == pytest.approx(2 / 6)


def test_a_rank_on_an_edge_is_not_lost_to_float_noise():
    bounds = np.array([1.0, 2.0, INF])
    exact = np.array([[95.0], [100.0], [100.0]])
    noisy = exact * np.array([[1 - 1e-13], [1.0], [1.0]])
    assert quantile_series(bounds, exact, 1.0, [0.95]).at(0.95).lo == 0.0
    assert quantile_series(bounds, noisy, 1.0, [0.95]).at(0.95).lo == 0.0  # the 95th of 100 is at most 1


def test_no_observations_no_samples_and_no_infinity_are_no_quantile():
    bounds = np.array([1.0, INF])
    table = np.array([[0.0, np.nan, 1.0], [0.0, np.nan, np.nan]])
    series = quantile_series(bounds, table, 60.0, [0.5])
    assert [series.at(0.5, j) for j in range(3)] == [None, None, None]
    assert not series.flags["few_observations"].any()
    assert quantile_series(np.array([1.0, 2.0]), np.ones((2, 1)), 1.0, [0.5]).at(0.5) is None
    with pytest.raises(ValueError, match="between 0 and 1"):
        quantile_series(bounds, table, 1.0, [99])


def test_a_bound_that_is_missing_at_some_steps_is_merged_away_there_only():
    bounds = np.array([1.0, 2.0, 4.0, INF])
    table = np.array([[0.0, 0.0], [5.0, np.nan], [10.0, 10.0], [10.0, 10.0]])
    series = quantile_series(bounds, table, 1.0, [0.4])
    assert series.at(0.4, 0).text() == "1-2"
    assert series.at(0.4, 1).text() == "1-4"
    assert series.at(0.4, 1).estimate == pytest.approx(1 + 3 * 0.4)


def test_mixed_layouts_are_merged_on_the_bounds_that_all_have():
    bounds = np.array([0.5, 1.0, 2.0, INF])
    merged = np.array([[3.0], [10.0], [12.0], [12.0]])  # 0.5 and 2.0 come from one replica of two
    series = quantile_series(bounds, merged, 1.0, [0.5], replicas_per_bound=np.array([1.0, 2.0, 1.0, 2.0]))
    assert series.bounds.tolist() == [1.0, INF]
    assert series.at(0.5).text() == "<= 1"
    assert "mixed_layouts" in series.at(0.5).flags
    assert common_bounds(bounds, np.array([[2.0, 1], [2, 2], [2, 2], [2, 2]])).tolist() == [False, True, True, True]


def test_equal_bounds_spelled_differently_are_one():
    labels = [{"le": "1"}, {"le": "1.0"}, {"le": "+Inf"}, {"le": ""}, {"x": "y"}]
    bounds, table = bucket_rows(labels, np.array([[1.0, np.nan], [2.0, 3.0], [4.0, 5.0], [9.0, 9.0], [9.0, 9.0]]))
    assert bounds.tolist() == [1.0, INF]
    assert table.tolist() == [[3.0, 3.0], [4.0, 5.0]]


def test_shares_are_told_at_edges_only():
    bounds = np.array([0.1, 2.5, 5.0, INF])
    assert snap_threshold(bounds, 2.5) == 2.5
    assert snap_threshold(bounds, 3.0) == 2.5  # pessimistic: what counts as inside surely is
    assert snap_threshold(bounds, 0.05) == 0.1
    table = np.array([[1.0, 0.0], [8.0, 0.0], [9.0, 0.0], [10.0, 0.0]])
    share = share_under(bounds, table, 2.5)
    assert share[0] == 0.8
    assert math.isnan(share[1])


def test_heat_map_rates_add_up_and_gaps_stay_gaps():
    rates = bucket_rates(np.array([[1.0, np.nan], [4.0, np.nan], [3.0, np.nan], [10.0, np.nan]]))
    assert rates[:, 0].tolist() == [1.0, 3.0, 0.0, 6.0]
    assert np.isnan(rates[:, 1]).all()


def test_mean_of_quantiles_is_only_a_comparison():
    assert mean_of_quantiles(np.array([1.0, 3.0, np.nan])) == 2.0
    assert mean_of_quantiles(np.array([np.nan])) is None
    assert QuantileInterval(0.99, 80.0, 80.0, INF, 3, ("last_bucket",)).text("s") == "> 80 s"


def test_the_mean_is_the_rate_of_sums_over_the_rate_of_counts():
    series = quantile_series(
        np.array([1.0, INF]), np.array([[2.0, 0.0], [4.0, 0.0]]), 1.0, [0.5], sums=np.array([6.0, 0.0])
    )
    assert series.mean[0] == 1.5
    assert math.isnan(series.mean[1])
