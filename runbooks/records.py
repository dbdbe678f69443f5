"""The file that keeps walks and incidents: SQLite in WAL mode, one short transaction per change.

A crash loses at most the change that was being written. Readers never wait for writers.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from collectors.settings import Settings

SCHEMA_VERSION = 2
_STEPS = (
    """
CREATE TABLE walks (
    id INTEGER PRIMARY KEY AUTOINCREMENT, runbook TEXT NOT NULL, source TEXT NOT NULL, at_ms INTEGER NOT NULL,
    instance TEXT, engine TEXT, started_by TEXT NOT NULL, started_ms INTEGER NOT NULL, incident INTEGER
);
CREATE INDEX walks_by_runbook ON walks (runbook, id);
CREATE TABLE walk_events (
    walk INTEGER NOT NULL REFERENCES walks (id), seq INTEGER NOT NULL, at_ms INTEGER NOT NULL, who TEXT NOT NULL,
    kind TEXT NOT NULL, step TEXT NOT NULL, body TEXT NOT NULL, PRIMARY KEY (walk, seq)
) WITHOUT ROWID;
CREATE TABLE incidents (
    id INTEGER PRIMARY KEY AUTOINCREMENT, fingerprint TEXT NOT NULL, starts_ms INTEGER NOT NULL, ends_ms INTEGER,
    status TEXT NOT NULL, alert TEXT NOT NULL, runbook TEXT NOT NULL, received_ms INTEGER NOT NULL,
    updated_ms INTEGER NOT NULL, labels TEXT NOT NULL, annotations TEXT NOT NULL, diagnosis TEXT, problem TEXT NOT NULL,
    UNIQUE (fingerprint, starts_ms)
);
CREATE INDEX incidents_by_start ON incidents (starts_ms);
""",
    """
CREATE TABLE recordings (
    id INTEGER PRIMARY KEY AUTOINCREMENT, file TEXT NOT NULL, start_ms INTEGER NOT NULL, end_ms INTEGER NOT NULL,
    state TEXT NOT NULL, attempts INTEGER NOT NULL, next_ms INTEGER NOT NULL, problem TEXT NOT NULL, note TEXT NOT NULL,
    size_bytes INTEGER NOT NULL
);
ALTER TABLE incidents ADD COLUMN recording INTEGER REFERENCES recordings (id);
""",
)
"""What each schema version adds to the one before it."""


RECORDS_NAME = "records.sqlite3"


class RecordsError(Exception):
    """The file of walks and incidents cannot be used. One line: cause and next step."""


def records_path(settings: Settings, environment: Mapping[str, str] = MappingProxyType({})) -> Path:
    """PAGEWATCH_RECORDS (a file, or a folder that exists), else beside the store's samples when a folder is configured, else in the
    user's state folder."""
    named = environment.get("PAGEWATCH_RECORDS")
    if named:
        path = Path(named).expanduser()
        return path / RECORDS_NAME if path.is_dir() else path
    folder = settings.store.data or Path("~/.local/state/pagewatch")
    return folder.expanduser() / RECORDS_NAME


class Records:
    """Owner of the file. Thread-safe: each thread has its own connection."""

    def __init__(self, path: Path) -> None:
        """Opens or creates the file. Raises RecordsError when it is something else, newer, or cannot be written."""
        self.path = path
        self._local = threading.local()
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self.writing() as connection:
                found = connection.execute("PRAGMA user_version").fetchone()[0]
                for step in _STEPS[found:]:
                    for statement in step.split(";"):
                        connection.execute(statement)
                if found < SCHEMA_VERSION:
                    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        except (OSError, sqlite3.Error) as error:
            raise RecordsError(
                f"{path}: cannot be used for walks and incidents: {error}. Name another folder in [store] data, or a file in PAGEWATCH_RECORDS"
            ) from None
        if found > SCHEMA_VERSION:
            raise RecordsError(f"{path}: written by a newer pagewatch (schema {found}). Update this one")

    def connection(self) -> sqlite3.Connection:
        """This thread's connection."""
        found: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if found is None:
            found = sqlite3.connect(self.path, timeout=10, isolation_level=None)
            found.row_factory = sqlite3.Row
            found.execute("PRAGMA journal_mode = WAL")
            found.execute("PRAGMA synchronous = NORMAL")
            self._local.connection = found
        return found

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction that holds the write lock from its start, so that what it read is still true at its end."""
        connection = self.connection()
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")

    def close(self) -> None:
        """Closes this thread's connection."""
        found: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if found is not None:
            found.close()
            self._local.connection = None
