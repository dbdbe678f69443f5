"""What a walk found: numbers seen, the answer of each step, and the leaf it reached. Plain frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

FindingWord = Literal["yes", "no", "inconclusive", "error", "needs_answer"]


@dataclass(frozen=True)
class Place:
    """Where a walk looks: the fleet, one replica, or one rank inside it."""

    scope: Literal["fleet", "replica", "rank"]
    replicas: tuple[tuple[str, str], ...] = ()
    """(instance, engine) pairs."""

    def to_json(self) -> dict[str, Any]:
        return {
            "scope": self.scope,
            "replicas": [{"instance": instance, "engine": engine} for instance, engine in self.replicas],
        }


@dataclass(frozen=True)
class Number:
    """One figure of a step at the instant. `value` None = no data (never zero)."""

    name: str
    label: str
    value: float | None
    unit: str
    kind: str
    """measured, estimated, derived, simulated or documented."""
    promql: str
    """The resolved PromQL that was asked; copyable."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the series that stands for the place when there were several."""
    note: str = ""
    """Why there is no value, or a warning of the source."""


@dataclass(frozen=True)
class Finding:
    """The answer of one step at the instant."""

    step_id: str
    question: str
    kind: Literal["automatic", "manual", "pasted"]
    finding: FindingWord
    numbers: tuple[Number, ...]
    next: str | None
    """Id of the next step; None at the end of the path."""
    says: str = ""
    instructions: tuple[str, ...] = ()
    on_path: bool = False
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.step_id,
            "question": self.question,
            "finding": self.finding,
            "numbers": {number.name: number.value for number in self.numbers},
            "evidence": [{"promql": number.promql, "kind": number.kind} for number in self.numbers],
            "next": self.next,
        }


@dataclass(frozen=True)
class Leaf:
    """Where the walk ended: the cause, and what to do about it."""

    id: str
    cause: str | None
    confidence: str
    says: str
    runner_up: str | None = None
    separating_check: str = ""
    change: str = ""
    risk: str = ""
    verify: str = ""
    verify_step: str = ""
    runbook: str | None = None
    """Another runbook to open, when the cause is treated there."""


@dataclass(frozen=True)
class Walk:
    """One pass through a runbook at an instant: every automatic step with its finding, and the outcome."""

    runbook: str
    title: str
    at_ms: int
    source: str
    place: Place
    findings: tuple[Finding, ...]
    outcome: Leaf

    @property
    def path(self) -> tuple[Finding, ...]:
        """The findings that led to the outcome, in order."""
        return tuple(finding for finding in self.findings if finding.on_path)

    def to_json(self) -> dict[str, Any]:
        """`walk --json`, schema 1."""
        return {
            "schema": 1,
            "runbook": self.runbook,
            "at": self.at_ms / 1000,
            "where": self.place.to_json(),
            "steps": [finding.to_json() for finding in self.findings],
            "outcome": {"cause": self.outcome.cause, "confidence": self.outcome.confidence},
        }
