"""From a timeline to lanes. Pure."""

from __future__ import annotations

from pages.ui.lanes import Lane, Span
from pages.ui.words import cause_text, name_text
from runbooks.timeline import Episode, Timeline

STATE_TONES = {"stalled": "bad", "down": "bad", "stale": "warn", "unknown": "quiet"}
CAUSES_OF_PAGES = ("overload", "seat_limited", "kv_limited", "engine_stalled", "replica_down", "unadmittable_head")


def lanes_of(told: Timeline) -> list[Lane]:
    """One lane per cause, detector, broken check and state that is not plain, each at its place."""
    lanes: dict[str, list[Span]] = {}
    for episode in (*told.of("verdict"), *told.of("anomaly"), *told.of("check"), *told.of("state")):
        if episode.kind == "state" and episode.id not in STATE_TONES:
            continue
        lanes.setdefault(_lane(episode), []).append(_span(episode))
    return [Lane(name, tuple(spans)) for name, spans in lanes.items()] or [Lane("nothing wrong", ())]


def _lane(episode: Episode) -> str:
    words = {"verdict": cause_text(episode.id), "anomaly": f"detector: {name_text(episode.id)}", "check": f"check: {name_text(episode.id)}", "state": f"state: {episode.id}"}  # fmt: skip
    return f"{words[episode.kind]} · {episode.place}" if episode.place else words[episode.kind]


def _span(episode: Episode) -> Span:
    if episode.kind == "state":
        tone = STATE_TONES[episode.id]
    elif episode.confidence == "undetermined":
        tone = "quiet"
    elif episode.kind == "verdict":
        tone = "bad" if episode.id in CAUSES_OF_PAGES else "warn"
    else:
        tone = "bad" if episode.severity == "page" else "warn"
    text = episode.confidence if episode.kind == "verdict" else ""
    return Span(f"{_lane(episode)}{', ' + text if text else ''}", episode.from_ms, episode.to_ms, tone, text)
