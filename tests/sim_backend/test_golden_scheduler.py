"""Our scheduler decides as the real one did, in every recorded trace that can be found."""

import copy
import gzip
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli import app
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


def test_a_missing_file_is_said_by_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        check_trace(tmp_path / "none.json")


def _set(trace: dict, *path: object, to: object) -> None:
    *way, last = path
    for key in way:
        trace = trace[key]
    trace[last] = to


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("config",), [], "config"),
        (("config", "num_gpu_blocks"), 0, "config.num_gpu_blocks"),
        (("config", "num_gpu_blocks"), "9", "config.num_gpu_blocks"),
        (("config", "block_size"), 0, "config.block_size"),
        (("config", "policy"), "lifo", "config.policy"),
        (("config", "max_num_seqs"), None, "config.max_num_seqs"),
        (("requests",), {}, "requests"),
        (("requests", 0), 4, "requests.0"),
        (("requests", 0), {}, "requests.0.id"),
        (("requests", 0, "prompt_segments"), [[1]], "requests.0.prompt_segments"),
        (("requests", 0, "prompt_segments"), [], "at least one token"),
        (("requests", 0, "prompt_segments"), [[1, 9], [2, -3]], "at least one token"),
        (("requests", 0, "max_tokens"), 0, "requests.0.max_tokens"),
        (("requests", 0, "arrival_step"), 1.5, "requests.0.arrival_step"),
        (("requests", 1, "id"), "r0", "two requests have the id 'r0'"),
        (("steps",), [], "steps"),
        (("steps",), None, "steps"),
        (("steps", 0), 3, "steps.0"),
        (("totals",), [1], "totals"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_malformed_trace_is_named_with_the_place(
    tmp_path: Path, path: tuple[object, ...], value: object, said: str
) -> None:
    trace = _altered("")
    _set(trace, *path, to=value)
    file = tmp_path / "x.json"
    file.write_text(json.dumps(trace))
    with pytest.raises(TraceError, match="x.json") as caught:
        check_trace(file)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "step", [{}, {"step": 0}, {"step": 0, "scheduled": None}, {"scheduled": [1]}, {"kv_cache_usage": "1"}]
)
def test_a_step_that_holds_something_else_is_a_divergence(step: dict) -> None:
    trace = _altered("")
    trace["steps"][0] = step
    divergence = compare(trace)
    assert divergence is not None
    assert divergence.step == 0


def test_one_bad_file_does_not_keep_the_others_from_being_checked(tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    good = shared("golden", "scheduler", "preempt_fcfs_last_in.json")
    answer = CliRunner().invoke(app, ["sim", "golden", str(bad), str(good)])
    assert answer.exit_code == 1
    assert "preempt_fcfs_last_in.json: identical" in answer.output
    assert [line for line in answer.output.splitlines() if "bad.json" in line][0].startswith("pagewatch: ")
