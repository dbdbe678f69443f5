"""All that is asked of one simulated run, and whether it is as its scenario declares."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sim_backend.scenario import load_scenario
from tests.proof.incidents import recorded
from tests.proof.law_table import OWN, RELATED, Broken, broken_laws
from tests.proof.mending import Walked, walked
from tests.proof.sightings import Claim, Sighting, moment, sighted, wrong_claims


@dataclass(frozen=True)
class Outcome:
    """What became of one scenario and seed."""

    scenario: str
    seed: int
    outcome: str
    cause: str
    sightings: tuple[Sighting, ...]
    claims: tuple[Claim, ...]
    """What was called likely and is not true."""
    walked: Walked | None
    broken: Broken

    @property
    def wrong(self) -> tuple[Claim, ...]:
        """The claims made before the incident, during it, or in a run without one."""
        return tuple(claim for claim in self.claims if not claim.aftermath)

    @property
    def aftermath(self) -> tuple[Claim, ...]:
        """The claims made once it was over."""
        return tuple(claim for claim in self.claims if claim.aftermath)

    @property
    def holds(self) -> bool:
        """Whether everything is as the scenario declares."""
        if self.wrong:
            return False
        main = [sighting for sighting in self.sightings if sighting.incident.cause == self.cause]
        wanted = "fired" if self.outcome == "fires" else "silent"
        if any(sighting.word != wanted for sighting in main):
            return False
        if self.walked is None:
            return True
        mended = self.walked.check_mended in ("", "yes") and not self.walked.mended_named
        return self.walked.reaches(self.cause) and self.walked.check_broken in ("", "no") and mended


def outcome(name: str, seed: int, step_seconds: float, folder: Path) -> Outcome:
    """Simulates, diagnoses and walks one scenario with one seed."""
    scenario = load_scenario(name)
    run = recorded(scenario, seed, folder)
    moments = [moment(run, at) for at in run.moments(step_seconds)]
    expect = scenario.expect
    main = next((incident for incident in run.incidents if incident.cause == expect.cause), None)
    return Outcome(
        scenario=name,
        seed=seed,
        outcome=expect.outcome,
        cause=expect.cause,
        sightings=tuple(sighted(incident, expect.detect_within_seconds, moments) for incident in run.incidents),
        claims=tuple(wrong_claims(run, moments)),
        walked=walked(run, main, folder) if main is not None else None,
        broken=broken_laws(moments, main),
    )


def unrelated(one: Outcome) -> set[str]:
    """Laws that a metric fault broke though they do not speak of it."""
    if one.scenario not in OWN:
        return set()
    known = {OWN.get(one.scenario, ""), *RELATED.get(one.scenario, ())}
    return {law for law in (*one.broken.during, *one.broken.elsewhere) if law not in known}
