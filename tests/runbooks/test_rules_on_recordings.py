"""The exported rules, evaluated on every recording: silent in health, and the right one fires in an incident."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from collectors.model import Window
from collectors.settings import Settings
from runbooks.rules import rules
from runbooks.verdicts import RUNBOOK_OF_CAUSE
from tests.runbooks.recorded_walks import recorded
from tests.shared_data import shared_files

STEP_MS = 10_000
CASES = shared_files("cases", "queue", pattern="*.json.gz")
RULES = rules(Settings())
NOT_IN_PROMQL = {
    "stale_gauges": "a stalled engine and an idle one with old gauges look alike to PromQL; the diagnosis tells them apart",
    "auth_rejects": "no metric shows it",
}


@cache
def fired(path: Path) -> dict[str, set[str]]:
    """Runbooks whose rules fire at some time of a recording, with the instances they name ('' = the fleet)."""
    source, wrapper = recorded(path)
    start = round(float(wrapper["start"]) * 1000) // STEP_MS * STEP_MS
    window = Window(start, round(float(wrapper["end"]) * 1000) // STEP_MS * STEP_MS, STEP_MS)
    found: dict[str, set[str]] = {}
    for rule in RULES:
        needed = 1 + -(-rule.detector.hold_seconds * 1000 // STEP_MS)
        frame = source.range(rule.expr, window)
        for labels, values in zip(frame.labels, frame.values, strict=True):
            held = np.convolve(~np.isnan(values), np.ones(needed), mode="valid")
            if (held >= needed).any():
                found.setdefault(rule.runbook.id, set()).add(labels.get("instance", ""))
    return found


@pytest.mark.parametrize(
    "path", [p for p in CASES if p.name.startswith("healthy")], ids=lambda path: path.name.removesuffix(".json.gz")
)
def test_no_rule_but_an_objective_fires_on_a_healthy_fleet(path: Path) -> None:
    # An objective may be missed by a healthy engine: it is the operator's number, not the engine's.
    assert set(fired(path)) <= {"latency_slo"}


def test_incidents_fire_the_rule_of_their_runbook_on_their_replica() -> None:
    seen, missed = 0, []
    for path in CASES:
        expected = json.loads(path.with_name(path.name.replace(".json.gz", ".expect.json")).read_text())
        for incident in expected["incidents"]:
            if incident.get("optional") or incident["cause"] in NOT_IN_PROMQL:
                continue
            seen += 1
            wanted = {RUNBOOK_OF_CAUSE[cause] for cause in (incident["cause"], *incident.get("accept", ()))}
            instances = set().union(*(fired(path).get(runbook, set()) for runbook in wanted))
            where = incident["where"].get("instance", "*")
            if not instances or (where != "*" and not instances & set(where.split("|"))):
                missed.append(path.name)
    if seen:
        assert len(missed) <= 0.15 * seen, missed


def test_rules_name_no_replica_that_is_well() -> None:
    for path in CASES:
        expected = json.loads(path.with_name(path.name.replace(".json.gz", ".expect.json")).read_text())
        places = {incident["where"].get("instance", "*") for incident in expected["incidents"]}
        if not places or "*" in places:
            continue
        ill = {instance for place in places for instance in place.split("|")}
        for runbook, instances in fired(path).items():
            assert instances - {""} <= ill, (path.name, runbook)
