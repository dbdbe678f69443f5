"""Fleet-wide figures of the Fleet page: sums of replicas, last points of the fleet's own series, and the worst of its kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from collectors.figures import Figure, FigureStatus, QuantileFigure, ShareUnder, figure
from collectors.fleet_picture import Drain, FleetTotals, Forecast, ReplicaRow
from collectors.model import Floats

EARLIER_MS = 900_000
"""Tiles are compared with 15 minutes before."""
SHORTEST_COMPARISON_MS = 60_000

_UNKNOWN_DRAIN = Drain("unknown", None, None, "unknown: no replica has a known queue")
_UNKNOWN_FORECAST = Forecast("unknown", None, None, "unknown: no replica has a known cache")


@dataclass(frozen=True)
class FleetSeries:
    """Fleet series on the panel grid, by part name; arrays of shape (steps,)."""

    rates: Mapping[str, Floats]
    waiting: Floats
    running: Floats
    worst_kv: Floats
    arrivals: Floats
    step_ms: int
    promql: Mapping[str, tuple[str, ...]]
    tainted: Mapping[str, tuple[str, ...]]
    absent: Callable[[str], tuple[FigureStatus, str]]
    """canonical signal -> what its absence means for the fleet"""
    age_seconds: float | None


def fleet_totals(
    rows: Sequence[ReplicaRow],
    series: FleetSeries,
    time_to_first_token: tuple[QuantileFigure, ...],
    inter_token_latency_p99: QuantileFigure,
    slo: tuple[ShareUnder, ShareUnder],
) -> FleetTotals:
    """The figures of the status strip and the tiles."""
    wait, wait_key = _worst(rows, lambda row: row.wait)
    kv, kv_key = _worst(rows, lambda row: row.kv_cache_usage)
    drain, drain_key = _worst_drain(rows)
    forecast, forecast_key = _first_full(rows)
    return FleetTotals(
        wait=_fleet_wait(series),
        worst_wait=wait,
        worst_wait_key=wait_key,
        waiting=_gauge(series, series.waiting, "requests", "requests_waiting"),
        running=_gauge(series, series.running, "requests", "requests_running"),
        seats=sum_of(rows, lambda row: row.seats),
        worst_kv_cache_usage=_with_past(kv, series, series.worst_kv),
        worst_kv_key=kv_key,
        prompt_tokens=_rate(series, "prompt_tokens", "tokens/s", "prompt_tokens"),
        generation_tokens=_rate(series, "generation_tokens", "tokens/s", "generation_tokens"),
        arrivals=_arrivals(series),
        first_tokens=_rate(series, "first_tokens", "requests/s", "time_to_first_token"),
        finished=_rate(series, "finished", "requests/s", "requests_finished"),
        preemptions=_rate(series, "preemptions", "per minute", "preemptions", 60.0),
        prefix_hit_ratio=_hit_ratio(series),
        capacity_requests=sum_of(rows, lambda row: row.capacity_requests),
        capacity_tokens=sum_of(rows, lambda row: row.capacity_tokens),
        time_to_first_token=time_to_first_token,
        inter_token_latency_p99=inter_token_latency_p99,
        time_to_first_token_slo=slo[0],
        inter_token_latency_slo=slo[1],
        drain=drain,
        drain_key=drain_key,
        kv_forecast=forecast,
        kv_forecast_key=forecast_key,
    )


def _with_earlier(told: Figure, series: FleetSeries, line: Floats, factor: float = 1.0) -> Figure:
    """The figure with its history, and its value of a quarter of an hour before, or as far back (a minute at least) as it is known."""
    within = line[-1 - min(round(EARLIER_MS / series.step_ms), len(line) - 1) :] if len(line) else line
    known = np.flatnonzero(np.isfinite(within))
    back = len(within) - 1 - int(known[0]) if len(known) else 0
    if back * series.step_ms < SHORTEST_COMPARISON_MS:
        return replace(told, history=line * factor)
    value = float(within[known[0]]) * factor
    return replace(told, earlier=value, earlier_ms=back * series.step_ms, history=line * factor)


def _with_past(told: Figure, series: FleetSeries, line: Floats, factor: float = 1.0) -> Figure:
    """With its history, which a figure that has no value now has too; with what it was before where there is something to compare."""
    if told.known:
        return _with_earlier(told, series, line, factor)
    return replace(told, history=line * factor) if np.isfinite(line).any() else told


def _told(
    series: FleetSeries, query: tuple[str, ...], line: Floats, unit: str, signal: str, factor: float = 1.0, **words: str
) -> Figure:
    missing, why = series.absent(signal)
    told = figure(
        float(line[-1]) * factor if len(line) else None,
        unit,
        "measured",
        promql=tuple(text for name in query for text in series.promql.get(name, ())),
        age_seconds=series.age_seconds,
        missing=missing,
        missing_note=why,
        **words,
    )
    told = _with_past(told, series, line, factor)
    for reason in (reason for name in query for reason in series.tainted.get(name, ())):
        told = told.with_taint(reason)
    return told


def _gauge(series: FleetSeries, line: Floats, unit: str, signal: str) -> Figure:
    return _told(series, ("gauges",), line, unit, signal)


def _rate(series: FleetSeries, part: str, unit: str, signal: str, factor: float = 1.0) -> Figure:
    return _told(series, ("fleet_rates",), series.rates.get(part, np.empty(0)), unit, signal, factor)


def _arrivals(series: FleetSeries) -> Figure:
    note = "first tokens + change of waiting; blind to aborts while waiting"
    preempting = series.rates.get("preemptions", np.zeros(1))
    if len(preempting) and preempting[-1] > 0:
        note += "; too high now, since preempted requests go back to the queue"
    told = _told(series, ("fleet_rates", "gauges"), series.arrivals, "requests/s", "time_to_first_token", note=note)
    if told.status == "no_data":
        return replace(told, evidence="estimated", note="too little history to see the queue change")
    return replace(told, evidence="estimated")


def _fleet_wait(series: FleetSeries) -> Figure:
    first = series.rates.get("first_tokens", np.full(series.waiting.shape, np.nan))
    with np.errstate(invalid="ignore", divide="ignore"):
        line = np.where((series.waiting > 0) & (first > 0), series.waiting / first, np.nan)
    told = _told(
        series, ("gauges", "fleet_rates"), line, "seconds", "requests_waiting", note="waiting / rate of first tokens"
    )
    nothing = len(series.waiting) and series.waiting[-1] == 0
    return replace(told, evidence="derived", note="nothing waits" if nothing else told.note)


def _hit_ratio(series: FleetSeries) -> Figure:
    empty = np.full(series.waiting.shape, np.nan)
    hits, queries = series.rates.get("prefix_hits", empty), series.rates.get("prefix_queries", empty)
    with np.errstate(invalid="ignore", divide="ignore"):
        line = np.where(queries > 0, hits / queries, np.nan)
    return replace(_told(series, ("fleet_rates",), line, "ratio", "prefix_cache_queries"), evidence="derived")


def sum_of(rows: Sequence[ReplicaRow], pick: Callable[[ReplicaRow], Figure]) -> Figure:
    """Sum over the replicas where it is known; says for how many it is not."""
    figures = [pick(row) for row in rows]
    known = [f for f in figures if f.value is not None]
    if not known:
        if not figures:
            return Figure("not_scraped", None, "", "measured", note="no replica is scraped")
        first = _most_telling(figures)
        return Figure(first.status, None, first.unit, first.evidence, first.promql, None, first.note)
    note = known[0].note
    if len(known) < len(figures):
        note = (
            f"of {len(known)} of {len(figures)} replicas; {note}"
            if note
            else f"of {len(known)} of {len(figures)} replicas"
        )
    ages = [f.age_seconds for f in known if f.age_seconds is not None]
    tainted = tuple(dict.fromkeys(reason for f in known for reason in f.tainted))
    total = sum(f.value for f in known if f.value is not None)
    evidence = known[0].evidence if len({f.evidence for f in known}) == 1 else "derived"
    return Figure("value", total, known[0].unit, evidence, known[0].promql, min(ages, default=None), note, tainted)


def _worst(rows: Sequence[ReplicaRow], pick: Callable[[ReplicaRow], Figure]) -> tuple[Figure, str]:
    known = [row for row in rows if pick(row).known]
    if known:
        row = max(known, key=lambda row: pick(row).value or 0.0)
        return pick(row), row.key
    if rows:
        return _most_telling([pick(row) for row in rows]), ""
    return Figure("not_scraped", None, "", "measured", note="no replica is scraped"), ""


def _most_telling(figures: Sequence[Figure]) -> Figure:
    """Of figures without a value the one nearest to having one: an idle replica says more of the fleet than one that is down."""
    order = {"no_data": 0, "not_in_version": 1, "not_scraped": 2, "value": 3}
    return min(figures, key=lambda f: order[f.status])


def _worst_drain(rows: Sequence[ReplicaRow]) -> tuple[Drain, str]:
    def badness(row: ReplicaRow) -> tuple[int, float]:
        order = {"unknown": 0, "empty": 1, "clears": 2, "never": 3}[row.drain.kind]
        return order, row.drain.seconds or row.drain.excess_per_second or 0.0

    if not rows:
        return _UNKNOWN_DRAIN, ""
    worst = max(rows, key=badness)
    return worst.drain, worst.key if worst.drain.kind in ("clears", "never") else ""


def _first_full(rows: Sequence[ReplicaRow]) -> tuple[Forecast, str]:
    filling = [row for row in rows if row.kv_forecast.kind in ("full", "fills")]
    if filling:
        row = min(filling, key=lambda row: row.kv_forecast.seconds or 0.0)
        return row.kv_forecast, row.key
    steady = [row.kv_forecast for row in rows if row.kv_forecast.kind == "steady"]
    return (steady[0], "") if steady else (_UNKNOWN_FORECAST, "")
