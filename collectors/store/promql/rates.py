"""rate, increase, delta, irate, idelta: extrapolation and counter resets as Prometheus does them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from collectors.model import Floats
from collectors.store.promql.windows import Mask, Windows

Indices = npt.NDArray[np.int64]

EXTRAPOLATION_REACH = 1.1
"""A sample is 'close' to the window's edge up to this many mean sample distances (promql/functions.go)."""


def extrapolated(windows: Windows, *, counter: bool, per_second: bool, zero_cut_first: bool) -> tuple[Floats, Mask]:
    """rate (counter, per second), increase (counter) or delta of each window, and where it is known (two samples).

    `zero_cut_first` is Prometheus 2.x: the way back to zero is cut before it is asked whether the edge is close.
    """
    known_lines = windows.line_count > 1
    first_ms = windows.time_of_line_row(windows.line_low)
    last_ms = windows.time_of_line_row(np.maximum(windows.line_high - 1, 0))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        to_start = (first_ms - (windows.ends_ms - windows.range_ms)) / 1000
        to_end = (windows.ends_ms - last_ms) / 1000
        sampled = np.where(known_lines, (last_ms - first_ms) / 1000, 1.0)
        apart = sampled / np.maximum(windows.line_count - 1, 1)
        reach = apart * EXTRAPOLATION_REACH
        to_end = np.where(to_end >= reach, apart / 2, to_end)
        far = to_start >= reach
        if not (counter and zero_cut_first):
            to_start = np.where(far, apart / 2, to_start)

        start_value = windows.value_at(windows.first)
        gain = windows.value_at(windows.last) - start_value
        if counter:
            add_resets(windows, gain)
            spread = windows.by_series
            sampled_all, start_all = spread(sampled), spread(to_start)
            to_zero = sampled_all * (start_value / gain)
            nearer = (gain > 0) & (start_value >= 0) & (to_zero < start_all)
            start = np.where(nearer, to_zero, start_all)
            if zero_cut_first:
                start = np.where(start < spread(reach), start, spread(apart) / 2)
            factor = (sampled_all + start + spread(to_end)) / sampled_all
        else:
            factor = np.asarray(windows.by_series((sampled + to_start + to_end) / sampled), dtype=np.float64)
        if per_second:
            factor = factor / (windows.range_ms / 1000)
        gain *= factor
    return gain, np.asarray(windows.by_series(known_lines), dtype=bool)


def reset_positions(windows: Windows) -> Indices:
    """Flat indices of the samples before which a counter fell."""
    before, after, same = windows.neighbours()
    with np.errstate(invalid="ignore"):
        return np.flatnonzero((after < before) & same) + 1


def add_resets(windows: Windows, gain: Floats) -> None:
    """Add to each window's gain, in place, what its counter had reached before each reset inside the window."""
    falls = reset_positions(windows)
    if not len(falls):
        return
    reached = windows.selection.values[falls - 1]
    finite = np.isfinite(reached)
    # Only the series that fell are touched; the prefix starts anew for each, so that none blurs another's digits.
    owner = np.searchsorted(np.sort(windows.selection.value_from), falls, side="right") - 1
    order = np.argsort(windows.selection.value_from, kind="stable")
    for row in np.unique(owner):
        mine = owner == row
        at, amounts, ok = falls[mine], reached[mine], finite[mine]
        series = order[row]
        low = np.searchsorted(at, windows.first[series], side="right")
        high = np.maximum(np.searchsorted(at, windows.last[series], side="right"), low)
        prefix = np.concatenate(([0.0], np.cumsum(np.where(ok, amounts, 0.0))))
        gain[series] += prefix[high] - prefix[low]
        if not ok.all():
            odd = np.concatenate(([0], np.cumsum(~ok)))
            with np.errstate(invalid="ignore"):
                gain[series] += np.where(odd[high] > odd[low], np.inf, 0.0)


def last_two(windows: Windows, *, counter: bool, per_second: bool) -> tuple[Floats, Mask]:
    """irate or idelta: the difference of the last two samples of each window, and where there are two."""
    known = windows.line_count > 1
    end = np.maximum(windows.line_high - 1, 0)
    apart = (windows.time_of_line_row(end) - windows.time_of_line_row(np.maximum(end - 1, 0))) / 1000
    newest = windows.value_at(windows.last)
    before = windows.value_at(windows.last - 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        gain = newest - before
        if counter:
            gain = np.where(newest < before, newest, gain)
        if per_second:
            gain = gain / np.asarray(windows.by_series(apart))
    return gain, np.asarray(windows.by_series(known), dtype=bool)
