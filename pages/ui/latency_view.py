"""From a latency picture to charts and tables. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from collectors.figures import QuantileFigure
from collectors.latency_picture import Earlier, HeatMap, LatencyPicture, Ranking
from pages.ui import nav
from pages.ui.charts import Band, Heat, Limit, Line, Mark, Series, Tone
from pages.ui.charts import Panel as Chart
from pages.ui.fleet_charts import notice_of, quantile_series
from pages.ui.table import Cell, Column, Row
from pages.ui.words import duration, figure_text, percent, quantile_text, seconds

TITLES = {
    "time_to_first_token": "Time to first token",
    "inter_token_latency": "Gap between tokens",
    "request_queue_time": "Time in the queue",
    "request_prefill_time": "Prefill",
    "request_decode_time": "Decode",
    "e2e_request_latency": "End to end",
}
PART_TONES: dict[str, Tone] = {"queue": "warn", "prefill": 0, "decode": 1}


def title_of(signal: str) -> str:
    return TITLES.get(signal, signal.replace("_", " ").capitalize())


def quantile_charts(picture: LatencyPicture, axis: tuple[int, int], marks: tuple[Mark, ...], taints: Mapping[str, tuple[str, ...]]) -> list[Chart]:  # fmt: skip
    """One chart per histogram: the bucket that holds p50, p95 and p99, and the estimates."""
    charts = []
    for panel in picture.panels:
        notice = notice_of(panel)
        limit: tuple[Limit, ...] = ()
        if picture.slo is not None and panel.id == picture.chosen:
            limit = (Limit(f"SLO {seconds(picture.slo.threshold)}", picture.slo.threshold),)
        charts.append(
            Chart(
                title_of(panel.id), "s", panel.window.start_ms, panel.window.step_ms, panel.window.steps, () if notice else quantile_series(panel),
                axis=_spanning(axis, panel.window.start_ms, panel.window.end_ms), marks=marks, limits=limit, promql=panel.promql, notice=notice, height=150,
                unit_label=f"fleet · rates over {duration(panel.rate_window_ms / 1000)}", taints=(*panel.tainted, *taints.get(panel.id, ())),
            )
        )  # fmt: skip
    return charts


def _spanning(axis: tuple[int, int], start_ms: int, end_ms: int) -> tuple[int, int]:
    return (min(axis[0], start_ms), max(axis[1], end_ms))


def heat_chart(heat: HeatMap, axis: tuple[int, int], marks: tuple[Mark, ...]) -> Chart:
    """Bucket rates over time; empty buckets above and below what was seen are left out."""
    seen = np.flatnonzero(np.nan_to_num(heat.rates).sum(axis=1) > 0) if heat.rates.size else np.array([], dtype=int)
    window = heat.window
    common: dict[str, Any] = {
        "axis": _spanning(axis, window.start_ms, window.end_ms), "marks": marks, "promql": heat.promql, "taints": heat.tainted, "height": 230, "margin_left": 62,
        "unit_label": f"{title_of(heat.signal)}: observations per bucket, darker is more",
    }  # fmt: skip
    if not len(seen):
        return Chart(
            "Heat map",
            "s",
            window.start_ms,
            window.step_ms,
            window.steps,
            (),
            notice=heat.note or "No data in this range",
            **common,
        )
    first, last = int(seen[0]), int(seen[-1])
    slo_row = int(np.searchsorted(heat.bounds, heat.slo_threshold)) if heat.slo_threshold is not None else None
    limits: tuple[Limit, ...] = ()
    limit_row = None
    if slo_row is not None and heat.slo_threshold is not None and first - 1 <= slo_row <= last:
        limits, limit_row = (Limit(f"SLO {seconds(heat.slo_threshold)}", heat.slo_threshold),), slo_row - first + 0.5
    rows = range(first, last + 1)
    series: tuple[Series, ...] = (
        Heat("observations", heat.rates[first : last + 1], tuple(_bucket(heat, row) for row in rows), tuple(_edge(heat, row) for row in rows), limit_row=limit_row),
    )  # fmt: skip
    return Chart("Heat map", "s", window.start_ms, window.step_ms, window.steps, series, limits=limits, **common)


def _bucket(heat: HeatMap, row: int) -> str:
    low = float(heat.bounds[row - 1]) if row else 0.0
    high = float(heat.bounds[row])
    return f"> {seconds(low)}" if not np.isfinite(high) else f"{seconds(low)} to {seconds(high)}"


def _edge(heat: HeatMap, row: int) -> str:
    high = float(heat.bounds[row])
    return "no bound" if not np.isfinite(high) else seconds(high)


def time_goes_chart(picture: LatencyPicture, axis: tuple[int, int], marks: tuple[Mark, ...]) -> Chart:
    """Mean seconds per finished request: queue, prefill and decode on top of each other, end to end as a line."""
    panel = picture.where_time_goes
    notice = notice_of(panel)
    series: list[Series] = []
    floor = np.zeros(panel.window.steps)
    for name, tone in PART_TONES.items():
        line = panel.line(name)
        if line is None or notice:
            continue
        top = floor + np.nan_to_num(line.values)
        gone = np.isnan(line.values)
        series.append(Band(name, np.where(gone, np.nan, floor), np.where(gone, np.nan, top), tone, alpha=0.45))
        series.append(Line(name, line.values, tone, width=0.0))
        floor = top
    whole = panel.line("end to end")
    if whole is not None and not notice:
        series.append(Line("end to end", whole.values, "text", 1.4, dash=True))
    return Chart(
        "Where the time goes", "s", panel.window.start_ms, panel.window.step_ms, panel.window.steps, tuple(series), height=230,
        axis=_spanning(axis, panel.window.start_ms, panel.window.end_ms), marks=marks, promql=panel.promql, notice=notice, taints=panel.tainted, unit_label="mean per finished request, stacked",
    )  # fmt: skip


def averaging_text(ranking: Ranking) -> str:
    """What averaging the replicas' p99 would say beside the fleet's, in the units of the table; '' when there is none."""
    if ranking.mean_of_p99s.value is None or ranking.fleet_p99.interval is None:
        return ""
    said = figure_text(ranking.mean_of_p99s)
    return f"A mean of p99s would say {said}; the fleet's p99 is {quantile_text(ranking.fleet_p99)}."


RANK_COLUMNS = (
    Column("replica"),
    Column("p50", "right"),
    Column("p99", "right"),
    Column("mean", "right"),
    Column("observations", "right"),
)


def ranking_rows(ranking: Ranking, slots: Mapping[str, int | None], kept: Mapping[str, str]) -> list[Row]:
    """The fleet first, then replicas, worst first."""
    fleet = Row(
        "fleet",
        (
            Cell(quantile_text(ranking.fleet_p50)),
            Cell(quantile_text(ranking.fleet_p99)),
            Cell(figure_text(ranking.fleet_mean)),
            Cell(""),
        ),
    )
    return [
        fleet,
        *(
            Row(
                each.key,
                (Cell(quantile_text(each.p50)), Cell(quantile_text(each.p99)), Cell(figure_text(each.mean)), Cell(f"{each.observations:.0f}")),
                nav.link("replica", **nav.merged(dict(kept), instance=each.key)),
                slots.get(each.key),
            )
            for each in ranking.replicas
        ),
    ]  # fmt: skip


EARLIER_COLUMNS = (
    Column("over the whole range"),
    Column("p50", "right"),
    Column("p95", "right"),
    Column("p99", "right"),
)


def earlier_rows(picture: LatencyPicture) -> list[Row]:
    """The chosen histogram over the whole window, now and earlier."""

    def cells(quantiles: Sequence[QuantileFigure]) -> tuple[Cell, ...]:
        return tuple(
            Cell(quantile_text(q), "" if q.known else "muted", note=q.note if not q.known else "") for q in quantiles
        )

    def row(earlier: Earlier) -> Row:
        return Row(earlier.label, cells(earlier.quantiles))

    return [Row("now", cells(picture.whole)), *(row(earlier) for earlier in picture.earlier)]


def slo_text(picture: LatencyPicture) -> tuple[str, str]:
    """Level and words about the objective of the chosen histogram; ('', '') when there is none."""
    slo = picture.slo
    if slo is None:
        return "", ""
    if slo.share.value is None:
        return "unknown", f"SLO {seconds(slo.threshold)}: {figure_text(slo.share)}"
    moved = (
        f" (asked: {seconds(slo.asked_threshold)}, moved to the bucket edge)"
        if slo.threshold != slo.asked_threshold
        else ""
    )
    words = f"{percent(slo.share.value)} of {slo.observations:.0f} observations within {seconds(slo.threshold)}{moved}; wanted {percent(slo.objective)}"
    return ("ok" if slo.inside else "warn"), words
