"""From a timeline to lanes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from pages.ui.lanes import Lane, Span
from pages.ui.words import cause_text, clock, name_text
from runbooks.timeline import SUREST, Episode, Timeline

STATE_TONES = {"stalled": "bad", "down": "bad", "stale": "warn", "unknown": "quiet"}
CAUSES_OF_PAGES = ("overload", "seat_limited", "kv_limited", "engine_stalled", "replica_down", "unadmittable_head")
UNIT_LABEL = "causes, detectors, broken checks, states; striped: since when, as was said later; a click goes there"


def lanes_of(told: Timeline) -> list[Lane]:
    """One lane per cause wherever it is; one per detector, broken check and state that is not plain, each at its place."""
    causes: dict[str, list[Episode]] = {}
    for episode in told.of("verdict"):
        causes.setdefault(episode.id, []).append(episode)
    lanes = [_cause_lane(episodes, told.at_ms) for episodes in causes.values()]
    others: dict[str, list[Span]] = {}
    for episode in (*told.of("anomaly"), *told.of("check"), *told.of("state")):
        if episode.kind == "state" and episode.id not in STATE_TONES:
            continue
        spans = others.setdefault(_lane(episode), [])
        spans += _spans(episode, spans[-1].to_ms if spans else None)
    return [*lanes, *(Lane(name, tuple(spans)) for name, spans in others.items())] or [Lane("nothing wrong", ())]


def single_places(places: Sequence[str]) -> tuple[str, ...]:
    """Each replica or rank once, where one place is several of them ('a, b')."""
    return tuple(dict.fromkeys(single for place in places for single in place.split(", ")))


def places_text(places: Sequence[str]) -> str:
    """Where something was said over time: the fleet holds every replica; of many, the first ones."""
    if "the fleet" in places or not places:
        return "the fleet"
    places = single_places(places)
    return ", ".join(places[:3]) + (f" and {len(places) - 3} more" if len(places) > 3 else "")


def _cause_lane(episodes: Sequence[Episode], judged: Sequence[int]) -> Lane:
    """A cause over time: a span for each place and confidence, without a hole where only the place changes."""
    cause = episodes[0].id
    places = tuple(dict.fromkeys(episode.place for episode in episodes))
    after = dict(pairwise(judged))
    bounds = {at for e in episodes for at in (e.from_ms, e.to_ms, *(turn for turn, _ in e.turns))}
    first, last = min(bounds), max(bounds)
    instants = sorted(bounds | {at for at in judged if first <= at <= last})
    holding = [[e for e in episodes if e.from_ms <= at <= e.to_ms] for at in instants]
    spans: list[Span] = []
    begun: int | None = None  # index at which the span that is being made begins
    for index, at in enumerate(instants):
        if not holding[index]:
            continue
        begun = index if begun is None else begun
        following = index + 1 if index + 1 < len(instants) else None
        goes_on = following is not None and bool(holding[following]) and (
            any(e.to_ms >= instants[following] for e in holding[index]) or after.get(at) == instants[following]
        )  # fmt: skip
        if (
            goes_on
            and following is not None
            and _said(holding[following], instants[following]) == _said(holding[index], at)
        ):
            continue
        to_ms = instants[following] if goes_on and following is not None else at
        fresh = begun == 0 or spans == [] or spans[-1].to_ms < instants[begun]
        since_ms = min((e.began_ms for e in holding[begun]), default=at) if fresh else None
        spans.append(
            _cause_span(cause, holding[begun], instants[begun], to_ms, since_ms, spans[-1].to_ms if spans else None)
        )
        begun = None
    return Lane(cause_text(cause) + (f" · {places[0]}" if len(places) == 1 and places[0] else ""), tuple(spans))


def _said(episodes: Sequence[Episode], at_ms: int) -> tuple[tuple[str, ...], str]:
    """At which places, and with which confidence at most."""
    words = {next((word for turn, word in reversed(e.turns) if turn <= at_ms), e.confidence) for e in episodes}
    return tuple(sorted(e.place for e in episodes)), next((word for word in SUREST if word in words), "")


def _cause_span(cause: str, episodes: Sequence[Episode], from_ms: int, to_ms: int, since_ms: int | None, after_ms: int | None) -> Span:  # fmt: skip
    places, word = _said(episodes, from_ms)
    since = f", since {clock(since_ms)}" if since_ms is not None and since_ms < from_ms else ""
    said = (
        f"{cause_text(cause)} on {places_text(places)}, {word}{since}, said from {clock(from_ms)} to {clock(to_ms)} UTC"
    )
    lead_ms = max(since_ms, after_ms or since_ms) if since and since_ms is not None else None
    tone = "quiet" if word == "undetermined" else "bad" if cause in CAUSES_OF_PAGES else "warn"
    return Span(said, from_ms, to_ms, tone, word, lead_ms)


def _lane(episode: Episode) -> str:
    words = {"anomaly": f"detector: {name_text(episode.id)}", "check": f"check: {name_text(episode.id)}", "state": f"state: {episode.id}"}  # fmt: skip
    return f"{words[episode.kind]} · {episode.place}" if episode.place else words[episode.kind]


def _spans(episode: Episode, after_ms: int | None) -> Iterable[Span]:
    """One span per severity, in order; the first knows since when it held, but for what the lane showed before."""
    turns = episode.turns or ((episode.from_ms, episode.severity),)
    for number, (from_ms, word) in enumerate(turns):
        to_ms = turns[number + 1][0] if number + 1 < len(turns) else episode.to_ms
        since_ms = episode.since_ms if number == 0 else None
        since = f", since {clock(since_ms)}" if since_ms is not None and since_ms < from_ms else ""
        said = f"{_lane(episode)}{', ' + word if word else ''}{since}, said from {clock(from_ms)} to {clock(to_ms)} UTC"
        lead_ms = max(since_ms, after_ms or since_ms) if since and since_ms is not None else None
        tone = STATE_TONES[episode.id] if episode.kind == "state" else "bad" if word == "page" else "warn"
        yield Span(said, from_ms, to_ms, tone, "", lead_ms)
