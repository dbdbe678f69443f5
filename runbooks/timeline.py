"""What the diagnosis said over time: one judgement per instant, folded into episodes of verdicts, anomalies, broken checks and states.

Each instant is judged as it would have been then: a replay's source gives no sample after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from collectors.settings import Settings
from collectors.source import Source
from runbooks.diagnosis import diagnose
from runbooks.verdicts import Diagnosis

MOST_INSTANTS = 240
Kind = Literal["verdict", "anomaly", "check", "state"]


@dataclass(frozen=True)
class Episode:
    """Something held from one judged instant to another (ms); `place` is '' for the fleet."""

    kind: Kind
    id: str
    place: str
    from_ms: int
    to_ms: int
    confidence: str = ""
    severity: str = ""


@dataclass(frozen=True)
class Timeline:
    """Episodes in order of their beginning, and the instants that were judged."""

    at_ms: tuple[int, ...]
    episodes: tuple[Episode, ...]

    def of(self, kind: Kind) -> tuple[Episode, ...]:
        return tuple(episode for episode in self.episodes if episode.kind == kind)


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
            before = running.get(key)
            running[key] = (
                episode
                if before is None
                else Episode(
                    before.kind, before.id, before.place, before.from_ms, found.at_ms, episode.confidence, episode.severity
                )
            )  # fmt: skip
    done.extend(running.values())
    return Timeline(
        tuple(found.at_ms for found in judged), tuple(sorted(done, key=lambda e: (e.from_ms, e.kind, e.id)))
    )


def _holding(found: Diagnosis) -> Iterable[Episode]:
    at = found.at_ms
    for verdict in found.verdicts:
        if verdict.cause != "healthy":
            yield Episode("verdict", verdict.cause, str(verdict.where), at, at, verdict.confidence)
    for anomaly in found.anomalies:
        yield Episode("anomaly", anomaly.id, str(anomaly.where), at, at, severity=anomaly.severity)
    for law in found.laws:
        if law.status == "broken":
            yield Episode("check", law.id, str(law.where), at, at)
    for state in found.replicas:
        place = state.place.instance + (f" rank {state.place.engine}" if state.place.engine else "")
        yield Episode("state", state.state, place, at, at)
