"""Which laws are broken while a metric fault lasts, where, and which of them speak of that fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tests.proof.incidents import Incident
from tests.proof.sightings import Moment

OWN: Mapping[str, str] = {
    "flat_buckets": "buckets_not_all_equal",
    "hits_above_queries": "hits_within_queries",
    "interleaved_servers": "counter_falls_only_with_process",
    "missing_rank": "ranks_stay",
    "missing_scrape": "scraped_without_gaps",
    "frozen_gauge": "gauges_move_with_steps",
    "removed_metric": "always_exported_is_there",
}
"""Metric fault -> the law that must break."""
RELATED: Mapping[str, Mapping[str, str]] = {
    "flat_buckets": {"sum_fits_buckets": "the sum still tells the true times, which no longer fit the buckets"},
}
"""What else a fault must break, and why that is the same fault seen from another side."""


@dataclass(frozen=True)
class Broken:
    """In how many of the moments asked a law was broken, by phase and place of an incident."""

    before: Mapping[str, int]
    during: Mapping[str, int]
    elsewhere: Mapping[str, int]
    """During the incident, at replicas that are not part of it."""
    after: Mapping[str, int]
    moments: int
    """Moments asked during the incident."""


def broken_laws(moments: Sequence[Moment], incident: Incident | None) -> Broken:
    """Counts of moments per law. Without an incident everything counts as before one."""
    before, during, elsewhere, after = (Counter[str]() for _ in range(4))
    asked = 0
    for one in moments:
        inside = incident is not None and incident.start < one.at <= incident.stop
        asked += inside
        if incident is None or one.at <= incident.start:
            before.update(_laws(one.broken))
        elif not inside:
            after.update(_laws(one.broken))
        else:
            during.update(_laws(pair for pair in one.broken if pair[1] in incident.instances))
            elsewhere.update(_laws(pair for pair in one.broken if pair[1] not in incident.instances))
    return Broken(before, during, elsewhere, after, asked)


def _laws(pairs: Iterable[tuple[str, str]]) -> set[str]:
    return {law for law, _ in pairs}
