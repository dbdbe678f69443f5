"""One window to set: a block under the bare limit of the start-up check, on every face that shows the fix."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pages.ui.memory_view import fix_text
from runbooks.memory import ledger
from runbooks.memory.advice import Advice
from runbooks.memory.text import ledger_text

LINE = (
    "ValueError: The model's max seq len (131072) is larger than the maximum number of tokens that can be stored in KV cache ({longest}). "
    "Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."
)


def test_the_recommended_window_stands_first_and_the_bare_limit_beside_it() -> None:
    answer = ledger([LINE.format(longest=39024)])
    [fix] = [fix for fix in answer["fixes"] if "max_model_len_at_most" in fix["change"]]
    assert fix["change"] == {"max_model_len_at_most": 39024}
    assert fix["recommended"] == {"max_model_len": 39008}
    told = ledger_text(answer)
    assert "fix: max_model_len 39008  (bare limit: max_model_len_at_most 39024)" in told
    assert fix_text(fix).startswith("max model len: 39,008 (bare limit: max model len at most: 39,024)")
    [said] = [line for line in answer["says"] if "null block" in line]
    assert "max window 39024" in said
    assert said.endswith("set 39008")


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 10**7), st.sampled_from([1, 8, 16, 32, 64, 128, 256]))
def test_what_is_recommended_leaves_the_null_block_out(longest: int, block: int) -> None:
    advice = Advice()
    advice.fix_window(longest, block, "price")
    wanted = advice.fixes[0].get("recommended")
    if longest <= block:
        assert wanted is None
    else:
        assert wanted is not None
        blocks_of_the_pool = -(-longest // block)
        assert -(-wanted["max_model_len"] // block) == blocks_of_the_pool - 1
