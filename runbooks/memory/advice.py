"""What to say of a class, what to change (solved from the figures, with its price) and what the log does not hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

HIGH_UTILIZATION = 0.95
"""Above this nothing is left for graphs, context and run-time peaks; raising it further only moves the failure."""


@dataclass
class Advice:
    """`fixes` are {change, predicted, price}; `missing` are facts to ask for."""

    says: list[str] = field(default_factory=list)
    fixes: list[dict[str, Any]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def fix(self, change: dict[str, Any], price: str, **predicted: float | bool | str) -> None:
        self.fixes.append({"change": change, "predicted": predicted, "price": price})


def gib(value: float) -> str:
    """'2.14 GiB', or MiB below one GiB where two decimals of a GiB would hide it."""
    return f"{value:.2f} GiB" if abs(value) >= 1 or value == 0 else f"{value * 1024:.2f} MiB"
