"""One histogram counted over one stretch, replica by replica and for the fleet: the rows add up to the fleet because it is their sum."""

from __future__ import annotations

import numpy as np

from collectors.asking import Answers
from collectors.figures import Figure, FigureStatus, QuantileFigure
from collectors.fleet_gauges import instant_rates
from collectors.histograms import (
    QUANTILES,
    FleetBuckets,
    MergedHistogram,
    fleet_buckets,
    missing_status,
    replica_columns,
    unit_of,
)
from collectors.latency_picture import RankedReplica, Ranking
from collectors.quantile_values import QuantileInterval
from collectors.quantiles import mean_of_quantiles, quantile_series
from collectors.scraped import key_text
from collectors.signals import Plan, duration_text


def whole_figures(histogram: MergedHistogram, mixed: bool = False) -> tuple[QuantileFigure, ...]:
    """p50, p95, p99 of a histogram that is one column over a whole stretch."""
    if not len(histogram.bounds):
        missing = QuantileFigure(
            histogram.missing, None, histogram.unit, histogram.promql, None, histogram.note, histogram.tainted
        )
        return tuple(missing for _ in QUANTILES)
    fleet = FleetBuckets(histogram.bounds, histogram.cumulative, mixed)
    figures = []
    for q in QUANTILES:
        interval = fleet.quantile(q, histogram.rate_window_ms / 1000)
        status: FigureStatus = "value" if interval is not None else "no_data"
        note = "" if interval is not None else "nothing observed in the window"
        figures.append(
            QuantileFigure(status, interval, histogram.unit, histogram.promql, None, note, histogram.tainted)
        )
    return tuple(figures)


def ranking(answers: Answers, plan: Plan, chosen: str, over_ms: int) -> tuple[Ranking, FleetBuckets]:
    """Replicas worst first by the p99 of `chosen` over `over_ms`, and the fleet as their sum.

    Rests on the answers 'ranking' (bucket rates by replica) and 'ranking_means' (`_sum` and `_count` rates by replica).
    """
    unit, seconds = unit_of(plan, chosen), over_ms / 1000
    keys, bounds, grid = replica_columns(answers.vector("ranking"), plan.tree)
    query, tainted = answers.promql("ranking"), answers.taint("ranking")
    means = instant_rates(answers.vector("ranking_means"), plan)
    missing, why = missing_status(plan, chosen, len(keys))
    quiet = f"nothing observed in the last {duration_text(over_ms)}"

    def told(interval: QuantileInterval | None) -> QuantileFigure:
        status: FigureStatus = "value" if interval is not None else ("no_data" if keys else missing)
        note = "" if interval is not None else (quiet if keys else why)
        return QuantileFigure(status, interval, unit, query, None, note, tainted)

    def mean(sums: float | None, counts: float | None) -> Figure:
        value = sums / counts if sums is not None and counts else None
        status: FigureStatus = "value" if value is not None else ("no_data" if keys else missing)
        note = "" if value is not None else quiet
        return Figure(status, value, unit, "measured", answers.promql("ranking_means"), None, note, tainted)

    series = quantile_series(bounds, grid, seconds, (0.5, 0.99))
    replicas = [
        RankedReplica(
            key_text(key),
            told(series.at(0.5, column)),
            told(series.at(0.99, column)),
            mean(means.of("_sum", key), means.of("_count", key)),
            float(np.nan_to_num(series.observations[column])),
        )
        for column, key in enumerate(keys)
    ]
    replicas.sort(
        key=lambda r: (
            -(r.p99.interval.hi if r.p99.interval else -1.0),
            -(r.p99.interval.estimate if r.p99.interval else 0.0),
            r.key,
        )
    )
    fleet = fleet_buckets(bounds, grid)
    p50, p99 = fleet.quantile(0.5, seconds), fleet.quantile(0.99, seconds)
    average = mean_of_quantiles(series.estimate[1]) if len(keys) else None
    sums, counts = (sum(means.by_replica.get(part, {}).values()) for part in ("_sum", "_count"))
    status: FigureStatus = "value" if average is not None else "no_data"
    wrong = "averaging quantiles is wrong; shown to say so"
    return (
        Ranking(
            chosen, unit, tuple(replicas), told(p50), told(p99), mean(sums, counts), sum(r.observations for r in replicas),
            Figure(status, average, unit, "derived", query, None, wrong, tainted), averaging_words(average, p99, unit), over_ms,
        ),
        fleet,
    )  # fmt: skip


def averaging_words(average: float | None, p99: QuantileInterval | None, unit: str) -> str:
    """'a mean of p99s would say 0.84 s; the fleet's p99 is 2.5-5 s'; '' where one of them is not known."""
    short = {"seconds": "s"}.get(unit, unit)
    if average is None or p99 is None:
        return ""
    return f"a mean of p99s would say {average:.3g} {short}; the fleet's p99 is {p99.text(short)}"
