"""Recorded passes through runbooks: what was found at an instant, what people answered and noted, and who.

A walk is a list of events that only grows. Two people in one walk never overwrite each other: an answer to a step that
somebody else has answered since one last looked is refused with what they said, and nothing is lost either way.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from runbooks.engine import Answer
from runbooks.findings import Finding, Leaf, Number, Walk
from runbooks.records import Records, RecordsError
from runbooks.verdicts import Place, Where

EventKind = Literal["walked", "answer", "note", "closed"]
MAX_TEXT = 200_000
"""Characters of one note or pasted log that are kept."""


class WalkConflict(Exception):
    """Somebody else answered that step in the meantime; `event` is theirs."""

    def __init__(self, event: Event) -> None:
        self.event = event
        said = event.body.get("value") or "a pasted log"
        super().__init__(f"{event.who} answered this step in the meantime ({said}). Look at it, then answer again")


class NoSuchWalk(Exception):
    """There is no walk of that number."""


@dataclass(frozen=True)
class Event:
    """One thing that happened in a walk. `seq` counts from 1 and never repeats."""

    seq: int
    at_ms: int
    who: str
    kind: EventKind
    step: str
    body: Mapping[str, Any]


@dataclass(frozen=True)
class RecordedWalk:
    """A walk as it stands: its events in order."""

    id: int
    runbook: str
    source: str
    at_ms: int
    instance: str | None
    engine: str | None
    started_by: str
    started_ms: int
    events: tuple[Event, ...]
    incident: int | None = None

    @property
    def seq(self) -> int:
        """Number of the newest event: pass it back as `seen` when answering."""
        return self.events[-1].seq if self.events else 0

    @property
    def closed(self) -> bool:
        """Whether somebody ended it; a later answer opens it again."""
        relevant = [event.kind for event in self.events if event.kind in ("closed", "answer")]
        return bool(relevant) and relevant[-1] == "closed"

    @property
    def walk(self) -> Walk | None:
        """The findings as last walked."""
        walked = [event for event in self.events if event.kind == "walked"]
        return walk_from_record(walked[-1].body) if walked else None

    def answers(self) -> dict[str, Answer]:
        """The newest answer to each step, as `runbooks.engine.walk` takes them."""
        given: dict[str, Answer] = {}
        for event in self.events:
            if event.kind == "answer":
                given[event.step] = Answer(event.body.get("value"), event.body.get("log"), event.body.get("note", ""))
        return given

    def notes(self, step: str) -> tuple[Event, ...]:
        """Everything people wrote at a step, oldest first."""
        return tuple(e for e in self.events if e.step == step and (e.kind == "note" or e.body.get("note")))


class Walks:
    """Keeps walks in the records file. `clock` gives epoch milliseconds."""

    def __init__(self, records: Records, clock: Callable[[], int]) -> None:
        self._records = records
        self._clock = clock

    def start(
        self,
        walk: Walk,
        who: str,
        instance: str | None = None,
        engine: str | None = None,
        incident: int | None = None,
    ) -> RecordedWalk:
        """Begins a recorded walk with its first findings. `instance` and `engine` are what was asked for."""
        with self._records.writing() as connection:
            row = connection.execute(
                "INSERT INTO walks (runbook, source, at_ms, instance, engine, started_by, started_ms, incident) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (walk.runbook, walk.source, walk.at_ms, instance, engine, who, self._clock(), incident),
            )
            walk_id = int(row.lastrowid or 0)
            self._append(connection, walk_id, who, "walked", "", asdict(walk))
        return self.get(walk_id)

    def answer(
        self,
        walk_id: int,
        step: str,
        who: str,
        *,
        seen: int,
        value: Literal["yes", "no", "skip"] | None = None,
        log: str | None = None,
        note: str = "",
    ) -> RecordedWalk:
        """Records an answer or a pasted log. `seen` is the newest event the person had before them.

        Raises WalkConflict when somebody else answered the same step after that, NoSuchWalk, ValueError for no answer.
        """
        if value is None and log is None:
            raise ValueError("an answer is yes, no, skip or a pasted log")
        with self._records.writing() as connection:
            for event in reversed(self._events(connection, walk_id)):
                if event.seq <= seen:
                    break
                if event.kind == "answer" and event.step == step and event.who != who:
                    raise WalkConflict(event)
            body = {"value": value, "log": log[:MAX_TEXT] if log is not None else None, "note": note[:MAX_TEXT]}
            self._append(connection, walk_id, who, "answer", step, body)
        return self.get(walk_id)

    def note(self, walk_id: int, step: str, who: str, text: str) -> RecordedWalk:
        """Adds a note to a step ('' = to the walk). Notes of several people stand one below the other."""
        with self._records.writing() as connection:
            self._append(connection, walk_id, who, "note", step, {"note": text[:MAX_TEXT]})
        return self.get(walk_id)

    def walked(self, walk_id: int, walk: Walk, who: str) -> RecordedWalk:
        """Records new findings, after answers changed the path."""
        with self._records.writing() as connection:
            self._append(connection, walk_id, who, "walked", "", asdict(walk))
        return self.get(walk_id)

    def close(self, walk_id: int, who: str, note: str = "") -> RecordedWalk:
        """Ends a walk; its record stays."""
        with self._records.writing() as connection:
            self._append(connection, walk_id, who, "closed", "", {"note": note[:MAX_TEXT]})
        return self.get(walk_id)

    def get(self, walk_id: int) -> RecordedWalk:
        """A walk with all its events. Raises NoSuchWalk."""
        connection = self._records.connection()
        row = connection.execute("SELECT * FROM walks WHERE id = ?", (walk_id,)).fetchone()
        if row is None:
            raise NoSuchWalk(f"there is no walk {walk_id}")
        return _recorded(row, self._events(connection, walk_id))

    def history(self, runbook: str | None = None, limit: int = 50) -> tuple[RecordedWalk, ...]:
        """The newest walks first, of one runbook or of all."""
        connection = self._records.connection()
        where, values = ("WHERE runbook = ?", (runbook, limit)) if runbook is not None else ("", (limit,))
        rows = connection.execute(f"SELECT * FROM walks {where} ORDER BY id DESC LIMIT ?", values).fetchall()
        return tuple(_recorded(row, self._events(connection, row["id"])) for row in rows)

    def _append(
        self,
        connection: sqlite3.Connection,
        walk_id: int,
        who: str,
        kind: EventKind,
        step: str,
        body: Mapping[str, Any],
    ) -> None:
        if connection.execute("SELECT 1 FROM walks WHERE id = ?", (walk_id,)).fetchone() is None:
            raise NoSuchWalk(f"there is no walk {walk_id}")
        newest = connection.execute("SELECT max(seq) FROM walk_events WHERE walk = ?", (walk_id,)).fetchone()[0] or 0
        text = json.dumps(body, ensure_ascii=True, allow_nan=True)
        connection.execute(
            "INSERT INTO walk_events (walk, seq, at_ms, who, kind, step, body) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (walk_id, newest + 1, self._clock(), who, kind, step, text),
        )

    def _events(self, connection: sqlite3.Connection, walk_id: int) -> tuple[Event, ...]:
        rows = connection.execute("SELECT * FROM walk_events WHERE walk = ? ORDER BY seq", (walk_id,)).fetchall()
        return tuple(_event(row) for row in rows)


def _event(row: sqlite3.Row) -> Event:
    try:
        body = json.loads(row["body"])
    except ValueError:
        raise RecordsError(
            f"event {row['seq']} of walk {row['walk']} is damaged; the others can still be read"
        ) from None
    return Event(row["seq"], row["at_ms"], row["who"], row["kind"], row["step"], body)


def _recorded(row: sqlite3.Row, events: tuple[Event, ...]) -> RecordedWalk:
    return RecordedWalk(
        id=row["id"],
        runbook=row["runbook"],
        source=row["source"],
        at_ms=row["at_ms"],
        instance=row["instance"],
        engine=row["engine"],
        started_by=row["started_by"],
        started_ms=row["started_ms"],
        events=events,
        incident=row["incident"],
    )


def walk_from_record(body: Mapping[str, Any]) -> Walk:
    """The Walk that `dataclasses.asdict` and JSON made a record of."""
    findings = tuple(
        Finding(
            **{
                **finding,
                "numbers": tuple(Number(**number) for number in finding["numbers"]),
                "instructions": tuple(finding["instructions"]),
            }
        )
        for finding in body["findings"]
    )
    leaf = body["outcome"]
    outcome = Leaf(**{**leaf, "evidence": tuple(leaf["evidence"]), "cannot_know": tuple(leaf["cannot_know"])})
    where = Where(body["where"]["scope"], tuple(Place(*place) for place in body["where"]["places"]))
    return Walk(**{**body, "where": where, "findings": findings, "outcome": outcome})
