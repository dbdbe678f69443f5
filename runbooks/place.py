"""Where a walk looks: from what was asked for, else from what the diagnosis found; and the matchers that mean it."""

from __future__ import annotations

from collections.abc import Sequence

from collectors.observed import Observations, Replica
from runbooks.runbook import RunbookError
from runbooks.template import one_of
from runbooks.verdicts import Diagnosis, Place, Verdict, Where


def _cut(text: str) -> str:
    shown = text if len(text) <= 60 else text[:57] + "..."
    return repr(shown)


def asked_place(observations: Observations, instance: str | None, engine: str | None) -> Where | None:
    """The place that was asked for; None when nothing was. Raises RunbookError for a replica or rank that is not there."""
    if instance is None and engine is None:
        return None
    known = [replica.instance for replica in observations.replicas]
    if instance is None:
        places = [Place(r.instance, rank.engine) for r, rank in observations.ranks() if rank.engine == engine]
        if not places:
            raise RunbookError(f"no replica has a rank {_cut(engine or '')} here; leave --engine out to see all ranks")
        return Where("rank", tuple(places))
    replica = observations.replica(instance)
    if replica is None:
        there = ", ".join(_cut(name)[1:-1] for name in known[:8]) + (" ..." if len(known) > 8 else "")
        raise RunbookError(
            f"no replica {_cut(instance)} at this instant; "
            + (
                f"there are: {there}"
                if known
                else "the source holds no vLLM replica then: check the instant and source"
            )
        )
    if engine is None:
        return Where("replica", (Place(instance),))
    engines = [rank.engine for rank in replica.ranks]
    if engine not in engines:
        raise RunbookError(f"replica {_cut(instance)} has no rank {_cut(engine)}; there are: {', '.join(engines)}")
    return Where("rank", (Place(instance, engine),))


def found_place(runbook_id: str, diagnosis: Diagnosis) -> Where:
    """Where the diagnosis sees this runbook's anomaly or cause; the fleet when it sees neither."""
    for anomaly in diagnosis.anomalies:
        if anomaly.runbook == runbook_id:
            return anomaly.where
    for verdict in diagnosis.verdicts:
        if verdict.runbook == runbook_id:
            return verdict.where
    replicas = dict.fromkeys(Place(state.place.instance) for state in diagnosis.replicas)
    return Where("fleet", tuple(replicas))


def matchers(where: Where, observations: Observations, rank_label: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Matchers of every series, and of series that carry the rank label, that select exactly the place."""
    if where.scope == "fleet":
        return (), ()
    replicas = [r for name in dict.fromkeys(p.instance for p in where.places) if (r := observations.replica(name))]
    ranks = tuple(sorted({place.engine for place in where.places if place.engine})) if where.scope == "rank" else ()
    return _target_matchers(replicas, observations.replicas), ((one_of(rank_label, ranks),) if ranks else ())


def _target_matchers(chosen: Sequence[Replica], known: Sequence[Replica]) -> tuple[str, ...]:
    """By `instance` alone where that names the replicas, else by every label that targets have here, absent ones too."""
    if not chosen:
        return ('instance=""',)
    names = {replica.labels.get("instance", "") for replica in chosen}
    if "" not in names and all(replica.labels.get("instance") == replica.instance for replica in chosen):
        return (one_of("instance", tuple(sorted(names))),)
    labels = sorted({label for replica in known for label in replica.labels})
    return tuple(one_of(label, tuple(sorted({r.labels.get(label, "") for r in chosen}))) for label in labels)


def covers(one: Where, other: Where) -> bool:
    """Whether two places meet: the fleet meets everything, a replica meets its ranks."""
    if one.scope == "fleet" or other.scope == "fleet":
        return True
    return any(
        a.instance == b.instance and (not a.engine or not b.engine or a.engine == b.engine)
        for a in one.places
        for b in other.places
    )


def verdicts_at(where: Where, diagnosis: Diagnosis) -> tuple[Verdict, ...]:
    """The verdicts that concern a place, in the diagnosis's order; `healthy` is left out."""
    return tuple(v for v in diagnosis.verdicts if v.cause != "healthy" and covers(where, v.where))
