"""The charts of the Fleet page out of a picture's panels. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from collectors.figures import STATUS_WORDS, Panel, QuantilePanel
from pages.ui import nav
from pages.ui.charts import Band, Limit, Line, Quantile, Series
from pages.ui.charts import Panel as Chart
from pages.ui.fleet_scene import Scene
from pages.ui.words import digits, duration, seconds

GREY_WIDTH, LINE_WIDTH = 1.0, 1.6


def _grid(scene: Scene, panel: Panel | QuantilePanel) -> dict[str, Any]:
    window = panel.window
    return {
        "start_ms": window.start_ms, "step_ms": window.step_ms, "points": window.steps, "axis": _axis(scene, window.start_ms, window.end_ms),
        "marks": scene.marks, "promql": panel.promql, "notice": notice_of(panel),
    }  # fmt: skip


def _axis(scene: Scene, start_ms: int, end_ms: int) -> tuple[int, int]:
    first, last = scene.axis
    return (min(first, start_ms) if first >= start_ms - 1 else first, max(last, end_ms))


def notice_of(panel: Panel | QuantilePanel) -> str:
    """The word for an empty panel; '' when there is something to draw."""
    if panel.status != "value":
        word = STATUS_WORDS[panel.status]
        return f"{word[:1].upper()}{word[1:]}" + (f": {panel.note}" if panel.note else "")
    if isinstance(panel, Panel):
        drawn = any(np.isfinite(line.values).any() for line in panel.lines)
    else:
        drawn = bool(np.isfinite(panel.series.estimate).any())
    return "" if drawn else "No data in this range" + (f": {panel.note}" if panel.note else "")


def by_replica(scene: Scene, panel: Panel) -> tuple[tuple[Line, ...], str]:
    """Lines in the replicas' colours, and what to say of those that have none. With many replicas the rest is thin and grey."""
    order = [row.key for row in scene.picture.replicas]
    named = sorted(panel.lines, key=lambda line: order.index(line.key) if line.key in order else len(order))
    colour = {line.key: scene.slots.get(line.key) for line in named}
    grey = [line for line in named if colour[line.key] is None]
    lines = [Line(line.key, line.values, "quiet", GREY_WIDTH, legend=False) for line in grey]
    for line in sorted((n for n in named if colour[n.key] is not None), key=lambda n: n.key if not grey else ""):
        slot = colour[line.key]
        assert slot is not None
        lines.append(Line(line.key, line.values, slot, LINE_WIDTH))
    return tuple(lines), f"{len(grey)} more in grey" if grey else ""


def quantile_series(panel: QuantilePanel) -> tuple[Quantile, ...]:
    """Bands of the buckets and the estimates inside them; the widest line is the median."""
    widths = {0.5: (2.6, 0.24), 0.95: (1.8, 0.16), 0.99: (1.0, 0.10)}
    return tuple(
        Quantile(
            f"p{q * 100:g}", panel.series.lo[row], panel.series.hi[row], panel.series.estimate[row], "accent", *widths.get(q, (1.4, 0.14))
        )
        for row, q in sorted(enumerate(panel.series.quantiles), key=lambda pair: -pair[1])
    )  # fmt: skip


def panels(scene: Scene, whose: str = "fleet") -> list[Chart]:
    """Waiting, KV usage, arrivals and completions, time to first token; then running and the token gap.

    `whose` names what the sums and quantiles are of: the fleet, or the one replica that the picture was narrowed to.
    """
    picture = scene.picture
    slo = picture.totals.time_to_first_token_slo
    gap_slo = picture.totals.inter_token_latency_slo

    def chart(title: str, unit: str, panel: Panel | QuantilePanel, series: tuple[Series, ...], label: str, signals: Sequence[str], **more: Any) -> Chart:  # fmt: skip
        grid = _grid(scene, panel)
        taints = tuple(dict.fromkeys((*panel.tainted, *scene.doubts(*signals))))
        label += f" · rates over {duration(panel.rate_window_ms / 1000)}" if panel.rate_window_ms else ""
        return Chart(
            title, unit, series=() if grid["notice"] else series, unit_label=label, taints=taints, **{**grid, **more}
        )

    def runbook(name: str) -> str:
        return nav.link("runbook", **nav.merged(dict(scene.kept), id=name))

    waiting, more = by_replica(scene, picture.waiting)
    usage, usage_more = by_replica(scene, picture.kv_cache_usage)
    running, running_more = by_replica(scene, picture.running)
    return [
        chart("Waiting", "", picture.waiting, waiting, "requests, by replica", ("requests_waiting",), runbook=runbook("waiting_growth"), aside=more),
        chart("KV cache usage", "ratio", picture.kv_cache_usage, usage, "% of blocks, by replica", ("kv_cache_usage",), y_max=1.0, runbook=runbook("kv_pressure"), aside=usage_more),
        chart("Arrivals and completions", "/s", picture.flow, _flow(picture.flow), f"requests/s, {whose}", ("time_to_first_token", "requests_finished"), runbook=runbook("waiting_growth"), limits=_capacity(scene)),
        chart("Time to first token", "s", picture.time_to_first_token, quantile_series(picture.time_to_first_token), f"bucket that holds the quantile, {whose}", ("time_to_first_token",), limits=(Limit(f"SLO {seconds(slo.threshold)}", slo.threshold),)),
        chart("Running", "", picture.running, running, "requests, by replica", ("requests_running",), aside=running_more),
        chart("Gap between tokens", "s", picture.inter_token_latency, quantile_series(picture.inter_token_latency), f"bucket that holds the quantile, {whose}", ("inter_token_latency",), limits=(Limit(f"SLO {seconds(gap_slo.threshold)}", gap_slo.threshold),)),
    ]  # fmt: skip


def _capacity(scene: Scene) -> tuple[Limit, ...]:
    """The fleet's measured capacity as a line, where it is known of every replica that is scraped."""
    capacity = scene.picture.totals.capacity_requests.value
    whole = all(row.capacity_requests.known for row in scene.picture.replicas if row.scraped != "gone")
    return (Limit(f"measured capacity {digits(capacity)} /s", capacity),) if capacity is not None and whole else ()


def _flow(panel: Panel) -> tuple[Line | Band, ...]:
    arrivals, done, first = (panel.line(key) for key in ("arrivals", "completions", "first tokens"))
    series: list[Line | Band] = []
    if arrivals is not None and done is not None:
        series.append(Band("gap", done.values, np.fmax(arrivals.values, done.values), "warn", 0.14))
    if arrivals is not None:
        series.append(Line("arriving (estimate)", arrivals.values, "accent"))
    if done is not None:
        series.append(Line("finished", done.values, "text"))
    elif first is not None:
        series.append(Line("first tokens", first.values, "text"))
    return tuple(series)
