"""The embedded source keeps the seam's promises: typed errors, capped reads, frames as a remote source gives them."""

from __future__ import annotations

import numpy as np
import pytest

from collectors.model import STALE, MetricMeta, Samples, Window, is_stale
from collectors.source import QueryRejected, Source
from collectors.store.blocks import Blocks
from collectors.store.embedded import EmbeddedSource


def filled() -> Blocks:
    blocks = Blocks()
    times = np.arange(0, 100_000, 5_000)
    blocks.load(
        [
            Samples({"__name__": "x", "instance": "a"}, times, np.arange(20.0)),
            Samples({"__name__": "x", "instance": "b"}, times[:10], np.append(np.arange(9.0), STALE)),
        ]
    )
    blocks.set_metadata("x", MetricMeta("gauge", "an x"))
    return blocks


def source(blocks: Blocks, cursor: int | None = None) -> EmbeddedSource:
    until = (lambda: cursor) if cursor is not None else None
    return EmbeddedSource(blocks, name="test", clock=lambda: 100_000, until=until)


def test_it_is_a_source() -> None:
    seam: Source = source(filled())
    assert seam.info().kind == "store"
    assert seam.now_ms() == 100_000
    assert seam.extent_ms() == (0, 95_000)
    assert seam.metadata()["x"].type == "gauge"
    assert seam.series(['{instance="a"}', "x"], 0, 1000) == [
        {"__name__": "x", "instance": "a"},
        {"__name__": "x", "instance": "b"},
    ]


def test_vectors_and_frames() -> None:
    seam = source(filled())
    vector = seam.instant("sum(x)", 40_000)
    assert vector.values.tolist() == [16.0]
    assert seam.instant("1 + 1", 0).labels == ({},)
    frame = seam.range("x", Window(40_000, 50_000, 5_000))
    assert np.array_equal(frame.values, [[8, 9, 10], [8, np.nan, np.nan]], equal_nan=True)


def test_raw_samples_keep_staleness_and_are_open_on_the_left() -> None:
    [b] = source(filled()).samples('x{instance="b"}', 35_000, 45_000)
    assert b.times_ms.tolist() == [40_000, 45_000]
    assert is_stale(b.values).tolist() == [False, True]


def test_a_replay_sees_nothing_after_its_cursor() -> None:
    seam = source(filled(), cursor=20_000)
    assert seam.extent_ms() == (0, 20_000)
    assert seam.instant("max(x offset -50s)", 20_000).values.tolist() == [4.0]
    assert seam.instant("max(x @ 90)", 20_000).values.tolist() == [4.0]
    assert [s.times_ms[-1] for s in seam.samples("x", 0, 10**9)] == [20_000, 20_000]
    assert source(filled(), cursor=-1).series(["x"], -5, 10**9) == []


@pytest.mark.parametrize("query", ["sum(", "x[5m]", '"text"', "histogram_sum(x)"])
def test_every_refusal_is_a_query_rejected_of_one_line(query: str) -> None:
    with pytest.raises(QueryRejected) as raised:
        source(filled()).instant(query, 0)
    assert "\n" not in str(raised.value)


def test_a_selector_is_wanted_for_samples() -> None:
    with pytest.raises(QueryRejected, match="not a plain series selector"):
        source(filled()).samples("rate(x[5m])", 0, 1)
