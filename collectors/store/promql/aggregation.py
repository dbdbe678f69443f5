"""Aggregations over series, all steps at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from collectors.model import Floats
from collectors.store.promql.compensated import Mean, Sum, Variance, plain_sum_is_exact_enough
from collectors.store.promql.errors import failed
from collectors.store.promql.grids import Grid, Mask, grid
from collectors.store.promql.grouping import Groups, group
from collectors.store.promql.notes import Notes
from collectors.store.promql.numbers import go_plain
from collectors.store.promql.over_time import quantile_of_sorted, sortable
from collectors.store.series import LabelSet

MAX_INT64 = 2.0**63


def aggregate(
    op: str, source: Grid, *, without: bool, names: tuple[str, ...], kahan: bool, spread_of_odd_is_nan: bool
) -> Grid:
    """sum, avg, min, max, count, group, stddev, stdvar. `kahan`: compensated sums, as Prometheus 3.x has them.

    `spread_of_odd_is_nan`: the deviation of an infinite or NaN sample is NaN (3.x), even of one alone.
    """
    groups = group(source.labels, without=without, names=names)
    if not groups.labels:
        return Grid((), np.zeros((0, source.steps)))
    counts, present = _counts(source, groups)
    if op == "count":
        return grid(groups.labels, counts.astype(np.float64), present)
    if op == "group":
        return grid(groups.labels, np.ones(counts.shape), present)
    if op in ("min", "max"):
        ufunc = np.fmin if op == "min" else np.fmax
        return grid(groups.labels, _reduce(ufunc, source, groups, np.nan), present)
    if op in ("sum", "avg"):
        return grid(groups.labels, _sum_or_mean(op, source, groups, counts, kahan), present)
    spread = Variance(counts.shape)
    odd = np.zeros(counts.shape, dtype=bool)
    for term, where in _terms(source, groups):
        spread.add(term, where)
        odd |= where & ~np.isfinite(term)
    values = spread.result()
    values = np.where(odd & (counts == 1), np.nan if spread_of_odd_is_nan else 0.0, values)
    with np.errstate(invalid="ignore"):
        return grid(groups.labels, np.sqrt(values) if op == "stddev" else values, present)


def _counts(source: Grid, groups: Groups) -> tuple[np.ndarray, Mask | None]:
    if source.present is None:
        return np.repeat(groups.sizes[:, None], source.steps, axis=1), None
    counts = np.add.reduceat(source.present[groups.order].astype(np.int64), groups.starts, axis=0)
    return counts, counts > 0


def _reduce(ufunc: np.ufunc, source: Grid, groups: Groups, absent: float) -> Floats:
    values = source.values if source.present is None else np.where(source.present, source.values, absent)
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(ufunc.reduceat(values[groups.order], groups.starts, axis=0), dtype=np.float64)


def _sum_or_mean(op: str, source: Grid, groups: Groups, counts: np.ndarray, kahan: bool) -> Floats:
    values = source.values if source.present is None else np.where(source.present, source.values, 0.0)
    plain = plain_sum_is_exact_enough(values.ravel())
    if plain or (op == "sum" and not kahan):
        total = _reduce(np.add, source, groups, 0.0)
        if op == "sum":
            return total
        if np.isfinite(total).all():
            with np.errstate(invalid="ignore", divide="ignore"):
                return np.asarray(total / counts, dtype=np.float64)
    running: Sum | Mean = Sum(counts.shape) if op == "sum" else Mean(counts.shape)
    for term, where in _terms(source, groups):
        running.add(term, where)
    return running.result()


def _terms(source: Grid, groups: Groups) -> Iterator[tuple[Floats, Mask]]:
    """The j-th series of every group, and where it is there."""
    sizes = groups.sizes
    for j in range(int(sizes.max(initial=0))):
        have = sizes > j
        rows = groups.order[np.minimum(groups.starts + j, len(groups.order) - 1)]
        there = np.broadcast_to(have[:, None], (len(sizes), source.steps))
        if source.present is not None:
            there = there & source.present[rows]
        yield source.values[rows], there


def quantile(source: Grid, param: Floats, notes: Notes, *, without: bool, names: tuple[str, ...]) -> Grid:
    """The quantile (one per step) over the series of each group."""
    groups = group(source.labels, without=without, names=names)
    for value in np.unique(param):
        if not 0 <= value <= 1:
            notes.bad_quantile(float(value))
    values = np.empty((len(groups.labels), source.steps))
    present = np.empty(values.shape, dtype=bool)
    mask = source.mask()
    for g in range(len(groups.labels)):
        rows = groups.members(g)
        keyed, nans = sortable(source.values[rows].T, mask[rows].T)
        count = mask[rows].sum(axis=0)
        values[g] = quantile_of_sorted(param, np.sort(keyed, axis=-1), count, nans)
        present[g] = count > 0
    return grid(groups.labels, values, present)


def whole_param(param: Floats, name: str) -> np.ndarray:
    """The k of topk, bottomk, limitk at each step. Raises PromQLError for what is no int64."""
    for value in param:
        if np.isnan(value) or abs(value) >= MAX_INT64:
            raise failed(f"Scalar value {go_plain(float(value))} overflows int64")
    return np.maximum(np.trunc(param), 0).astype(np.int64)


def top(source: Grid, k: np.ndarray, *, largest: bool, without: bool, names: tuple[str, ...]) -> Grid:
    """topk or bottomk: the k extreme series of each group at each step; NaN is the last to be chosen.

    At one step the answer is ordered, best first. Of equal values the first ones stay, unless a better one came later.
    """
    groups = group(source.labels, without=without, names=names)
    mask = source.mask()
    chosen = np.zeros(mask.shape, dtype=bool)
    ranked: list[int] = []
    for g in range(len(groups.labels)):
        rows = groups.members(g)
        values, there = source.values[rows], mask[rows]
        key = np.where(np.isnan(values), np.inf, -values if largest else values)
        # lexsort: last key first. Present before absent, numbers before NaN, then by size, then as they came.
        order = np.lexsort((key, np.isnan(values), ~there), axis=0)
        rank = np.empty_like(order)
        np.put_along_axis(rank, order, np.arange(len(rows))[:, None], axis=0)
        picked = there & (rank < k[None, :])
        for step in _undecided(key, order, there, k):
            held = np.flatnonzero(there[:, step])
            picked[:, step] = False
            picked[
                held[
                    heap_choice(
                        list(zip(np.isnan(values[held, step]).tolist(), key[held, step].tolist(), strict=True)),
                        int(k[step]),
                    )
                ],
                step,
            ] = True
        chosen[rows] = picked
        if source.steps == 1:
            ranked.extend(int(rows[i]) for i in order[:, 0] if picked[i, 0])
    if source.steps == 1:
        return Grid(tuple(source.labels[i] for i in ranked), source.values[ranked], None, ordered=True)
    return grid(source.labels, source.values, chosen)


def _undecided(key: Floats, order: np.ndarray, there: Mask, k: np.ndarray) -> list[int]:
    """Steps where the k-th and the next series are equal, so that size does not decide between them."""
    last, after = np.maximum(k - 1, 0), k
    full = (k > 0) & (k < there.sum(axis=0))
    steps = np.flatnonzero(full)

    def pick(at: np.ndarray) -> Floats:
        return np.asarray(key[order[at[steps], steps], steps])

    return [int(s) for s in steps[pick(last) == pick(after)]]


def heap_choice(keys: Sequence[Any], k: int) -> list[int]:
    """Which of equal keys Prometheus keeps: the k smallest in a heap whose root is the worst and gives way to a better one."""
    heap: list[int] = []

    def worse(a: int, b: int) -> bool:
        return bool(keys[heap[a]] > keys[heap[b]])

    for new, key in enumerate(keys):
        if len(heap) < k:
            heap.append(new)
            child = len(heap) - 1
            while child and worse(child, (child - 1) // 2):
                parent = (child - 1) // 2
                heap[child], heap[parent] = heap[parent], heap[child]
                child = parent
        elif keys[heap[0]] > key:
            heap[0] = new
            parent = 0
            while (child := 2 * parent + 1) < len(heap):
                if child + 1 < len(heap) and worse(child + 1, child):
                    child += 1
                if not worse(child, parent):
                    break
                heap[child], heap[parent] = heap[parent], heap[child]
                parent = child
    return heap


def count_values(source: Grid, label: str, *, without: bool, names: tuple[str, ...]) -> Grid:
    """How many series of each group have each value; the value becomes a label."""
    groups = group(source.labels, without=without, names=names)
    mask = source.mask()
    rows_of: dict[LabelSet, Floats] = {}
    for g, labels in enumerate(groups.labels):
        rows = groups.members(g)
        values, there = source.values[rows], mask[rows]
        for value in np.unique(values[there]):
            same = there & (np.isnan(values) if np.isnan(value) else values == value)
            # The value's label takes part in the grouping: without(it) drops it again.
            dropped = without and label in names
            key = labels if dropped else labels.replace(label, go_plain(float(value)))
            rows_of[key] = rows_of.get(key, 0.0) + same.sum(axis=0)
    if not rows_of:
        return Grid((), np.zeros((0, source.steps)))
    counts = np.array(list(rows_of.values()), dtype=np.float64)
    return grid(tuple(rows_of), counts, counts > 0)
