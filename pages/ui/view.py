"""Which source, which instant, which range: read from the URL, kept between pages, the same for whoever opens the link.

`range=15m` or `from` and `to`; `at` pins an instant (live: paused there, replay: the cursor); `source` names an incident file of the library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import parse_qsl, urlencode

import streamlit as st

from collectors.instants import format_instant, parse_instant_ms
from collectors.model import Window
from collectors.settings import LABEL_NAME

SPANS_MS = {"5m": 300_000, "15m": 900_000, "1h": 3_600_000, "6h": 21_600_000, "24h": 86_400_000}
STEPS_MS = [1000 * s for s in (2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600)]
POINTS = 320
KEYS = ("source", "scope", "range", "from", "to", "at")
LONGEST_MS = 31 * 86_400_000
SPEEDS = (1, 10, 60, 300, 600)

_KEPT = "pw_view"
_PLAY = "pw_play"
_BACK_TO_LIVE = "pw_back_to_live"
"""The instant of a walk that was opened from a live page."""


@dataclass(frozen=True)
class Extent:
    """First and last instant of a recording, the time between its scrapes, and where its cursor stands when nobody has moved it."""

    start_ms: int
    end_ms: int
    scrape_ms: int
    opens_ms: int | None = None
    """The instant that the recording was judged at, in the middle of its incident; None: the end."""


@dataclass(frozen=True)
class View:
    """What a page shows. Values in milliseconds."""

    source_key: str
    """Name in the library, '' for the source that the console was started with."""
    mode: Literal["live", "paused", "replay"]
    at_ms: int
    span_ms: int
    range_name: str
    """'' for an absolute range."""
    extent: Extent | None = None
    playing: bool = False
    speed: int = 10
    mistake: str = ""
    """What could not be read in the address, in words."""
    scope: tuple[tuple[str, str], ...] = ()
    """Labels and values that the viewer chose, sorted; they stand in every query."""

    @property
    def window(self) -> Window:
        """Up to the instant; never before a recording begins."""
        start = self.at_ms - self.span_ms
        if self.extent is not None:
            start = max(start, min(self.extent.start_ms, self.at_ms))
        step = next((step for step in STEPS_MS if self.span_ms <= step * POINTS), STEPS_MS[-1])
        return (
            Window(start, max(self.at_ms, start + step), step)
            if self.at_ms - start < step
            else Window(start, self.at_ms, step)
        )

    @property
    def axis(self) -> tuple[int, int]:
        """What the time axis spans: the whole recording where it fits, so that lines grow into it while it plays."""
        window = self.window
        if self.extent is not None and self.range_name and self.extent.end_ms - self.extent.start_ms <= self.span_ms:
            return self.extent.start_ms, max(self.extent.end_ms, window.end_ms)
        return window.start_ms, window.end_ms


YOUNG_MS = 600_000
"""A live source that holds less than this is shown in five minutes: fifteen would be mostly empty."""


def default_range(extent: Extent | None, young: bool = False) -> str:
    """15m, 5m of a live source that has only begun, or for a recording the shortest range that holds all of it, up to 1h."""
    if extent is None:
        return "5m" if young else "15m"
    length = extent.end_ms - extent.start_ms
    return next((name for name in ("5m", "15m", "1h") if length <= SPANS_MS[name]), "1h")


def read(
    params: Mapping[str, str],
    now_ms: int,
    extent: Extent | None,
    play: Mapping[str, Any] | None = None,
    speed: int = 10,
    *,
    young: bool = False,
) -> View:
    """The view that these query parameters ask for; what cannot be read falls back to the default and is said in `mistake`."""
    mistakes: list[str] = []

    def instant(name: str) -> int | None:
        text = params.get(name, "")[:64]
        if not text:
            return None
        try:
            return parse_instant_ms(text.replace(" ", "+"))
        except ValueError as error:
            mistakes.append(f"{name}: {error}")
            return None

    name = params.get("range", "") or default_range(extent, young)
    if name not in SPANS_MS:
        mistakes.append(f"range: {name[:20]!r} is none of {', '.join(SPANS_MS)}")
        name = default_range(extent, young)
    span = SPANS_MS[name]
    at, start, end = instant("at"), instant("from"), instant("to")
    if start is not None and end is not None:
        if end <= start or end - start > LONGEST_MS:
            mistakes.append("from and to: the range must be longer than nothing and at most 31 days")
        else:
            at, span, name = end if at is None else min(at, end), max(end - start, 10_000), ""
    scope = _scope(params.get("scope", "")[:2000], mistakes)
    mistake = "; ".join(mistakes)
    source = params.get("source", "")[:200]
    if extent is not None:
        cursor = _cursor(at, now_ms, extent, play)
        playing = bool(play) and cursor < extent.end_ms
        return View(source, "replay", cursor, span, name, extent, playing, speed, mistake, scope)
    mode: Literal["live", "paused"] = "live" if at is None else "paused"
    return View(source, mode, now_ms if at is None else at, span, name, mistake=mistake, scope=scope)


def _scope(text: str, mistakes: list[str]) -> tuple[tuple[str, str], ...]:
    chosen = dict(parse_qsl(text))
    for label in [label for label in chosen if not LABEL_NAME.fullmatch(label) or label == "__name__"]:
        mistakes.append(f"scope: {label[:40]!r} is not a label name")
        del chosen[label]
    return tuple(sorted(chosen.items()))


def scope_text(scope: Mapping[str, str]) -> str | None:
    """A scope as the address carries it; None for no scope."""
    return urlencode(sorted(scope.items())) or None


def _cursor(at: int | None, now_ms: int, extent: Extent, play: Mapping[str, Any] | None) -> int:
    if play:
        at = int(play["from_ms"] + (now_ms - play["since_ms"]) * play["speed"])
        at -= (at - extent.start_ms) % extent.scrape_ms
    if at is None:
        at = extent.end_ms if extent.opens_ms is None else extent.opens_ms
    return max(extent.start_ms, min(extent.end_ms, at))


def settle(page: str = "") -> None:
    """Once per page run: an address that says nothing of time or source takes over what the last page had.

    A walk holds its instant. Whoever opened it from a live page and leaves it again is live again.
    """
    said = {key: st.query_params[key] for key in KEYS if key in st.query_params}
    kept = dict(st.session_state.get(_KEPT, {}))
    if page == "runbook" and _KEPT in st.session_state and "at" in said and not {"at", "to"} & kept.keys():
        st.session_state[_BACK_TO_LIVE] = said["at"]
    if not said:
        if page != "runbook" and kept.get("at") and kept["at"] == st.session_state.pop(_BACK_TO_LIVE, None):
            del kept["at"]
        for key, value in kept.items():
            st.query_params[key] = value
        st.session_state[_KEPT] = kept
        return
    for key in ("source", "scope"):
        if key not in said and key in kept:
            st.query_params[key] = said[key] = kept[key]
    st.session_state[_KEPT] = said


def kept() -> dict[str, str]:
    """The parameters of time and source, to be put into a link."""
    return dict(st.session_state.get(_KEPT, {}))


def change(**params: str | None) -> None:
    """Set (or with None remove) parameters in the address and for the pages to come."""
    said = kept()
    for key, value in params.items():
        if value is None:
            said.pop(key, None)
            if key in st.query_params:
                del st.query_params[key]
        else:
            said[key] = value
            st.query_params[key] = value
    st.session_state[_KEPT] = said


def playing() -> dict[str, Any] | None:
    """The running playback of this session, None when it stands."""
    found: dict[str, Any] | None = st.session_state.get(_PLAY)
    return found


def play(view: View, now_ms: int, speed: int) -> None:
    """Run the cursor from where it is; from the beginning when it stands at the end."""
    assert view.extent is not None
    start = view.at_ms if view.at_ms < view.extent.end_ms else view.extent.start_ms
    st.session_state[_PLAY] = {"from_ms": start, "since_ms": now_ms, "speed": speed}


def stop(view: View | None = None) -> None:
    """Stop the playback; with a view, its cursor becomes the pinned instant."""
    st.session_state.pop(_PLAY, None)
    if view is not None:
        change(at=format_instant(view.at_ms))


def within(extent: Extent, at_ms: int) -> int:
    """The instant, held inside the recording."""
    return max(extent.start_ms, min(extent.end_ms, at_ms))


def pin(at_ms: int) -> None:
    """Show this instant: a live source is paused there, a replay's cursor goes there."""
    st.session_state.pop(_PLAY, None)
    change(at=format_instant(at_ms), **({"from": None, "to": None}))


def hold_for_a_walk(at_ms: int) -> None:
    """Pin a live view while a walk is read; leaving the walk makes it live again."""
    pin(at_ms)
    st.session_state[_BACK_TO_LIVE] = format_instant(at_ms)
