"""Sentences of a walk held against their own numbers, against the other steps, and against the diagnosis."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from runbooks.findings import Finding, Walk
from runbooks.library import load
from runbooks.runbook import PLACEHOLDER
from runbooks.verdicts import Diagnosis
from tests.runbooks.numbers_said import figures

Values = Mapping[str, float | None]


def contradictions(walk: Walk, diagnosis: Diagnosis) -> Iterator[str]:
    """Every way in which a walk speaks against itself; none for an honest one."""
    for finding in walk.findings:
        if finding.kind == "automatic":
            for fault in (*_unfounded(walk.runbook, finding), *untrue(finding), *_hollow(finding)):
                yield f"{walk.runbook}.{finding.step_id} ({finding.finding}): {fault}: {finding.says!r}"
    seen: dict[tuple[str, str], tuple[float | None, str]] = {}
    for finding in walk.findings:
        for number in finding.numbers:
            key = (number.promql, number.name)
            if number.promql and seen.setdefault(key, (number.value, finding.step_id))[0] != number.value:
                yield f"{walk.runbook}: {number.name} differs between {seen[key][1]} and {finding.step_id}"
    here = {place.instance for place in walk.where.places}
    causes = {
        v.cause
        for v in diagnosis.verdicts
        if walk.where.scope == "fleet" or not v.where.places or here & {place.instance for place in v.where.places}
    }
    cause = walk.outcome.cause
    if cause not in (None, "healthy", "auth_rejects") and cause not in causes:
        yield f"{walk.runbook}: ends in {cause}, the diagnosis says {sorted(causes)}"
    if (
        cause == "healthy"
        and walk.outcome.confidence == "likely"
        and (causes - {"healthy"})
        and walk.where.scope != "fleet"
    ):
        own = {v.cause for v in diagnosis.verdicts if v.confidence == "likely"} & causes - {"healthy"}
        if own and walk.outcome.runbook is None:
            yield f"{walk.runbook}: ends healthy, the diagnosis says {sorted(own)}"


def _unfounded(runbook_id: str, finding: Finding) -> Iterator[str]:
    """A figure in the sentence that stands in none of the step's numbers, nor in the sentence as written."""
    step = load(runbook_id).step_of(finding.step_id)
    written = [PLACEHOLDER.sub(" ", text) for text in (*step.says.values(), *(v.says for v in step.variant))]
    known = {figure for text in (*written, *(number.words for number in finding.numbers)) for figure in figures(text)}
    for figure in figures(finding.says):
        if figure not in known:
            yield f"{figure} is no number of this step"
    for number in finding.numbers:
        if number.value is not None and number.unit == "":
            yield f"{number.name} has no unit"


def _hollow(finding: Finding) -> Iterator[str]:
    """An answer that rests on nothing, or a sentence with a hole in it."""
    if finding.finding in ("yes", "no") and ("no data" in finding.says or "not configured" in finding.says):
        yield "a hole in the sentence"
    if finding.finding in ("yes", "no", "inconclusive") and not finding.says:
        yield "no sentence"


def _ratio(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None or other <= 0 else one / other


def _lookups(values: Values) -> bool:
    ratio = _ratio(values.get("looked_up_tokens_per_second"), values.get("admitted_tokens_per_second"))
    return ratio is None or 0.5 <= ratio <= 2.0


def _zero(*names: str) -> Callable[[Values], bool]:
    return lambda values: all(not values.get(name) for name in names)


def _above_zero(name: str) -> Callable[[Values], bool]:
    return lambda values: (values.get(name) or 0) > 0


CLAIMS: tuple[tuple[str, Callable[[Values], bool]], ...] = (
    (r"in proportion", _lookups),
    (r"\b[Nn]othing waits", _zero("waiting_requests")),
    (r"\bNothing runs and nothing waits", _zero("running_requests", "waiting_requests")),
    (r"[Nn]othing has come out", _above_zero("silence_seconds")),
    (r"tokens come out at", _above_zero("generation_tokens_per_second")),
    (r"None (is )?counted", _zero("preemptions_per_second")),
    (r"blocks are free|free blocks", lambda v: (v.get("kv_cache_usage_ratio") or 0) < (v.get("full_ratio") or 0.95)),
    (r"\bfull\b\.", lambda v: (v.get("kv_cache_usage_ratio") or 1) >= (v.get("full_ratio") or 0.85)),
    (r"no single one stands out", lambda v: (v.get("share_per_request_ratio") or 0) <= 0.2),
    (r"more seats would not help", lambda v: (v.get("batch_share_ratio") or 1) >= (v.get("batch_share_limit_ratio") or 0)),
    (r"Scrapes work", lambda v: (v.get("worked_ratio") or v.get("up_ratio") or 0) > 0.5),
    (r"None answers", _zero("others_up_replicas")),
    (r"No restart", _zero("restarts_count")),
    (r"every seat is taken", lambda v: (v.get("running_low_requests") or 0) >= 0.7 * (v.get("ceiling_requests") or 0) - 1),
    (r"unchanged|balance", lambda v: False),
)  # fmt: skip
"""What a sentence says in words -> whether the step's numbers bear it out."""


def untrue(finding: Finding) -> Iterator[str]:
    values = {number.name: number.value for number in finding.numbers}
    for words, holds in CLAIMS:
        if re.search(words, finding.says) and not holds(values):
            yield f"says {words!r} against {values}"
