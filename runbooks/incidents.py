"""Incidents that alerts opened: what fired, when, and what the diagnosis said of that very instant.

One incident per (fingerprint, start): the same delivery twice changes nothing, a later `resolved` closes it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from collectors.instants import format_instant
from collectors.source import SourceError
from runbooks.records import Records
from runbooks.webhook import Alert, Message

Status = Literal["firing", "resolved"]
Diagnose = Callable[[int], Mapping[str, Any]]
"""Diagnosis JSON of an instant (epoch milliseconds). Raises SourceError."""
_SELECT = (
    "SELECT incidents.*, recordings.file, recordings.state, COALESCE(NULLIF(recordings.problem, ''), recordings.note) AS why_not_recorded "
    "FROM incidents LEFT JOIN recordings ON recordings.id = incidents.recording"
)


@dataclass(frozen=True)
class Incident:
    """One alert's life. `diagnosis` is the documented JSON; None while it is pending or when `problem` says why not."""

    id: int
    fingerprint: str
    status: Status
    alert: str
    runbook: str
    starts_ms: int
    ends_ms: int | None
    received_ms: int
    updated_ms: int
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    diagnosis: Mapping[str, Any] | None
    problem: str
    recording: Mapping[str, Any] | None = None
    """Its incident file: `file` (name, None until it is written), `state` (waiting, recorded, failed), `problem`. None: not due yet."""

    def summary_json(self) -> dict[str, Any]:
        """The incident without the whole diagnosis: its headline only."""
        verdicts = self.diagnosis["verdicts"] if self.diagnosis else []
        return {
            "id": self.id,
            "status": self.status,
            "alert": self.alert,
            "runbook": self.runbook or None,
            "starts_at": format_instant(self.starts_ms),
            "ends_at": format_instant(self.ends_ms) if self.ends_ms is not None else None,
            "received_at": format_instant(self.received_ms),
            "labels": dict(self.labels),
            "headline": {key: verdicts[0][key] for key in ("cause", "confidence", "where")} if verdicts else None,
            "diagnosed": self.diagnosis is not None,
            "problem": self.problem or None,
            "recording": dict(self.recording) if self.recording is not None else None,
        }

    def to_json(self) -> dict[str, Any]:
        """Everything, schema 1."""
        return {
            "schema": 1,
            **self.summary_json(),
            "fingerprint": self.fingerprint,
            "annotations": dict(self.annotations),
            "diagnosis": self.diagnosis,
        }


class NoSuchIncident(Exception):
    """There is no incident of that number."""


class Incidents:
    """Keeps incidents in the records file. `clock` gives epoch milliseconds."""

    def __init__(self, records: Records, clock: Callable[[], int]) -> None:
        self.records = self._records = records
        self.clock = self._clock = clock

    def receive(self, message: Message) -> tuple[int, ...]:
        """Stores every alert of a delivery; the ids of incidents that are new. Idempotent."""
        opened = []
        with self._records.writing() as connection:
            for alert in message.alerts:
                if (new := self._store(connection, alert)) is not None:
                    opened.append(new)
        return tuple(opened)

    def _store(self, connection: sqlite3.Connection, alert: Alert) -> int | None:
        now = self._clock()
        found = connection.execute(
            "SELECT id, status FROM incidents WHERE fingerprint = ? AND starts_ms = ?",
            (alert.fingerprint, alert.startsAt),
        ).fetchone()
        if found is not None:
            if alert.status == "resolved" and found["status"] == "firing":
                connection.execute(
                    "UPDATE incidents SET status = 'resolved', ends_ms = ?, updated_ms = ? WHERE id = ?",
                    (alert.ends_ms, now, found["id"]),
                )  # a late `firing` of what is already resolved is an old delivery: it does not open it again
            return None
        row = connection.execute(
            "INSERT INTO incidents (fingerprint, starts_ms, ends_ms, status, alert, runbook, received_ms, updated_ms, labels, "
            "annotations, diagnosis, problem) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL, '')",
            (
                alert.fingerprint,
                alert.startsAt,
                alert.ends_ms,
                alert.status,
                alert.labels.get("alertname", ""),
                alert.labels.get("runbook", ""),
                now,
                now,
                json.dumps(dict(alert.labels)),
                json.dumps(dict(alert.annotations)),
            ),
        )
        return int(row.lastrowid or 0)

    def diagnose(self, ids: Sequence[int], diagnose: Diagnose) -> None:
        """Runs the diagnosis at the start of each incident and stores it, or the reason why there is none.

        Incidents that began at one instant share one diagnosis.
        """
        known: dict[int, tuple[str | None, str]] = {}
        for incident_id in ids:
            starts_ms = self.get(incident_id).starts_ms
            if starts_ms not in known:
                try:
                    known[starts_ms] = (json.dumps(diagnose(starts_ms)), "")
                except SourceError as error:
                    known[starts_ms] = (None, str(error))
                except Exception as defect:  # a defect must not stay pending, or every later incident waits behind it
                    self._keep(incident_id, None, f"the diagnosis failed: {type(defect).__name__}: {defect}")
                    raise
            self._keep(incident_id, *known[starts_ms])

    def _keep(self, incident_id: int, diagnosis: str | None, problem: str) -> None:
        with self._records.writing() as connection:
            connection.execute(
                "UPDATE incidents SET diagnosis = ?, problem = ?, updated_ms = ? WHERE id = ?",
                (diagnosis, problem, self._clock(), incident_id),
            )

    def pending(self) -> tuple[int, ...]:
        """Incidents that were stored and not yet diagnosed: a process ended in between."""
        rows = self._records.connection().execute(
            "SELECT id FROM incidents WHERE diagnosis IS NULL AND problem = '' ORDER BY id"
        )
        return tuple(int(row["id"]) for row in rows)

    def get(self, incident_id: int) -> Incident:
        """One incident. Raises NoSuchIncident."""
        row = self._records.connection().execute(f"{_SELECT} WHERE incidents.id = ?", (incident_id,)).fetchone()
        if row is None:
            raise NoSuchIncident(f"there is no incident {incident_id}")
        return _incident(row)

    def list(self, status: Status | None = None, limit: int = 50, before: int | None = None) -> tuple[Incident, ...]:
        """Newest first; `before` continues behind an id of an earlier answer."""
        rows = self._records.connection().execute(
            f"{_SELECT} WHERE (? IS NULL OR status = ?) AND (? IS NULL OR incidents.id < ?) ORDER BY incidents.id DESC LIMIT ?",
            (status, status, before, before, limit),
        )
        return tuple(_incident(row) for row in rows)


def _incident(row: sqlite3.Row) -> Incident:
    return Incident(
        id=row["id"],
        fingerprint=row["fingerprint"],
        status=row["status"],
        alert=row["alert"],
        runbook=row["runbook"],
        starts_ms=row["starts_ms"],
        ends_ms=row["ends_ms"],
        received_ms=row["received_ms"],
        updated_ms=row["updated_ms"],
        labels=json.loads(row["labels"]),
        annotations=json.loads(row["annotations"]),
        diagnosis=json.loads(row["diagnosis"]) if row["diagnosis"] else None,
        problem=row["problem"],
        recording=_recording(row) if row["state"] is not None else None,
    )


def _recording(row: sqlite3.Row) -> dict[str, Any]:
    return {
        "state": row["state"],
        "file": row["file"] if row["state"] == "recorded" else None,
        "problem": row["why_not_recorded"] or None,
    }
