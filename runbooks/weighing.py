"""Weighs suspicions against each other: what is a symptom of what, what belongs together, what comes first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from runbooks.scene import Scene, Suspicion
from runbooks.verdicts import Place, Verdict

PRIORITY = (
    "metrics_missing",
    "replica_down",
    "metrics_untrustworthy",
    "engine_stalled",
    "unadmittable_head",
    "stale_gauges",
    "rank_imbalance",
    "replica_imbalance",
    "sequence_hog",
    "kv_limited",
    "replica_restarted",
    "cold_prefix_cache",
    "engine_slow",
    "prefill_limited",
    "overload",
    "seat_limited",
    "admission_rejects",
    "auth_rejects",
    "client_aborts",
)
"""Nearer to the root first. A cause may only explain one that stands below it, so that two never explain each other."""
PAST = frozenset({"replica_restarted"})
"""Told after what holds now."""
CAPACITY = frozenset({"overload", "seat_limited", "prefill_limited"})
IMBALANCE = frozenset({"replica_imbalance", "rank_imbalance"})
CONFIDENCE = ("likely", "possible", "undetermined")
TOGETHER_MS = 60_000
"""Onsets this close at several replicas are one incident."""


def weigh(scene: Scene, suspicions: Sequence[Suspicion]) -> tuple[Verdict, ...]:
    """Verdicts, the headline first; empty when nothing is suspected.

    1. a suspicion that rests on a signal which a broken grave law taints is withdrawn;
    2. at one place a cause takes in what it explains, as a symptom;
    3. a likely imbalance makes the queue at its hot place a consequence (possible, not likely);
    4. one cause at several places with near onsets is one incident.
    """
    honest = [s for s in suspicions if s.cause == "metrics_untrustworthy" or not _tainted(scene, s)]
    rooted, symptoms = _explained(honest)
    consequences = [_behind_imbalance(s, rooted) for s in rooted]
    grouped = _grouped(scene, consequences)
    verdicts = [_verdict(scene, s, symptoms) for s in grouped]
    verdicts.sort(
        key=lambda v: (CONFIDENCE.index(v.confidence), v.cause in PAST, PRIORITY.index(v.cause), v.since_ms or 0)
    )
    return tuple(verdicts)


def _tainted(scene: Scene, suspicion: Suspicion) -> bool:
    return bool(suspicion.places) and all(suspicion.reads & scene.tainted(place) for place in suspicion.places)


def _explained(suspicions: Sequence[Suspicion]) -> tuple[list[Suspicion], dict[Place, list[Suspicion]]]:
    """(what remains after each cause took in its symptoms, symptoms by place)."""
    rooted: list[Suspicion] = []
    symptoms: dict[Place, list[Suspicion]] = {}
    for suspicion in sorted(suspicions, key=lambda s: PRIORITY.index(s.cause)):
        left = []
        for place in suspicion.places:
            roots = [r for r in rooted if place in r.places or _whole_replica(r, place)]
            if any(suspicion.cause in root.explains and root.cause != suspicion.cause for root in roots):
                symptoms.setdefault(place, []).append(suspicion)
            else:
                left.append(place)
        if left or not suspicion.places:
            rooted.append(replace(suspicion, places=tuple(left)))
    return rooted, symptoms


def _whole_replica(suspicion: Suspicion, place: Place) -> bool:
    return any(p.instance == place.instance and not p.engine for p in suspicion.places)


def _behind_imbalance(suspicion: Suspicion, rooted: Sequence[Suspicion]) -> Suspicion:
    hot = {place for s in rooted if s.cause in IMBALANCE and s.confidence == "likely" for place in s.places}
    queue = CAPACITY | {"kv_limited", "sequence_hog"}
    if suspicion.cause in queue and suspicion.confidence == "likely" and set(suspicion.places) <= hot:
        words = "the queue follows from the uneven distribution"
        return replace(suspicion, confidence="possible", against=(*suspicion.against, words))
    return suspicion


def _grouped(scene: Scene, suspicions: Sequence[Suspicion]) -> list[Suspicion]:
    """Merges suspicions of one kind whose onsets lie together, or that cover the whole fleet."""
    common = _fleet_short_of_capacity(scene, suspicions)
    kinds: dict[tuple[str, str], list[Suspicion]] = {}
    for suspicion in suspicions:
        kind = "capacity" if suspicion.cause in CAPACITY and suspicion.places[0] in common else suspicion.cause
        kinds.setdefault((kind, suspicion.confidence), []).append(suspicion)
    merged: list[Suspicion] = []
    fleet = {replica.instance for replica in scene.observations.replicas}
    for members in kinds.values():
        everywhere = len(members) > 1 and {p.instance for s in members for p in s.places} == fleet
        clusters: list[list[Suspicion]] = []
        for suspicion in sorted(members, key=lambda s: s.since_ms or 0):
            near = max(TOGETHER_MS, 4 * scene.pace.interval_ms)
            if clusters and (everywhere or (suspicion.since_ms or 0) - (clusters[-1][-1].since_ms or 0) <= near):
                clusters[-1].append(suspicion)
            else:
                clusters.append([suspicion])
        merged += [_merged(cluster) for cluster in clusters]
    return merged


def _fleet_short_of_capacity(scene: Scene, suspicions: Sequence[Suspicion]) -> frozenset[Place]:
    """Places of a fleet of three or more that queues everywhere with one capacity cause in the majority.

    Near the border between two such causes single replicas fall to the other side; the fleet has one incident.
    """
    queued = [s for s in suspicions if s.cause in CAPACITY]
    causes = [s.cause for s in queued]
    everywhere = {p.instance for s in queued for p in s.places} == {r.instance for r in scene.observations.replicas}
    majority = max((causes.count(c) for c in causes), default=0) > len(causes) / 2
    if len(scene.observations.replicas) < 3 or not everywhere or not majority:
        return frozenset()
    return frozenset(place for s in queued for place in s.places)


def _merged(cluster: Sequence[Suspicion]) -> Suspicion:
    """One suspicion for several: the commonest cause, every place, evidence with its place in front."""
    if len(cluster) == 1:
        return cluster[0]
    causes = [s.cause for s in cluster]
    cause = max(dict.fromkeys(causes), key=lambda c: (causes.count(c), -PRIORITY.index(c)))
    same = [s for s in cluster if s.cause == cause]
    onsets = [s.since_ms for s in cluster if s.since_ms is not None]
    shown = same[:4]
    evidence = [f"{_name(s)}: {line}" for s in shown for line in s.evidence[: 4 if len(shown) <= 2 else 2]]
    if len(same) > len(shown):
        evidence.append(f"the same at {len(same) - len(shown)} more places")
    return replace(
        same[0],
        places=tuple(dict.fromkeys(p for s in cluster for p in s.places)),
        since_ms=min(onsets) if onsets else None,
        evidence=tuple(evidence),
        against=tuple(dict.fromkeys(f"{_name(s)}: {line}" for s in shown for line in s.against)),
        aggravated_by=tuple(dict.fromkeys(word for s in cluster for word in s.aggravated_by)),
        cannot_know=tuple(dict.fromkeys(line for s in cluster for line in s.cannot_know)),
        ranks=all(s.ranks for s in cluster),
    )


def _name(suspicion: Suspicion) -> str:
    place = suspicion.places[0]
    return f"{place.instance} rank {place.engine}" if suspicion.ranks else place.instance


def _verdict(scene: Scene, suspicion: Suspicion, symptoms: dict[Place, list[Suspicion]]) -> Verdict:
    taken = [s for place in suspicion.places for s in symptoms.get(place, []) if s.cause in suspicion.explains]
    words = tuple(dict.fromkeys(f"{s.cause}: {s.evidence[0]}" if s.evidence else s.cause for s in taken))
    return Verdict(
        cause=suspicion.cause,
        confidence=suspicion.confidence,
        where=scene.where(suspicion.places, ranks=suspicion.ranks),
        since_ms=suspicion.since_ms,
        evidence=suspicion.evidence,
        against=suspicion.against,
        aggravated_by=suspicion.aggravated_by,
        symptoms=words,
        runner_up=suspicion.runner_up,
        separating_check=suspicion.separating_check,
        cannot_know=suspicion.cannot_know,
        reads=suspicion.reads,
    )
