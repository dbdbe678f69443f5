"""Laying many series on one grid in one step gives what laying each by itself gives."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.model import STALE, Floats, Int64s, Samples
from collectors.observed import Counter
from collectors.observed_counters import added, all_mended, mended
from collectors.observed_layout import names_of
from collectors.observed_target import Target, replica_of
from collectors.sheets import Sheet, sheets_of
from collectors.strips import grouped
from runbooks.causes.cold import _increases

values = st.sampled_from([0.0, 1.0, 2.5, float("nan"), STALE])
EDGES = (0.1, 1.0, float("inf"))
COUNT = {"__name__": "vllm:time_to_first_token_seconds_count", "engine": "0"}


def series(times: list[int], found: list[float], **labels: str) -> Samples:
    return Samples(labels, np.array(times, dtype=np.int64), np.array(found, dtype=np.float64))


def sheets(samples: list[Samples]) -> list[Sheet]:
    return sheets_of(grouped(samples), lambda labels: (), "one target")


Pieces = dict[tuple[float, str], list[Samples]]


@st.composite
def bucket_pieces(draw: st.DrawFn) -> tuple[list[int], Pieces]:
    """Scrape times, and for each edge and process the pieces near the two ends; sometimes a child misses a scrape or a piece."""
    times = sorted(draw(st.sets(st.integers(0, 60), min_size=4, max_size=12)))
    cut = draw(st.integers(1, len(times) - 1))
    processes = draw(st.sampled_from([("1",), ("1",), ("1", "2")]))
    children = {}
    for edge in EDGES:
        for process in processes:
            pieces = []
            for part in (times[:cut], times[cut:]):
                kept = draw(st.sampled_from([part, part, part, part[1:], part[:-1], []]))
                if kept:
                    found = draw(st.lists(values, min_size=len(kept), max_size=len(kept)))
                    labels = {"__name__": "vllm:time_to_first_token_seconds_bucket", "le": str(edge), "pid": process}
                    pieces.append(series(kept, found, engine="0", **labels))
            children[edge, process] = pieces
    return times, children


def one_by_one(times: list[int], children: Pieces) -> tuple[list[float], Int64s, Floats]:
    """Every sample put into its cell, the larger one where two processes have a copy."""
    edges = [edge for edge in EDGES if any(children[key] for key in children if key[0] == edge)]
    laid = np.full((len(times), len(edges)), np.nan)
    for (edge, _), pieces in children.items():
        for piece in pieces:
            for at, value in zip(piece.times_ms.tolist(), piece.values.tolist(), strict=True):
                cell = times.index(at), edges.index(edge)
                if value == value and not laid[cell] >= value:
                    laid[cell] = value
    seen = ~np.isnan(laid).all(axis=1)
    return edges, np.array(times, dtype=np.int64)[seen], laid[seen]


@settings(deadline=None, max_examples=200)
@given(bucket_pieces())
def test_buckets_that_come_together_are_laid_as_if_one_by_one(drawn: tuple[list[int], Pieces]) -> None:
    times, children = drawn
    ones = [1.0] * len(times)
    target = Target((), engine=sheets([series(times, ones, **COUNT), series(times, ones, **{**COUNT, "__name__": COUNT["__name__"].replace("count", "sum")})]))  # fmt: skip
    for number in (0, 1):  # the two ends of the window are two answers
        target.buckets += sheets([pieces[number] for pieces in children.values() if len(pieces) > number])
    histogram = replica_of(target, "r", names_of(), 5000).ranks[0].histograms["time_to_first_token"]
    edges, wanted_times, wanted = one_by_one(times, children)
    assert histogram.edges.tolist() == edges
    if edges:
        np.testing.assert_array_equal(histogram.bucket_times_ms, wanted_times)
        np.testing.assert_array_equal(histogram.buckets, wanted)


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_counters_mended_together_are_mended_as_each_by_itself(data: st.DataObject) -> None:
    scrapes, count = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 5))
    cell = st.one_of(st.sampled_from([0.0, float("nan")]), st.floats(0, 1e6))
    rows = np.array(data.draw(st.lists(st.lists(cell, min_size=scrapes, max_size=scrapes), min_size=count, max_size=count)))  # fmt: skip
    times = np.arange(scrapes, dtype=np.int64) * 5000
    answered = np.array(data.draw(st.lists(st.booleans(), min_size=scrapes, max_size=scrapes)))
    starts = np.full(scrapes, data.draw(st.sampled_from([float("nan"), -3.0, 7.0])))
    together = all_mended(times, rows, answered, starts)
    for row, found in zip(rows, together, strict=True):
        alone = mended(times, row, answered, starts)
        assert (found.drops_ms, found.born_ms) == (alone.drops_ms, alone.born_ms)
        assert found.total.tobytes() == alone.total.tobytes()
    whole = added(together)
    np.testing.assert_array_equal(whole.total, np.sum([each.total for each in together], axis=0))
    np.testing.assert_array_equal(np.isnan(whole.values), np.isnan(rows).all(axis=0))


@settings(deadline=None, max_examples=100)
@given(
    st.sets(st.integers(0, 100), max_size=20).map(sorted),
    st.lists(st.integers(-20, 120), min_size=2, max_size=10).map(lambda found: sorted(found, reverse=True)),
)
def test_increases_between_many_instants_are_those_of_the_counter(times: list[int], instants: list[int]) -> None:
    total = np.cumsum(np.arange(len(times), dtype=np.float64) % 3)
    counter = Counter(np.array(times, dtype=np.int64), total, total)
    spans = [(start, end) for start in instants for end in instants if start <= end]
    starts, ends = np.array(spans, dtype=np.int64).T
    expected = [counter.increase(start, end) for start, end in spans]
    np.testing.assert_array_equal(_increases(counter, starts, ends), expected)
