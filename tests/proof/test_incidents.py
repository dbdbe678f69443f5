"""Every scenario of the simulator, once: named in time and in place, nothing untrue said, its own laws broken and no others.

The full form - every moment of every run, walks and remedies - is benchmarks/coverage.py, or here `PAGEWATCH_PROOF_SEEDS=5`.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

import pytest

from sim_backend.scenario import load_scenario, scenario_names
from tests.proof.incidents import Incident, Recorded, recorded
from tests.proof.law_table import OWN, RELATED, broken_laws
from tests.proof.outcomes import outcome, unrelated
from tests.proof.sightings import Moment, moment, sighted, wrong_claims

SEEDS = int(os.environ.get("PAGEWATCH_PROOF_SEEDS", "0"))
STEP_SECONDS = 15.0
CALM_STEP_SECONDS = 60.0
"""How far apart the moments are that are asked before an incident."""
NOT_YET: dict[str, str] = {}
"""Scenarios that do not hold, and why; each must be struck out as soon as it does."""

pytestmark = pytest.mark.slow


def cases(names: list[str]) -> list[object]:
    """Parameters; what is known not to hold must fail."""
    known = {name: pytest.mark.xfail(reason=why, strict=True) for name, why in NOT_YET.items()}
    return [pytest.param(name, marks=[known[name]] if name in known else []) for name in names]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("incidents")


@lru_cache
def seen(name: str, folder: Path) -> tuple[Recorded, Incident | None, list[Moment]]:
    """The run of a scenario until its budget is spent, its own incident, and the moments asked: few before it, all of them in it."""
    scenario = load_scenario(name)
    begins = [truth.start_seconds for truth in scenario.truth if truth.cause == scenario.expect.cause]
    begins += [fault.start_seconds for fault in scenario.fault]
    start = min(begins, default=4 * CALM_STEP_SECONDS)
    run = recorded(scenario, 1, folder, start + scenario.expect.detect_within_seconds + STEP_SECONDS)
    main = next((incident for incident in run.incidents if incident.cause == scenario.expect.cause), None)
    asked = [at for at in run.moments(STEP_SECONDS) if at > start or not at % CALM_STEP_SECONDS]
    return run, main, [moment(run, at) for at in asked]


@pytest.mark.parametrize("name", scenario_names())
def test_nothing_untrue_is_called_likely(name: str, folder: Path) -> None:
    run, _, moments = seen(name, folder)
    assert [str(claim) for claim in wrong_claims(run, moments) if not claim.aftermath] == []


@pytest.mark.parametrize("name", cases([name for name in scenario_names() if name != "healthy"]))
def test_what_is_wrong_is_named_within_its_budget_or_not_at_all(name: str, folder: Path) -> None:
    run, main, moments = seen(name, folder)
    expect = run.scenario.expect
    assert main is not None
    assert sighted(main, expect.detect_within_seconds, moments).word == {"fires": "fired"}.get(expect.outcome, "silent")


@pytest.mark.parametrize("name", sorted({*OWN, "removed_metric"}))
def test_a_metric_fault_breaks_its_own_law_and_no_unrelated_one(name: str, folder: Path) -> None:
    _, main, moments = seen(name, folder)
    broken = broken_laws(moments, main)
    own = {OWN[name]} if name in OWN else set()
    assert own <= set(broken.during)
    assert set(broken.during) - own <= set(RELATED.get(name, ()))
    assert not broken.elsewhere


if SEEDS:

    @pytest.mark.parametrize("seed", range(1, SEEDS + 1))
    @pytest.mark.parametrize("name", cases(scenario_names()))
    def test_in_full_with_walk_and_remedy(name: str, seed: int, folder: Path) -> None:
        found = outcome(name, seed, STEP_SECONDS, folder)
        assert found.holds, found
        assert not unrelated(found)


@pytest.mark.parametrize("seed", [5])
def test_gauges_left_over_from_a_mass_abort_are_old_and_not_false(seed: int, folder: Path) -> None:
    """The last scrape with work and the abort lie close together: what came and went in between contradicts nothing."""
    run = recorded(load_scenario("stale_gauges"), seed, folder, 360.0)
    said = {
        verdict.cause
        for at in (310.0, 315.0, 320.0, 325.0)
        for verdict in moment(run, at).verdicts
        if verdict.confidence == "likely"
    }
    assert said <= {"stale_gauges"}
