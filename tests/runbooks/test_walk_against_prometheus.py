"""The same recording behind a real Prometheus: every query of every runbook is accepted, and the walks agree."""

from pathlib import Path

import pytest

from collectors.capsule import CapsuleSource, read_capsule
from collectors.capsule.convert import export_capsule, import_file
from collectors.settings import Settings
from collectors.sources import open_source
from runbooks.engine import walk
from runbooks.library import runbook_ids
from tests.real_programs import backfill, prometheus
from tests.shared_data import shared

pytestmark = pytest.mark.real
SETTINGS = Settings()


def test_walks_on_a_real_prometheus_agree_with_those_on_the_incident_file(tmp_path: Path) -> None:
    recording = shared("recordings", "vllm-0.11.0-cpu", "b_waiting_growth.json.gz")
    import_file(recording, tmp_path / "b.capsule")
    export_capsule(tmp_path / "b.capsule", "openmetrics", tmp_path / "b.om")
    backfill(tmp_path / "b.om", tmp_path / "data")
    capsule = CapsuleSource(read_capsule(tmp_path / "b.capsule"))
    extent = capsule.extent_ms()
    assert extent is not None
    at_ms = extent[0] + 93_000
    with prometheus(tmp_path / "data") as address:
        remote = open_source(address, SETTINGS, {})
        for runbook_id in runbook_ids():
            far = walk(runbook_id, remote, at_ms, SETTINGS, instance="127.0.0.1:8000")
            near = walk(runbook_id, capsule, at_ms, SETTINGS, instance="127.0.0.1:8000")
            assert [f.step_id for f in far.findings if f.finding == "error"] == [], runbook_id
            assert (far.outcome.cause, far.outcome.id) == (near.outcome.cause, near.outcome.id), runbook_id
            if runbook_id == "waiting_growth":
                assert [f.finding for f in far.findings] == [f.finding for f in near.findings]
                waiting = {n.name: n.value for n in far.findings[0].numbers}
                assert (
                    waiting["waiting_requests"]
                    == {n.name: n.value for n in near.findings[0].numbers}["waiting_requests"]
                )
