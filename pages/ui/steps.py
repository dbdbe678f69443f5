"""The list of a walk's steps, moved through with j and k."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pages.ui.assets import component

_STEPS = component("steps")


def step_list(steps: Sequence[dict[str, Any]], open_id: str, *, key: str) -> str | None:
    """Draws it; steps have `id`, `question`, `finding`, `says`, `on_path`. The id that was just opened, else None."""
    opened: str | None = _STEPS(
        key=key, data={"steps": list(steps), "open": open_id}, on_opened_change=lambda: None
    ).opened
    return opened
