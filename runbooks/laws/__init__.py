"""Invariants that honest metrics obey, judged per rank or replica: kept, broken or unknown.

What a law says, why it holds and what it taints is in laws.toml; how it is checked is in the modules beside it.
"""

from __future__ import annotations

from collections.abc import Mapping

from collectors.observed import Observations
from runbooks.laws import balances, gauges, histograms, presence, scraping
from runbooks.laws.model import Check, Law, Outcome, Subject, all_laws
from runbooks.reading import Reading
from runbooks.thresholds import Thresholds
from runbooks.verdicts import LawFinding, Place, Where

CHECKS: Mapping[str, Check] = histograms.CHECKS | balances.CHECKS | gauges.CHECKS | scraping.CHECKS | presence.CHECKS
GRAVE = frozenset(law.id for law in all_laws().values() if law.grave)
"""Laws whose break makes the verdict metrics_untrustworthy."""


def check_laws(
    observations: Observations, readings: Mapping[Place, Reading], limits: Thresholds
) -> tuple[LawFinding, ...]:
    """Every law at every place it applies to. A replica that does not answer has only its scraping laws judged."""
    found: list[LawFinding] = []
    told = presence.told_by_job(observations)
    ranks = []
    for replica in observations.replicas:
        shown = told[replica.labels.get("job", "")]
        for rank in replica.ranks:
            place = Place(replica.instance, rank.engine)
            reading = readings.get(place)
            if reading is not None and reading.seen_ms:
                subject = Subject(
                    replica,
                    rank,
                    reading,
                    observations.at_ms,
                    observations.interval_ms,
                    limits,
                    shown,
                    observations.engine_version,
                )
                ranks.append((subject, _where(place)))
    replicas = [
        (
            Subject(replica, None, None, observations.at_ms, observations.interval_ms, limits),
            _where(Place(replica.instance)),
        )
        for replica in observations.replicas
    ]
    for law in all_laws().values():
        if law.scope == "rank":
            found += [_finding(law, subject, where) for subject, where in ranks]
            continue
        found += [_finding(law, subject, where) for subject, where in replicas]
    return tuple(found)


def _where(place: Place) -> Where:
    return Where("rank" if place.engine else "replica", (place,))


def _finding(law: Law, subject: Subject, where: Where) -> LawFinding:
    outcome: Outcome = CHECKS[law.id](subject)
    broken = outcome.status == "broken"
    taints = tuple(dict.fromkeys((*law.taints, *outcome.taints))) if broken else ()
    return LawFinding(law.id, outcome.status, where, outcome.evidence or law.statement, taints)


__all__ = ["CHECKS", "GRAVE", "Law", "all_laws", "check_laws"]
