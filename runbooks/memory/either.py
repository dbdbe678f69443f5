"""A text of either kind: who pastes a refusal where a log is asked for wants an answer, not a lesson."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runbooks.memory.admission import admission
from runbooks.memory.report import ledger


def read_as(lines: Sequence[str], *, refused: bool) -> tuple[dict[str, Any], bool]:
    """The answer about these lines, and whether they were read as a refused request.

    `refused` is what was asked for; the other reading is taken where only that one recognises the text.
    """
    asked, other = (admission, ledger) if refused else (ledger, admission)
    answer = asked(lines)
    if _recognised(answer) or answer["class"] != "undetermined":
        return answer, refused
    second = other(lines)
    return (second, not refused) if _recognised(second) else (answer, refused)


def _recognised(answer: dict[str, Any]) -> bool:
    """A message cut out of its log tells figures without a class."""
    return bool(answer["numbers"]) or answer["class"] not in ("undetermined", "not_memory", "not_vllm")
