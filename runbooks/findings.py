"""What a walk found: numbers seen, the answer of each step, and the leaf it reached. Plain frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from runbooks.verdicts import Where, rfc3339
from runbooks.wording import worded

FindingWord = Literal["yes", "no", "inconclusive", "error", "needs_answer"]


@dataclass(frozen=True)
class Number:
    """One figure of a step at the instant. `value` None = no data (never zero)."""

    name: str
    label: str
    value: float | None
    unit: str
    kind: str
    """Kind of evidence: measured, estimated, derived, inferred, configured, simulated or documented."""
    promql: str
    """The resolved PromQL that was asked; copyable."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the series that stands for the place when there were several."""
    note: str = ""
    """Why there is no value, or a warning of the source."""

    @property
    def words(self) -> str:
        """The value with its unit; `no data` when there is none, `not configured` for what an operator may set and has not."""
        if self.kind == "configured" and (self.value is None or self.value != self.value):
            return "not configured"
        if self.unit == "yes or no" and self.value is not None:
            return "yes" if self.value > 0 else "no"
        return worded(self.value, self.unit)


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
            "evidence": [{"promql": number.promql, "kind": number.kind} for number in self.numbers if number.promql],
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
    steps_led_to: str | None = None
    """The cause that the steps alone led to, where the whole diagnosis weighs the evidence otherwise."""
    evidence: tuple[str, ...] = ()
    cannot_know: tuple[str, ...] = ()


@dataclass(frozen=True)
class Walk:
    """One pass through a runbook at an instant: every automatic step with its finding, and the outcome."""

    runbook: str
    title: str
    at_ms: int
    source: str
    where: Where
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
            "at": rfc3339(self.at_ms),
            "where": self.where.to_json(),
            "steps": [finding.to_json() for finding in self.findings],
            "outcome": {"cause": self.outcome.cause, "confidence": self.outcome.confidence},
        }

    def to_text(self) -> str:
        """The same for a person: one line a step, the numbers beneath it, the outcome last."""
        marks = {"yes": "yes", "no": "no ", "inconclusive": "?  ", "error": "!  ", "needs_answer": "ask"}
        lines = [f"{self.title} on {self.where} at {rfc3339(self.at_ms)} ({self.source})"]
        for finding in self.findings:
            lines.append(f"{'>' if finding.on_path else ' '} {marks[finding.finding]}  {finding.question}")
            lines += [f"          {n.label}: {n.words}{_beside(n, self.where)}" for n in finding.numbers]
            if finding.says:
                lines.append(f"          {finding.says}")
            if finding.on_path:
                lines += [f"          - {line}" for line in finding.instructions]
        out = self.outcome
        lines.append(f"=> {out.confidence}: {out.cause or 'no cause, a checklist'}. {out.says}")
        for label, text in (
            ("runner-up", f"{out.runner_up}; to tell them apart: {out.separating_check}" if out.runner_up else ""),
            ("change to consider", out.change),
            ("risk", out.risk),
            ("verify afterwards", out.verify),
            ("next", f"pagewatch walk {out.runbook}" if out.runbook else ""),
        ):
            if text:
                lines.append(f"   {label}: {text}")
        return "\n".join(printable(line) for line in lines)


def _beside(number: Number, where: Where) -> str:
    """In brackets: which replica a fleet-wide figure is about, and what is to be known about it."""
    which = number.labels.get("instance", "") if where.scope == "fleet" else ""
    words = "; ".join(text for text in (which, number.note) if text)
    return f" ({words})" if words else ""


def printable(text: str) -> str:
    """Text from outside on one terminal line: control characters become visible escapes, long values are cut."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return shown if len(shown) <= 600 else shown[:597] + "..."
