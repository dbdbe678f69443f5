"""Quantiles and fractions of classic histograms, against a plain reading of their definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.store.promql.histograms import fraction, parse_bound, quantile
from collectors.store.promql.notes import Notes


@st.composite
def histograms(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    bounds = sorted(draw(st.sets(st.sampled_from([-2.0, -1.0, 0.0, 0.1, 0.5, 1.0, 2.5, 10.0]), min_size=1)))
    seen = draw(st.lists(st.integers(0, 50), min_size=len(bounds) + 1, max_size=len(bounds) + 1))
    return np.array([*bounds, math.inf]), np.cumsum(seen).astype(float)


def plain_quantile(q: float, bounds: np.ndarray, counts: np.ndarray) -> float:
    if counts[-1] == 0:
        return math.nan
    rank = q * counts[-1]
    b = next(i for i, c in enumerate(counts) if c >= rank or i == len(counts) - 1)
    if b == len(bounds) - 1:
        return float(bounds[-2])
    if b == 0 and bounds[0] <= 0:
        return float(bounds[0])
    low, before = (float(bounds[b - 1]), counts[b - 1]) if b else (0.0, 0.0)
    inside = counts[b] - before
    return low + (bounds[b] - low) * (rank - before) / inside if inside else math.nan


@settings(deadline=None, max_examples=200)
@given(histograms(), st.floats(0, 1))
def test_a_quantile_lies_where_its_rank_lies(histogram: tuple[np.ndarray, np.ndarray], q: float) -> None:
    bounds, counts = histogram
    got = quantile(np.array([q]), bounds, counts[None, :, None], Notes())[0, 0]
    want = plain_quantile(q, bounds, counts)
    assert got == pytest.approx(want, rel=1e-12, nan_ok=True)


@settings(deadline=None, max_examples=200)
@given(histograms(), st.floats(0.01, 1))
def test_the_fraction_below_a_quantile_is_the_quantile(histogram: tuple[np.ndarray, np.ndarray], q: float) -> None:
    bounds, counts = histogram
    if counts[-1] == 0 or bounds[0] <= 0:
        return
    value = quantile(np.array([q]), bounds, counts[None, :, None], Notes())[0, 0]
    share = fraction(np.array([-math.inf]), np.array([value]), bounds, counts[None, :, None])[0, 0]
    if value < bounds[-2]:
        assert share == pytest.approx(q, abs=1e-9)
    else:
        assert share <= q + 1e-9 or value == bounds[-2]


def test_buckets_that_fall_are_raised_and_said_so() -> None:
    notes = Notes()
    falling = np.array([10.0, 5.0, 20.0])[None, :, None]
    raised = np.array([10.0, 10.0, 20.0])[None, :, None]
    bounds = np.array([1.0, 2.0, math.inf])
    assert quantile(np.array([0.5]), bounds, falling, notes) == quantile(np.array([0.5]), bounds, raised, Notes())
    assert "monotonicity" in next(iter(notes.infos))


def test_odd_quantiles_and_histograms_without_a_top() -> None:
    bounds, counts = np.array([1.0, math.inf]), np.array([1.0, 2.0])[None, :, None]
    for q, want in ((-0.1, -math.inf), (1.1, math.inf), (math.nan, math.nan)):
        assert quantile(np.array([q]), bounds, counts, Notes())[0, 0] == pytest.approx(want, nan_ok=True)
    assert math.isnan(quantile(np.array([0.5]), np.array([1.0, 2.0]), counts, Notes())[0, 0])
    assert quantile(np.array([2.0]), np.array([1.0, 2.0]), counts, Notes())[0, 0] == math.inf


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("0.5", 0.5),
        ("+Inf", math.inf),
        ("Inf", math.inf),
        ("-Inf", -math.inf),
        ("1e3", 1000.0),
        ("0x1p-2", 0.25),
        (".5", 0.5),
    ],
)
def test_bounds_as_go_reads_them(text: str, bound: float) -> None:
    assert parse_bound(text) == bound


@pytest.mark.parametrize("text", ["", " 1", "1 ", "abc", "1_000", "1,5"])
def test_what_is_no_bound(text: str) -> None:
    assert parse_bound(text) is None
