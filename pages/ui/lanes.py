"""The lane chart: one row per thing that can hold, over the time of a recording, with the cursor across all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from pages.ui.assets import component

_LANES = component("lanes")


@dataclass(frozen=True)
class Span:
    """A time (ms) in which something was said; `since_ms` is where that beginning lay, as was said then."""

    label: str
    from_ms: int
    to_ms: int
    tone: str = "warn"
    text: str = ""
    """Written into the span where there is room."""
    since_ms: int | None = None


@dataclass(frozen=True)
class Lane:
    name: str
    spans: tuple[Span, ...]
    group: str = ""
    """Lanes of one group stand together under its name."""

    def moved(self, by_ms: int, group: str) -> Lane:
        """The lane on time that counts from another zero."""
        spans = tuple(
            replace(
                span,
                from_ms=span.from_ms + by_ms,
                to_ms=span.to_ms + by_ms,
                since_ms=None if span.since_ms is None else span.since_ms + by_ms,
            )
            for span in self.spans
        )
        return Lane(self.name, spans, group)


def lane_chart(
    title: str, lanes: Sequence[Lane], start_ms: int, end_ms: int, at_ms: int | None, *, key: str, unit_label: str = "",
    relative: bool = False, least: int = 0,
) -> int | None:  # fmt: skip
    """Draws it; the instant that was just picked, else None. `relative`: the instants are offsets from a common zero.

    Of many lanes the first ones are shown, at least `least`, and the rest on demand.
    """
    data = {
        "title": title, "unit_label": unit_label, "lanes": [asdict(lane) for lane in lanes], "start_ms": start_ms, "end_ms": end_ms,
        "at_ms": at_ms, "relative": relative, "least": least,
    }  # fmt: skip
    picked = _LANES(key=key, data=data, on_picked_change=lambda: None).picked
    return int(picked["at_ms"]) if picked else None
