"""Runs a runbook at an instant: asks every automatic step, follows the branches, ends in an outcome.

The steps gather evidence by PromQL; the outcome is held to the diagnosis of the same instant and place, so that
`walk` and `diagnose` never name two causes for one thing. Missing data is inconclusive, never ok.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from collectors.observations import observe
from collectors.observed import Observations
from collectors.settings import Settings
from collectors.source import Source
from runbooks.diagnosis import diagnose
from runbooks.evidence import FAILED, Scene, ask_ahead, facts_of, log_numbers, number_of, read_log, scene_at
from runbooks.findings import Finding, FindingWord, Number, Walk
from runbooks.library import load
from runbooks.outcome import leaf_of
from runbooks.place import asked_place, found_place, verdicts_at
from runbooks.predicates import Facts
from runbooks.runbook import PLACEHOLDER, Runbook, RunbookError, Step
from runbooks.verdicts import Diagnosis, Where

__all__ = ["Answer", "RunbookError", "verify", "walk"]


@dataclass(frozen=True)
class Answer:
    """What a person gave to a manual or pasted step."""

    value: Literal["yes", "no", "skip"] | None = None
    log: str | None = None
    note: str = ""


def walk(
    runbook_id: str,
    source: Source,
    at_ms: int,
    settings: Settings,
    instance: str | None = None,
    engine: str | None = None,
    *,
    answers: Mapping[str, Answer] | None = None,
    observations: Observations | None = None,
    diagnosis: Diagnosis | None = None,
) -> Walk:
    """One pass through a runbook at an instant: every step's finding, the path, the outcome.

    Without `instance` the walk looks where the diagnosis sees the problem, else at the whole fleet. `answers` holds what
    a person said to manual steps and pasted into log steps, by step id. Raises RunbookError for an unknown runbook,
    replica or rank, SourceError when the source cannot be asked at all; a single failed query is that step's `error`.
    """
    runbook = load(runbook_id)
    seen = observations if observations is not None else observe(source, at_ms, settings)
    asked = asked_place(seen, instance, engine)
    judged = diagnosis if diagnosis is not None else diagnose(source, at_ms, settings, seen)
    where = asked if asked is not None else found_place(runbook_id, judged)
    scene = scene_at(source, at_ms, settings, seen, judged, where)
    ask_ahead(scene, [query for step in runbook.steps for query in step.number])
    findings = [_finding(step, scene, _given(step, runbook, answers or {})) for step in runbook.steps]
    findings, target = _follow(runbook, findings)
    return Walk(
        runbook=runbook.id,
        title=runbook.title,
        at_ms=at_ms,
        source=source.info().name,
        where=where,
        findings=tuple(findings),
        outcome=leaf_of(runbook, target, verdicts_at(where, judged), judged),
    )


def verify(
    runbook_id: str,
    verify_id: str,
    source: Source,
    at_ms: int,
    settings: Settings,
    instance: str | None = None,
    engine: str | None = None,
    *,
    observations: Observations | None = None,
    diagnosis: Diagnosis | None = None,
) -> Finding:
    """Whether a change helped: the `[[verify]]` check of a runbook at an instant. Raises as `walk` does."""
    runbook = load(runbook_id)
    try:
        check = runbook.verify_of(verify_id)
    except KeyError:
        raise RunbookError(f"runbook {runbook_id} has no check {verify_id!r}") from None
    seen = observations if observations is not None else observe(source, at_ms, settings)
    judged = diagnosis if diagnosis is not None else diagnose(source, at_ms, settings, seen)
    where = asked_place(seen, instance, engine) or found_place(runbook_id, judged)
    scene = scene_at(source, at_ms, settings, seen, judged, where)
    numbers = tuple(number_of(query, scene) for query in check.number)
    word: FindingWord = (
        "error"
        if any(n.note.startswith(FAILED) for n in numbers)
        else check.predicate.judge(facts_of(numbers, scene, None))
    )
    return Finding(check.id, check.question, "automatic", word, numbers, None)


def _given(step: Step, runbook: Runbook, answers: Mapping[str, Answer]) -> Answer:
    """What a person gave to a step; a log that was pasted into any step is read by every step with the same reader."""
    own = answers.get(step.id, Answer())
    if step.kind != "pasted" or own.log is not None:
        return own
    shared = [answers[other.id].log for other in runbook.steps if other.reader == step.reader and other.id in answers]
    return replace(own, log=next((log for log in shared if log is not None), None))


def _finding(step: Step, scene: Scene, answer: Answer) -> Finding:
    numbers = tuple(number_of(query, scene) for query in step.number)
    word: FindingWord
    log_class: str | None = None
    facts: Facts | None = None
    if step.kind == "manual":
        word = {"yes": "yes", "no": "no", "skip": "inconclusive"}.get(answer.value or "", "needs_answer")  # type: ignore[assignment]
    elif step.kind == "pasted" and answer.log is None:
        word = "needs_answer"
    elif any(number.note.startswith(FAILED) for number in numbers):
        word = "error"
    else:
        if step.kind == "pasted":
            read = read_log(step.reader or "ledger", answer.log or "")
            log_class = str(read.get("class") or "undetermined")
            numbers += log_numbers(read)
        assert step.predicate is not None  # the model refuses automatic and pasted steps without one
        facts = facts_of(numbers, scene, log_class)
        word = step.predicate.judge(facts)
    return Finding(
        step_id=step.id,
        question=step.question,
        kind=step.kind,
        finding=word,
        numbers=numbers,
        next=None,
        says=_say(step, word, numbers, facts),
        instructions=_addressed(step.instructions, scene.where),
        why=step.why,
    )


def _addressed(instructions: tuple[str, ...], where: Where) -> tuple[str, ...]:
    """Instructions with the address of the one replica that is walked; a name that is no address of host and port, and could be anything
    in a shell, leaves the word REPLICA."""
    [*instances] = {place.instance for place in where.places}
    if len(instances) != 1 or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*:[0-9]{1,5}", instances[0]):
        return instructions
    return tuple(line.replace("REPLICA", instances[0]) if line.startswith("$ ") else line for line in instructions)


def _say(step: Step, word: FindingWord, numbers: tuple[Number, ...], facts: Facts | None) -> str:
    """The sentence of an answer: the first variant whose judgement is yes, else the usual one, with its numbers."""
    if word not in ("yes", "no", "inconclusive"):
        return next((number.note for number in numbers if number.note.startswith(FAILED)), "")
    words = {number.name: number.words for number in numbers}
    chosen = (v.says for v in step.variant if v.answer == word and facts is not None and v.when.judge(facts) == "yes")
    return PLACEHOLDER.sub(lambda place: words.get(place[1], "no data"), next(chosen, step.says.get(word, "")))


def _follow(runbook: Runbook, findings: list[Finding]) -> tuple[list[Finding], str]:
    """Fills in where each answer leads and marks the path; the target of the path's last step comes second."""
    at: str = runbook.steps[0].id
    target = ""
    linked: list[Finding] = []
    for step, finding in zip(runbook.steps, findings, strict=True):
        chosen = step.next.target(finding.finding)
        ends = chosen.startswith("outcome:")
        on_path = step.id == at
        if on_path:
            at, target = ("", chosen) if ends else (chosen, "")
        linked.append(replace(finding, next=None if ends else chosen, on_path=on_path))
    return linked, target.removeprefix("outcome:")
