"""Which series have samples in a span is told without decoding them, and must be what reading them tells."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.model import STALE
from collectors.store.blocks import Blocks
from collectors.store.series import LabelSet

SERIES = [LabelSet({"__name__": f"m{number}", "job": "j", "instance": "i"}) for number in range(8)]


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_series_are_those_whose_samples_lie_in_the_span(data: st.DataObject) -> None:
    blocks = Blocks()
    rows = data.draw(st.sampled_from([5, 511, 513, 1100]))
    draw = np.random.default_rng(data.draw(st.integers(0, 2**31)))
    alive = draw.random((rows, 8)) < draw.random(8) ** 3
    alive[:, 0] = True
    for row in range(rows):
        present = np.flatnonzero(alive[row])
        values = np.where(draw.random(len(present)) < 0.02, STALE, draw.random(len(present)))
        blocks.append("t", 1000 * row, [SERIES[p] for p in present], values)
    for _ in range(10):
        start = data.draw(st.integers(-5, rows + 5)) * 1000 + data.draw(st.integers(-1, 1))
        end = start + data.draw(st.one_of(st.integers(0, 5), st.integers(0, rows))) * 1000
        expected = [LabelSet(samples.labels) for samples in blocks.samples((), start - 1, end)]
        assert blocks.series((), start, end) == sorted(expected)


def test_a_span_outside_the_data_has_no_series() -> None:
    blocks = Blocks()
    assert blocks.series((), 0, 10) == []
    blocks.append("t", 1000, SERIES[:2], [1.0, 2.0])
    assert blocks.series((), 0, 999) == []
    assert blocks.series((), 1001, 5000) == []
    assert blocks.series((), 1000, 1000) == SERIES[:2]
