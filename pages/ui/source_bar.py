"""The first line of every page: live, paused, replay, down or never seen; the range; the player of a replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from pages.ui.assets import component
from pages.ui.view import SPEEDS

_BAR = component("source_bar")


@dataclass(frozen=True)
class TrackMark:
    """A place on the player's track: an instant, or a span when `to_ms` is there."""

    label: str
    at_ms: int
    to_ms: int | None = None
    tone: str = "warn"


@dataclass(frozen=True)
class Player:
    start_ms: int
    end_ms: int
    at_ms: int
    scrape_ms: int
    playing: bool
    speed: int
    marks: tuple[TrackMark, ...] = ()


@dataclass(frozen=True)
class Standing:
    """What the bar says. Ages are seconds at the moment of drawing; the browser counts on from there."""

    mode: Literal["live", "starting", "paused", "replay", "down", "never", "broken"]
    facts: tuple[str, ...] = ()
    title: str = ""
    clock: str = ""
    age_s: float = 0.0
    silent_after_s: float = 30.0
    down_s: float = 0.0
    cause: str = ""
    retry_s: float = 0.0
    range: str = "15m"
    from_ms: int = 0
    to_ms: int = 0
    player: Player | None = field(default=None)
    close: str = ""
    """The word that leads back to the console's own source; '' when this is it."""


def source_bar(standing: Standing, ranges: Sequence[str]) -> dict[str, Any] | None:
    """Draws it; what the operator just did ({"kind": "pause" | "live" | "range" | "between" | "seek" | "close" | ...}), else None."""
    data = asdict(standing)
    data["replay"] = data.pop("player")
    data["ranges"] = list(ranges)
    data["speeds"] = list(SPEEDS)
    data["facts"] = list(standing.facts)
    act: dict[str, Any] | None = _BAR(key="source_bar", data=data, on_act_change=lambda: None).act
    return act
