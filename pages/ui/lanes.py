"""The lane chart: one row per thing that can hold, over the time of a recording, with the cursor across all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from pages.ui.assets import component

_LANES = component("lanes")


@dataclass(frozen=True)
class Span:
    label: str
    from_ms: int
    to_ms: int
    tone: str = "warn"
    text: str = ""
    """Written into the span where there is room."""


@dataclass(frozen=True)
class Lane:
    name: str
    spans: tuple[Span, ...]


def lane_chart(
    title: str, lanes: Sequence[Lane], start_ms: int, end_ms: int, at_ms: int | None, *, key: str, unit_label: str = ""
) -> int | None:
    """Draws it; the instant that was just picked, else None."""
    data = {
        "title": title, "unit_label": unit_label, "lanes": [asdict(lane) for lane in lanes], "start_ms": start_ms, "end_ms": end_ms,
        "at_ms": at_ms,
    }  # fmt: skip
    picked = _LANES(key=key, data=data, on_picked_change=lambda: None).picked
    return int(picked["at_ms"]) if picked else None
