"""rate, increase, delta, irate, idelta: extrapolation and counter resets as Prometheus does them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from collectors.model import Floats
from collectors.store.promql.windows import Mask, Windows
from collectors.strips import Strip

Indices = npt.NDArray[np.int64]

EXTRAPOLATION_REACH = 1.1
"""A sample is 'close' to the window's edge up to this many mean sample distances (promql/functions.go)."""


@dataclass(frozen=True)
class Edges:
    """What extrapolation needs to know of each window, by timeline and step: seconds, and where two samples are."""

    known: Mask
    sampled: Floats
    apart: Floats
    reach: Floats
    to_start: Floats
    to_end: Floats

    @classmethod
    def of(cls, windows: Windows) -> Edges:
        """The edges of all windows; where there are fewer than two samples the seconds mean nothing."""
        held = windows.selection.timelines.kept
        key = ("edges", windows.ends_ms.tobytes(), windows.range_ms, windows.closed_left)
        found: Edges | None = held.get(key)
        if found is None:
            found = held[key] = cls._of(windows)
        return found

    @classmethod
    def _of(cls, windows: Windows) -> Edges:
        known = windows.line_count > 1
        first_ms = windows.time_of_line_row(windows.line_low)
        last_ms = windows.time_of_line_row(np.maximum(windows.line_high - 1, 0))
        sampled = np.where(known, (last_ms - first_ms) / 1000, 1.0)
        apart = sampled / np.maximum(windows.line_count - 1, 1)
        to_start = (first_ms - (windows.ends_ms - windows.range_ms)) / 1000
        to_end = (windows.ends_ms - last_ms) / 1000
        reach = apart * EXTRAPOLATION_REACH
        return cls(known, sampled, apart, reach, to_start, np.where(to_end >= reach, apart / 2, to_end))

    def spread(self, windows: Windows) -> Edges:
        """The same by series and step."""
        by = windows.by_series
        return Edges(
            by(self.known), by(self.sampled), by(self.apart), by(self.reach), by(self.to_start), by(self.to_end)
        )

    def at(self, line: int) -> Edges:
        """The same of one timeline."""
        return Edges(*(part[line] for part in vars(self).values()))

    def factor(self, to_start: Floats, zero: ZeroCut | None) -> Floats:
        """What to multiply a gain with, by how far the extrapolation reaches back."""
        if zero == "first":
            to_start = np.where(to_start < self.reach, to_start, self.apart / 2)
        return np.asarray((self.sampled + to_start + self.to_end) / self.sampled)


ZeroCut = Literal["first", "last"]
"""When the way back to a counter's zero bounds the extrapolation: before (2.x) or after (3.x) 'is the edge close'."""

WIDE = 4
"""From this many series a timeline on, each timeline is computed by itself: its edges then need no copies."""
MANY_STEPS = 8
"""Below it that costs more than the copies."""


def extrapolated(windows: Windows, *, zero: ZeroCut | None, per_second: bool) -> tuple[Floats, Mask | None]:
    """rate (per second) or increase of a counter, or, without `zero`, delta of each window.

    The mask says where it is known (two samples); None where it is everywhere.
    """
    edges = Edges.of(windows)
    if zero != "first":
        edges = replace(edges, to_start=np.where(edges.to_start >= edges.reach, edges.apart / 2, edges.to_start))
    seconds = windows.range_ms / 1000 if per_second else 1.0
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        if windows.shape[1] >= MANY_STEPS and windows.shape[0] >= WIDE * max(1, windows.selection.lines):
            values = np.empty(windows.shape)
            for line, strip in enumerate(windows.selection.strips):
                values[strip.places] = _of_strip(windows, line, strip, edges.at(line), zero, seconds)
        else:
            first, last = windows.value_at(windows.first), windows.value_at(windows.last)
            gain = last - first
            if zero is not None:
                add_resets(windows, gain)
            values = _extrapolated(first, gain, edges.spread(windows), zero, seconds)
    return values, None if edges.known.all() else windows.by_series(edges.known)


def _of_strip(windows: Windows, line: int, strip: Strip, edges: Edges, zero: ZeroCut | None, seconds: float) -> Floats:
    low = np.minimum(windows.line_low[line], len(strip.times_ms) - 1)
    high = np.maximum(windows.line_high[line] - 1, 0)
    first = strip.values.take(low, axis=1)
    gain = strip.values.take(high, axis=1)
    gain -= first
    if zero is not None:
        fell = strip.values[:, 1:] < strip.values[:, :-1]
        falls = np.flatnonzero(fell.any(axis=0))
        if len(falls):  # a restart makes the whole target fall at one row
            reached = np.where(fell[:, falls], strip.values[:, falls], 0.0)
            gain += _reached_before(falls + 1, reached, low, high)
    return _extrapolated(first, gain, edges, zero, seconds)


def _extrapolated(first: Floats, gain: Floats, edges: Edges, zero: ZeroCut | None, seconds: float) -> Floats:
    """The gain stretched over the window; `first` and `gain` (series, steps), edges of the same shape or (steps,)."""
    plain = edges.factor(edges.to_start, zero) / seconds
    if zero is not None:
        # Rarely is a counter so young that its zero lies inside the window: only there the way to it is worked out.
        young = (first < gain * (edges.to_start / edges.sampled)) & (first >= 0)
        if young.any():
            to_zero = edges.sampled * (first / gain)
            cut = edges.factor(np.minimum(to_zero, edges.to_start), zero) / seconds
            return np.asarray(gain * np.where(young, cut, plain))
    gain *= plain
    return gain


def _reached_before(falls: Indices, reached: Floats, low: Indices, high: Indices) -> Floats:
    """The sum of what counters had reached before their falls at rows low < row <= high; falls along the last axis."""
    begin = np.searchsorted(falls, low, side="right")
    end = np.maximum(np.searchsorted(falls, high, side="right"), begin)
    finite = np.isfinite(reached)
    prefix = _prefix(np.where(finite, reached, 0.0))
    total = prefix[..., end] - prefix[..., begin]
    if not finite.all():
        odd = _prefix((~finite).astype(np.float64))
        total += np.where(odd[..., end] > odd[..., begin], np.inf, 0.0)
    return np.asarray(total)


def _prefix(amounts: Floats) -> Floats:
    return np.concatenate((np.zeros((*amounts.shape[:-1], 1)), np.cumsum(amounts, axis=-1)), axis=-1)


def add_resets(windows: Windows, gain: Floats) -> None:
    """Add to each window's gain, in place, what its counter had reached before each reset inside the window.

    Only the series that fell are touched; the prefix starts anew for each, so that none blurs another's digits.
    """
    before, after, same = windows.neighbours()
    falls = np.flatnonzero((after < before) & same) + 1
    if not len(falls):
        return
    order = np.argsort(windows.selection.value_from, kind="stable")
    owner = np.searchsorted(windows.selection.value_from[order], falls, side="right") - 1
    for row in np.unique(owner):
        series, mine = order[row], falls[owner == row]
        low, high = windows.first[series], windows.last[series]
        gain[series] += _reached_before(mine, windows.selection.values[mine - 1], low, high)


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
