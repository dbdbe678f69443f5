import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from runbooks.quantile import median, quantile


@settings(deadline=None, max_examples=300)
@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=30), st.one_of(st.floats(0, 1), st.sampled_from([0.25, 0.5, 0.9])))  # fmt: skip
def test_it_is_numpys_to_the_bit(values: list[float], q: float) -> None:
    assert quantile(np.array(values), q) == float(np.quantile(np.array(values), q))
    assert median(np.array(values)) == float(np.median(np.array(values)))


def test_a_number_that_is_none_leaves_no_quantile() -> None:
    assert np.isnan(median(np.array([1.0, float("nan"), 2.0])))
    assert np.isnan(quantile(np.array([1.0, float("nan")]), 0.5))
