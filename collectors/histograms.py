"""One histogram, asked once: its merged buckets as a quantile panel, figures, a share under an objective and a heat map."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from collectors.asking import Answers
from collectors.dialect import NOT_IN_VERSION
from collectors.figures import FigureStatus, QuantileFigure, QuantilePanel, ShareUnder, figure
from collectors.identity import FleetTree
from collectors.model import Floats, Vector, Window
from collectors.quantile_values import QuantileInterval, QuantileSeries
from collectors.quantiles import bucket_rows, merge, parse_bound, quantile_series, share_under, snap_threshold
from collectors.scraped import Key
from collectors.settings import Objective
from collectors.signals import AT, Plan, duration_text

QUANTILES = (0.5, 0.95, 0.99)


@dataclass(frozen=True)
class MergedHistogram:
    """Merged cumulative bucket rates of one histogram on a window, and what is known about them."""

    signal: str
    unit: str
    window: Window
    rate_window_ms: int
    bounds: Floats
    cumulative: Floats
    """(bounds, steps), observations/s"""
    replicas_per_bound: Floats | None
    promql: tuple[str, ...]
    tainted: tuple[str, ...]
    missing: FigureStatus
    """What to call it when there is nothing."""
    note: str

    @property
    def status(self) -> FigureStatus:
        return "value" if len(self.bounds) and bool(np.any(self.cumulative[-1] > 0)) else self.missing

    def quantiles(self, quantiles: Sequence[float] = QUANTILES, sums: Floats | None = None) -> QuantileSeries:
        return quantile_series(
            self.bounds,
            self.cumulative,
            self.rate_window_ms / 1000,
            quantiles,
            sums=sums,
            replicas_per_bound=self.replicas_per_bound,
        )

    def panel(self, quantiles: Sequence[float] = QUANTILES, sums: Floats | None = None) -> QuantilePanel:
        series = self.quantiles(quantiles, sums)
        note = self.note if self.status != "value" else _layout_note(series)
        return QuantilePanel(
            self.signal,
            self.unit,
            self.window,
            series,
            self.promql,
            self.status,
            note,
            self.tainted,
            self.rate_window_ms,
        )

    def share(self, objective: Objective, age_seconds: float | None = None) -> ShareUnder:
        """The share under an objective's threshold at the last step, at the bucket edge that stands for it."""
        edge = snap_threshold(self.bounds, objective.threshold_seconds)
        shares = share_under(self.bounds, self.cumulative, edge) if len(self.bounds) else np.array([np.nan])
        value = float(shares[-1])
        count = float(self.cumulative[-1, -1]) * self.rate_window_ms / 1000 if len(self.bounds) else 0.0
        snapped = "" if np.isnan(edge) or edge == objective.threshold_seconds else f"told at the bucket edge {edge:g} s"
        told = figure(
            value,
            "ratio",
            "measured",
            promql=self.promql,
            age_seconds=age_seconds,
            missing=self.missing if self.status != "value" else "no_data",
            note=snapped,
            missing_note=self.note or "nothing observed in the window",
        )
        inside = None if np.isnan(value) else value >= objective.objective
        return ShareUnder(
            told, objective.threshold_seconds, edge, objective.objective, 0.0 if np.isnan(count) else count, inside
        )


def _layout_note(series: QuantileSeries) -> str:
    if series.flags["mixed_layouts"].any():
        return "replicas have different buckets: merged on the bounds they share"
    return ""


def replica_columns(vector: Vector, tree: FleetTree) -> tuple[tuple[Key, ...], Floats, Floats]:
    """A bucket vector by replica and `le` -> (replica keys, bounds, cumulative): columns are replicas, NaN where one lacks a bound."""
    columns: dict[Key, int] = {}
    column_of = [columns.setdefault(tree.key_of(labels), len(columns)) for labels in vector.labels]
    if not columns:
        return (), np.empty(0), np.empty((0, 0))
    texts = [labels.get("le", "") for labels in vector.labels]
    bound_of = {text: _bound(text) for text in dict.fromkeys(texts)}
    own = np.array([bound_of[text] for text in texts])
    told = ~np.isnan(own)
    bounds = np.unique(own[told])
    grid = np.full((len(bounds), len(columns)), np.nan)
    at = np.searchsorted(bounds, own[told]), np.array(column_of)[told]
    grid[at] = vector.values[told]
    if len(np.unique(np.ravel_multi_index(at, grid.shape))) < len(at[0]):  # one bound written in two ways
        for column in range(len(columns)):
            mine = np.flatnonzero(np.array(column_of) == column)
            each, counts = bucket_rows([vector.labels[i] for i in mine], vector.values[mine])
            grid[np.searchsorted(bounds, each), column] = counts[:, 0]
    return tuple(columns), bounds, grid


def _bound(text: str) -> float:
    """The number of an `le`; NaN for what is none."""
    try:
        return parse_bound(text)
    except ValueError:
        return float("nan")


@dataclass(frozen=True)
class FleetBuckets:
    """The replicas' cumulative bucket rates added up: `rates` of shape (bounds, 1)."""

    bounds: Floats
    rates: Floats
    mixed: bool
    """Replicas differ in their bounds; only those that all share were kept."""

    def quantile(self, q: float, seconds: float) -> QuantileInterval | None:
        """The fleet's quantile over the `seconds` that the rates were taken over; None where nothing was observed."""
        interval = quantile_series(self.bounds, self.rates, seconds, (q,)).at(q)
        return interval and (replace(interval, flags=(*interval.flags, "mixed_layouts")) if self.mixed else interval)


def fleet_buckets(bounds: Floats, grid: Floats) -> FleetBuckets:
    """Sums the columns (one per replica, NaN where it lacks a bound) of a table of cumulative bucket rates."""
    if grid.size and not np.isnan(grid).any():  # one layout everywhere, as a rule
        return FleetBuckets(bounds, grid.sum(axis=1)[:, None], False)
    columns = [grid[:, column] for column in range(grid.shape[1])]
    merged, total, mixed = merge((bounds[~np.isnan(each)], each[~np.isnan(each)][:, None]) for each in columns)
    return FleetBuckets(merged, total if len(columns) else np.empty((0, 1)), mixed)


def quantile_figure(panel: QuantilePanel, q: float, *, age_seconds: float | None = None) -> QuantileFigure:
    """One quantile of a panel at its last step."""
    interval = panel.series.at(q) if panel.series.lo.shape[1] else None
    window = duration_text(panel.rate_window_ms)
    if interval is None:
        status: FigureStatus = "no_data" if panel.status == "value" else panel.status
        note = panel.note if panel.status != "value" and panel.note else f"nothing observed in the last {window}"
        return QuantileFigure(status, None, panel.unit, panel.promql, age_seconds, note, panel.tainted)
    return QuantileFigure("value", interval, panel.unit, panel.promql, age_seconds, panel.note, panel.tainted)


def missing_status(plan: Plan, signal: str, frame_rows: int) -> tuple[FigureStatus, str]:
    """What the absence of a signal means for the fleet as a whole, and in words."""
    if not plan.spellings(signal):
        return "not_in_version", NOT_IN_VERSION
    if not plan.tree.engines and not frame_rows:
        return "not_scraped", "no engine metric is scraped"
    if not frame_rows:
        return "not_scraped", "not among the scraped series"
    return "no_data", "nothing observed in the window"


def merged_histogram(
    answers: Answers,
    what: str,
    signal: str,
    plan: Plan,
    window: Window,
    rate_window: int,
    layouts: Vector | None = None,
) -> MergedHistogram:
    """The answer of a bucket query named `what` as a merged histogram; `layouts` tells how many series stand behind each bound."""
    frame = answers.frame(what, window)
    bounds, cumulative = bucket_rows(frame.labels, frame.values)
    missing, note = missing_status(plan, signal, len(frame))
    return MergedHistogram(
        signal=signal,
        unit=unit_of(plan, signal),
        window=window,
        rate_window_ms=rate_window,
        bounds=bounds,
        cumulative=cumulative if len(bounds) else np.empty((0, window.steps)),
        replicas_per_bound=_layout_counts(layouts, plan, signal, bounds) if layouts is not None else None,
        promql=answers.promql(what),
        tainted=answers.taint(what),
        missing=missing,
        note=note,
    )


def unit_of(plan: Plan, signal: str) -> str:
    return next(entry.unit for entry in plan.dialect.entries if entry.signal == signal)


def _layout_counts(layouts: Vector, plan: Plan, signal: str, bounds: Floats) -> Floats | None:
    """Series behind each bound at each instant that was looked at, (bounds, instants); None where nothing was counted."""
    names = {name + "_bucket" for name in plan.spellings(signal)}
    instants: dict[str, list[int]] = defaultdict(list)
    for index, labels in enumerate(layouts.labels):
        if labels.get("__name__") in names:
            instants[labels.get(AT, "")].append(index)
    if not instants or not len(bounds):
        return None
    table = np.zeros((len(bounds), len(instants)))
    for column, chosen in enumerate(instants.values()):
        counted, counts = bucket_rows([layouts.labels[index] for index in chosen], layouts.values[chosen])
        at = np.searchsorted(counted, bounds)
        there = at < len(counted)
        there[there] = counted[at[there]] == bounds[there]
        table[there, column] = counts[at[there], 0]
    return table
