"""From a latency picture to charts and tables. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from collectors.figures import Figure, QuantileFigure, QuantilePanel
from collectors.latency_picture import HeatMap, LatencyPicture, Ranking
from pages.ui import nav
from pages.ui.charts import Band, Heat, Limit, Line, Mark, Series, Tone
from pages.ui.charts import Panel as Chart
from pages.ui.fleet_charts import notice_of, quantile_series
from pages.ui.table import Cell, Column, Row
from pages.ui.words import clock, day_and_clock, duration, figure_text, percent, quantile_text, seconds

TITLES = {
    "time_to_first_token": "Time to first token",
    "inter_token_latency": "Gap between tokens",
    "request_queue_time": "Time in the queue",
    "request_prefill_time": "Prefill",
    "request_decode_time": "Decode",
    "e2e_request_latency": "End to end",
}
PHASES = ("request_queue_time", "request_prefill_time", "request_decode_time", "e2e_request_latency")
PART_TONES: dict[str, Tone] = {"queue": "warn", "prefill": 0, "decode": 1}


def title_of(signal: str) -> str:
    return TITLES.get(signal, signal.replace("_", " ").capitalize())


def quantile_charts(picture: LatencyPicture, axis: tuple[int, int], marks: tuple[Mark, ...], taints: Mapping[str, tuple[str, ...]]) -> list[Chart]:  # fmt: skip
    """One chart per histogram: the bucket that holds p50, p95 and p99, and the estimates."""
    charts = []
    for panel in picture.panels:
        notice = notice_of(panel)
        limit, aside = _limit(picture, panel)
        charts.append(
            Chart(
                title_of(panel.id), "s", panel.window.start_ms, panel.window.step_ms, panel.window.steps, () if notice else quantile_series(panel),
                axis=_spanning(axis, panel.window.start_ms, panel.window.end_ms), marks=marks, limits=limit, aside=aside, promql=panel.promql, notice=notice, height=150,
                unit_label=f"fleet · rates over {duration(panel.rate_window_ms / 1000)}", taints=(*panel.tainted, *taints.get(panel.id, ())),
            )
        )  # fmt: skip
    return charts


FAR_BELOW = 5.0
"""An objective this many times above everything that was seen would press the bands onto the axis: it is named, not drawn."""


def _limit(picture: LatencyPicture, panel: QuantilePanel) -> tuple[tuple[Limit, ...], str]:
    """The objective's line in the chosen histogram's chart, or the words for one that lies far above it."""
    if picture.slo is None or panel.id != picture.chosen or not np.isfinite(picture.slo.threshold):
        return (), ""
    words = f"SLO {seconds(picture.slo.threshold)}"
    drawn = np.concatenate([panel.series.estimate.ravel(), panel.series.hi.ravel(), panel.series.lo.ravel()])
    top = max(drawn[np.isfinite(drawn)], default=0.0)
    if 0 < top * FAR_BELOW < picture.slo.threshold:
        return (), f"{words}, far above"
    return (Limit(words, picture.slo.threshold),), ""


def _spanning(axis: tuple[int, int], start_ms: int, end_ms: int) -> tuple[int, int]:
    return (min(axis[0], start_ms), max(axis[1], end_ms))


def heat_chart(heat: HeatMap, axis: tuple[int, int], marks: tuple[Mark, ...], doubts: Sequence[str] = ()) -> Chart:
    """Bucket rates over time; empty buckets above and below what was seen are left out."""
    seen = np.flatnonzero(np.nan_to_num(heat.rates).sum(axis=1) > 0) if heat.rates.size else np.array([], dtype=int)
    window = heat.window
    common: dict[str, Any] = {
        "axis": _spanning(axis, window.start_ms, window.end_ms), "marks": marks, "promql": heat.promql, "taints": (*heat.tainted, *doubts), "height": 230, "margin_left": 62,
        "unit_label": f"{title_of(heat.signal)}: observations per bucket, darker is more · rates over {over(heat.rate_window_ms)}",
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


def time_goes_chart(
    picture: LatencyPicture, axis: tuple[int, int], marks: tuple[Mark, ...], doubts: Sequence[str] = ()
) -> Chart:
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
        axis=_spanning(axis, panel.window.start_ms, panel.window.end_ms), marks=marks, promql=panel.promql, notice=notice, taints=(*panel.tainted, *doubts),
        unit_label=f"mean per finished request, stacked · rates over {over(panel.rate_window_ms)}",
    )  # fmt: skip


def averaging_text(ranking: Ranking) -> str:
    """What averaging the replicas' p99 would say beside the fleet's, in the units of the table; '' when there is none."""
    if ranking.mean_of_p99s.value is None or ranking.fleet_p99.interval is None:
        return ""
    said = figure_text(ranking.mean_of_p99s)
    return f"A mean of p99s would say {said}; the fleet's p99 is {quantile_text(ranking.fleet_p99)}."


def window_text(picture: LatencyPicture) -> str:
    """The window that the page states, as a heading: 'Time to first token over 15 min, 02:23:20 to 02:38:20 UTC'."""
    told = clock if picture.whole_ms < 43_200_000 else day_and_clock
    start_ms = picture.at_ms - picture.whole_ms
    return f"{title_of(picture.chosen)} over {over(picture.whole_ms)}, {told(start_ms)} to {told(picture.at_ms)} UTC"


def over(length_ms: int) -> str:
    return duration(length_ms / 1000)


def rank_columns(picture: LatencyPicture) -> tuple[Column, ...]:
    """Names the stretch that the table counts where it is not the page's window."""
    shorter = picture.ranking.over_ms != picture.whole_ms
    return (
        Column(f"replica, the last {over(picture.ranking.over_ms)} only" if shorter else "replica"),
        Column("p50", "right", "bucket that holds the median"),
        Column("p99", "right", "bucket that holds the 99th percentile"),
        Column("mean", "right"),
        Column("observations", "right", "rates times their window, as Prometheus extrapolates them; the fleet is the sum of its replicas"),
    )  # fmt: skip


FLEET, NOW = "fleet", "now"


def ranking_rows(
    ranking: Ranking,
    slots: Mapping[str, int | None],
    kept: Mapping[str, str],
    doubts: Mapping[str, Sequence[str]] | None = None,
    most: int | None = None,
) -> list[Row]:
    """The fleet first, then replicas, worst first; `doubts` are reasons not to trust a row, by its name; `most` cuts the list."""

    def row(key: str, each: tuple[QuantileFigure, QuantileFigure, Figure, float], href: str = "", slot: int | None = -1) -> Row:  # fmt: skip
        p50, p99, mean, observations = each
        why = tuple(dict.fromkeys((*p99.tainted, *(doubts or {}).get(key, ()))))
        cells = (
            _quantile_cell(p50, why), _quantile_cell(p99, why),
            Cell(figure_text(mean), "" if mean.known else "muted", note="; ".join(why) if mean.known else mean.note, doubt=bool(why) and mean.known),
            Cell(f"{observations:,.0f}"),
        )  # fmt: skip
        return Row(key, cells, href, slot)

    fleet = row(FLEET, (ranking.fleet_p50, ranking.fleet_p99, ranking.fleet_mean, ranking.fleet_observations))
    rest = [
        row(
            each.key, (each.p50, each.p99, each.mean, each.observations),
            nav.link("replica", **nav.merged(dict(kept), instance=each.key)), slots.get(each.key),
        )
        for each in ranking.replicas[:most]
    ]  # fmt: skip
    return [fleet, *rest]


def _quantile_cell(told: QuantileFigure, doubts: Sequence[str] = ()) -> Cell:
    if told.interval is None:
        return Cell(quantile_text(told), "muted", note="; ".join(doubts) or told.note, doubt=bool(doubts))
    return Cell(quantile_text(told), note="; ".join(doubts), doubt=bool(doubts))


EARLIER_COLUMNS = (
    Column("same window"),
    Column("p50", "right"),
    Column("p95", "right"),
    Column("p99", "right"),
    Column("observations", "right"),
)


def earlier_rows(picture: LatencyPicture, doubts: Sequence[str] = ()) -> list[Row]:
    """The chosen histogram over the whole window, now and earlier; where nothing was kept from then, why."""

    def row(name: str, quantiles: Sequence[QuantileFigure], note: str = "") -> Row:
        seen = next((q.interval.observations for q in quantiles if q.interval is not None), None)
        if seen is None:
            why = quantiles[0]
            idle = "nothing observed" in why.note
            word = "nothing observed" if idle else "no samples then" if why.status == "no_data" else quantile_text(why)
            return Row(name, (Cell(word, "muted", note=why.note), *(Cell("-", "muted") for _ in range(3))))
        why_not = tuple(dict.fromkeys((*(reason for q in quantiles for reason in q.tainted), *doubts)))
        count = Cell(f"{seen:,.0f}", note=f"Only a part of that window: {note}" if note else "")
        return Row(name, (*(_quantile_cell(q, why_not) for q in quantiles), count))

    return [row(NOW, picture.whole), *(row(each.label, each.quantiles, each.note) for each in picture.earlier)]


def slo_text(picture: LatencyPicture, doubts: Sequence[str] = ()) -> tuple[str, str]:
    """Level and words about the objective of the chosen histogram; ('', '') when there is none."""
    slo = picture.slo
    if slo is None:
        return "", ""
    if slo.share.value is None:
        return "unknown", f"SLO {seconds(slo.threshold)}: {figure_text(slo.share)}" + (f", {slo.share.note}" if slo.share.note else "")  # fmt: skip
    moved = (
        f" (asked: {seconds(slo.asked_threshold)}, moved to the bucket edge)"
        if slo.threshold != slo.asked_threshold
        else ""
    )
    words = f"{percent(slo.share.value)} of {slo.observations:,.0f} observations within {seconds(slo.threshold)}{moved} over {over(picture.whole_ms)}; wanted {percent(slo.objective)}"
    return ("unknown" if doubts else "ok" if slo.inside else "warn"), words
