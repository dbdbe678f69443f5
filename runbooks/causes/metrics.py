"""metrics_missing and metrics_untrustworthy: the instrument, not the engine."""

from __future__ import annotations

import numpy as np

from collectors.observed import Rank, Replica, index_at
from runbooks.laws import GRAVE
from runbooks.scene import Scene, Suspicion
from runbooks.states import unreachable
from runbooks.verdicts import Confidence, Place

ESSENTIAL = (
    "requests_running",
    "requests_waiting",
    "kv_cache_usage",
    "prompt_tokens",
    "generation_tokens",
    "requests_finished",
    "time_to_first_token",
    "inter_token_latency",
    "e2e_request_latency",
)
"""Exported from the first scrape by every version (scheduler facts I17); the token gap under either of its names."""


def metrics_missing(scene: Scene) -> list[Suspicion]:
    """Targets that answer but do not show what an engine of this fleet shows."""
    found = []
    told_by_others = frozenset(
        signal
        for reading in scene.readings.values()
        for signal in reading.rank.present(scene.at_ms, scene.at_ms - 3 * scene.pace.recent_ms)
    )
    for replica in scene.observations.replicas:
        if unreachable(replica, scene.at_ms, scene.pace) is not None:
            continue
        suspicion = _all_gone(scene, replica) or _some_gone(scene, replica, told_by_others)
        if suspicion is not None:
            found.append(suspicion)
    return found


def _newest_answers(replica: Replica, at_ms: int, scrapes: int) -> list[int]:
    past = np.flatnonzero(replica.answered[: index_at(replica.times_ms, at_ms) + 1])
    return [int(t) for t in replica.times_ms[past[-scrapes:]]]


def _all_gone(scene: Scene, replica: Replica) -> Suspicion | None:
    """http_* and process_* go on and every engine series is gone (for example --disable-log-stats)."""
    last = max((_last_sample_ms(rank, scene.at_ms) for rank in replica.ranks), default=0)
    answers = [t for t in _newest_answers(replica, scene.at_ms, 10_000) if t > last]
    if len(answers) < 3 or answers[-1] - answers[0] < scene.pace.hold_ms - scene.pace.interval_ms:
        return None
    requests = replica.http_increase(answers[0], answers[-1])
    evidence = ["the target answers (up = 1, process metrics go on) but shows no engine metric"]
    if last:
        evidence.append(f"the last engine metric is {(scene.at_ms - last) / 1000:.0f} s old")
    if requests > 0:
        evidence.append(f"it serves: {requests:.0f} requests ended over HTTP meanwhile")
    return Suspicion(
        cause="metrics_missing",
        confidence="likely",
        places=scene.places(replica),
        since_ms=answers[0],
        evidence=tuple(evidence),
        separating_check="look for --disable-log-stats in the start command, or for a relabelling rule that drops vllm:*",
        cannot_know=("queue, KV cache and latency of this replica",),
    )


def _some_gone(scene: Scene, replica: Replica, told_by_others: frozenset[str]) -> Suspicion | None:
    """Single signals are gone that this rank or its peers had: a dropped family, a lost rank."""
    gone: dict[Place, list[str]] = {}
    vanished = False
    scrapes = max(
        5, 1 + -(-scene.pace.hold_ms // max(scene.pace.interval_ms, 1))
    )  # enough to span the hold time at any interval
    for rank in replica.ranks:
        answers = _newest_answers(replica, scene.at_ms, scrapes)
        if len(answers) < 3 or answers[-1] - answers[0] < scene.pace.hold_ms - scene.pace.interval_ms:
            continue
        now = rank.present(scene.at_ms, answers[0] - 1)
        had = rank.present(scene.at_ms, int(replica.times_ms[0]) - 1)
        missing = [s for s in ESSENTIAL if s not in now and (s in had or s in told_by_others)]
        if missing:
            gone[Place(replica.instance, rank.engine)] = missing
            vanished = vanished or any(s in had for s in missing)
    if not gone:
        return None
    names = sorted({signal for signals in gone.values() for signal in signals})
    onsets = [
        _gone_since_ms(replica, rank, gone[place], scene.at_ms)
        for rank in replica.ranks
        if (place := Place(replica.instance, rank.engine)) in gone
    ]
    confidence: Confidence = "likely"
    return Suspicion(
        cause="metrics_missing",
        confidence=confidence,
        places=tuple(gone),
        since_ms=min(onsets),
        evidence=(
            f"gone from a target that answers: {', '.join(names)}",
            "they were there earlier in the window" if vanished else "other replicas of the fleet have them",
        ),
        separating_check="read /metrics of the replica itself: what is there was dropped on the way",
        cannot_know=tuple(f"{name} of this place" for name in names[:3]),
        ranks=len(gone) < len(replica.ranks),
    )


def _gone_since_ms(replica: Replica, rank: Rank, signals: list[str], at_ms: int) -> int:
    """The first answer after the last one that showed all of these signals of a rank; the first answer known where none did."""
    answers = _newest_answers(replica, at_ms, 10_000)
    shown = [last for signal in signals if (last := _last_shown_ms(rank, signal, at_ms)) is not None]
    after = [t for t in answers if t > min(shown)] if shown else answers
    return after[0]


def _last_shown_ms(rank: Rank, signal: str, at_ms: int) -> int | None:
    """The newest scrape that brought a signal; None when none did."""
    counter = rank.counter(signal)
    values = counter.values if counter is not None else rank.gauges.get(signal)
    if values is None:
        return None
    past = np.flatnonzero(~np.isnan(values[: index_at(rank.times_ms, at_ms) + 1]))
    return int(rank.times_ms[past[-1]]) if len(past) else None


def _last_sample_ms(rank: Rank, at_ms: int) -> int:
    newest = 0
    for values in rank.gauges.values():
        past = np.flatnonzero(~np.isnan(values[: index_at(rank.times_ms, at_ms) + 1]))
        if len(past):
            newest = max(newest, int(rank.times_ms[past[-1]]))
    return newest


def metrics_untrustworthy(scene: Scene) -> list[Suspicion]:
    """Replicas that break a law which honest metrics cannot break."""
    by_instance: dict[str, list[int]] = {}
    for number, law in enumerate(scene.laws):
        if law.status == "broken" and law.id in GRAVE:
            for place in law.where.places:
                by_instance.setdefault(place.instance, []).append(number)
    found = []
    for instance, numbers in by_instance.items():
        broken = [scene.laws[n] for n in dict.fromkeys(numbers)]
        replica = scene.observations.replica(instance)
        if replica is None or unreachable(replica, scene.at_ms, scene.pace) is not None:
            continue
        ranks = {place for law in broken for place in law.where.places if place.instance == instance}
        places = tuple(ranks) if all(place.engine for place in ranks) else scene.places(replica)
        tainted = sorted({signal for law in broken for signal in law.taints})
        found.append(
            Suspicion(
                cause="metrics_untrustworthy",
                confidence="likely",
                places=places,
                since_ms=None,
                evidence=tuple(f"{law.id}: {law.evidence}" for law in broken),
                separating_check="scrape the replica by hand twice: values that jump back and forth come from two processes",
                cannot_know=(f"what rests on {', '.join(tainted)}",) if tainted else (),
                ranks=len(places) < len(replica.ranks),
            )
        )
    return found
