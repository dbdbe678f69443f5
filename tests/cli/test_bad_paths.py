"""Every verb that reads a file, given a path that is missing, a folder, not readable, empty or behind a file: one line, cause and next step."""

import builtins
import io
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from cli import app

RUN = CliRunner()


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


VERBS: dict[str, Callable[[str, Path], list[str]]] = {
    "ui": lambda path, out: ["ui", "--source", path],
    "query": lambda path, out: ["query", "up", "--source", path],
    "diagnose": lambda path, out: ["diagnose", "--source", path],
    "walk": lambda path, out: ["walk", "waiting_growth", "--source", path],
    "record": lambda path, out: ["record", "--source", path, "--start", "0", "--end", "9", "--out", str(out)],
    "export": lambda path, out: ["export", path, str(out), "--to", "openmetrics"],
    "import": lambda path, out: ["import", path, "--out", str(out)],
    "ledger": lambda path, out: ["ledger", path],
    "admission": lambda path, out: ["admission", path],
    "golden": lambda path, out: ["sim", "golden", path],
    "config": lambda path, out: ["rules", "--config", path],
    "store": lambda path, out: ["store", "serve", "--port", str(_free_port()), "--targets", path],
}
CAUSES = {
    "missing": ("no such", "no targets file"),
    "folder": ("is a folder", "is a directory", "holds no manifest.json"),
    "unreadable": ("permission denied",),
    "empty": ("is empty", "not an incident file", "not a readable JSON trace"),
    "behind a file": ("no such", "not a folder", "not a directory", "no targets file"),
}


@pytest.fixture
def path_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    def make(kind: str) -> Path:
        path = tmp_path / "given.yaml"
        if kind == "folder":
            path.mkdir()
        elif kind != "missing":
            path.write_text("" if kind != "unreadable" else "groups: []\n")
        if kind == "behind a file":
            return path / "inside.yaml"
        if kind == "unreadable":  # root reads every file: the refusal itself is what is tested
            for module in (builtins, io):
                monkeypatch.setattr(module, "open", _refusing(module.open, path))
        return path

    return make


def _refusing(real: Callable[..., Any], path: Path) -> Callable[..., Any]:
    def refuse(file: Any, *arguments: Any, **more: Any) -> Any:
        if str(file) == str(path):
            raise PermissionError(13, "Permission denied", str(file))
        return real(file, *arguments, **more)

    return refuse


def run(*arguments: str) -> Result:
    result = RUN.invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


# An empty configuration is one: every setting has its default.
@pytest.mark.parametrize(("verb", "kind"), [(v, k) for v in VERBS for k in CAUSES if (v, k) != ("config", "empty")])
def test_a_path_that_cannot_be_used_is_one_line(path_of: Any, tmp_path: Path, verb: str, kind: str) -> None:
    path = path_of(kind)
    out = tmp_path / "out"
    result = run(*VERBS[verb](str(path), out))
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.output
    assert result.exit_code == (2 if verb == "config" else 1)
    assert lines[0].startswith("pagewatch: ")
    assert "given.yaml" in lines[0]
    assert "Errno" not in lines[0]
    assert any(cause in lines[0] for cause in CAUSES[kind]), lines[0]
    cause, _, next_step = lines[0].replace(";", ".").replace(str(path), "PATH").rpartition(". ")
    assert cause, lines[0]
    assert len(next_step) > 8, lines[0]
    assert not out.exists()


@pytest.mark.parametrize("kind", CAUSES)
def test_doctor_says_what_is_wrong_with_the_source_and_how_it_is_mended(path_of: Any, kind: str) -> None:
    path = path_of(kind)
    result = run("doctor", "--source", str(path))
    assert result.exit_code == 1
    assert any(cause in result.stdout for cause in CAUSES[kind]), result.stdout
    assert "mend:" in result.stdout
    assert "Errno" not in result.stdout


@pytest.mark.parametrize("kind", CAUSES)
def test_lint_names_the_file_the_cause_and_the_next_step_and_goes_on(path_of: Any, tmp_path: Path, kind: str) -> None:
    good = tmp_path / "good.yaml"
    good.write_text("groups: [{name: g, rules: [{record: a, expr: 'sum(up'}]}]\n")
    path = path_of(kind)
    result = run("lint", str(path), str(good))
    assert result.exit_code == 1
    first = result.stdout.splitlines()[0]
    assert first.startswith(f"{path}: error unreadable_file: ")
    assert " -> " in first
    assert any(cause in first for cause in CAUSES[kind]), first
    assert any(line.startswith(f"{good}: ") for line in result.stdout.splitlines())
    [finding] = [f for f in json.loads(run("lint", str(path), "--json").stdout)["findings"]]
    assert finding["rule"] == "unreadable_file"
    assert finding["suggestion"]


def test_an_account_of_nothing_is_still_json_for_scripts(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("\n \n")
    assert json.loads(run("ledger", str(tmp_path / "log"), "--json").stdout)["class"] == "undetermined"
    assert "is empty" in run("ledger", str(tmp_path / "log")).stderr
