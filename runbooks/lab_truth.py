"""Incidents of a recording as a yardstick: out of its ground truth, or marked by the operator; and the healthy time beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from collectors.capsule.manifest import Manifest
from runbooks.verdicts import CAUSES

SETTLE_MS = 120_000
"""After its cause is gone an incident is still seen: queues drain, rate windows empty. Alarms in that time are no false ones."""
CAUSES_OF_KIND: Mapping[str, tuple[str, ...]] = {
    "waiting_growth": ("overload", "seat_limited"),
    "kv_cache_pressure_preemption": ("kv_limited",),
    "admission_rejects_http_400": ("admission_rejects",),
    "replica_down_and_restart": ("replica_down", "replica_restarted"),
    "prefix_cache_cold_burst": ("cold_prefix_cache",),
    "stalled_worker": ("engine_stalled", "stale_gauges"),
    "engine_core_dead": ("replica_down", "engine_stalled"),
    "auth_abuse_http_401": ("auth_rejects",),
}
"""Words of recordings for what happened -> causes that name it rightly; a word that is a cause stands for itself."""
MARK = "incident"
"""Kind of an operator's mark that begins an incident: its text is the cause; an `incident_end` mark ends it."""


@dataclass(frozen=True)
class Incident:
    """What was really wrong, when and where; no instances = the fleet."""

    from_ms: int
    to_ms: int
    causes: frozenset[str]
    instances: frozenset[str] = frozenset()

    @property
    def over_ms(self) -> int:
        """When its traces are gone, too."""
        return self.to_ms + SETTLE_MS


def incidents_of(manifest: Manifest) -> tuple[Incident, ...]:
    """Incidents of the ground truth (the simulator's or a recording's shape); without one, those that marks tell."""
    truth = manifest.ground_truth
    told = truth.get("incidents", ()) if isinstance(truth, Mapping) else ()
    found = [
        _incident(each, manifest.window.end_ms)
        for each in (told if isinstance(told, list | tuple) else ())
        if isinstance(each, Mapping)
    ]
    if not isinstance(truth, Mapping):
        found = list(_marked(manifest))
    return tuple(incident for incident in found if incident is not None)


def _incident(told: Mapping[str, Any], end_ms: int) -> Incident | None:
    """None for an entry that names no time. The entry comes from outside and may hold anything."""
    word = str(told.get("cause") or told.get("kind") or "")
    causes = frozenset(CAUSES_OF_KIND.get(word, (word,))) & frozenset(CAUSES)
    try:
        if "from_ms" in told:
            from_ms, to_ms = int(told["from_ms"]), int(told.get("to_ms", end_ms))
            instances = _instances(told.get("where"))
        else:
            visible = told.get("visible") or (told["cause_start"], told["cause_end"])
            instances = frozenset((str(told["instance"]),)) if told.get("instance") else frozenset()
            from_ms = round(float(told["cause_start"]) * 1000)
            to_ms = round(max(float(told["cause_end"]), float(visible[1])) * 1000)
    except (KeyError, IndexError, TypeError, ValueError, OverflowError):
        return None
    return Incident(from_ms, min(to_ms, end_ms), causes, instances)


def _instances(where: Any) -> frozenset[str]:
    replicas = where.get("replicas") if isinstance(where, Mapping) else None
    listed = replicas if isinstance(replicas, list | tuple) else ()
    return frozenset(str(each["instance"]) for each in listed if isinstance(each, Mapping) and "instance" in each)


def _marked(manifest: Manifest) -> Iterable[Incident]:
    ends = sorted(mark.at_ms for mark in manifest.marks if mark.kind == f"{MARK}_end")
    for mark in manifest.marks:
        if mark.kind == MARK and mark.text in CAUSES:
            to_ms = next((at for at in ends if at >= mark.at_ms), manifest.window.end_ms)
            yield Incident(mark.at_ms, to_ms, frozenset((mark.text,)), frozenset((mark.instance,)) - {""})


def is_healthy(at_ms: int, incidents: Iterable[Incident]) -> bool:
    """Whether no incident is on or just over."""
    return not any(incident.from_ms <= at_ms <= incident.over_ms for incident in incidents)


def healthy_ms(start_ms: int, end_ms: int, incidents: Sequence[Incident]) -> int:
    """Length of the window outside of every incident and its settling."""
    left, healthy = start_ms, 0
    for incident in sorted(incidents, key=lambda each: each.from_ms):
        healthy += max(0, min(incident.from_ms, end_ms) - left)
        left = max(left, incident.over_ms)
    return healthy + max(0, end_ms - left)
