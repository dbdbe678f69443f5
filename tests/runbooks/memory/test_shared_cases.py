"""The handed judge over the handed cases: classes, figures, what must be said, what must not, what must be asked for."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from runbooks.memory import ledger
from tests.shared_data import ROOT, shared, shared_files


@pytest.mark.parametrize("kind", ["memory", "admission"])
def test_every_case_is_judged_right(kind: str, tmp_path: Path) -> None:
    judge = shared("cases", "score_cases.py")
    pagewatch = Path(sys.executable).with_name("pagewatch")
    scores = tmp_path / "scores.json"
    judged = subprocess.run(
        [
            sys.executable,
            str(judge),
            str(shared("cases")),
            "--only",
            kind,
            "--pagewatch",
            str(pagewatch),
            "--json",
            str(scores),
            "-v",
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=240,
        check=False,
    )
    assert judged.returncode == 0, judged.stdout[-4000:]
    summary = json.loads(judged.stdout.strip().splitlines()[-1])[kind]
    assert summary["cases"] > 0
    assert summary["class_ok"] == summary["cases"]
    for part in ("numbers", "say", "missing"):
        assert summary[part][0] == summary[part][1]
    assert summary["forbidden"] == summary["crashes"] == 0


LOGS = shared_files("logs", pattern="*.log")


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_logs_of_a_real_engine_are_read(path: Path) -> None:
    with path.open(encoding="utf-8") as lines:
        answer = ledger(lines)
    assert answer["engine_version"] == "0.11.0"
    if "failure-engine-core-dies" in path.name:
        assert (answer["class"], answer["missing"] != []) == ("undetermined", True)
    elif "over-kv-memory" in path.name:
        assert answer["class"] == "kv_window_too_long"
    else:
        assert answer["class"] == "not_memory", answer["says"]
    if "-run-" in path.name and "KV cache size" in path.read_text(encoding="utf-8"):
        assert answer["numbers"]["num_gpu_blocks"] > 0
        assert answer["numbers"]["concurrency"] > 0


def test_there_are_logs_to_read() -> None:
    shared("logs")
    assert LOGS
