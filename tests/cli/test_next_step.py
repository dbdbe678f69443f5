"""What a verb names as the next step can be pasted as it stands; a configured source need not be repeated."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cli import app
from cli_input import repeated_options
from tests.shared_data import ROOT

STALLED = ROOT / "incidents" / "worker_hangs.capsule"
DURING = "2026-11-30T01:00:00Z"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def first_next_step(text: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith("  next: pagewatch "))
    return shlex.split(line.removeprefix("  next: pagewatch "))


def test_the_walk_that_a_diagnosis_names_runs_as_it_stands(tmp_path: Path) -> None:
    with_spaces = tmp_path / "last night.capsule"
    with_spaces.write_bytes(STALLED.read_bytes())
    said = run("diagnose", "--source", str(with_spaces), "--at", DURING)
    assert said.exit_code == 1, said.output
    step = first_next_step(said.output)
    assert step[:2] == ["walk", "engine_stalled"]
    walked = run(*step)
    assert walked.exit_code == 1, walked.output
    assert f"on {step[step.index('--instance') + 1]} at 2026-11-30T01:00:00" in walked.output


def test_the_first_source_of_the_configuration_is_the_default(tmp_path: Path) -> None:
    config = tmp_path / "pagewatch.toml"
    config.write_text(
        f'[[source]]\nname = "night"\nurl = "{STALLED}"\n[[source]]\nname = "other"\nurl = "http://127.0.0.1:1"\n'
    )
    given = ("--config", str(config), "--at", DURING)
    said = run("diagnose", *given)
    assert (said.exit_code, "engine_stalled (likely)" in said.output) == (1, True)
    assert run(*first_next_step(said.output)).exit_code == 1
    assert '"value"' in run("query", "up", *given).output


@pytest.mark.parametrize("verb", [("diagnose",), ("walk", "kv_pressure"), ("query", "up"), ("ui",)])
def test_without_any_source_both_ways_to_name_one_are_said(
    verb: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PAGEWATCH_CONFIG", raising=False)
    said = run(*verb)
    assert said.exit_code == 2
    assert "--source" in said.stderr
    assert "[[source]]" in said.stderr


def test_a_password_in_an_address_is_not_repeated() -> None:
    told = repeated_options("http://reader:secret@prometheus:9090/x", None, ["job=vllm"], None)
    assert told == " --source http://prometheus:9090/x --scope job=vllm"


def test_a_simulated_run_is_not_said_to_lack_a_window(tmp_path: Path) -> None:
    made = run("sim", "run", "--scenario", "healthy", "--duration", "1m", "--out", str(tmp_path / "run.capsule"))
    assert made.exit_code == 0, made.output
    assert "note:" not in made.output
