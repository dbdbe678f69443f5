"""Compensated sums, means and variances are right where plain ones are not."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.store.promql.compensated import Mean, Sum, Variance, plain_sum_is_exact_enough

FINITE = st.floats(-1e15, 1e15)


def fed(kind: type[Sum] | type[Mean] | type[Variance], values: list[float]) -> float:
    running = kind((1,))
    for value in values:
        running.add(np.array([value]), np.array([True]))
        running.add(np.array([1e6]), np.array([False]))
    return float(running.result()[0])


@settings(deadline=None, max_examples=200)
@given(st.lists(FINITE, min_size=1, max_size=40))
def test_sums_and_means_are_those_of_exact_arithmetic(values: list[float]) -> None:
    exact = math.fsum(values)
    scale = max(map(abs, values))
    assert fed(Sum, values) == pytest.approx(exact, rel=1e-12, abs=scale * 1e-22)
    assert fed(Mean, values) == pytest.approx(exact / len(values), rel=1e-12, abs=scale * 1e-22)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40))
def test_variances_are_those_of_two_passes(values: list[float]) -> None:
    mean = math.fsum(values) / len(values)
    exact = math.fsum((v - mean) ** 2 for v in values) / len(values)
    assert fed(Variance, values) == pytest.approx(exact, rel=1e-9, abs=1e-9)


def test_what_cancels_is_not_lost() -> None:
    values = [1.0, 1e100, 1.0, -1e100]
    assert fed(Sum, values) == 2.0
    assert fed(Mean, values) == 0.5


def test_a_mean_of_huge_numbers_does_not_overflow() -> None:
    huge = 1.7e308
    assert fed(Mean, [huge, huge, huge]) == pytest.approx(huge)
    assert fed(Mean, [math.inf, 1.0]) == math.inf
    assert math.isnan(fed(Mean, [math.inf, -math.inf]))
    assert fed(Sum, [math.inf, 1.0]) == math.inf


def test_plain_sums_are_used_only_where_they_are_right() -> None:
    assert plain_sum_is_exact_enough(np.array([0.1, 0.2, 1e300]))
    assert plain_sum_is_exact_enough(np.array([-1.0, 5.0, 3.0]))
    assert not plain_sum_is_exact_enough(np.array([-1.5, 5.0]))
    assert not plain_sum_is_exact_enough(np.array([1.0, math.nan]))
    assert not plain_sum_is_exact_enough(np.array([-(2.0**53), 2.0**53]))
