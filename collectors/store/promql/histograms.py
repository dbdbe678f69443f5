"""Quantiles and fractions of classic histograms: cumulative buckets with an upper bound in the label le."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from collectors.model import Floats
from collectors.store.promql.grids import Grid, Mask, empty_grid, grid, unique
from collectors.store.promql.notes import Notes
from collectors.store.series import METRIC_NAME, LabelSet

BUCKET_LABEL = "le"
SMALL_DELTA = 1e-12
"""Relative difference between neighbouring buckets that is taken for a rounding error (promql/quantile.go)."""

Buckets = tuple[Floats, Floats]
"""Upper bounds (buckets,) in rising order and cumulative counts (histograms, buckets, steps)."""


def parse_bound(text: str) -> float | None:
    """A bucket's upper bound; None for what Go's ParseFloat would refuse."""
    if not text or text != text.strip() or text.lower() in ("+nan", "-nan"):
        return None
    try:
        return float(text) if "_" not in text else None
    except ValueError:
        try:
            return float.fromhex(text) if "p" in text.lower() and "x" in text.lower() else None
        except ValueError:
            return None


def over_histograms(source: Grid, notes: Notes, evaluate: Callable[[Floats, Floats, np.ndarray], Floats]) -> Grid:
    """One result per histogram and step. `evaluate(bounds, counts (n, buckets, columns), steps (columns,))` -> (n, columns).

    Buckets of equal numeric bound are added up; a bucket missing at a step is missing only there. Series without a
    number in `le` are noted and left out.
    """
    members: dict[tuple[tuple[str, str], ...], list[tuple[float, int]]] = {}
    for i, one in enumerate(source.labels):
        bound = parse_bound(one.get(BUCKET_LABEL))
        if bound is None:
            notes.bad_bucket(one.get(METRIC_NAME), one.get(BUCKET_LABEL))
            continue
        key = tuple(p for p in one.pairs if p[0] != BUCKET_LABEL)
        members.setdefault(key, []).append((bound, i))
    if not members:
        return empty_grid(source.steps)
    labels = tuple(LabelSet(key) for key in members)
    values = np.full((len(labels), source.steps), np.nan)
    present = np.zeros(values.shape, dtype=bool)
    mask = source.mask()
    for rows, bounds, series in _alike(list(members.values())):
        counts = source.values[series]  # (histograms, buckets, steps)
        there = mask[series]
        for columns, histograms, held in _patterns(there):
            if held.any():
                part = counts[np.ix_(histograms, np.flatnonzero(held), columns)]
                merged, summed = _coalesced(bounds[held], part)
                result = evaluate(merged, summed, columns)
                values[np.ix_(rows[histograms], columns)] = result
                present[np.ix_(rows[histograms], columns)] = True
    nameless = tuple(one.nameless() for one in labels)
    return unique(grid(nameless, values, present))


def _alike(histograms: list[list[tuple[float, int]]]) -> Iterator[tuple[np.ndarray, Floats, np.ndarray]]:
    """Histograms with the same bounds, to be evaluated together: their rows, the bounds, the series (rows, buckets)."""
    same: dict[tuple[float, ...], tuple[list[int], list[list[int]]]] = {}
    for row, buckets in enumerate(histograms):
        ordered = sorted(buckets, key=lambda b: b[0])
        rows, series = same.setdefault(tuple(b for b, _ in ordered), ([], []))
        rows.append(row)
        series.append([i for _, i in ordered])
    for bounds, (rows, series) in same.items():
        yield np.array(rows), np.array(bounds), np.array(series)


def _patterns(there: Mask) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Cells with the same buckets: (columns, histograms, which buckets)."""
    if there.all():
        yield np.arange(there.shape[2]), np.arange(there.shape[0]), np.ones(there.shape[1], dtype=bool)
        return
    for h in range(there.shape[0]):
        kinds, kind_of = np.unique(there[h], axis=1, return_inverse=True)
        for k in range(kinds.shape[1]):
            yield np.flatnonzero(kind_of.ravel() == k), np.array([h]), kinds[:, k]


def _coalesced(bounds: Floats, counts: Floats) -> Buckets:
    starts = np.flatnonzero(np.concatenate(([True], bounds[1:] != bounds[:-1])))
    if len(starts) == len(bounds):
        return bounds, counts
    return bounds[starts], np.add.reduceat(counts, starts, axis=1)


def _monotonic(counts: Floats, tolerance: float) -> tuple[Floats, bool]:
    """Counts that do not fall with rising bound, and whether more than rounding had to be mended."""
    with np.errstate(invalid="ignore", over="ignore"):
        if (
            not (counts[:, 1:] < counts[:, :-1]).any()
            and not _nearly_equal(counts[:, 1:], counts[:, :-1], tolerance).any()
        ):
            return counts, False
        out = np.array(counts)
        forced = False
        before = out[:, 0]
        for b in range(1, out.shape[1]):
            now = out[:, b]
            near = _nearly_equal(now, before, tolerance)
            fell = (now < before) & ~near
            forced = forced or bool(fell.any())
            out[:, b] = np.where(near | fell, before, now)
            before = np.where(near | fell, before, now)
    return out, forced


def _nearly_equal(a: Floats, b: Floats, tolerance: float) -> np.ndarray:
    with np.errstate(invalid="ignore", over="ignore"):
        size = np.abs(a) + np.abs(b)
        return np.asarray((a != b) & (np.abs(a - b) < tolerance * np.minimum(size, np.finfo(np.float64).max)))


def quantile(q: Floats, bounds: Floats, counts: Floats, notes: Notes, *, tolerance: float = SMALL_DELTA) -> Floats:
    """The q-quantile (q one per column) of histograms (n, buckets, columns) by linear interpolation inside a bucket."""
    columns = counts.shape[2]
    low, high = q < 0, q > 1
    out = np.full((len(counts), columns), np.nan)
    if bounds[-1] == np.inf and len(bounds) >= 2:
        mended, forced = _monotonic(counts, tolerance)
        usable = ~(low | high | np.isnan(q))
        if forced and usable.any():
            notes.forced_monotonic("")
        out = _interpolated(np.where(usable, q, 0.0), bounds, mended)
        out = np.where(np.isnan(q)[None, :], np.nan, out)
    out = np.where(low[None, :], -np.inf, out)
    return np.where(high[None, :], np.inf, out)


def _interpolated(q: Floats, bounds: Floats, counts: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        total = counts[:, -1]
        rank = q[None, :] * total
        reached = counts[:, :-1] >= rank[:, None]
        bucket = np.where(reached.any(axis=1), reached.argmax(axis=1), len(bounds) - 1)
        top = bucket == len(bounds) - 1
        safe = np.minimum(bucket, len(bounds) - 2)
        count = np.take_along_axis(counts, safe[:, None], axis=1)[:, 0]
        before = np.where(safe > 0, np.take_along_axis(counts, np.maximum(safe - 1, 0)[:, None], axis=1)[:, 0], 0.0)
        start = np.where(safe > 0, bounds[np.maximum(safe - 1, 0)], 0.0)
        inside = start + (bounds[safe] - start) * ((rank - before) / (count - before))
        out = np.where((safe == 0) & (bounds[0] <= 0), bounds[0], inside)
        out = np.where(top, bounds[-2], out)
        return np.where(total == 0, np.nan, out)


def fraction(lower: Floats, upper: Floats, bounds: Floats, counts: Floats) -> Floats:
    """The share of observations between lower and upper (one pair per column), by linear interpolation."""
    total = counts[:, -1]
    if bounds[-1] != np.inf:
        return np.full(total.shape, np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        below_lower, below_upper = (_rank_of(x, bounds, counts) for x in (lower, upper))
        out = (np.minimum(below_upper, total) - np.minimum(below_lower, total)) / total
        out = np.where((lower >= upper)[None, :], 0.0, out)
        return np.where((total == 0) | np.isnan(lower)[None, :] | np.isnan(upper)[None, :], np.nan, out)


def _rank_of(value: Floats, bounds: Floats, counts: Floats) -> Floats:
    """Observations below a value (one per column): a bucket's rank at its lower edge, else interpolated inside it.

    The first bucket begins at 0 when its bound is above 0, else at -Inf, where there is nothing to interpolate with and
    all of it counts. Of the +Inf bucket no part is ever reached.
    """
    edges = np.concatenate(([0.0 if bounds[0] > 0 else -np.inf], bounds))
    place = np.where(np.isnan(value), 0.0, value)
    bucket = np.clip(np.searchsorted(edges, place, side="right") - 1, 0, len(bounds) - 1)
    ranks = np.concatenate((np.zeros((len(counts), 1, counts.shape[2])), counts), axis=1)
    columns = np.arange(counts.shape[2])
    before, after = ranks[:, bucket, columns], ranks[:, bucket + 1, columns]
    low, high = edges[bucket], edges[bucket + 1]
    with np.errstate(invalid="ignore", divide="ignore"):
        inside = np.where(np.isneginf(low), after, before + (after - before) * (value - low) / (high - low))
    inside = np.where(value <= low, before, inside)
    return np.where(np.isposinf(value), counts[:, -1], inside)
