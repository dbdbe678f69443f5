"""Laying many series on one grid in one step gives what laying each by itself gives."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.model import STALE, Floats, Int64s, Samples
from collectors.observed import Counter
from collectors.observed_layout import Grid, Target
from runbooks.causes.cold import _increases

values = st.sampled_from([0.0, 1.0, 2.5, float("nan"), STALE])
EDGES = (0.1, 1.0, float("inf"))


def series(times: list[int], found: list[float]) -> Samples:
    return Samples({"__name__": "x"}, np.array(times, dtype=np.int64), np.array(found, dtype=np.float64))


@st.composite
def bucket_pieces(draw: st.DrawFn) -> tuple[list[int], dict[float, list[Samples]]]:
    """Scrape times, and for each edge the pieces near the two ends; sometimes a child misses a scrape or a piece."""
    times = sorted(draw(st.sets(st.integers(0, 60), min_size=4, max_size=12)))
    cut = draw(st.integers(1, len(times) - 1))
    children = {}
    for edge in EDGES:
        pieces = []
        for part in (times[:cut], times[cut:]):
            kept = draw(st.sampled_from([part, part, part, part[1:], part[:-1]]))
            if kept:
                pieces.append(series(kept, draw(st.lists(values, min_size=len(kept), max_size=len(kept)))))
        children[edge] = pieces or [series(times, [1.0] * len(times))]
    return times, children


def one_by_one(grid: Grid, children: dict[float, list[Samples]]) -> tuple[Int64s, Floats]:
    laid = np.stack([grid.gauge(children[edge]) for edge in EDGES], axis=1)
    seen = ~np.isnan(laid).all(axis=1)
    return grid.times_ms[seen], laid[seen]


@settings(deadline=None, max_examples=200)
@given(bucket_pieces())
def test_buckets_that_come_together_are_laid_as_if_one_by_one(
    drawn: tuple[list[int], dict[float, list[Samples]]],
) -> None:
    times, children = drawn
    grid = Grid(Target({}, own=[Samples({"__name__": "up"}, np.array(times, dtype=np.int64), np.ones(len(times)))]))
    edges, found_times, found = grid.buckets(children)
    wanted_times, wanted = one_by_one(grid, children)
    assert edges.tolist() == list(EDGES)
    np.testing.assert_array_equal(found_times, wanted_times)
    np.testing.assert_array_equal(found, wanted)


@settings(deadline=None, max_examples=100)
@given(
    st.sets(st.integers(0, 100), max_size=20).map(sorted),
    st.lists(st.integers(-20, 120), min_size=2, max_size=10).map(lambda found: sorted(found, reverse=True)),
)
def test_increases_between_many_instants_are_those_of_the_counter(times: list[int], instants: list[int]) -> None:
    total = np.cumsum(np.arange(len(times), dtype=np.float64) % 3)
    counter = Counter(np.array(times, dtype=np.int64), total, total)
    increase = _increases(counter, np.array(instants, dtype=np.int64))
    for start in range(len(instants)):
        for end in range(start + 1):
            np.testing.assert_equal(increase(start, end), counter.increase(instants[start], instants[end]))
