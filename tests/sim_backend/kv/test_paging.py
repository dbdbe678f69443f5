"""The arithmetic of paged memory, with the figures of the textbook case."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim_backend.kv.paging import blocks_needed, paged, place_of, reserved, slots_free, slots_taken


def test_the_textbook_figures() -> None:
    assert (blocks_needed(50, 16), slots_free(50, 16)) == (4, 14)
    assert place_of(50, 16) == (3, 2)
    assert (blocks_needed(64, 16), blocks_needed(65, 16)) == (4, 5)
    assert slots_taken(20, 16) == 32


def test_reservation_against_paging() -> None:
    assert reserved(200, 2000, 2000).mean_tokens == 1100
    assert reserved(200, 2000, 2000).aggregate == pytest.approx(0.55)
    assert reserved(200, 2000, 4096).aggregate == pytest.approx(0.2686, abs=5e-5)
    in_blocks = paged(200, 2000, 16)
    assert in_blocks.mean_waste_slots == pytest.approx(7.5, abs=0.05)
    assert in_blocks.aggregate == pytest.approx(0.993, abs=5e-4)
    assert in_blocks.mean_of_ratios < in_blocks.aggregate  # short requests waste a larger share


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 10**6), st.integers(1, 512))
def test_blocks_hold_the_tokens_and_no_block_is_empty(tokens: int, size: int) -> None:
    assert slots_taken(tokens, size) == tokens + slots_free(tokens, size)
    assert 0 <= slots_free(tokens, size) < size
    if tokens:
        assert place_of(tokens - 1, size)[0] == blocks_needed(tokens, size) - 1


@pytest.mark.parametrize(("tokens", "size"), [(-1, 16), (5, 0)])
def test_nonsense_is_refused(tokens: int, size: int) -> None:
    with pytest.raises(ValueError, match="neither may be negative"):
        blocks_needed(tokens, size)
    with pytest.raises(ValueError, match="reservation"):
        reserved(200, 2000, 1000)
