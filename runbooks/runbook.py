"""A runbook as data: the model of `library/<id>/runbook.toml`, validated whole when it is loaded.

A wrong predicate, signal, number, step or cause is refused with the file and the place inside it.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from runbooks.naming import default_names
from runbooks.predicates import Predicate
from runbooks.template import TemplateError, check_template
from runbooks.thresholds import has_threshold
from runbooks.verdicts import CAUSES

Identifier = Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")
PLACEHOLDER = re.compile(r"\{([a-z][a-z0-9_]*)\}")
"""A number's place in a `says` text."""
EvidenceKind = Literal["measured", "estimated", "derived", "inferred", "configured", "simulated", "documented"]


class RunbookError(Exception):
    """A runbook cannot be loaded or walked. One line that names the file or the input and the next thing to try."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


ReadingName = Literal[
    "arrivals", "batch_share_of_gap", "ceiling", "gap_seconds", "gap_before_seconds", "head_tokens", "kv_median",
    "kv_max", "lookups_per_prompt_token", "pinned", "prompt_share", "requests_in_prefill", "steps_per_prefill",
    "patience_seconds", "running_low", "silence_seconds", "tokens_per_step", "wait_seconds", "waiting_mean",
]  # fmt: skip
"""Quantities of `runbooks.reading.Reading` that a step may show: the very figures the diagnosis reasons with."""


class Query(_Table):
    """One number of a step, its unit and the kind of evidence it is.

    It comes from PromQL by signal name; from the diagnosis's own reading of each rank (`reading`), where PromQL cannot
    express it; or from a threshold (`limit`, as table.name of thresholds.toml or the operator's override).
    """

    name: str = Identifier
    promql: str = ""
    reading: ReadingName | None = None
    limit: str = ""
    unit: str
    kind: EvidenceKind = "measured"
    label: str = ""
    """Words for the page; default: the name without underscores."""
    of: Literal["max", "min", "sum", "busiest"] = "max"
    """Which of several series stands for the place (the worst one), or their sum; `busiest`, for readings: the rank where most wait,
    so that several numbers of one sentence are about one rank."""
    across: Literal["place", "replica", "fleet"] = "place"
    """Whom the query sees: the place, its whole replicas (all ranks), or every replica of the source."""

    @model_validator(mode="after")
    def _one_origin(self) -> Query:
        if bool(self.promql) + bool(self.reading) + bool(self.limit) != 1:
            raise ValueError(f"number {self.name}: give exactly one of promql, reading and limit")
        if self.of == "busiest" and not self.reading:
            raise ValueError(f"number {self.name}: only a reading knows the busiest rank")
        if self.limit:
            table, _, name = self.limit.partition(".")
            if not has_threshold(table, name):
                raise ValueError(f"number {self.name}: no threshold {self.limit!r}")
        if not self.promql:
            return self
        try:
            check_template(self.promql, default_names())
        except TemplateError as error:
            raise ValueError(f"promql of {self.name}: {error}") from None
        return self


class Next(_Table):
    """Where each answer leads: a step id, or `outcome:ID`. `skip` is for manual steps without an answer."""

    yes: str
    no: str
    inconclusive: str = ""
    skip: str = ""

    def target(self, finding: str) -> str:
        """The branch of a finding; an unanswered or failed step takes the inconclusive (else skip, else no) branch."""
        if finding == "yes":
            return self.yes
        if finding == "no":
            return self.no
        if finding == "inconclusive":
            return self.inconclusive or self.skip or self.no
        return self.skip or self.inconclusive or self.no


class Variant(_Table):
    """Another sentence for an answer, where the numbers make the usual one untrue."""

    answer: Literal["yes", "no", "inconclusive"]
    when: Predicate
    says: str


class Step(_Table):
    """One question. Automatic: numbers and a predicate. Manual: read-only instructions. Pasted: a log and a reader."""

    id: str = Identifier
    question: str
    kind: Literal["automatic", "manual", "pasted"] = "automatic"
    why: str = ""
    number: tuple[Query, ...] = ()
    predicate: Predicate | None = None
    instructions: tuple[str, ...] = ()
    """Read-only things to do, one a line; a line starting with `$ ` is a command to copy."""
    reader: Literal["ledger", "admission"] | None = None
    says: dict[Literal["yes", "no", "inconclusive"], str] = Field(default_factory=dict)
    """What the answer means, with {number_name} places."""
    variant: tuple[Variant, ...] = ()
    """Said instead, the first one whose judgement is yes."""
    next: Next

    @model_validator(mode="after")
    def _whole(self) -> Step:
        names = [number.name for number in self.number]
        if len(set(names)) != len(names):
            raise ValueError(f"step {self.id}: a number name is used twice")
        if self.kind == "manual":
            if not self.instructions:
                raise ValueError(f"step {self.id}: a manual step needs instructions")
            if self.predicate is not None:
                raise ValueError(f"step {self.id}: a manual step is answered by a person, it takes no predicate")
        elif self.predicate is None:
            raise ValueError(f"step {self.id}: a {self.kind} step needs a predicate")
        if (self.kind == "pasted") != (self.reader is not None):
            raise ValueError(f"step {self.id}: reader belongs to pasted steps, and they need it")
        for name in self.predicate.number_names() if self.predicate else ():
            if name not in names:
                raise ValueError(f"step {self.id}: the predicate reads number {name!r}, which the step does not have")
        for variant in self.variant:
            for name in variant.when.number_names():
                if name not in names:
                    raise ValueError(f"step {self.id}: a variant reads number {name!r}, which the step does not have")
        texts = [*self.says.items(), *((variant.answer, variant.says) for variant in self.variant)]
        for answer, text in texts:
            for name in PLACEHOLDER.findall(text):
                if name not in names:
                    raise ValueError(f"step {self.id}: says.{answer} shows {{{name}}}, which the step does not have")
        return self


class Outcome(_Table):
    """A leaf: what it is, what change to consider, at what risk, and how to verify it afterwards."""

    id: str = Identifier
    cause: str | None = None
    """A cause of the closed list; none for a checklist or a question that has no cause."""
    confidence: Literal["likely", "possible", "undetermined"] = "likely"
    says: str
    stands: bool = False
    """True when a person's answer or a log decided it: it is not held to the diagnosis of the metrics."""
    runbook: str | None = None
    """Another runbook to go on with."""
    change: str = ""
    risk: str = ""
    verify: str = ""
    verify_step: str = ""
    """Id of the `[[verify]]` step that proves the change."""

    @model_validator(mode="after")
    def _known_cause(self) -> Outcome:
        if self.cause is not None and self.cause not in CAUSES:
            raise ValueError(f"outcome {self.id}: unknown cause {self.cause!r}; known: {', '.join(sorted(CAUSES))}")
        if bool(self.change) != bool(self.risk):
            raise ValueError(f"outcome {self.id}: a change is always shown with its risk")
        return self


class Verify(_Table):
    """An automatic check to run after a change was made: did it help?"""

    id: str = Identifier
    question: str
    number: tuple[Query, ...] = Field(min_length=1)
    predicate: Predicate

    @model_validator(mode="after")
    def _whole(self) -> Verify:
        names = {number.name for number in self.number}
        for name in self.predicate.number_names():
            if name not in names:
                raise ValueError(f"verify {self.id}: the predicate reads number {name!r}, which it does not have")
        return self


class Detector(_Table):
    """A condition that opens this runbook: PromQL by signal name compared with a threshold, held for a time."""

    name: str = Identifier
    promql: str
    comparison: Literal["above", "below"] = "above"
    threshold: float
    hold_seconds: int = Field(ge=0, le=3600)
    clear: str
    """Words: when it is over. The alert keeps firing for `keep_seconds` after the condition was last true."""
    keep_seconds: int = Field(default=60, ge=0, le=86400)
    severity: Literal["page", "ticket"]
    where: Literal["fleet", "replica", "rank"]
    summary: str
    unit: str = ""
    export: Literal["rule", "burn_rate", "none"] = "rule"
    no_export_reason: str = ""

    @model_validator(mode="after")
    def _whole(self) -> Detector:
        try:
            check_template(self.promql, default_names())
        except TemplateError as error:
            raise ValueError(f"detector {self.name}: {error}") from None
        if (self.export == "none") != bool(self.no_export_reason):
            raise ValueError(f"detector {self.name}: no_export_reason belongs to export = 'none', and it needs one")
        return self


class Runbook(_Table):
    """One runbook: detectors, steps in order (the first is the entry), verifying checks and leaves."""

    schema_: Literal[1] = Field(alias="schema")
    id: str = Identifier
    title: str
    symptom: Literal["queue", "memory", "latency", "errors", "availability", "metrics", "change"]
    meaning: str
    impact: str
    detector: tuple[Detector, ...] = ()
    step: tuple[Step, ...] = Field(min_length=1)
    verify: tuple[Verify, ...] = ()
    outcome: tuple[Outcome, ...] = Field(min_length=1)
    prose: str = ""
    """The text of runbook.md."""

    @property
    def steps(self) -> tuple[Step, ...]:
        return self.step

    def step_of(self, step_id: str) -> Step:
        for step in self.step:
            if step.id == step_id:
                return step
        raise KeyError(step_id)

    def outcome_of(self, outcome_id: str) -> Outcome:
        for outcome in self.outcome:
            if outcome.id == outcome_id:
                return outcome
        raise KeyError(outcome_id)

    def verify_of(self, verify_id: str) -> Verify:
        for verify in self.verify:
            if verify.id == verify_id:
                return verify
        raise KeyError(verify_id)

    @model_validator(mode="after")
    def _connected(self) -> Runbook:
        for kind, items in (("step", self.step), ("outcome", self.outcome), ("verify", self.verify)):
            ids = [item.id for item in items]
            if len(set(ids)) != len(ids):
                raise ValueError(f"a {kind} id is used twice: {', '.join(sorted(ids))}")
        steps = [step.id for step in self.step]
        outcomes = {outcome.id for outcome in self.outcome}
        for place, step in enumerate(self.step):
            for answer, target in step.next.model_dump().items():
                if not target:
                    continue
                kind, _, name = target.partition(":")
                if kind == "outcome" and name in outcomes:
                    continue
                if target not in steps:
                    raise ValueError(
                        f"step {step.id}: next.{answer} names {target!r}, which is no step or outcome here"
                    )
                if steps.index(target) <= place:
                    raise ValueError(f"step {step.id}: next.{answer} goes back to {target!r}; a walk only goes forward")
        for outcome in self.outcome:
            if outcome.verify_step and outcome.verify_step not in {verify.id for verify in self.verify}:
                raise ValueError(f"outcome {outcome.id}: verify_step {outcome.verify_step!r} does not exist")
        return self


def parse_runbook(text: str, file: str, prose: str = "") -> Runbook:
    """The runbook in a TOML text. Raises RunbookError naming the file and the place of the first mistake."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RunbookError(f"{file}: not TOML: {error}") from None
    try:
        return Runbook.model_validate({**table, "prose": prose})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the file"
        raise RunbookError(f"{file}: {place}: {first['msg'].removeprefix('Value error, ')}") from None


def read_runbook(folder: Path) -> Runbook:
    """The runbook in a library folder. The id must be the folder's name. Raises RunbookError."""
    file = folder / "runbook.toml"
    try:
        text = file.read_text(encoding="utf-8")
        prose = (folder / "runbook.md").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RunbookError(f"{file}: cannot be read: {error}") from None
    runbook = parse_runbook(text, str(file), prose)
    if runbook.id != folder.name:
        raise RunbookError(f"{file}: id is {runbook.id!r}; it must be the folder's name {folder.name!r}")
    return runbook
