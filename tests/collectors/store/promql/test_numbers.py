"""Numbers as Go writes them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.store.promql.numbers import api_number, api_numbers, api_time, go_plain


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"), (-0.0, "-0"), (1.0, "1"), (0.1, "0.1"), (1e20, "100000000000000000000"), (1e21, "1e+21"), (1.5e22, "1.5e+22"),
        (1e-6, "0.000001"), (9.9e-7, "9.9e-07"), (1e-7, "1e-07"), (-2.5e-9, "-2.5e-09"), (1e-100, "1e-100"), (1e16, "10000000000000000"),
        (123456789.125, "123456789.125"), (5e-324, "5e-324"), (1.7976931348623157e308, "1.7976931348623157e+308"), (0.00001234, "0.00001234"),
        (float("nan"), "NaN"), (float("inf"), "+Inf"), (float("-inf"), "-Inf"),
    ],
)  # fmt: skip
def test_api_numbers_are_prometheus_own(value: float, text: str) -> None:
    assert api_number(value) == text
    assert api_numbers(np.array([value])) == [text]


@settings(deadline=None, max_examples=200)
@given(st.lists(st.floats(width=64), max_size=20))
def test_the_fast_way_writes_the_same(values: list[float]) -> None:
    texts = api_numbers(np.array(values, dtype=np.float64))
    assert texts == [api_number(v) for v in values]
    back = np.array([float(t) for t in texts])
    assert np.array_equal(back, np.array(values, dtype=np.float64), equal_nan=True)


def test_plain_digits_for_labels() -> None:
    assert go_plain(1e21) == "1" + "0" * 21
    assert go_plain(1.25e-7) == "0.000000125"
    assert go_plain(-1e22) == "-1" + "0" * 22


@pytest.mark.parametrize(
    ("t_ms", "text"),
    [(0, "0"), (1500, "1.5"), (1_700_000_000_123, "1700000000.123"), (20_000, "20"), (-1500, "-1.5"), (7, "0.007")],
)
def test_times(t_ms: int, text: str) -> None:
    assert api_time(t_ms) == text
