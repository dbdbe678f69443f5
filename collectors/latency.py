"""The Latency page's data: where the time goes, and for whom - quantile intervals, a heat map, replicas against the fleet, then and now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from collectors.asking import Answers, Question
from collectors.dialect import UnknownSignal
from collectors.discovery import discover
from collectors.figures import Figure, FigureStatus, Line, Panel, QuantileFigure
from collectors.fleet import ends_on_step, looked_back_ms
from collectors.fleet_gauges import instant_rates
from collectors.flow import duration_words
from collectors.histograms import (
    QUANTILES,
    MergedHistogram,
    merged_histogram,
    missing_status,
    replica_columns,
    unit_of,
)
from collectors.latency_picture import Earlier, HeatMap, LatencyPicture, RankedReplica, Ranking
from collectors.model import Floats, Window
from collectors.quantile_values import QuantileInterval
from collectors.quantiles import bucket_rates, mean_of_quantiles, merge, quantile_series
from collectors.scraped import key_text
from collectors.settings import Objective, Settings
from collectors.signals import SIGNAL, Part, Plan, duration_text, panel_window_ms, rate_window_ms
from collectors.source import Source

SIGNALS = (
    "time_to_first_token",
    "inter_token_latency",
    "request_queue_time",
    "request_prefill_time",
    "request_decode_time",
    "e2e_request_latency",
)
PHASES = {
    "request_queue_time": "queue",
    "request_prefill_time": "prefill",
    "request_decode_time": "decode",
    "e2e_request_latency": "end to end",
}
WHERE_NOTE = (
    "Means per finished request. Queue, prefill and decode run on the engine's clock and add up to its time; end to end runs on the API "
    "server's and is longer by input processing, transport and queueing in front of the engine. Aborted requests are in none of them."
)
HOUR_MS, DAY_MS, WEEK_MS = 3_600_000, 86_400_000, 604_800_000
LONGEST_RANKING_MS = 900_000
"""Replicas are compared over at most this much: long enough for a p99 each, short enough to be about now."""


def latency_picture(
    source: Source,
    window: Window,
    settings: Settings,
    chosen: str = "time_to_first_token",
    earlier_ms: Sequence[int] = (HOUR_MS, DAY_MS, WEEK_MS),
) -> LatencyPicture:
    """Latency over a window. `chosen` is the histogram of heat map, ranking and comparison.

    Raises SourceError when the source cannot answer, UnknownSignal when `chosen` is no histogram of the dialect.
    """
    window = ends_on_step(window)
    answers = Answers(source)
    discovery = discover(answers, settings, window.end_ms, window.end_ms - window.start_ms)
    plan = discovery.plan()
    _require_histogram(plan, chosen)
    panel_ms = panel_window_ms(discovery.scrape_interval_seconds, window.step_ms)
    length = max(window.end_ms - window.start_ms, rate_window_ms(discovery.scrape_interval_seconds))
    ranking_ms = min(length, LONGEST_RANKING_MS)
    answers.ask(_questions(plan, window, chosen, panel_ms, ranking_ms, earlier_ms))

    layouts = answers.vector("layouts")
    merged = {
        signal: merged_histogram(answers, signal, signal, plan, window, panel_ms, layouts)
        for signal in dict.fromkeys((*SIGNALS, chosen))
    }
    rates = _rate_lines(answers, window)
    panels = tuple(merged[signal].panel(QUANTILES, rates.get(f"{signal}_sum")) for signal in SIGNALS)
    objective = _objective(settings, chosen)
    share = merged[chosen].share(objective) if objective is not None else None
    whole = _whole(merged[chosen])
    earlier = []
    for shift in earlier_ms:
        then = Window(window.start_ms - shift, window.end_ms - shift, window.step_ms)
        before = merged_histogram(answers, f"earlier_{shift}", chosen, plan, then, panel_ms)
        if before.missing == "not_scraped":
            before = replace(before, missing="no_data", note="no samples from then")
        earlier.append(Earlier(_ago(shift), shift, before.panel(), _whole(before)))
    return LatencyPicture(
        at_ms=window.end_ms,
        window=window,
        source=source.info(),
        engine_text=plan.tree.engine_text,
        scrape_interval_seconds=discovery.scrape_interval_seconds,
        rate_window_ms=panel_ms,
        panels=panels,
        heat_map=_heat_map(merged[chosen], share.threshold if share is not None else None),
        chosen=chosen,
        ranking=_ranking(answers, plan, chosen, ranking_ms),
        where_time_goes=_where_time_goes(answers, plan, window, rates, panel_ms),
        where_note=WHERE_NOTE,
        slo=share,
        whole=whole,
        earlier=tuple(earlier),
        findings=plan.tree.findings,
        warnings=(*answers.warnings(), *(f"{what}: {why}" for what, why in answers.refused.items())),
        asked=tuple(answers.asked),
    )


def _ago(shift_ms: int) -> str:
    weeks, rest = divmod(shift_ms, WEEK_MS)
    return f"{weeks} w ago" if weeks and not rest else f"{duration_words(shift_ms / 1000)} ago"


def _require_histogram(plan: Plan, signal: str) -> None:
    kinds = {entry.type for entry in plan.dialect.entries if entry.signal == signal}
    if kinds != {"histogram"}:
        known = sorted({entry.signal for entry in plan.dialect.entries if entry.type == "histogram" and entry.always})
        raise UnknownSignal(f"{signal!r} is no histogram of {plan.dialect.title}; there are: {', '.join(known)}")


def _questions(
    plan: Plan, window: Window, chosen: str, panel_ms: int, ranking_ms: int, earlier_ms: Sequence[int]
) -> list[Question]:
    panel, ranking = duration_text(panel_ms), duration_text(ranking_ms)
    signals = tuple(dict.fromkeys((*SIGNALS, chosen)))
    parts = [Part(f"{signal}{suffix}", signal, suffix) for signal in signals for suffix in ("_sum", "_count")]
    chosen_parts = [Part(suffix, chosen, suffix) for suffix in ("_sum", "_count")]
    replica = plan.tree.replica_labels
    asked = [Question(signal, plan.buckets(signal, panel), window=window) for signal in signals]
    asked += [
        Question("rates", plan.chain(parts, panel), window=window),
        Question("ranking", plan.buckets(chosen, ranking, replica), at_ms=window.end_ms),
        Question("ranking_means", plan.chain(chosen_parts, ranking, replica), at_ms=window.end_ms),
        Question(
            "layouts", plan.layouts(signals, looked_back_ms(window, plan.tree)), at_ms=window.end_ms, optional=True
        ),
    ]
    for shift in earlier_ms:
        then = Window(window.start_ms - shift, window.end_ms - shift, window.step_ms)
        asked.append(Question(f"earlier_{shift}", plan.buckets(chosen, panel), window=then, optional=True))
    return asked


def _rate_lines(answers: Answers, window: Window) -> dict[str, Floats]:
    frame = answers.frame("rates", window)
    return {labels.get(SIGNAL, ""): values for labels, values in zip(frame.labels, frame.values, strict=True)}


def _objective(settings: Settings, signal: str) -> Objective | None:
    return {
        "time_to_first_token": settings.slo.time_to_first_token,
        "inter_token_latency": settings.slo.inter_token_latency,
    }.get(signal)


def _whole(histogram: MergedHistogram) -> tuple[QuantileFigure, ...]:
    """p50, p95, p99 over the whole window: the rates at steps one range apart, added up, count every observation once."""
    stride = max(histogram.rate_window_ms // histogram.window.step_ms, 1)
    if not len(histogram.bounds):
        return tuple(
            QuantileFigure(
                histogram.missing, None, histogram.unit, histogram.promql, None, histogram.note, histogram.tainted
            )
            for _ in QUANTILES
        )
    columns = histogram.cumulative[:, ::-1][:, ::stride]
    known = ~np.isnan(columns).all(axis=1)
    total = np.where(known, np.nansum(columns, axis=1), np.nan)[:, None]
    series = replace(histogram, cumulative=total).quantiles()
    figures = []
    for q in QUANTILES:
        interval = series.at(q)
        status: FigureStatus = "value" if interval is not None else "no_data"
        note = "" if interval is not None else "nothing observed in the window"
        figures.append(
            QuantileFigure(status, interval, histogram.unit, histogram.promql, None, note, histogram.tainted)
        )
    return tuple(figures)


def _heat_map(histogram: MergedHistogram, threshold: float | None) -> HeatMap:
    return HeatMap(
        histogram.signal,
        histogram.unit,
        histogram.window,
        histogram.bounds,
        bucket_rates(histogram.cumulative),
        threshold,
        histogram.promql,
        histogram.note if histogram.status != "value" else "",
        histogram.tainted,
        histogram.rate_window_ms,
    )


def _where_time_goes(answers: Answers, plan: Plan, window: Window, rates: dict[str, Floats], panel_ms: int) -> Panel:
    lines = []
    for signal, words in PHASES.items():
        sums, counts = rates.get(f"{signal}_sum"), rates.get(f"{signal}_count")
        if sums is not None and counts is not None:
            with np.errstate(invalid="ignore", divide="ignore"):
                lines.append(Line(words, np.where(counts > 0, sums / counts, np.nan), "derived"))
    status: FigureStatus = "value"
    note = WHERE_NOTE
    if not lines:
        status, note = missing_status(plan, "e2e_request_latency", 0)
    query = answers.promql("rates")
    return Panel(
        "where_time_goes", "seconds", window, tuple(lines), query, status, note, answers.taint("rates"), panel_ms
    )


def _ranking(answers: Answers, plan: Plan, chosen: str, ranking_ms: int) -> Ranking:
    unit, seconds = unit_of(plan, chosen), ranking_ms / 1000
    keys, bounds, grid = replica_columns(answers.vector("ranking"), plan.tree)
    query, tainted = answers.promql("ranking"), answers.taint("ranking")
    means = instant_rates(answers.vector("ranking_means"), plan)
    missing, why = missing_status(plan, chosen, len(keys))
    quiet = f"nothing observed in the last {duration_text(ranking_ms)}"

    def told(interval: QuantileInterval | None) -> QuantileFigure:
        status: FigureStatus = "value" if interval is not None else ("no_data" if keys else missing)
        note = "" if interval is not None else (quiet if keys else why)
        return QuantileFigure(status, interval, unit, query, None, note, tainted)

    def mean(sums: float | None, counts: float | None) -> Figure:
        value = sums / counts if sums is not None and counts else None
        status: FigureStatus = "value" if value is not None else ("no_data" if keys else missing)
        return Figure(
            status,
            value,
            unit,
            "measured",
            answers.promql("ranking_means"),
            None,
            "" if value is not None else quiet,
            tainted,
        )

    series = quantile_series(bounds, grid, seconds, (0.5, 0.99))
    replicas = []
    for column, key in enumerate(keys):
        observed = float(np.nan_to_num(series.observations[column]))
        replicas.append(
            RankedReplica(
                key_text(key),
                told(series.at(0.5, column)),
                told(series.at(0.99, column)),
                mean(means.of("_sum", key), means.of("_count", key)),
                observed,
            )
        )
    replicas.sort(
        key=lambda r: (
            -(r.p99.interval.hi if r.p99.interval else -1.0),
            -(r.p99.interval.estimate if r.p99.interval else 0.0),
            r.key,
        )
    )
    merged_bounds, merged, mixed = merge(
        (bounds[~np.isnan(grid[:, column])], grid[~np.isnan(grid[:, column]), column][:, None])
        for column in range(len(keys))
    )
    fleet = quantile_series(merged_bounds, merged if len(keys) else np.empty((0, 1)), seconds, (0.5, 0.99))
    p50, p99 = fleet.at(0.5), fleet.at(0.99)
    if mixed:
        p50, p99 = (i and replace(i, flags=(*i.flags, "mixed_layouts")) for i in (p50, p99))
    average = mean_of_quantiles(series.estimate[1]) if len(keys) else None
    sums, counts = (sum(means.by_replica.get(part, {}).values()) for part in ("_sum", "_count"))
    return Ranking(
        chosen,
        unit,
        tuple(replicas),
        told(p50),
        told(p99),
        mean(sums, counts),
        Figure(
            "value" if average is not None else "no_data",
            average,
            unit,
            "derived",
            query,
            None,
            "averaging quantiles is wrong; shown to say so",
        ),
        _ranking_text(average, p99, unit),
    )


def _ranking_text(average: float | None, p99: QuantileInterval | None, unit: str) -> str:
    short = {"seconds": "s"}.get(unit, unit)
    if average is None or p99 is None:
        return ""
    return f"a mean of p99s would say {average:.3g} {short}; the fleet's p99 is {p99.text(short)}"
