"""Two sources on one time axis: where each one's zero lies, and the charts and lanes on it. Pure.

Zero is the beginning of the incident, the beginning of what is shown, or the same time of the clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from collectors.aligned import AlignedSide
from collectors.capsule.manifest import Manifest
from collectors.figures import STATUS_WORDS, Panel, QuantilePanel
from collectors.instants import parse_instant_ms
from pages.ui.charts import Limit, Line, Mark, Quantile, Series
from pages.ui.charts import Panel as Chart
from pages.ui.doubts import Doubts
from pages.ui.view import POINTS, STEPS_MS
from pages.ui.words import clock, duration, seconds
from runbooks.timeline import Timeline

How = Literal["incident", "start", "clock"]
HOWS: tuple[How, ...] = get_args(How)
HALF_MINUTE_MS, DAY_MS = 30_000, 86_400_000
TONES: tuple[int | str, int | str] = ("accent", 3)
"""Of the first and the second side, on every chart; the second is dashed too, so that colour is never alone."""
LONGEST_MS = 2 * DAY_MS
SHORTEST_MS = 20_000
QUIET_MS = 30_000
"""A silence in which an incident is not over."""


@dataclass(frozen=True)
class Anchor:
    """An instant that may be laid on zero, in words."""

    at_ms: int
    label: str


@dataclass(frozen=True)
class Party:
    """One of the two: what is known of it before its samples are read."""

    name: str
    """'A' or 'B', as the charts call it."""
    title: str
    start_ms: int
    end_ms: int
    incident: Anchor | None
    anchors: tuple[Anchor, ...] = ()
    live: bool = False
    judged: bool = True
    """False while it is not known yet whether anything was wrong in it."""


@dataclass(frozen=True)
class Laid:
    """Both zeros (ms), the room around them, and what has to be said of it."""

    zeros: tuple[int, int]
    before_ms: int
    after_ms: int
    step_ms: int
    zero_words: str
    remark: str = ""


def incident_of(manifest: Manifest) -> Anchor | None:
    """Since when the first thing that a judged recording says held; None when nothing was said, or nobody judged it.

    A manifest comes from outside: what cannot be read in it is passed over.
    """
    begun: list[tuple[int, str]] = []
    for moment in _dicts(manifest.diagnosis.get("moments")):
        for verdict in _dicts(moment.get("verdicts")):
            told = verdict.get("since") or moment.get("at")
            if verdict.get("cause") == "healthy" or verdict.get("confidence") == "undetermined":
                continue
            try:
                begun.append((parse_instant_ms(str(told)), str(verdict.get("cause", ""))))
            except ValueError:
                continue
        if begun:
            break
    begun = begun or [(mark.at_ms, mark.text) for mark in manifest.marks if mark.kind in ("verdict", "anomaly")]
    inside = [(at_ms, words) for at_ms, words in begun if at_ms <= manifest.window.end_ms]
    if not inside:
        return None
    at_ms, words = min(inside)
    return Anchor(max(at_ms, manifest.window.start_ms), words)


def _dicts(told: object) -> list[dict[str, object]]:
    return [each for each in told if isinstance(each, dict)] if isinstance(told, list) else []


def band_start(told: Timeline, until_ms: int, *, newest: bool) -> Anchor | None:
    """The beginning of the first cause of a timeline, or of the newest one (of a live source: what runs, or ran last)."""
    bands = told.bands(until_ms, QUIET_MS)
    return Anchor(bands[-1 if newest else 0].from_ms, bands[-1 if newest else 0].id) if bands else None


def anchors_of(manifest: Manifest, incident: Anchor | None) -> tuple[Anchor, ...]:
    """The incident and every mark of a recording, in order, one for an instant."""
    found = {incident.at_ms: Anchor(incident.at_ms, "incident start")} if incident is not None else {}
    for mark in manifest.marks:
        if manifest.window.start_ms <= mark.at_ms <= manifest.window.end_ms:
            found.setdefault(mark.at_ms, Anchor(mark.at_ms, (mark.text or mark.kind)[:90]))
    return tuple(found[at_ms] for at_ms in sorted(found))


def lay(
    first: Party,
    second: Party,
    how: How,
    chosen: tuple[int | None, int | None] = (None, None),
    shown: tuple[int, int] | None = None,
) -> Laid:
    """Where both zeros lie and what is shown around them: all of both, or the part `shown` (offsets, ms).

    A chosen instant wins over the beginning of the incident. A recording without an incident is laid by its start, a live source by
    its newest sample on the other's end; both are said. A live source has no beginning: the recording beside it gives the room.
    """
    parties = (first, second)
    remarks: list[str] = []
    if how == "clock":
        zeros, zero_words = _by_the_clock(first, second, remarks)
    else:
        zeros = _zeros(parties, how, chosen, remarks)
        zero_words = " · ".join(f"{party.name} {clock(zero)} UTC" for party, zero in zip(parties, zeros, strict=True))
    before = after = SHORTEST_MS
    for party, zero in zip(parties, zeros, strict=True):
        if not party.live:
            before = max(before, zero - party.start_ms)
        if not party.live or how == "incident":
            after = max(after, party.end_ms - zero)
    before, after = min(before, LONGEST_MS), min(after, LONGEST_MS)
    if first.live or second.live:  # the picture does not slide with every scrape
        after = -(-after // HALF_MINUTE_MS) * HALF_MINUTE_MS
    if shown is not None and shown[1] - shown[0] >= SHORTEST_MS:
        before, after = min(before, max(0, -shown[0])), min(after, max(0, shown[1]))  # zero stays in sight
    step = next((step for step in STEPS_MS if before + after <= step * POINTS), STEPS_MS[-1])
    return Laid(zeros, -(-before // step) * step, -(-after // step) * step, step, zero_words, " ".join(remarks))


def _by_the_clock(first: Party, second: Party, remarks: list[str]) -> tuple[tuple[int, int], str]:
    """The same time of the day: on the same day where they share it, else whole days apart."""
    base, other = (second, first) if first.live else (first, second)
    if other.live:
        days = math.floor((other.end_ms - base.start_ms) / DAY_MS)
    else:
        days = round((other.start_ms + other.end_ms - base.start_ms - base.end_ms) / 2 / DAY_MS)
    moved = base.start_ms + days * DAY_MS
    if not other.live and (other.start_ms - moved > base.end_ms - base.start_ms or other.end_ms < moved):
        remarks.append("They hold different hours of the day: nothing lies side by side by the clock.")
    apart = f", {abs(days)} {'day' if abs(days) == 1 else 'days'} apart" if days else ""
    zeros = (moved, base.start_ms) if first.live else (base.start_ms, moved)
    return zeros, f"{clock(base.start_ms)} UTC on both{apart}"


def _zeros(
    parties: tuple[Party, Party], how: How, chosen: tuple[int | None, int | None], remarks: list[str]
) -> tuple[int, int]:
    found = [_zero(party, how, instant, remarks) for party, instant in zip(parties, chosen, strict=True)]
    for number, party in enumerate(parties):
        if found[number] is None:  # live, and nothing to lay it by
            other, zero = parties[1 - number], found[1 - number]
            found[number] = party.end_ms - (other.end_ms - (zero if zero is not None else other.end_ms))
            if how == "incident":
                remarks.append(
                    f"Nothing is wrong in {party.name} now: its newest sample lies on the end of {other.name}."
                )
    first, second = found
    assert first is not None
    assert second is not None
    return first, second


def _zero(party: Party, how: How, chosen: int | None, remarks: list[str]) -> int | None:
    if how == "start":
        return None if party.live else party.start_ms
    if chosen is not None and chosen <= party.end_ms and (party.live or chosen >= party.start_ms):
        return chosen
    if party.incident is not None:
        return party.incident.at_ms
    if party.live:
        return None
    why = f"Nothing was found wrong in {party.name}" if party.judged else f"{party.name} is being judged"
    remarks.append(f"{why}: it is laid by its start.")
    return party.start_ms


SIGNAL_OF = {"waiting": "requests_waiting", "running": "requests_running"}
"""Panels that are not called like their signal."""


def charts(
    sides: Sequence[AlignedSide | None],
    laid: Laid,
    at_ms: int | None,
    slo_seconds: Mapping[str, float],
    doubts: Sequence[Doubts] = ({}, {}),
) -> list[Chart]:
    """Waiting, running, KV usage, TTFT p99, preemptions and token gap p99 of both fleets, each on one chart.

    `at_ms` is the cursor's offset from zero; `slo_seconds` the limits of the two histograms by panel id; `doubts` what broken checks
    say against the signals of each side.
    """
    limits = {panel_id: (Limit(f"SLO {seconds(limit)}", limit),) for panel_id, limit in slo_seconds.items()}
    told = (
        ("Waiting", "", "waiting", "requests, fleet", None),
        ("Running", "", "running", "requests, fleet", None),
        ("KV cache usage", "ratio", "kv_cache_usage", "% of blocks, the fullest rank", 1.0),
        ("TTFT p99", "s", "time_to_first_token", "bucket that holds it, fleet", None),
        ("Preemptions", "", "preemptions", "a minute, fleet", None),
        ("Gap between tokens p99", "s", "inter_token_latency", "bucket that holds it, fleet", None),
    )
    return [_chart(title, unit, panel_id, label, top, sides, laid, at_ms, limits.get(panel_id, ()), doubts) for title, unit, panel_id, label, top in told]  # fmt: skip


def _chart(
    title: str, unit: str, panel_id: str, label: str, top: float | None, sides: Sequence[AlignedSide | None], laid: Laid,
    at_ms: int | None, limits: tuple[Limit, ...], doubts: Sequence[Doubts],
) -> Chart:  # fmt: skip
    series: list[Series] = []
    promql: dict[str, None] = {}
    taints: dict[str, None] = {}
    missing: list[str] = []
    rates: list[int] = []
    for number, side in enumerate(sides):
        name = "AB"[number]
        panel = (side.quantiles(panel_id) or side.of_fleet(panel_id)) if side is not None else None
        drawn = _series(panel, name, TONES[number], dash=number == 1) if panel is not None else None
        if panel is not None:
            promql |= dict.fromkeys(panel.promql)
            against = doubts[number].get(SIGNAL_OF.get(panel_id, panel_id), ())
            taints |= dict.fromkeys(f"{name}: {reason}" for reason in (*panel.tainted, *against))
            rates += [panel.rate_window_ms] if panel.rate_window_ms else []
        if drawn is not None:
            series.append(drawn)
        else:
            word = STATUS_WORDS[panel.status] if panel is not None else ""
            missing.append(f"{name}: {word or 'no data'}")
    if rates:
        low, high = min(rates), max(rates)
        label += f" · over {duration(low / 1000)}" + (f" and {duration(high / 1000)}" if high != low else "")
    points = (laid.before_ms + laid.after_ms) // laid.step_ms + 1
    return Chart(
        title, unit, -laid.before_ms, laid.step_ms, points, tuple(series), unit_label=label, y_max=top, height=150, limits=limits if series else (),
        promql=tuple(promql), taints=tuple(taints), notice="; ".join(missing) if not series else "", aside="; ".join(missing) if series else "",
        marks=(Mark("zero", 0, tone="text", line=True),), zeros=(("A", laid.zeros[0]), ("B", laid.zeros[1])), cursor_ms=at_ms,
    )  # fmt: skip


def _series(panel: Panel | QuantilePanel, name: str, tone: int | str, *, dash: bool) -> Series | None:
    if isinstance(panel, Panel):
        line = panel.lines[0] if panel.lines else None
        return Line(name, line.values, tone, 1.7, dash=dash) if line is not None and _any(line.values) else None
    rows = [row for row, q in enumerate(panel.series.quantiles) if math.isclose(q, 0.99)]
    if not rows or not _any(panel.series.estimate[rows[0]]):
        return None
    told = panel.series
    return Quantile(name, told.lo[rows[0]], told.hi[rows[0]], told.estimate[rows[0]], tone, 1.7, 0.14)


def _any(values: object) -> bool:
    return bool(np.isfinite(np.asarray(values)).any())
