"""Our scheduler decides as the real one did, in every recorded trace that can be found."""

import copy
import gzip
import json
from pathlib import Path

import pytest

from sim_backend.golden import Divergence, TraceError, check_trace, compare, read_trace
from tests.shared_data import shared, shared_files

TRACES = shared_files("golden", "scheduler", pattern="*.json*")


def test_there_are_traces() -> None:
    assert shared("golden", "scheduler").is_dir()
    assert len(TRACES) >= 1


@pytest.mark.parametrize("trace", TRACES, ids=lambda path: path.name.split(".")[0])
def test_every_decision_is_identical(trace: Path) -> None:
    divergence = check_trace(trace)
    assert divergence is None, str(divergence)


def _altered(name: str) -> dict:
    return copy.deepcopy(read_trace(shared("golden", "scheduler", "preempt_fcfs_last_in.json")))


@pytest.mark.parametrize(
    "field",
    [
        "scheduled",
        "preempted",
        "running",
        "waiting",
        "num_blocks",
        "kv_cache_usage",
        "free_blocks",
        "block_ids",
        "iteration",
    ],
)
def test_a_changed_decision_is_found_at_its_step(field: str) -> None:
    trace = _altered(field)
    number = next(i for i, step in enumerate(trace["steps"]) if step["preempted"])
    value = trace["steps"][number][field]
    changed = (
        {**value, "ghost": 1}
        if isinstance(value, dict)
        else [*value, "ghost"]
        if isinstance(value, list)
        else value + 1
    )
    trace["steps"][number][field] = changed
    divergence = compare(trace)
    assert isinstance(divergence, Divergence)
    assert (divergence.step, divergence.field, divergence.expected, divergence.got) == (number, field, changed, value)


def test_the_order_of_scheduled_counts() -> None:
    trace = _altered("scheduled")
    number = next(i for i, step in enumerate(trace["steps"]) if len(step["scheduled"]) > 1)
    trace["steps"][number]["scheduled"] = dict(reversed(trace["steps"][number]["scheduled"].items()))
    divergence = compare(trace)
    assert divergence is not None
    assert (divergence.step, divergence.field) == (number, "scheduled")


def test_wrong_totals_and_a_trace_cut_short_are_found() -> None:
    trace = _altered("totals")
    trace["totals"]["preemptions"] += 1
    divergence = compare(trace)
    assert divergence is not None
    assert divergence.field == "preemptions"
    trace = _altered("steps")
    del trace["steps"][-1], trace["totals"]
    divergence = compare(trace)
    assert divergence is not None
    assert divergence.field == "has_requests"


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"format": 2}', b'{"format": 1}', gzip.compress(b"no json", mtime=0)[:-4]]
)
def test_what_is_no_trace_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=r"x\.json"):
        check_trace(path)


def test_a_missing_file_and_a_broken_request_are_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such file"):
        check_trace(tmp_path / "none.json")
    trace = _altered("requests")
    del trace["requests"][0]["arrival_step"]
    path = tmp_path / "x.json"
    path.write_text(json.dumps(trace))
    with pytest.raises(TraceError, match="arrival_step"):
        check_trace(path)
