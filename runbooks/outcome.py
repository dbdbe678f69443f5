"""The leaf of a walk: what the path led to, held to what the diagnosis says of the same place."""

from __future__ import annotations

from collections.abc import Sequence

from runbooks.findings import Leaf
from runbooks.runbook import Outcome, Runbook
from runbooks.verdicts import RUNBOOK_OF_CAUSE, Diagnosis, Verdict

MANUAL_CAUSES = frozenset({"auth_rejects"})
"""Causes that metrics of 0.11.0 cannot show: what a person answered stands, whatever the diagnosis says."""


def leaf_of(runbook: Runbook, outcome_id: str, verdicts: Sequence[Verdict], diagnosis: Diagnosis) -> Leaf:
    """The outcome at the end of the path, reconciled with the verdicts at its place (headline first).

    A verdict of the same cause gives its confidence and runner-up. Where the diagnosis, which weighs everything at once,
    names another cause, that one stands and `steps_led_to` says what the steps alone led to. Checklists and what only a
    person or a log can tell stand as they are.
    """
    outcome = runbook.outcome_of(outcome_id)
    if outcome.stands or outcome.cause is None or outcome.cause in MANUAL_CAUSES:
        return _leaf(outcome, outcome.cause, outcome.confidence, None)
    same = next((verdict for verdict in verdicts if verdict.cause == outcome.cause), None)
    if same is not None:
        return _leaf(outcome, same.cause, same.confidence, same)
    led_to = outcome.cause if outcome.cause != "healthy" else None
    treated = {other.cause: other for other in reversed(runbook.outcome)}
    chosen = next((verdict for verdict in verdicts if verdict.cause in treated), None) or next(iter(verdicts), None)
    if chosen is None:
        return _healthy(runbook, led_to)
    if chosen.cause in treated:
        return _leaf(treated[chosen.cause], chosen.cause, chosen.confidence, chosen, led_to)
    elsewhere = Outcome(
        id="elsewhere",
        cause=chosen.cause,
        says=f"Not what this runbook treats: the diagnosis names {chosen.cause} here. Open its runbook.",
    )
    return _leaf(elsewhere, chosen.cause, chosen.confidence, chosen, led_to)


def _healthy(runbook: Runbook, led_to: str | None) -> Leaf:
    declared = next((outcome for outcome in runbook.outcome if outcome.cause == "healthy"), None)
    says = declared.says if declared else "Nothing of this kind holds at this instant."
    if led_to:
        says = f"The steps alone point at {led_to}, but it has not held long or clearly enough to be a diagnosis."
    return Leaf(
        id=declared.id if declared else "quiet", cause="healthy", confidence="likely", says=says, steps_led_to=led_to
    )


def _leaf(
    outcome: Outcome, cause: str | None, confidence: str, verdict: Verdict | None, led_to: str | None = None
) -> Leaf:
    runbook = RUNBOOK_OF_CAUSE.get(cause or "", "")
    return Leaf(
        id=outcome.id,
        cause=cause,
        confidence=confidence,
        says=outcome.says,
        runner_up=verdict.runner_up if verdict else None,
        separating_check=verdict.separating_check if verdict else "",
        change=outcome.change,
        risk=outcome.risk,
        verify=outcome.verify,
        verify_step=outcome.verify_step,
        runbook=outcome.runbook or (runbook if outcome.id == "elsewhere" and runbook else None),
        steps_led_to=led_to,
        evidence=verdict.evidence if verdict else (),
        cannot_know=verdict.cannot_know if verdict else (),
    )
