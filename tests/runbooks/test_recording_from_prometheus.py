"""A shipped incident behind a real Prometheus, recorded from there: the file says what the shipped one says."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectors.capsule import read_capsule
from collectors.capsule.convert import export_capsule
from collectors.settings import Settings
from collectors.sources import open_source
from runbooks.recording import record_incident
from tests.real_programs import backfill, prometheus
from tests.runbooks.shipped import path_of, shipped

pytestmark = pytest.mark.real
SETTINGS = Settings()


def test_a_recording_from_a_real_prometheus_says_the_same(tmp_path: Path) -> None:
    export_capsule(path_of("seats_full"), "openmetrics", tmp_path / "x.om")
    backfill(tmp_path / "x.om", tmp_path / "data")
    old = shipped("seats_full").manifest
    window = old.window
    with prometheus(tmp_path / "data") as address:
        remote = open_source(address.replace("http://", "http://someone:secret@"), SETTINGS, {})
        out = tmp_path / "x.capsule"
        record_incident(remote, window.start_ms, window.end_ms, out, SETTINGS)
    new = read_capsule(out).manifest
    assert [state for state in new.detector_states if "problem" in state] == []
    assert [burn for burn in new.burn_rates if "problem" in burn] == []

    def held(states: tuple[dict[str, object], ...]) -> dict[object, object]:
        return {state["detector"]: state["holds_at"] for state in states}

    assert held(new.detector_states) == held(old.detector_states)
    for far, near in zip(new.burn_rates, old.burn_rates, strict=True):
        assert far["burn"] == pytest.approx(near["burn"], rel=1e-4, nan_ok=True), far
    assert [(m.at_ms, m.kind, m.text) for m in new.marks] == [(m.at_ms, m.kind, m.text) for m in old.marks]
    assert new.diagnosis["verdicts"][0]["cause"] == old.diagnosis["verdicts"][0]["cause"]
    assert new.source.backend == "prometheus"
    assert "secret" not in new.to_json().decode()
