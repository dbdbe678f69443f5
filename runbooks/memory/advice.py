"""What to say of a class, what to change (solved from the figures, with its price) and what the log does not hold."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

HIGH_UTILIZATION = 0.95
"""Above this nothing is left for graphs, context and run-time peaks; raising it further only moves the failure."""
SMALL_TOKEN_BUDGET = 2048
_BINARY_NOISE = 1e-7


@dataclass
class Advice:
    """`fixes` are {change, predicted, price}, with `recommended` where the change is a bare limit; `missing` are facts to ask for."""

    says: list[str] = field(default_factory=list)
    fixes: list[dict[str, Any]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def fix(self, change: dict[str, Any], price: str, **predicted: float | bool | str) -> None:
        self.fixes.append({"change": change, "predicted": predicted, "price": price})

    def fix_window(self, longest: float, block: float, price: str, **predicted: float | bool | str) -> None:
        """The longest window that the start-up check takes, and the one to set: a block shorter, for the null block that it does not count."""
        self.fix({"max_model_len_at_most": int(longest)}, price, **predicted)
        if longest > block:
            self.fixes[-1]["recommended"] = {"max_model_len": int(longest - block)}


def hundredths_up(value: float) -> float:
    """The next hundredth at or above `value`; a figure that is a hundredth already stays, whatever binary fractions make of it."""
    return math.ceil(value * 100 - _BINARY_NOISE) / 100


def hundredths_down(value: float) -> float:
    """The hundredth at or below `value`, likewise."""
    return math.floor(value * 100 + _BINARY_NOISE) / 100


def gib(value: float) -> str:
    """'2.14 GiB', or MiB below one GiB where two decimals of a GiB would hide it."""
    return f"{value:.2f} GiB" if abs(value) >= 1 or value == 0 else f"{value * 1024:.2f} MiB"
