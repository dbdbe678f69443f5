"""What the diagnosis said over time: one judgement per instant, folded into episodes of verdicts, anomalies, broken checks and states.

Each instant is judged as it would have been then: a replay's source gives no sample after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from collectors.settings import Settings
from collectors.source import Source
from runbooks.diagnosis import diagnose
from runbooks.verdicts import Diagnosis

MOST_INSTANTS = 240
Kind = Literal["verdict", "anomaly", "check", "state"]


SUREST = ("likely", "possible", "undetermined", "")


@dataclass(frozen=True)
class Episode:
    """Something was said from one judged instant to another (ms); `place` is '' for the fleet."""

    kind: Kind
    id: str
    place: str
    from_ms: int
    to_ms: int
    confidence: str = ""
    """As it was said last."""
    severity: str = ""
    since_ms: int | None = None
    """Since when it held, in the words of the instant that said it first: before `from_ms`, since nothing is seen at once."""
    turns: tuple[tuple[int, str], ...] = ()
    """Where its confidence or severity changed: (instant, from then on); the beginning included."""

    @property
    def began_ms(self) -> int:
        """Since when it held as far as was said; what a band on a time axis begins with."""
        return self.from_ms if self.since_ms is None else min(self.since_ms, self.from_ms)

    def surest_by(self, until_ms: int) -> str:
        """The highest confidence with which it was said up to an instant."""
        said = {word for at_ms, word in self.turns if at_ms <= until_ms} or {self.confidence}
        return next((word for word in SUREST if word in said), self.confidence)

    @property
    def surest(self) -> str:
        """The highest confidence with which it was ever said."""
        return self.surest_by(self.to_ms)


@dataclass(frozen=True)
class Band:
    """One cause wherever it was said, over short silences: what a time axis shows of it."""

    id: str
    from_ms: int
    """Since when it held, as was said when it was first shown."""
    shown_ms: int
    """The first instant that showed it."""
    to_ms: int
    places: tuple[str, ...]


@dataclass(frozen=True)
class Timeline:
    """Episodes in order of their beginning, and the instants that were judged."""

    at_ms: tuple[int, ...]
    episodes: tuple[Episode, ...]

    def of(self, kind: Kind) -> tuple[Episode, ...]:
        return tuple(episode for episode in self.episodes if episode.kind == kind)

    def bands(self, until_ms: int, apart_ms: int) -> tuple[Band, ...]:
        """Causes as bands, as known at `until_ms`: places joined, silences up to `apart_ms` bridged, undetermined ones left out.

        An incident that moves to another replica or is not said for a moment is still that incident, and it began when it did.
        """
        found: list[Band] = []
        running: dict[str, Band] = {}
        for episode in sorted(self.of("verdict"), key=lambda each: each.from_ms):
            if episode.from_ms > until_ms or episode.surest_by(until_ms) == "undetermined":
                continue
            to_ms = min(episode.to_ms, until_ms)
            band = running.get(episode.id)
            if band is not None and min(episode.began_ms, episode.from_ms) - band.to_ms <= apart_ms:
                places = tuple(dict.fromkeys((*band.places, episode.place)))
                start_ms = min(band.from_ms, episode.began_ms)
                running[episode.id] = replace(band, from_ms=start_ms, to_ms=max(band.to_ms, to_ms), places=places)
            else:
                if band is not None:
                    found.append(band)
                running[episode.id] = Band(episode.id, episode.began_ms, episode.from_ms, to_ms, (episode.place,))
        return tuple(sorted((*found, *running.values()), key=lambda each: (each.from_ms, each.id)))


def instants(start_ms: int, end_ms: int, scrape_ms: int, most: int = MOST_INSTANTS) -> tuple[int, ...]:
    """The instants to judge: every scrape, thinned to at most `most`, the end included."""
    step = scrape_ms
    while (end_ms - start_ms) / step > most - 1:
        step += scrape_ms
    return (*range(start_ms + step, end_ms, step), end_ms)


def timeline(
    source_at: Callable[[int], Source],
    at_ms: Sequence[int],
    settings: Settings,
    *,
    stopped: Callable[[], bool] = lambda: False,
) -> Timeline:
    """Judge every instant. `source_at(t)` gives the source as it was at t. Raises SourceError; ends early when `stopped`."""
    judged = []
    for at in at_ms:
        if stopped():
            break
        judged.append(diagnose(source_at(at), at, settings))
    return fold(judged)


def fold(judged: Sequence[Diagnosis]) -> Timeline:
    """Episodes of diagnoses in order of time. An episode ends at the last instant that showed it; one that is not seen for one instant ends."""
    running: dict[tuple[Kind, str, str], Episode] = {}
    done: list[Episode] = []
    for found in judged:
        seen = {(episode.kind, episode.id, episode.place): episode for episode in _holding(found)}
        for key in [key for key in running if key not in seen]:
            done.append(running.pop(key))
        for key, episode in seen.items():
            running[key] = episode if key not in running else _longer(running[key], episode)
    done.extend(running.values())
    return Timeline(
        tuple(found.at_ms for found in judged), tuple(sorted(done, key=lambda e: (e.from_ms, e.kind, e.id)))
    )


def _longer(before: Episode, now: Episode) -> Episode:
    changed = () if before.turns[-1][1] == now.turns[-1][1] else now.turns
    return replace(
        before, to_ms=now.to_ms, confidence=now.confidence, severity=now.severity, turns=(*before.turns, *changed)
    )


def _holding(found: Diagnosis) -> Iterable[Episode]:
    at = found.at_ms

    def episode(kind: Kind, name: str, place: str, since_ms: int | None = None, *, confidence: str = "", severity: str = "") -> Episode:  # fmt: skip
        return Episode(kind, name, place, at, at, confidence, severity, since_ms, ((at, confidence or severity),))

    for verdict in found.verdicts:
        if verdict.cause != "healthy":
            yield episode("verdict", verdict.cause, str(verdict.where), verdict.since_ms, confidence=verdict.confidence)
    for anomaly in found.anomalies:
        yield episode("anomaly", anomaly.id, str(anomaly.where), anomaly.since_ms, severity=anomaly.severity)
    for law in found.laws:
        if law.status == "broken":
            yield episode("check", law.id, str(law.where))
    for state in found.replicas:
        place = state.place.instance + (f" rank {state.place.engine}" if state.place.engine else "")
        yield episode("state", state.state, place, state.since_ms)
