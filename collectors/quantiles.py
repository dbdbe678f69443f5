"""Quantile intervals from merged bucket rates, vectorised over steps.

Everywhere: `bounds` has shape (buckets,), ascending upper bounds with +Inf last; `cumulative` has shape (buckets, steps), the rate of
observations at or under each bound (what `sum by (le) (rate(x_bucket[w]))` answers); NaN = that bound has no sample at that step.
The sample quantile meant is the smallest observation whose rank is at least q times the count.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from collectors.model import Floats, Labels
from collectors.quantile_values import FLAGS, Bools, Flag, QuantileSeries

NOISE = 1e-9
"""Relative error of a sum of rates that is taken for float noise."""
FEWEST_OBSERVATIONS = 10


def parse_bound(text: str) -> float:
    """The number that an `le` label stands for. Raises ValueError."""
    return float(text)  # "+Inf" included


def bucket_rows(labels: Sequence[Labels], values: Floats) -> tuple[Floats, Floats]:
    """Rows of a bucket query -> (bounds, cumulative). Bounds that are equal as numbers ("1" and "1.0") are added up.

    `values` has shape (series,) or (series, steps). Rows without a readable `le` are left out, as Prometheus does.
    """
    table = values if values.ndim == 2 else values[:, None]
    rows: dict[float, Floats] = {}
    for label_set, row in zip(labels, table, strict=True):
        try:
            bound = parse_bound(label_set.get("le", ""))
        except ValueError:
            continue
        rows[bound] = row if bound not in rows else _add(rows[bound], row)
    bounds = np.array(sorted(bound for bound in rows if not math.isnan(bound)), dtype=np.float64)
    if not len(bounds):
        return bounds, np.empty((0, table.shape[1]))
    return bounds, np.array([rows[bound] for bound in bounds.tolist()], dtype=np.float64)


def _add(left: Floats, right: Floats) -> Floats:
    """Sum in which NaN means 'not there' rather than poison; NaN only where both are."""
    return np.where(np.isnan(left), right, np.where(np.isnan(right), left, left + right))


def merge(parts: Iterable[tuple[Floats, Floats]]) -> tuple[Floats, Floats, bool]:
    """Cumulative rates of several replicas -> (common bounds, their sum, whether layouts were mixed).

    Only a bound that every part has can be summed: a part without it knows no count there. A part that is NaN at a step
    (not scraped then) adds nothing at that step.
    """
    present = [(bounds, table) for bounds, table in parts if len(bounds)]
    if not present:
        return np.empty(0), np.empty((0, 0)), False
    common = present[0][0]
    for bounds, _ in present[1:]:
        common = np.intersect1d(common, bounds)
    mixed = any(len(bounds) != len(common) for bounds, _ in present)
    total = np.full((len(common), present[0][1].shape[1]), np.nan)
    for bounds, table in present:
        total = _add(total, table[np.searchsorted(bounds, common)])
    return common, total, mixed


def common_bounds(bounds: Floats, replicas_per_bound: Floats) -> Bools:
    """True at bounds that every series has; `replicas_per_bound` counts the series behind each, (buckets,) or (buckets, steps)."""
    counts = replicas_per_bound if replicas_per_bound.ndim == 2 else replicas_per_bound[:, None]
    filled = np.where(np.isnan(counts), 0.0, counts)
    kept: Bools = np.all(filled >= filled.max(axis=0, initial=0.0), axis=1)
    return kept


def monotone(cumulative: Floats) -> tuple[Floats, Floats]:
    """Bucket counts raised to the running maximum, and by how much at most, as a share of all observations per step."""
    fixed = np.maximum.accumulate(cumulative, axis=0)
    total = fixed[-1]
    with np.errstate(invalid="ignore", divide="ignore"):
        raised = np.where(total > 0, np.max(fixed - cumulative, axis=0) / total, 0.0)
    return fixed, np.where(raised > NOISE, raised, 0.0)


def quantile_series(
    bounds: Floats,
    cumulative: Floats,
    window_seconds: float,
    quantiles: Sequence[float],
    *,
    sums: Floats | None = None,
    replicas_per_bound: Floats | None = None,
) -> QuantileSeries:
    """Estimates, intervals, counts and flags of each quantile at each step.

    `sums` is the rate of the histogram's `_sum` per step, for the mean. `replicas_per_bound` tells how many series stand
    behind each bound; where they differ, layouts are mixed and only the common bounds are used. Raises ValueError for a
    quantile outside [0, 1].
    """
    if not all(0 <= q <= 1 for q in quantiles):
        raise ValueError(f"quantiles lie between 0 and 1, got {list(quantiles)}")
    steps = cumulative.shape[1]
    mixed = False
    if replicas_per_bound is not None and len(bounds):
        kept = common_bounds(bounds, replicas_per_bound)
        mixed = not bool(kept.all())
        if mixed and kept.any():
            bounds, cumulative = bounds[kept], cumulative[kept]
    shape = (len(quantiles), steps)
    estimate, lo, hi = np.full(shape, np.nan), np.full(shape, np.nan), np.full(shape, np.nan)
    flags: dict[Flag, Bools] = {flag: np.zeros(shape, dtype=np.bool_) for flag in FLAGS}
    observations, repaired, mean = np.full(steps, np.nan), np.zeros(steps), np.full(steps, np.nan)
    for present, at in _layouts(bounds, cumulative):
        part_bounds = bounds[present]
        fixed, raised = monotone(cumulative[present][:, at])
        total = fixed[-1]
        observations[at], repaired[at] = total * window_seconds, raised
        if sums is not None:
            with np.errstate(invalid="ignore", divide="ignore"):
                mean[at] = np.where(total > 0, sums[at] / total, np.nan)
        for row, q in enumerate(quantiles):
            _fill_row(part_bounds, fixed, q, row, at, (estimate, lo, hi), flags)
            thin = (observations[at] * (1 - q) < 1) | (observations[at] < FEWEST_OBSERVATIONS)
            flags["few_observations"][row, at] = thin
            flags["non_monotone"][row, at] = raised > 0
    seen = ~np.isnan(lo)
    flags["mixed_layouts"][:] = mixed
    flags = {flag: marks & seen for flag, marks in flags.items()}
    return QuantileSeries(tuple(quantiles), estimate, lo, hi, observations, mean, flags, repaired, bounds)


def _layouts(bounds: Floats, cumulative: Floats) -> Iterable[tuple[Bools, Bools]]:
    """(present bounds, steps) for every distinct pattern of present bounds that ends in +Inf and has two buckets."""
    if len(bounds) < 2 or not np.isposinf(bounds[-1]):
        return
    there = ~np.isnan(cumulative)
    if there.all():
        yield (
            there[:, 0] if there.shape[1] else np.ones(len(bounds), dtype=np.bool_),
            np.ones(there.shape[1], dtype=np.bool_),
        )
        return
    patterns, which = np.unique(there, axis=1, return_inverse=True)
    for index in range(patterns.shape[1]):
        present = patterns[:, index]
        if present[-1] and present.sum() >= 2:
            yield present, which.ravel() == index


def _fill_row(
    bounds: Floats,
    fixed: Floats,
    q: float,
    row: int,
    at: Bools,
    out: tuple[Floats, Floats, Floats],
    flags: dict[Flag, Bools],
) -> None:
    """One quantile at the steps of one layout. The interpolation is Prometheus's bucketQuantile (promql/quantile.go)."""
    total = fixed[-1]
    rank = q * total
    last = len(bounds) - 1
    bucket = _bucket_of(fixed, rank)
    below = np.maximum(bucket - 1, 0)
    columns = np.arange(fixed.shape[1])
    first = bucket == 0
    start_count = np.where(first, 0.0, fixed[below, columns])
    start = np.where(first, 0.0, bounds[below])
    end = bounds[np.minimum(bucket, last - 1)]
    count = fixed[bucket, columns] - start_count
    with np.errstate(invalid="ignore", divide="ignore"):
        inside = start + (end - start) * ((rank - start_count) / count)
    value = np.where(bucket == last, bounds[last - 1], np.where(first & (bounds[0] <= 0), bounds[0], inside))
    # The interval covers both buckets when the rank falls on a boundary to within float noise, and an empty bucket
    # (rank 0) never holds the smallest observation.
    low = _bucket_of(fixed, np.maximum(rank - NOISE * total, NOISE * total))
    high = _bucket_of(fixed, np.maximum(np.minimum(rank + NOISE * total, total), NOISE * total))
    floor = 0.0 if bounds[0] > 0 else -np.inf
    seen = total > 0
    estimate, lo, hi = out
    estimate[row, at] = np.where(seen, value, np.nan)
    lo[row, at] = np.where(seen, np.where(low == 0, floor, bounds[np.maximum(low - 1, 0)]), np.nan)
    hi[row, at] = np.where(seen, bounds[high], np.nan)
    flags["first_bucket"][row, at] = high == 0
    flags["last_bucket"][row, at] = high == last


def _bucket_of(fixed: Floats, rank: Floats) -> npt.NDArray[np.intp]:
    """Index of the first bucket whose cumulative count reaches the rank, per step; the last when none does."""
    reached = fixed >= rank
    reached[-1] = True
    first: npt.NDArray[np.intp] = np.argmax(reached, axis=0)
    return first


def bucket_rates(cumulative: Floats) -> Floats:
    """Observations/s inside each bucket (buckets, steps), from cumulative rates; for heat maps. NaN rows are carried over."""
    filled = np.where(np.isnan(cumulative), -np.inf, cumulative)
    fixed = np.maximum.accumulate(filled, axis=0)
    fixed = np.where(np.isneginf(fixed), 0.0, fixed)
    rates = np.diff(fixed, axis=0, prepend=np.zeros((1, fixed.shape[1])))
    return np.where(np.isnan(cumulative[-1:]), np.nan, rates) if len(cumulative) else rates


def snap_threshold(bounds: Floats, threshold: float) -> float:
    """The bucket edge at which a share can be told exactly: the threshold itself, else the next edge below it.

    Below, so that what counts as inside surely is; the first edge when the threshold lies under it. NaN without finite edges.
    """
    finite = bounds[np.isfinite(bounds)]
    if not len(finite):
        return float("nan")
    near = finite[np.isclose(finite, threshold, rtol=1e-9, atol=0.0)]
    if len(near):
        return float(near[0])
    below = finite[finite < threshold]
    return float(below[-1] if len(below) else finite[0])


def share_under(bounds: Floats, cumulative: Floats, edge: float) -> Floats:
    """Share of observations at or under a bucket edge, per step; NaN where nothing was observed or the edge has no sample."""
    if not len(bounds):
        return np.full(cumulative.shape[1], np.nan)
    row = int(np.argmin(np.abs(np.where(np.isfinite(bounds), bounds, np.inf) - edge)))
    total = cumulative[-1]
    under = np.max(np.nan_to_num(cumulative[: row + 1], nan=0.0), axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where((total > 0) & ~np.isnan(cumulative[row]), np.minimum(under / total, 1.0), np.nan)


def mean_of_quantiles(estimates: Floats) -> float | None:
    """What a dashboard that averages per-replica quantiles would show. Wrong, and computed only to say so."""
    known = estimates[np.isfinite(estimates)]
    return float(known.mean()) if len(known) else None
