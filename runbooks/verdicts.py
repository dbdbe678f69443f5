"""The values of a judgement: where, replica states, law findings, anomalies, verdicts, and the whole diagnosis.

`Diagnosis.to_json()` is the documented answer of `pagewatch diagnose --json` (schema 1).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from shlex import quote
from typing import Any, Literal, NamedTuple

Scope = Literal["fleet", "replica", "rank"]
State = Literal["serving", "prefill_only", "idle", "stalled", "stale", "down", "unknown"]
Confidence = Literal["likely", "possible", "undetermined"]
Severity = Literal["page", "ticket", "info"]
LawStatus = Literal["kept", "broken", "unknown"]

CAUSES = (
    "healthy", "overload", "seat_limited", "kv_limited", "prefill_limited", "unadmittable_head", "sequence_hog",
    "engine_slow", "replica_imbalance", "rank_imbalance", "engine_stalled", "stale_gauges", "replica_down",
    "replica_restarted", "admission_rejects", "auth_rejects", "client_aborts", "cold_prefix_cache", "metrics_missing",
    "metrics_untrustworthy",
)  # fmt: skip
"""The closed list; a new cause needs a runbook and a test."""

RUNBOOK_OF_CAUSE = {
    "healthy": "",
    "overload": "waiting_growth",
    "seat_limited": "waiting_growth",
    "prefill_limited": "waiting_growth",
    "kv_limited": "kv_pressure",
    "unadmittable_head": "unadmittable_head",
    "sequence_hog": "sequence_hog",
    "engine_slow": "engine_slow",
    "replica_imbalance": "imbalance",
    "rank_imbalance": "imbalance",
    "engine_stalled": "engine_stalled",
    "stale_gauges": "engine_stalled",
    "replica_down": "replica_down",
    "replica_restarted": "replica_restarted",
    "admission_rejects": "admission_failure",
    "auth_rejects": "auth_abuse",
    "client_aborts": "client_aborts",
    "cold_prefix_cache": "cold_prefix_cache",
    "metrics_missing": "metrics_missing",
    "metrics_untrustworthy": "metrics_untrustworthy",
}
"""Folder under runbooks/library that a cause opens."""


class Place(NamedTuple):
    """One rank of one replica; engine "" = the replica as a whole."""

    instance: str
    engine: str = ""


@dataclass(frozen=True)
class Where:
    """The place of a finding."""

    scope: Scope
    places: tuple[Place, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "scope": self.scope,
            "replicas": [{"instance": place.instance, "engine": place.engine or None} for place in self.places],
        }

    def __str__(self) -> str:
        if self.scope == "fleet":
            return "the fleet"
        return ", ".join(p.instance + (f" rank {p.engine}" if self.scope == "rank" else "") for p in self.places)


@dataclass(frozen=True)
class RankState:
    """Forward progress of one rank and since when that state holds (ms; None = unknown)."""

    place: Place
    state: State
    since_ms: int | None
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "instance": self.place.instance,
            "engine": self.place.engine or None,
            "state": self.state,
            "since": rfc3339(self.since_ms),
            "why": self.why,
        }


@dataclass(frozen=True)
class LawFinding:
    """One law evaluated at one place. `taints` are the canonical signals that a broken law makes unfit to be read."""

    id: str
    status: LawStatus
    where: Where
    evidence: str
    taints: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "status": self.status,
            "where": self.where.to_json(),
            "evidence": self.evidence,
            "taints": list(self.taints),
        }


@dataclass(frozen=True)
class Anomaly:
    """One firing detector. `cause` names the verdict it is grouped under ("" when it stands alone)."""

    id: str
    severity: Severity
    since_ms: int | None
    where: Where
    runbook: str
    says: str = ""
    cause: str = ""
    reads: frozenset[str] = frozenset()
    """Signals that it rests on, for doubts; empty = not told."""

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "severity": self.severity,
            "since": rfc3339(self.since_ms),
            "where": self.where.to_json(),
            "runbook": self.runbook,
            "says": self.says,
            "cause": self.cause,
        }


@dataclass(frozen=True)
class Verdict:
    """One incident: its most likely cause with what speaks for and against it (numbers in words)."""

    cause: str
    confidence: Confidence
    where: Where
    since_ms: int | None = None
    evidence: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    aggravated_by: tuple[str, ...] = ()
    symptoms: tuple[str, ...] = ()
    runner_up: str | None = None
    separating_check: str = ""
    cannot_know: tuple[str, ...] = ()
    reads: frozenset[str] = frozenset()
    """Signals that it rests on, for doubts; empty = not told."""

    @property
    def runbook(self) -> str:
        return RUNBOOK_OF_CAUSE[self.cause]

    def to_json(self) -> dict[str, Any]:
        return {
            "cause": self.cause,
            "confidence": self.confidence,
            "where": self.where.to_json(),
            "since": rfc3339(self.since_ms),
            "evidence": list(self.evidence),
            "against": list(self.against),
            "aggravated_by": list(self.aggravated_by),
            "symptoms": list(self.symptoms),
            "runner_up": self.runner_up,
            "separating_check": self.separating_check,
            "cannot_know": list(self.cannot_know),
            "runbook": self.runbook or None,
        }


@dataclass(frozen=True)
class Diagnosis:
    """What holds at one instant. Verdicts are ordered, the first is the headline; never empty."""

    at_ms: int
    source: str
    window_start_ms: int
    interval_ms: int
    replicas: tuple[RankState, ...]
    laws: tuple[LawFinding, ...]
    anomalies: tuple[Anomaly, ...]
    verdicts: tuple[Verdict, ...]
    warnings: tuple[str, ...] = field(default=())

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong (the single verdict `healthy`)."""
        return all(verdict.cause == "healthy" for verdict in self.verdicts)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "at": rfc3339(self.at_ms),
            "source": self.source,
            "window": {"start": rfc3339(self.window_start_ms), "scrape_interval_seconds": self.interval_ms / 1000},
            "replicas": [state.to_json() for state in self.replicas],
            "laws": [law.to_json() for law in self.laws],
            "anomalies": [anomaly.to_json() for anomaly in self.anomalies],
            "verdicts": [verdict.to_json() for verdict in self.verdicts],
            "warnings": list(self.warnings),
        }

    def to_text(self, options: str = "") -> str:
        """The same for a person: verdicts first, then states that are not plain, then broken laws.

        `options` (" --source X ...") let the command that each verdict names be run as it stands.
        """
        return "\n".join(_text_lines(self, options))


def rfc3339(at_ms: int | None) -> str | None:
    """An instant as RFC 3339 in UTC with milliseconds; None stays None."""
    if at_ms is None:
        return None
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _only_place(where: Where) -> str:
    """The options of `walk` that name a finding's place; none where it is several replicas: the walk takes the worst."""
    if where.scope == "fleet" or len(where.places) != 1:
        return ""
    rank = f" --engine {quote(where.places[0].engine)}" if where.scope == "rank" and where.places[0].engine else ""
    return f" --instance {quote(where.places[0].instance)}{rank}"


def _text_lines(diagnosis: Diagnosis, options: str) -> Iterable[str]:
    yield f"{rfc3339(diagnosis.at_ms)}  {diagnosis.source}"
    for verdict in diagnosis.verdicts:
        since = f" since {rfc3339(verdict.since_ms)}" if verdict.since_ms is not None else ""
        yield f"{verdict.cause} ({verdict.confidence}) on {verdict.where}{since}"
        yield from (f"  + {line}" for line in verdict.evidence)
        yield from (f"  - {line}" for line in verdict.against)
        yield from (f"  made worse by {line}" for line in verdict.aggravated_by)
        yield from (f"  seen as {line}" for line in verdict.symptoms)
        if verdict.runner_up:
            yield f"  runner-up: {verdict.runner_up}; to tell them apart: {verdict.separating_check}"
        elif verdict.separating_check:
            yield f"  to be sure: {verdict.separating_check}"
        yield from (f"  cannot be known: {line}" for line in verdict.cannot_know)
        if verdict.runbook:
            yield f"  next: pagewatch walk {verdict.runbook}{options}{_only_place(verdict.where)}"
    for state in diagnosis.replicas:
        yield f"{state.place.instance} rank {state.place.engine or '-'}: {state.state}" + (
            f" ({state.why})" if state.why else ""
        )
    for law in diagnosis.laws:
        if law.status == "broken":
            yield f"check broken: {law.id} on {law.where}: {law.evidence}"
    yield from (f"warning: {line}" for line in diagnosis.warnings)
