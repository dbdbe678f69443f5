"""A real Alertmanager delivers a firing and a resolved alert to the real command, end to end."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from collectors.instants import format_instant
from collectors.settings import Settings
from runbooks.routing import inhibit_rules
from runbooks.rules import rules
from tests.real_programs import free_port, program, running
from tests.shared_data import ROOT, shared

pytestmark = pytest.mark.real
TOKEN = "a-token-for-this-test"
DEADLINE_SECONDS = 30.0


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return json.load(answer)


def post(url: str, data: Any) -> None:
    request = urllib.request.Request(url, json.dumps(data).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=5) as answer:
        assert answer.status == 200


def wait_for(url: str, wanted: Any, log: Path) -> Any:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        found = get(url)
        if wanted(found):
            return found
        time.sleep(0.1)
    pytest.fail(f"{url} still answers {found}; Alertmanager says: {log.read_text(errors='replace')[-1500:]}")


def test_a_real_alertmanager_opens_and_closes_an_incident(tmp_path: Path) -> None:
    alertmanager = program("prometheus-alertmanager")
    recording = shared("recordings", "vllm-0.11.0-cpu", "b_waiting_growth.json.gz")
    capsule = tmp_path / "b.capsule"
    command = [sys.executable, "-m", "cli"]
    imported = subprocess.run(
        [*command, "import", str(recording), "--out", str(capsule)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert imported.returncode == 0, imported.stderr
    api_port, am_port = free_port(), free_port()
    config = tmp_path / "pagewatch.toml"
    config.write_text(f'[store]\ndata = "{tmp_path / "state"}"\n[server]\napi_token_file = "{tmp_path / "token"}"\n')
    (tmp_path / "token").write_text(TOKEN + "\n")
    (tmp_path / "alertmanager.yml").write_text(
        yaml.safe_dump(
            {
                "route": {
                    "receiver": "pagewatch",
                    "group_wait": "100ms",
                    "group_interval": "300ms",
                    "group_by": ["alertname"],
                },
                "inhibit_rules": inhibit_rules(rules(Settings()), Settings()),
                "receivers": [
                    {
                        "name": "pagewatch",
                        "webhook_configs": [
                            {
                                "url": f"http://127.0.0.1:{api_port}/api/v1/alerts",
                                "http_config": {"authorization": {"credentials_file": str(tmp_path / "token")}},
                            }
                        ],
                    }
                ],
            }
        )
    )
    serve = [*command, "serve-api", "--source", str(capsule), "--port", str(api_port), "--config", str(config)]
    alerting = [
        alertmanager,
        f"--config.file={tmp_path / 'alertmanager.yml'}",
        f"--storage.path={tmp_path / 'am'}",
        f"--web.listen-address=127.0.0.1:{am_port}",
        "--cluster.listen-address=",
    ]
    with (
        running(serve, f"http://127.0.0.1:{api_port}/healthz", tmp_path / "api.log"),
        running(alerting, f"http://127.0.0.1:{am_port}/-/ready", tmp_path / "am.log"),
    ):
        manifest = json.loads(
            subprocess.run(
                [*command, "diagnose", "--source", str(capsule), "--json"],
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=60,
            ).stdout
        )
        end = datetime.fromisoformat(manifest["at"])
        began = end - timedelta(seconds=93)
        alert = {
            "labels": {"alertname": "PagewatchWaitingGrowthWaitSeconds", "runbook": "waiting_growth", "job": "vllm", "instance": "127.0.0.1:8000", "engine": "0"},
            "annotations": {"summary": "Requests wait <b>long</b>"},
            "startsAt": began.isoformat(),
            "endsAt": (datetime.now(UTC) + timedelta(hours=1)).isoformat(),
        }  # fmt: skip
        muted = {**alert, "labels": {**alert["labels"], "instance": "127.0.0.1:8001"}}
        down = {**muted, "labels": {"alertname": "PagewatchReplicaDownTargetDown", "runbook": "replica_down", "job": "vllm", "instance": "127.0.0.1:8001"}}  # fmt: skip
        post(f"http://127.0.0.1:{am_port}/api/v2/alerts", [down])
        incidents = f"http://127.0.0.1:{api_port}/api/v1/incidents"
        wait_for(incidents, lambda found: len(found["incidents"]) == 1, tmp_path / "am.log")
        post(f"http://127.0.0.1:{am_port}/api/v2/alerts", [alert, muted])
        listed = wait_for(
            incidents,
            lambda found: len(found["incidents"]) == 2 and all(i["diagnosed"] for i in found["incidents"]),
            tmp_path / "am.log",
        )
        (opened,) = [i for i in listed["incidents"] if i["runbook"] == "waiting_growth"]
        assert opened["status"] == "firing"
        assert opened["starts_at"] == format_instant(round(began.timestamp() * 1000))
        assert opened["headline"]["cause"] in ("seat_limited", "overload")
        assert opened["headline"]["where"]["replicas"][0]["instance"] == "127.0.0.1:8000"

        post(f"http://127.0.0.1:{am_port}/api/v2/alerts", [{**alert, "endsAt": datetime.now(UTC).isoformat()}])
        closed = wait_for(
            f"{incidents}/{opened['id']}", lambda found: found["status"] == "resolved", tmp_path / "am.log"
        )
        assert closed["ends_at"] is not None
        assert closed["diagnosis"]["verdicts"][0]["cause"] == opened["headline"]["cause"]
        assert closed["annotations"]["summary"] == "Requests wait <b>long</b>"
        instances = {i["labels"]["instance"] for i in get(incidents)["incidents"] if i["runbook"] == "waiting_growth"}
        assert instances == {"127.0.0.1:8000"}, "the replica that is down mutes its symptoms"
