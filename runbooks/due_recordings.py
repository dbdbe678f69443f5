"""Which incidents are due to be recorded, in which files; kept in the records file, so that a restart goes on where it was.

Alerts come in storms: incidents whose windows overlap share one file, and one that lies inside a file is not recorded again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

from collectors.instants import format_instant
from runbooks.recording import AFTER_MS, BEFORE_MS, incident_window
from runbooks.records import Records

State = Literal["waiting", "recorded", "failed"]
LONGEST_MS = 24 * 3_600_000
"""Of one file. What burns longer is recorded from its beginning."""
OLDEST_MS = 7 * 24 * 3_600_000
"""What was over so long ago (a process that did not run, an older version) is left alone: few sources still know it."""
PATIENCE_MS = AFTER_MS
"""So long an incident waits for those that overlap it and have cleared, but are not yet due."""


@dataclass(frozen=True)
class Cleared:
    """An incident and the window to record for it. `cut`: the window does not reach to its end."""

    id: int
    alert: str
    start_ms: int
    end_ms: int
    cut: bool


@dataclass(frozen=True)
class Recording:
    """One file to write: samples with start <= t <= end."""

    id: int
    file: str
    start_ms: int
    end_ms: int
    attempts: int


@dataclass(frozen=True)
class Told:
    """What an alert said of one incident inside a recording."""

    alert: str
    instance: str
    starts_ms: int
    ends_ms: int | None


def cleared(incident_id: int, alert: str, starts_ms: int, ends_ms: int | None) -> Cleared:
    """The window of an incident. One that still fires (`ends_ms` None) is as if it cleared where the longest file ends."""
    longest_end_ms = starts_ms - BEFORE_MS + LONGEST_MS
    ended_ms = longest_end_ms if ends_ms is None else max(starts_ms, ends_ms)
    whole = incident_window(starts_ms, ended_ms, ended_ms + AFTER_MS)
    assert whole is not None
    return Cleared(incident_id, alert, whole[0], min(whole[1], longest_end_ms), whole[1] > longest_end_ms)


def due_groups(incidents: Iterable[Cleared], now_ms: int) -> tuple[tuple[Cleared, ...], ...]:
    """Those that are due, in groups that share a file, each in order of start.

    A group waits for members that clear a little later, no longer than PATIENCE_MS.
    """
    found: list[tuple[Cleared, ...]] = []
    for group in _overlapping(incidents):
        due = [each for each in group if each.end_ms <= now_ms]
        if len(due) == len(group):
            found.append(group)
        elif due and min(each.end_ms for each in due) + PATIENCE_MS <= now_ms:
            found += _overlapping(due)
    return tuple(found)


def _overlapping(incidents: Iterable[Cleared]) -> list[tuple[Cleared, ...]]:
    groups: list[list[Cleared]] = []
    for each in sorted(incidents, key=lambda incident: (incident.start_ms, incident.id)):
        last = groups[-1] if groups else None
        if (
            last is not None
            and each.start_ms <= max(other.end_ms for other in last)
            and each.end_ms - last[0].start_ms <= LONGEST_MS
        ):
            last.append(each)
        else:
            groups.append([each])
    return [tuple(group) for group in groups]


def file_name(group: tuple[Cleared, ...]) -> str:
    """A name that sorts by time and says what it is about; only letters, digits, '-' and '_' of what the alert is called."""
    first = min(group, key=lambda each: each.id)
    began = re.sub(r"[-:]", "", format_instant((first.start_ms + BEFORE_MS) // 1000 * 1000))
    called = re.sub(r"[^A-Za-z0-9_-]+", "-", first.alert).strip("-")[:60] or "incident"
    return f"{began.replace('ZZ', 'Z')}-{called}-{first.id}"


class DueRecordings:
    """The plan and its progress. `exists` says whether a file name is taken in the folder."""

    def __init__(self, records: Records, exists: Callable[[str], bool]) -> None:
        self._records = records
        self._exists = exists

    def plan(self, now_ms: int) -> None:
        """Gives every incident that is due its file: a new one, or one that covers it already."""
        rows = self._records.connection().execute(
            "SELECT id, alert, status, starts_ms, ends_ms, updated_ms FROM incidents WHERE recording IS NULL "
            "AND (status = 'firing' OR COALESCE(ends_ms, updated_ms) >= ?)",
            (now_ms - OLDEST_MS,),
        )
        open_incidents = []
        for row in rows:
            ended = row["ends_ms"] if row["ends_ms"] is not None else row["updated_ms"]
            each = cleared(row["id"], row["alert"], row["starts_ms"], ended if row["status"] == "resolved" else None)
            recent = now_ms - OLDEST_MS <= each.end_ms
            if recent and (row["status"] == "resolved" or each.end_ms <= now_ms):
                open_incidents.append(each)
        for group in due_groups(open_incidents, now_ms):
            self._assign(group, now_ms)

    def _assign(self, group: tuple[Cleared, ...], now_ms: int) -> None:
        start_ms, end_ms = group[0].start_ms, max(each.end_ms for each in group)
        with self._records.writing() as connection:
            covered = connection.execute(
                "SELECT id FROM recordings WHERE state <> 'failed' AND start_ms <= ? AND end_ms >= ?",
                (start_ms, end_ms),
            ).fetchone()
            if covered is None:
                name = file_name(group)
                tried = 1
                while self._exists(file := f"{name}{f'-{tried}' if tried > 1 else ''}.capsule"):
                    tried += 1
                note = f"only the first {LONGEST_MS // 3_600_000} h" if any(each.cut for each in group) else ""
                number = connection.execute(
                    "INSERT INTO recordings (file, start_ms, end_ms, state, attempts, next_ms, problem, note, size_bytes) "
                    "VALUES (?, ?, ?, 'waiting', 0, ?, '', ?, 0)",
                    (file, start_ms, end_ms, now_ms, note),
                ).lastrowid
            else:
                number = covered["id"]
            connection.executemany(
                "UPDATE incidents SET recording = ? WHERE id = ? AND recording IS NULL",
                [(number, each.id) for each in group],
            )

    def due(self, now_ms: int) -> tuple[Recording, ...]:
        """Those to try now, oldest first."""
        rows = self._records.connection().execute(
            "SELECT id, file, start_ms, end_ms, attempts FROM recordings "
            "WHERE state = 'waiting' AND next_ms <= ? ORDER BY id",
            (now_ms,),
        )
        return tuple(Recording(**row) for row in rows)

    def told(self, recording: Recording) -> tuple[Told, ...]:
        """The alerts of the incidents that this file is for, oldest first."""
        rows = self._records.connection().execute(
            "SELECT alert, COALESCE(json_extract(labels, '$.instance'), '') AS instance, starts_ms, ends_ms "
            "FROM incidents WHERE recording = ? ORDER BY starts_ms, id",
            (recording.id,),
        )
        return tuple(Told(**row) for row in rows)

    def begin(self, recording: Recording) -> Recording:
        """Counts an attempt before it is made: one that takes the process down with it counts, too."""
        begun = replace(recording, attempts=recording.attempts + 1)
        self._change(recording, attempts=begun.attempts)
        return begun

    def interrupted(self, recording: Recording) -> None:
        """The attempt was stopped from outside and does not count."""
        self._change(recording, attempts=max(0, recording.attempts - 1))

    def recorded(self, recording: Recording, size_bytes: int) -> None:
        self._change(recording, state="recorded", problem="", size_bytes=size_bytes)

    def failed(self, recording: Recording, problem: str, next_ms: int | None) -> None:
        """The attempt failed; None: there is no further one."""
        if next_ms is None:
            self._change(recording, state="failed", problem=problem)
        else:
            self._change(recording, problem=problem, next_ms=next_ms)

    def files(self) -> tuple[str, ...]:
        """Names of all files that were recorded."""
        rows = self._records.connection().execute("SELECT file FROM recordings WHERE state = 'recorded'")
        return tuple(str(row["file"]) for row in rows)

    def _change(self, recording: Recording, **columns: str | int) -> None:
        with self._records.writing() as connection:
            names = ", ".join(f"{name} = ?" for name in columns)
            connection.execute(f"UPDATE recordings SET {names} WHERE id = ?", (*columns.values(), recording.id))
