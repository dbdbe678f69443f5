"""The handed judge over the handed cases: classes, figures, what must be said, what must not, what must be asked for."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from runbooks.memory import admission, ledger
from tests.runbooks.prepared import judged
from tests.shared_data import shared, shared_files


@pytest.mark.parametrize(("kind", "decode"), [("memory", ledger), ("admission", admission)])
def test_every_case_is_judged_right(
    kind: str, decode: Callable[[Iterable[str]], dict[str, Any]], tmp_path: Path
) -> None:
    def answer(file: Path) -> dict[str, Any]:
        with file.open(encoding="utf-8", errors="replace") as lines:
            return decode(lines)

    shared("cases", kind)
    summary = judged(kind, shared_files("cases", kind, pattern="*.log"), answer, tmp_path)
    assert summary["cases"] > 0
    assert summary["class_ok"] == summary["cases"], summary["output"]
    for part in ("numbers", "say", "missing"):
        assert summary[part][0] == summary[part][1], summary["output"]
    assert summary["forbidden"] == summary["crashes"] == 0, summary["output"]


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
