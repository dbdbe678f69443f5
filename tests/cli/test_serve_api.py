"""`serve-api` from the command line: what the environment names means the same as for the console."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app import console_of
from cli import app
from collectors.settings import Settings
from runbooks.records import Records
from tests.real_programs import free_port
from tests.shared_data import ROOT


def test_the_api_alone_records_where_the_console_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pagewatch.toml").write_text(f'[store]\ndata = "{tmp_path / "data"}"\n')
    monkeypatch.setenv("PAGEWATCH_INCIDENTS", str(tmp_path / "named"))
    monkeypatch.setenv("PAGEWATCH_RECORDS", str(tmp_path / "records" / "r.sqlite3"))
    folders: list[Path] = []

    class Recording:
        def __init__(self, source: object, settings: object, records: Records, clock: object, folder: Path) -> None:
            folders.extend((records.path, folder))

        def start(self) -> Recording:
            return self

        def stop(self) -> None: ...

    monkeypatch.setattr("runbooks.api.AutoRecorder", Recording)
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: [each.close() for each in sockets])
    given = ["serve-api", "--source", "incidents/seats_full.capsule", "--config", str(tmp_path / "pagewatch.toml")]
    monkeypatch.chdir(ROOT)
    done = CliRunner().invoke(app, [*given, "--port", str(free_port())])
    assert done.exit_code == 0, done.output
    console = console_of("", Settings.load(tmp_path / "pagewatch.toml", {}), os.environ)
    assert folders == [console.records_file, console.incidents_folder]
    assert console.incidents_folder == tmp_path / "named"
