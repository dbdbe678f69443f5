"""Incidents, detector windows and restarts as marks on time axes, each a link to where it is explained."""

from __future__ import annotations

from collections.abc import Mapping

from collectors.fleet_picture import FleetPicture
from collectors.instants import format_instant
from pages.ui import nav
from pages.ui.charts import Mark
from pages.ui.words import cause_text
from runbooks.verdicts import Diagnosis

MOST = 6


def marks_of(picture: FleetPicture, found: Diagnosis | None, kept: Mapping[str, str], at_ms: int) -> tuple[Mark, ...]:
    """What holds now, since when, and which replica restarted inside the window."""
    window = picture.window
    marks: list[Mark] = []
    if found is not None:
        for verdict in found.verdicts:
            if verdict.cause == "healthy" or verdict.since_ms is None or len(marks) >= MOST:
                continue
            place = verdict.where.places[0] if verdict.where.places and verdict.where.scope != "fleet" else None
            href = nav.link(
                "runbook",
                **nav.merged(
                    {key: value for key, value in kept.items() if key in ("source", "range")},
                    id=verdict.runbook,
                    instance=place.instance if place else None,
                    at=format_instant(at_ms),
                ),
            )
            tone = "bad" if any(a.severity == "page" and a.cause == verdict.cause for a in found.anomalies) else "warn"
            marks.append(
                Mark(cause_text(verdict.cause), verdict.since_ms, None, tone, href=href if verdict.runbook else "")
            )
    for row in picture.replicas:
        if row.started_ms is not None and window.start_ms < row.started_ms <= window.end_ms and len(marks) < 2 * MOST:
            href = nav.link("replica", **nav.merged(dict(kept), instance=row.key))
            marks.append(Mark(f"{row.key} restarted", row.started_ms, tone="text", line=True, href=href))
    return tuple(marks)
