"""Incidents, detector windows and restarts as marks on time axes, each a link to where it is explained."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from collectors.fleet_picture import FleetPicture
from collectors.instants import format_instant
from collectors.model import Window
from pages.ui import nav
from pages.ui.charts import Mark
from pages.ui.words import cause_text
from runbooks.timeline import Band, Timeline
from runbooks.verdicts import Diagnosis

MOST = 6


def marks_of(
    picture: FleetPicture, found: Diagnosis | None, kept: Mapping[str, str], at_ms: int, told: Timeline | None = None
) -> tuple[Mark, ...]:
    """What holds now, since when (as was said when it was first shown), and which replica restarted inside the window."""
    marks: list[Mark] = []
    running = {band.id: band.from_ms for band in _bands(told, picture.window) if band.to_ms >= at_ms}
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
            began = min(verdict.since_ms, running.get(verdict.cause, verdict.since_ms))
            marks.append(Mark(cause_text(verdict.cause), began, None, tone, href=href if verdict.runbook else ""))
    return (*marks, *starts_of(picture, kept))


def past_of(told: Timeline, found: Diagnosis | None, window: Window, kept: Mapping[str, str]) -> tuple[Mark, ...]:
    """Causes that held inside the window and are over; nothing that the instant could not know."""
    running = {verdict.cause for verdict in (found.verdicts if found is not None else ())}
    over = [
        band
        for band in _bands(told, window)
        if not (band.id in running and band.to_ms >= window.end_ms - _apart_ms(told, window))
        and band.to_ms >= window.start_ms
        and band.to_ms - band.from_ms >= 2 * window.step_ms
    ]
    longest = max(over, key=lambda band: band.to_ms - band.from_ms, default=None)
    return tuple(
        Mark(
            cause_text(band.id), band.from_ms, band.to_ms, "muted", line=band is not longest,
            href=nav.link("diagnose", **nav.merged(dict(kept), at=format_instant(band.to_ms))),
        )
        for band in over[-MOST:]
    )  # fmt: skip


def _bands(told: Timeline | None, window: Window) -> tuple[Band, ...]:
    return told.bands(window.end_ms, _apart_ms(told, window)) if told is not None else ()


def _apart_ms(told: Timeline, window: Window) -> int:
    """A silence of two judged instants, or one that no chart of this step could show, is none."""
    looked = min((b - a for a, b in pairwise(told.at_ms)), default=0)
    return 2 * max(window.step_ms, looked)


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
