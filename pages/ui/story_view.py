"""From a timeline to lanes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pages.ui.lanes import Lane, Span
from pages.ui.words import cause_text, clock, name_text
from runbooks.timeline import Episode, Timeline

STATE_TONES = {"stalled": "bad", "down": "bad", "stale": "warn", "unknown": "quiet"}
CAUSES_OF_PAGES = ("overload", "seat_limited", "kv_limited", "engine_stalled", "replica_down", "unadmittable_head")
UNIT_LABEL = "causes, detectors, broken checks, states; striped: since when, as was said later; a click goes there"


def lanes_of(told: Timeline) -> list[Lane]:
    """One lane per cause, detector, broken check and state that is not plain, each at its place."""
    lanes: dict[str, list[Span]] = {}
    for episode in (*told.of("verdict"), *told.of("anomaly"), *told.of("check"), *told.of("state")):
        if episode.kind == "state" and episode.id not in STATE_TONES:
            continue
        lane = lanes.setdefault(_lane(episode), [])
        lane += _spans(episode, lane[-1].to_ms if lane else None)
    return [Lane(name, tuple(spans)) for name, spans in lanes.items()] or [Lane("nothing wrong", ())]


def places_text(places: Sequence[str]) -> str:
    """Where something was said over time: the fleet holds every replica; of many, the first ones."""
    if "the fleet" in places or not places:
        return "the fleet"
    return ", ".join(places[:3]) + (f" and {len(places) - 3} more" if len(places) > 3 else "")


def _lane(episode: Episode) -> str:
    words = {"verdict": cause_text(episode.id), "anomaly": f"detector: {name_text(episode.id)}", "check": f"check: {name_text(episode.id)}", "state": f"state: {episode.id}"}  # fmt: skip
    return f"{words[episode.kind]} · {episode.place}" if episode.place else words[episode.kind]


def _spans(episode: Episode, after_ms: int | None) -> Iterable[Span]:
    """One span per confidence or severity, in order; the first knows since when it held, but for what the lane showed before."""
    turns = episode.turns or ((episode.from_ms, episode.confidence or episode.severity),)
    for number, (from_ms, word) in enumerate(turns):
        to_ms = turns[number + 1][0] if number + 1 < len(turns) else episode.to_ms
        since_ms = episode.since_ms if number == 0 else None
        since = f", since {clock(since_ms)}" if since_ms is not None and since_ms < from_ms else ""
        said = f"{_lane(episode)}{', ' + word if word else ''}{since}, said from {clock(from_ms)} to {clock(to_ms)} UTC"
        lead_ms = max(since_ms, after_ms or since_ms) if since and since_ms is not None else None
        text = word if episode.kind == "verdict" else ""
        yield Span(said, from_ms, to_ms, _tone(episode, word), text, lead_ms)


def _tone(episode: Episode, word: str) -> str:
    if episode.kind == "state":
        return STATE_TONES[episode.id]
    if word == "undetermined":
        return "quiet"
    if episode.kind == "verdict":
        return "bad" if episode.id in CAUSES_OF_PAGES else "warn"
    return "bad" if (word or episode.severity) == "page" else "warn"
