"""Packed columns give back the very bits that went in, whatever these are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.model import STALE
from collectors.store.packing import NO_SAMPLE, RAW, RUNS, bits_of, pack

ODD = st.sampled_from(
    [STALE, NO_SAMPLE, float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 1e300, 5e-324, 2.0**53, -(2.0**53)]
)
CELL = st.one_of(
    ODD, st.floats(width=64), st.integers(-1000, 1000).map(float), st.integers(0, 10**9).map(lambda v: v / 1e6)
)


@st.composite
def matrices(draw: st.DrawFn) -> np.ndarray:
    rows = draw(st.integers(1, 40))
    columns = draw(st.integers(0, 8))
    out = np.empty((columns, rows))
    for c in range(columns):
        kind = draw(st.integers(0, 3))
        if kind == 0:
            out[c] = draw(CELL)
        elif kind == 1:
            out[c] = np.cumsum(draw(st.lists(st.integers(0, 300), min_size=rows, max_size=rows))).astype(float)
        elif kind == 2:
            out[c] = draw(st.lists(CELL, min_size=rows, max_size=rows))
        else:
            out[c] = np.repeat(draw(CELL), rows)
            out[c, rows // 2 :] = draw(CELL)
    return out


@settings(deadline=None, max_examples=150)
@given(matrices())
def test_decoding_gives_the_same_bits(values: np.ndarray) -> None:
    packed = pack(values)
    everything = packed.decode(np.arange(len(values)))
    assert (bits_of(everything) == bits_of(values)).all()
    backwards = np.arange(len(values))[::-1].copy()
    assert (bits_of(packed.decode(backwards)) == bits_of(values[::-1])).all()


@settings(deadline=None, max_examples=100)
@given(matrices(), st.integers(1, 12), st.data())
def test_a_few_rows_are_those_of_the_whole(values: np.ndarray, repeated: int, data: st.DataObject) -> None:
    """Whatever was before them, and wherever the marks in counted columns lie."""
    longer = np.tile(values, (1, repeated))
    start = data.draw(st.integers(0, longer.shape[1] - 1))
    stop = data.draw(st.integers(start + 1, longer.shape[1]))
    found = pack(longer).decode(np.arange(len(longer)), start, stop)
    assert (bits_of(found) == bits_of(longer[:, start:stop])).all()


@settings(deadline=None, max_examples=50)
@given(matrices())
def test_clean_means_an_ordinary_sample_in_every_row(values: np.ndarray) -> None:
    special = np.isin(bits_of(values), bits_of(np.array([STALE, NO_SAMPLE])))
    assert (pack(values).clean == ~special.any(axis=1)).all()


def test_what_stands_still_costs_a_few_bytes_and_what_counts_a_byte_a_sample() -> None:
    rng = np.random.default_rng(1)
    still = np.full((100, 512), 17.0)
    counting = np.cumsum(rng.integers(0, 50, (100, 512)), axis=1).astype(float)
    decimals = np.round(rng.random((100, 512)), 6)
    assert pack(still).nbytes / 100 < 40
    assert pack(counting).nbytes / 100 < 512 * 1.1 + 40
    assert pack(decimals).nbytes / 100 < 512 * 4.2 + 40
    assert (pack(still).kind == RUNS).all()


@pytest.mark.parametrize("value", [1e-320, 1 / 3, 2.0**60])
def test_numbers_without_a_short_exact_form_are_kept_raw(value: float) -> None:
    values = np.array([[value * (i + 1) for i in range(64)]])
    packed = pack(values)
    assert (packed.kind == RAW).all()
    assert (packed.decode(np.array([0])) == values).all()
