"""A histogram that takes equal observations together holds the very sum that the real logger reaches by taking them one by one."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from sim_backend.exposition import Histogram, added


def one_by_one(total: float, value: float, times: int) -> float:
    for _ in range(times):
        total += value
    return total


@settings(deadline=None, max_examples=300)
@given(st.floats(0, 1e9), st.floats(0, 1e4), st.integers(0, 3000))
def test_equal_additions_together_round_as_one_by_one(total: float, value: float, times: int) -> None:
    assert added(total, value, times) == one_by_one(total, value, times)


@settings(deadline=None, max_examples=300)
@given(st.integers(0, 60), st.integers(1, 1 << 20), st.integers(0, 12), st.integers(1, 4000))
def test_also_where_halves_of_the_last_place_are_rounded_to_even(
    exponent: int, odd: int, shift: int, times: int
) -> None:
    """Values that are odd multiples of half the spacing of the total: every addition is a tie."""
    total = 2.0**exponent * (1 + 2.0**-52)
    value = (2 * odd + 1) * 2.0 ** (exponent - 53 - shift)
    assert added(total, value, times) == one_by_one(total, value, times)


def test_observed_together_is_observed_one_by_one() -> None:
    random = Random(3)
    together, single = Histogram([0.01, 0.1, 1]), Histogram([0.01, 0.1, 1])
    for _ in range(400):
        value, count = random.expovariate(20), random.choice([1, 2, 7, 64, 256])
        together.observe(value, count)
        for _ in range(count):
            single.observe(value)
    assert (together.counts, together.sum) == (single.counts, single.sum)
