"""One proof: a scenario is simulated, its incident must be named in time, walked to the right leaf, and mended by its remedy."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from collectors.model import Window
from collectors.settings import Settings
from collectors.source import Source
from runbooks.diagnosis import diagnose
from runbooks.engine import verify, walk
from runbooks.library import load
from runbooks.rules import Rule
from runbooks.verdicts import RUNBOOK_OF_CAUSE
from sim_backend.scenario import Scenario, load_scenario, with_remedy
from tests.proof.incidents import recorded

STEP_MS = 10_000
SETTLE_MS = 90_000
"""After its start an incident needs this long before a walk is asked: hold times and rate windows must have filled."""


@dataclass(frozen=True)
class Proof:
    """What became of one scenario and seed. Seconds count from the start of the incident; None = never."""

    scenario: str
    seed: int
    expected: str
    outcome: str
    named: tuple[str, ...]
    """Causes called likely at the middle of the incident."""
    detected_seconds: float | None
    budget_seconds: float
    walked_to: str | None
    leaf: str
    steps_led_to: str | None
    verify_before: str
    """The verifying check during the incident; '' when the leaf has none."""
    verify_after: str
    """The same check at the same instant with the remedy applied; '' without a remedy."""
    true_causes: tuple[str, ...]
    """Every cause that is true of the scenario at some time, and those that may stand beside."""
    rules: tuple[str, ...]
    """Runbooks whose exported rules fire during the incident."""

    @property
    def word(self) -> str:
        """fired, late, silent or wrong; for scenarios that metrics cannot show, silent is right."""
        if self.detected_seconds is None:
            return "wrong" if set(self.named) - set(self.true_causes) else "silent"
        return "fired" if self.detected_seconds <= self.budget_seconds else "late"


def simulated(scenario: Scenario, seed: int, folder: Path) -> tuple[Source, dict]:  # type: ignore[type-arg]
    """The source of a run, and its ground truth; the run of another proof in `folder`, where there is one."""
    made = recorded(scenario, seed, folder)
    return made.source, dict(made.truth)


def prove(name: str, seed: int, rules: list[Rule], keep: Path | None = None) -> Proof:
    """Simulates a scenario, and once more with its remedy. `keep` holds the incident files for the next run."""
    scenario = load_scenario(name)
    settings = Settings()
    with tempfile.TemporaryDirectory() as temporary:
        folder = keep or Path(temporary)
        source, truth = simulated(scenario, seed, folder)
        cause = scenario.expect.cause
        incident = next(i for i in truth["incidents"] if i["cause"] == cause)
        start_ms, end_ms = incident["from_ms"], min(incident["to_ms"] or 2**53, (source.extent_ms() or (0, 0))[1])
        detected = None
        for at_ms in range(start_ms + STEP_MS, end_ms + 1, STEP_MS):
            likely = [v.cause for v in diagnose(source, at_ms, settings).verdicts if v.confidence == "likely"]
            if cause in likely:
                detected = (at_ms - start_ms) / 1000
                break
        at_ms = min(max(start_ms + SETTLE_MS, (start_ms + end_ms) // 2), end_ms)
        runbook = RUNBOOK_OF_CAUSE.get(cause, "out_of_memory_start")
        judged = diagnose(source, at_ms, settings)
        walked = walk(runbook, source, at_ms, settings, diagnosis=judged)
        place = walked.where.places[0].instance if walked.where.scope != "fleet" else None
        before = after = ""
        check = walked.outcome.verify_step
        if check:
            before = verify(runbook, check, source, at_ms, settings, place, diagnosis=judged).finding
        if check and scenario.expect.remedy is not None:
            mended, _ = simulated(with_remedy(scenario), seed, folder)
            after = verify(runbook, check, mended, at_ms, settings, place).finding
        return Proof(
            scenario=name,
            seed=seed,
            expected=cause,
            outcome=scenario.expect.outcome,
            named=tuple(v.cause for v in judged.verdicts if v.confidence == "likely" and v.cause != "healthy"),
            detected_seconds=detected,
            budget_seconds=scenario.expect.detect_within_seconds,
            walked_to=walked.outcome.cause,
            leaf=walked.outcome.id,
            steps_led_to=walked.outcome.steps_led_to,
            verify_before=before,
            verify_after=after,
            true_causes=(*(i["cause"] for i in truth["incidents"]), *scenario.expect.may_stand_beside),
            rules=tuple(sorted({rule.runbook.id for rule in rules if _fires(rule, source, start_ms, end_ms)})),
        )


def _fires(rule: Rule, source: Source, start_ms: int, end_ms: int) -> bool:
    frame = source.range(rule.expr, Window(start_ms, max(end_ms, start_ms + STEP_MS), STEP_MS))
    needed = 1 + -(-rule.detector.hold_seconds * 1000 // STEP_MS)
    return any(
        (np.convolve(~np.isnan(values), np.ones(needed), mode="valid") >= needed).any()
        for values in frame.values
        if len(values) >= needed
    )


def runbook_title(cause: str) -> str:
    """For tables."""
    return load(RUNBOOK_OF_CAUSE[cause]).title if RUNBOOK_OF_CAUSE.get(cause) else ""
