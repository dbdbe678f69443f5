"""Functions of all samples in a window: sums, means, extremes, spread, order, counts of changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from collectors.model import Floats
from collectors.store.promql.compensated import Mean, Sum, Variance
from collectors.store.promql.windows import Mask, Windows

SORT_CELLS = 1 << 21
"""Windows are gathered for sorting in batches of at most this many cells (16 MB)."""


def sum_over_time(windows: Windows) -> Floats:
    """The sum of each window."""
    if windows.plain_sums_do:
        return windows.reduce(np.add)
    total = Sum(windows.shape)
    for term, where in windows.terms():
        total.add(term, where)
    return total.result()


def avg_over_time(windows: Windows) -> Floats:
    """The mean of each window."""
    if windows.plain_sums_do:
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = windows.reduce(np.add) / windows.count
        if np.isfinite(mean[windows.count > 0]).all():
            return mean
    total = Mean(windows.shape)
    for term, where in windows.terms():
        total.add(term, where)
    return total.result()


def min_over_time(windows: Windows) -> Floats:
    """The least sample of each window; NaN only where all are NaN."""
    return windows.reduce(np.fmin)


def max_over_time(windows: Windows) -> Floats:
    """The greatest sample of each window; NaN only where all are NaN."""
    return windows.reduce(np.fmax)


def count_over_time(windows: Windows) -> Floats:
    """The number of samples of each window."""
    return windows.count.astype(np.float64)


def last_over_time(windows: Windows) -> Floats:
    """The newest sample of each window."""
    return windows.value_at(windows.last)


def first_over_time(windows: Windows) -> Floats:
    """The oldest sample of each window."""
    return windows.value_at(windows.first)


def present_over_time(windows: Windows) -> Floats:
    """1 for each window that holds a sample."""
    return np.ones(windows.shape)


def stdvar_over_time(windows: Windows) -> Floats:
    """The population variance of each window."""
    spread = Variance(windows.shape)
    for term, where in windows.terms():
        spread.add(term, where)
    return spread.result()


def stddev_over_time(windows: Windows) -> Floats:
    """The population standard deviation of each window."""
    with np.errstate(invalid="ignore"):
        return np.sqrt(stdvar_over_time(windows))


def changes(windows: Windows) -> Floats:
    """How often the value changed from one sample to the next; NaN after NaN is no change."""
    before, after, same = windows.neighbours()
    differs = (before != after) & ~(np.isnan(before) & np.isnan(after)) & same
    return windows.pairs_between(differs).astype(np.float64)


def resets(windows: Windows) -> Floats:
    """How often the value fell from one sample to the next."""
    before, after, same = windows.neighbours()
    with np.errstate(invalid="ignore"):
        return windows.pairs_between((after < before) & same).astype(np.float64)


OVER_TIME: dict[str, Callable[[Windows], Floats]] = {
    "sum_over_time": sum_over_time,
    "avg_over_time": avg_over_time,
    "min_over_time": min_over_time,
    "max_over_time": max_over_time,
    "count_over_time": count_over_time,
    "last_over_time": last_over_time,
    "first_over_time": first_over_time,
    "present_over_time": present_over_time,
    "stdvar_over_time": stdvar_over_time,
    "stddev_over_time": stddev_over_time,
    "changes": changes,
    "resets": resets,
}


def quantile_over_time(windows: Windows, quantile: Floats) -> Floats:
    """The quantile (one per step) of each window's samples."""
    out = np.empty(windows.shape)
    for rows, steps, ordered, nans in _sorted_windows(windows):
        out[rows, steps] = quantile_of_sorted(quantile[None, steps], ordered, windows.count[rows, steps], nans)
    return out


def mad_over_time(windows: Windows) -> Floats:
    """The median absolute deviation from the median of each window."""
    out = np.empty(windows.shape)
    half = np.full((1, 1), 0.5)
    for rows, steps, ordered, nans in _sorted_windows(windows):
        count = windows.count[rows, steps]
        median = quantile_of_sorted(half, ordered, count, nans)
        with np.errstate(invalid="ignore"):
            away = np.abs(ordered - median[..., None])
        within = np.arange(ordered.shape[-1]) < count[..., None]
        away, nans = sortable(away, within)
        out[rows, steps] = quantile_of_sorted(half, np.sort(away, axis=-1), count, nans)
    return out


def _sorted_windows(windows: Windows) -> Iterator[tuple[slice, slice, Floats, np.ndarray]]:
    """Batches of (rows, steps, sorted samples (rows, steps, longest), number of NaN among them)."""
    series, steps = windows.shape
    longest = max(1, int(windows.line_count.max(initial=0)))
    wide = min(steps, max(1, SORT_CELLS // longest))
    tall = max(1, SORT_CELLS // (wide * longest))
    reach = np.arange(longest)
    for top in range(0, series, tall):
        for left in range(0, steps, wide):
            windows.check_time()
            part = slice(top, min(series, top + tall)), slice(left, min(steps, left + wide))
            values = windows.value_at(windows.first[part][..., None] + reach)
            keyed, nans = sortable(values, reach < windows.count[part][..., None])
            yield *part, np.sort(keyed, axis=-1), nans


def sortable(values: Floats, present: Mask) -> tuple[Floats, np.ndarray]:
    """Values whose plain sort has NaN first and absent cells last, and the number of NaN along the last axis."""
    nan = np.isnan(values) & present
    keyed = np.where(present, values, np.inf)
    return np.where(nan, -np.inf, keyed), nan.sum(axis=-1)


def quantile_of_sorted(quantile: Floats, ordered: Floats, count: np.ndarray, nans: np.ndarray) -> Floats:
    """The interpolated quantile along the last axis of sorted values, of which the first `count` are real.

    NaN sorts lowest: the first `nans` of them stand for NaN. A quantile outside [0, 1] gives an infinity, NaN gives NaN.
    """
    with np.errstate(invalid="ignore"):
        rank = np.where(np.isnan(quantile), 0.0, np.clip(quantile, 0.0, 1.0)) * np.maximum(count - 1, 0)
        low = np.floor(rank).astype(np.int64)
        high = np.minimum(np.maximum(count - 1, 0), low + 1)
        weight = rank - low

        def pick(at: np.ndarray) -> Floats:
            found = np.take_along_axis(ordered, at[..., None], axis=-1)[..., 0]
            return np.where(at < nans, np.nan, found)

        out = pick(low) * (1 - weight) + pick(high) * weight
        out = np.where(quantile < 0, -np.inf, np.where(quantile > 1, np.inf, out))
        return np.where(np.isnan(quantile) | (count == 0), np.nan, out)


def time_of_extreme(windows: Windows, pick: str) -> Floats:
    """Epoch ms of the first, last, least or greatest sample of each window; of equal extremes the newest."""
    if pick in ("first", "last"):
        rows = windows.line_low if pick == "first" else np.maximum(windows.line_high - 1, 0)
        return np.asarray(windows.by_series(windows.time_of_line_row(rows)), dtype=np.float64)
    best = windows.value_at(windows.first)
    times = np.array(windows.by_series(windows.time_of_line_row(windows.line_low)), dtype=np.float64)
    for j, (value, where) in enumerate(windows.terms()):
        with np.errstate(invalid="ignore"):
            better = where & (((value <= best) if pick == "min" else (value >= best)) | np.isnan(best))
        best = np.where(better, value, best)
        at = windows.by_series(windows.time_of_line_row(windows.line_low + j))
        times = np.where(better, at, times)
    return times
