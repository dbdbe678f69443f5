"""doctor says what was found, what is missing and which line mends it; it never fails itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from collectors.capsule.convert import import_file
from collectors.doctor import Finding, doctor
from collectors.model import Samples
from collectors.settings import Settings
from tests.collectors.capsule.capsules import START_MS, STEP_MS, fleet, written
from tests.collectors.misbehaving import Reply, serving
from tests.real_programs import free_port
from tests.shared_data import shared_files


def by_subject(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.subject: finding for finding in findings}


def configured(text: str, tmp_path: Path) -> Settings:
    return Settings.parse(text, tmp_path / "pagewatch.toml", {})


@pytest.mark.parametrize("path", shared_files("recordings", pattern="*/a_*.json.gz"), ids=lambda path: path.name)
def test_a_healthy_recording_needs_nothing(path: Path, tmp_path: Path) -> None:
    import_file(path, tmp_path / "a.capsule")
    findings = doctor(str(tmp_path / "a.capsule"), Settings())
    assert [finding.subject for finding in findings if finding.severity in ("warning", "error")] == []
    assert "0.11" in by_subject(findings)["engine"].text
    assert "2 s" in by_subject(findings)["scrape interval"].text
    assert by_subject(findings)["replicas"].text.startswith("2 replicas")


def test_what_is_missing_is_named_with_what_it_hides(tmp_path: Path) -> None:
    written(
        tmp_path / "a.capsule", [each for each in fleet() if each.labels["__name__"] != "process_start_time_seconds"]
    )
    texts = [str(finding) for finding in doctor(str(tmp_path / "a.capsule"), Settings())]
    assert any("no http_requests_total: rejected requests" in text for text in texts)
    assert any("no process_start_time_seconds: restarts" in text for text in texts)
    assert any("should export" in text and "metric_relabel_configs" in text for text in texts)


def test_the_line_that_mends_is_given(tmp_path: Path) -> None:
    written(tmp_path / "a.capsule")
    source = '[[source]]\nname = "a"\nurl = "a.capsule"\n'
    wrong_scope = doctor("a", configured(source + '[scope]\njob = "other"\n', tmp_path))
    assert "[scope]" in by_subject(wrong_scope)["engine"].mend
    wrong_count = doctor(None, configured("desired_replicas = 5\n" + source, tmp_path))
    assert "5 are desired" in by_subject(wrong_count)["replicas"].text
    assert "desired_replicas = 2" in by_subject(wrong_count)["replicas"].mend
    wrong_dialect = doctor("a", configured(source + '[engine]\ndialect = "tgi-9"\n', tmp_path))
    assert by_subject(wrong_dialect)["engine"].severity == "error"


def test_a_source_without_vllm_says_what_it_scrapes(tmp_path: Path) -> None:
    labels = {"__name__": "up", "job": "node", "instance": "n"}
    written(tmp_path / "a.capsule", [Samples(labels, START_MS + STEP_MS * np.arange(30), np.ones(30))])
    finding = by_subject(doctor(str(tmp_path / "a.capsule"), Settings()))["engine"]
    assert finding.severity == "error"
    assert "it scrapes 1 target of the job node" in finding.text


def test_sources_that_fail_are_findings_and_the_others_are_still_looked_at(tmp_path: Path) -> None:
    written(tmp_path / "a.capsule")
    with serving(Reply(200, "<html><title>Sign in</title>", {"Content-Type": "text/html"})) as server:
        settings = configured(
            f"""
[[source]]
name = "gone"
url = "http://127.0.0.1:{free_port()}"
[[source]]
name = "login"
url = "{server.url}"
[[source]]
name = "secret"
url = "{server.url}"
auth = {{ bearer_env = "NOPE" }}
[[source]]
name = "lost"
url = "lost.capsule"
[[source]]
name = "a"
url = "a.capsule"
""",
            tmp_path,
        )
        findings = by_subject(doctor(None, settings))
    assert "connection refused" in findings["gone"].text
    assert "Sign in" in findings["login"].text
    assert "bearer_env names NOPE" in findings["secret"].text
    assert "no such file" in findings["lost"].text
    assert "2 replicas" in findings["replicas"].text


def test_without_a_source_an_example_is_given() -> None:
    findings = doctor(None, Settings())
    assert findings[-1].severity == "error"
    assert "[[source]]" in findings[-1].mend
