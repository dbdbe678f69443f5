"""In the middle of an incident: where its runbook leads, and whether its check tells the mended fleet from the broken one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from collectors.settings import Settings
from runbooks.diagnosis import diagnose
from runbooks.engine import Answer, verify, walk
from runbooks.library import load
from runbooks.verdicts import RUNBOOK_OF_CAUSE
from sim_backend.scenario import with_remedy
from tests.proof.incidents import START_MS, Incident, Recorded, recorded

LEAST_SECONDS = 90.0
"""An incident is walked once hold times and rate windows have filled."""
RUNBOOK_OF_LOG_CAUSE = {"oom_at_start": "out_of_memory_start"}
"""Causes that only a log tells have no verdict, but a runbook."""


@dataclass(frozen=True)
class Walked:
    """One walk in the middle of an incident, and the same fleet with its remedy. '' = not asked."""

    at: float
    cause: str | None
    leaf: str
    steps_led_to: str | None
    """A cause that the steps alone led to, where it is not the diagnosis."""
    check_broken: str
    check_mended: str
    mended_named: tuple[str, ...] | None
    """What was called likely in the mended fleet; None without a remedy."""

    def reaches(self, cause: str) -> bool:
        """Whether the walk ends in the leaf of a cause and its own steps led there. Only a log names what no verdict can."""
        if cause in RUNBOOK_OF_LOG_CAUSE:
            return self.leaf == "neighbour"
        return self.cause == cause and self.steps_led_to is None


def middle(incident: Incident) -> float:
    """When to walk: halfway, but not before the incident can have shown."""
    return min(max((incident.start + incident.stop) / 2, incident.start + LEAST_SECONDS), incident.stop)


def answers_of(run: Recorded, runbook_id: str) -> dict[str, Answer]:
    """What a person would answer who sees the gateway and the logs: yes to what is asked by hand, the log of a failed start."""
    log = "\n".join(line for lines in run.truth["failed_starts"].values() for line in lines)
    found = {}
    for step in load(runbook_id).steps:
        if step.kind == "pasted" and log:
            found[step.id] = Answer(log=log)
        elif step.kind == "manual" and run.scenario.expect.outcome != "fires":
            found[step.id] = Answer("yes")
    return found


def walked(run: Recorded, incident: Incident, folder: Path, *, mend: bool = True) -> Walked:
    """Walks the runbook of an incident in its middle; with `mend`, asks its check again with the remedy applied, where there is one."""
    settings, at = Settings(), middle(incident)
    at_ms = START_MS + round(at * 1000)
    runbook = RUNBOOK_OF_LOG_CAUSE.get(incident.cause) or RUNBOOK_OF_CAUSE[incident.cause]
    passed = walk(runbook, run.source, at_ms, settings, answers=answers_of(run, runbook))
    where = passed.where.places[0].instance if passed.where.scope != "fleet" else None
    check = passed.outcome.verify_step
    broken = verify(runbook, check, run.source, at_ms, settings, where).finding if check else ""
    after = ""
    named: tuple[str, ...] | None = None
    if mend and run.scenario.expect.remedy is not None:
        mended = recorded(with_remedy(run.scenario), run.seed, folder, run.seconds)
        judged = diagnose(mended.source, at_ms, settings)
        named = tuple(v.cause for v in judged.verdicts if v.confidence == "likely" and v.cause != "healthy")
        after = verify(runbook, check, mended.source, at_ms, settings, where).finding if check else ""
    return Walked(at, passed.outcome.cause, passed.outcome.id, passed.outcome.steps_led_to, broken, after, named)
