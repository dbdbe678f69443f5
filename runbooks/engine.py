"""Runs a runbook at an instant: asks every automatic step, follows the branches, ends in an outcome.

The steps gather evidence by PromQL; the outcome is held to the diagnosis of the same instant and place, so that
`walk` and `diagnose` never name two causes for one thing. Missing data is inconclusive, never ok.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from collectors.observations import observe
from collectors.observed import Observations
from collectors.scope import ScopedSource, scope_matchers
from collectors.settings import Settings
from collectors.source import Source, SourceError
from runbooks.diagnosis import diagnose, scene_of
from runbooks.findings import Finding, FindingWord, Number, Walk
from runbooks.library import load
from runbooks.naming import names_of, parameters, rate_window_seconds, settings_dialect
from runbooks.outcome import leaf_of
from runbooks.place import asked_place, covers, found_place, matchers, verdicts_at
from runbooks.predicates import Facts
from runbooks.reading import Reading
from runbooks.runbook import PLACEHOLDER, Query, Runbook, RunbookError, Step
from runbooks.template import Binding, TemplateError, resolve
from runbooks.thresholds import Thresholds
from runbooks.verdicts import Diagnosis, Place, Where

__all__ = ["Answer", "RunbookError", "verify", "walk"]

LOOKBACK_MS = 900_000
LogReader = Callable[[str], Mapping[str, Any]]


@dataclass(frozen=True)
class Answer:
    """What a person gave to a manual or pasted step."""

    value: Literal["yes", "no", "skip"] | None = None
    log: str | None = None
    note: str = ""


@dataclass(frozen=True)
class _Scene:
    """One instant and place: what every step of a walk shares."""

    source: Source
    at_ms: int
    where: Where
    bindings: Mapping[str, Binding]
    diagnosis: Diagnosis
    readings: Mapping[Place, Reading]
    settings: Settings
    asked: dict[str, tuple[float | None, Mapping[str, str], str]]
    """Memory of this walk: PromQL and reduction -> value, labels, note."""


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
    scene = _scene(source, at_ms, settings, seen, judged, where)
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
    scene = _scene(source, at_ms, settings, seen, judged, where)
    numbers = tuple(_number(query, scene) for query in check.number)
    word: FindingWord = (
        "error"
        if any(n.note.startswith(_FAILED) for n in numbers)
        else check.predicate.judge(_facts(numbers, scene, None))
    )
    return Finding(check.id, check.question, "automatic", word, numbers, None)


def _scene(
    source: Source, at_ms: int, settings: Settings, seen: Observations, judged: Diagnosis, where: Where
) -> _Scene:
    names = names_of(settings_dialect(settings), settings.identity.rank)
    place, rank = matchers(where, seen, settings.identity.rank)
    scope: tuple[str, ...] = ()
    if isinstance(source, ScopedSource) and source.scope:  # so that a copied query means the same elsewhere
        scope = (scope_matchers(source.scope),)
    values = parameters(
        settings,
        rate_window_seconds=rate_window_seconds(seen.interval_ms / 1000 if seen.interval_ms else 15.0),
        lookback_seconds=LOOKBACK_MS / 1000,
        names=names,
    )
    bindings = {
        "place": Binding(names, values, place + scope, rank),
        "replica": Binding(names, values, place + scope),
        "fleet": Binding(names, values, scope),
    }
    return _Scene(source, at_ms, where, bindings, judged, scene_of(seen, settings).readings, settings, {})


_FAILED = "query failed: "


def _number(query: Query, scene: _Scene) -> Number:
    if query.limit:
        table, _, name = query.limit.partition(".")
        return _as_number(query, "", Thresholds.of(scene.settings)(table, name), {}, "")
    if query.reading:
        return _as_number(query, "", *_read(query, scene))
    try:
        promql = resolve(query.promql, scene.bindings[query.across])
    except TemplateError as error:
        return _as_number(query, "", None, {}, f"not in this engine version: {error}")
    key = f"{query.of}:{promql}"
    if key not in scene.asked:
        scene.asked[key] = _ask(scene.source, promql, scene.at_ms, query.of)
    return _as_number(query, promql, *scene.asked[key])


def _read(query: Query, scene: _Scene) -> tuple[float | None, Mapping[str, str], str]:
    """A quantity of the diagnosis's reading of the ranks at this place: the worst, or the sum."""
    assert query.reading is not None
    here = {
        place: float(getattr(reading, query.reading))
        for place, reading in scene.readings.items()
        if covers(scene.where, Where("rank", (place,)))
    }
    known = {place: value for place, value in here.items() if not math.isnan(value)}
    if not known:
        return None, {}, "not enough samples" if here else "no rank is read here"
    if query.of == "sum":
        return sum(known.values()), {}, ""
    place = (max if query.of == "max" else min)(known, key=lambda each: known[each])
    return known[place], {"instance": place.instance, "engine": place.engine}, ""


def _as_number(query: Query, promql: str, value: float | None, labels: Mapping[str, str], note: str) -> Number:
    label = query.label or query.name.replace("_", " ")
    return Number(query.name, label, value, query.unit, query.kind, promql, labels, note)


def _ask(source: Source, promql: str, at_ms: int, of: str) -> tuple[float | None, Mapping[str, str], str]:
    try:
        vector = source.instant(promql, at_ms)
    except SourceError as error:
        return None, {}, f"{_FAILED}{error}"
    known = np.flatnonzero(~np.isnan(vector.values))
    note = "; ".join(vector.warnings)
    if not len(known):
        return None, {}, note or ("not a number" if len(vector) else "no sample")
    values = vector.values[known]
    if of == "sum":
        return float(values.sum()), {}, note
    chosen = int(values.argmax() if of == "max" else values.argmin())
    return float(values[chosen]), dict(vector.labels[int(known[chosen])]), note


def _facts(numbers: tuple[Number, ...], scene: _Scene, log_class: str | None) -> Facts:
    """What the predicates may see at this place."""
    laws: dict[str, str] = {}
    order = {"kept": 0, "unknown": 1, "broken": 2}
    for law in scene.diagnosis.laws:
        if covers(scene.where, law.where) and order[law.status] >= order.get(laws.get(law.id, ""), -1):
            laws[law.id] = law.status
    states = tuple(
        state.state for state in scene.diagnosis.replicas if covers(scene.where, Where("rank", (state.place,)))
    )
    return Facts(
        numbers={number.name: number.value for number in numbers},
        verdicts={v.cause: v.confidence for v in reversed(verdicts_at(scene.where, scene.diagnosis))},
        states=states,
        laws=laws,
        log_class=log_class,
    )


def _given(step: Step, runbook: Runbook, answers: Mapping[str, Answer]) -> Answer:
    """What a person gave to a step; a log that was pasted into any step is read by every step with the same reader."""
    own = answers.get(step.id, Answer())
    if step.kind != "pasted" or own.log is not None:
        return own
    shared = [answers[other.id].log for other in runbook.steps if other.reader == step.reader and other.id in answers]
    return replace(own, log=next((log for log in shared if log is not None), None))


def _finding(step: Step, scene: _Scene, answer: Answer) -> Finding:
    numbers = tuple(_number(query, scene) for query in step.number)
    word: FindingWord
    log_class: str | None = None
    if step.kind == "manual":
        word = {"yes": "yes", "no": "no", "skip": "inconclusive"}.get(answer.value or "", "needs_answer")  # type: ignore[assignment]
    elif step.kind == "pasted" and answer.log is None:
        word = "needs_answer"
    elif any(number.note.startswith(_FAILED) for number in numbers):
        word = "error"
    else:
        if step.kind == "pasted":
            read = _read_log(step.reader or "ledger", answer.log or "")
            log_class = str(read.get("class") or "undetermined")
            numbers += _log_numbers(read)
        assert step.predicate is not None  # the model refuses automatic and pasted steps without one
        word = step.predicate.judge(_facts(numbers, scene, log_class))
    return Finding(
        step_id=step.id,
        question=step.question,
        kind=step.kind,
        finding=word,
        numbers=numbers,
        next=None,
        says=_say(step, word, numbers),
        instructions=step.instructions,
        why=step.why,
    )


def _read_log(reader: str, text: str) -> Mapping[str, Any]:
    from runbooks import memory

    return (memory.ledger if reader == "ledger" else memory.admission)(text.splitlines())


def _log_numbers(read: Mapping[str, Any]) -> tuple[Number, ...]:
    """The figures that a log gave, as numbers of the step; their unit is in their name."""
    return tuple(
        Number(
            str(name), str(name).replace("_", " "), float(value), "", "measured", "", note="read from the pasted log"
        )
        for name, value in read.get("numbers", {}).items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    )


def _say(step: Step, word: FindingWord, numbers: tuple[Number, ...]) -> str:
    if word not in ("yes", "no", "inconclusive"):
        return next((number.note for number in numbers if number.note.startswith(_FAILED)), "")
    words = {number.name: number.words for number in numbers}
    return PLACEHOLDER.sub(lambda place: words.get(place[1], "no data"), step.says.get(word, ""))


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
