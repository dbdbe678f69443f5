"""Incidents, detector windows and restarts as marks on time axes, each a link to where it is explained."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from collectors.fleet_picture import FleetPicture
from collectors.instants import format_instant
from collectors.model import Window
from pages.ui import nav
from pages.ui.charts import Mark
from pages.ui.words import cause_text
from runbooks.timeline import Episode, Timeline
from runbooks.verdicts import Diagnosis

MOST = 6


def marks_of(picture: FleetPicture, found: Diagnosis | None, kept: Mapping[str, str], at_ms: int) -> tuple[Mark, ...]:
    """What holds now, since when, and which replica restarted inside the window."""
    marks: list[Mark] = []
    if found is not None:
        for verdict in found.verdicts:
            if verdict.cause == "healthy" or verdict.since_ms is None or len(marks) >= MOST:
                continue
            place = verdict.where.places[0] if verdict.where.places and verdict.where.scope != "fleet" else None
            href = nav.link(
                "runbook",
                **nav.merged(
                    {key: value for key, value in kept.items() if key in ("source", "scope", "range")},
                    id=verdict.runbook,
                    instance=place.instance if place else None,
                    at=format_instant(at_ms),
                ),
            )
            tone = "bad" if any(a.severity == "page" and a.cause == verdict.cause for a in found.anomalies) else "warn"
            marks.append(
                Mark(cause_text(verdict.cause), verdict.since_ms, None, tone, href=href if verdict.runbook else "")
            )
    return (*marks, *starts_of(picture, kept))


def past_of(told: Timeline, found: Diagnosis | None, window: Window, kept: Mapping[str, str]) -> tuple[Mark, ...]:
    """Verdicts that held inside the window and are over; nothing that the instant could not know."""
    running = {(verdict.cause, str(verdict.where)) for verdict in (found.verdicts if found is not None else ())}
    over: list[tuple[Episode, int]] = []
    for episode in told.of("verdict"):
        to_ms = min(episode.to_ms, window.end_ms)
        still = (episode.id, episode.place) in running and episode.to_ms >= window.end_ms
        inside = episode.from_ms <= window.end_ms and to_ms >= window.start_ms
        if (
            inside
            and not still
            and episode.confidence != "undetermined"
            and to_ms - episode.from_ms >= 2 * window.step_ms
        ):
            over.append((episode, to_ms))
    longest = max(over, key=lambda pair: pair[1] - pair[0].from_ms, default=None)
    return tuple(
        Mark(
            cause_text(episode.id), episode.from_ms, to_ms, "muted", line=longest is not None and episode is not longest[0],
            href=nav.link("diagnose", **nav.merged(dict(kept), at=format_instant(to_ms))),
        )
        for episode, to_ms in over[-MOST:]
    )  # fmt: skip


def starts_of(picture: FleetPicture, kept: Mapping[str, str]) -> tuple[Mark, ...]:
    """Processes that began inside the window; those of one moment share a mark. One that had samples before has restarted."""
    window = picture.window
    begun = sorted(
        (row.started_ms, row.key)
        for row in picture.replicas
        if row.started_ms is not None and window.start_ms < row.started_ms <= window.end_ms
    )
    groups: list[list[tuple[int, str]]] = []
    for at, key in begun:
        if groups and at - groups[-1][0][0] <= 2 * window.step_ms:
            groups[-1].append((at, key))
        else:
            groups.append([(at, key)])
    marks = []
    for group in groups[-MOST:]:
        at, key = group[0]
        again = any(_seen_before(picture, key, at) for _, key in group)
        who = key if len(group) == 1 else f"{len(group)} replicas"
        href = nav.link("replica", **nav.merged(dict(kept), instance=key)) if len(group) == 1 else ""
        marks.append(Mark(f"{who} {'restarted' if again else 'started'}", at, tone="text", line=True, href=href))
    return tuple(marks)


def _seen_before(picture: FleetPicture, key: str, at_ms: int) -> bool:
    line = picture.running.line(key) or picture.waiting.line(key)
    if line is None:
        return False
    until = max(0, (at_ms - picture.window.start_ms) // picture.window.step_ms)
    return bool(np.isfinite(line.values[:until]).any())
