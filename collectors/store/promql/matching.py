"""Binary operators between two vectors: which series meet, and what may not meet."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from collectors.remembered import of_both, of_labels
from collectors.store.promql.arithmetic import COMPARISONS, compute, drops_name, holds
from collectors.store.promql.errors import failed
from collectors.store.promql.grids import Grid, Mask, empty_grid, grid, unique
from collectors.store.promql.nodes import Matching
from collectors.store.series import METRIC_NAME, LabelSet

Signature = tuple[tuple[str, str], ...]


def signature_of(matching: Matching) -> Callable[[LabelSet], Signature]:
    """What of a label set two series must have in common."""
    if matching.on:
        names = frozenset(matching.labels)
        return lambda one: tuple(p for p in one.pairs if p[0] in names)
    ignored = frozenset((*matching.labels, METRIC_NAME))
    return lambda one: tuple(p for p in one.pairs if p[0] not in ignored)


def _by_signature(side: Grid, matching: Matching) -> dict[Signature, list[int]]:
    labels = side.labels

    def compute() -> dict[Signature, list[int]]:
        signature = signature_of(matching)
        found: dict[Signature, list[int]] = {}
        for i, one in enumerate(labels):
            found.setdefault(signature(one), []).append(i)
        return found

    return of_labels(labels, ("signatures", matching.on, matching.labels), compute)


def set_operator(op: str, left: Grid, right: Grid, matching: Matching) -> Grid:
    """and, or, unless."""
    steps = left.steps
    left_by, right_by = _by_signature(left, matching), _by_signature(right, matching)
    if op == "or":
        shared = of_both(
            left.labels,
            right.labels,
            ("shared", matching.on, matching.labels),
            lambda: left_by.keys() & right_by.keys(),
        )
        if not shared:
            return unique(_beside(left, right))
    left_mask, right_mask = left.mask(), right.mask()
    if op in ("and", "unless"):
        kept = np.zeros(left_mask.shape, dtype=bool)
        for signature, rows in left_by.items():
            others = right_by.get(signature)
            there = right_mask[others].any(axis=0) if others else np.zeros(steps, dtype=bool)
            kept[rows] = left_mask[rows] & (there if op == "and" else ~there)
        return grid(left.labels, left.values, kept, ordered=left.ordered)
    added = np.array(right_mask)
    for signature, rows in right_by.items():
        others = left_by.get(signature)
        if others:
            added[rows] &= ~left_mask[others].any(axis=0)
    return unique(_beside(left, grid(right.labels, right.values, added)))


def _beside(left: Grid, right: Grid) -> Grid:
    """The series of both, where no two of them meet."""
    if not left.labels or not right.labels:
        some = left if left.labels else right
        return grid(some.labels, some.values, some.present)
    labels = of_both(left.labels, right.labels, "beside", lambda: (*left.labels, *right.labels))
    full = left.present is None and right.present is None
    present = None if full else np.concatenate([left.mask(), right.mask()])
    return grid(labels, np.concatenate([left.values, right.values]), present)


def vectors(op: str, left: Grid, right: Grid, matching: Matching, *, return_bool: bool, legacy: bool) -> Grid:
    """Arithmetic and comparisons between vectors. `legacy` (2.x): atan2 keeps the name, filtered matches do not collide.

    Raises PromQLError where a match is ambiguous at a step.
    """
    steps = left.steps
    if not left.labels or not right.labels:
        return empty_grid(steps)
    swapped = matching.card == "one-to-many"
    many, one = (right, left) if swapped else (left, right)
    one_by = _by_signature(one, matching)
    many_by = _by_signature(many, matching)
    many_mask, one_mask = many.mask(), one.mask()
    # Prometheus looks for duplicates at steps where both sides have anything at all.
    busy = many_mask.any(axis=0) & one_mask.any(axis=0)
    side = "left" if swapped else "right"
    for signature, rows in one_by.items():
        if len(rows) > 1 and ((one_mask[rows].sum(axis=0) > 1) & busy).any():
            first, second = (_shown(one.labels[i]) for i in rows[:2])
            raise failed(
                f"found duplicate series for the match group {_group(signature)} on the {side} hand-side of the operation: "
                f"[{second}, {first}];many-to-many matching not allowed: matching labels must be unique on one side"
            )
    pairs: list[tuple[int, int]] = []
    groups: list[list[int]] = []
    for signature, rows in many_by.items():
        others = one_by.get(signature, [])
        if others:
            groups.append(list(range(len(pairs), len(pairs) + len(rows) * len(others))))
            pairs.extend((m, o) for m in rows for o in others)
    if not pairs:
        return empty_grid(steps)
    m = np.array([p[0] for p in pairs])
    o = np.array([p[1] for p in pairs])
    full = many.present is None and one.present is None
    met: Mask = np.ones((len(pairs), steps), dtype=bool) if full else many_mask[m] & one_mask[o]
    lhs, rhs = (one.values[o], many.values[m]) if swapped else (many.values[m], one.values[o])
    if op in COMPARISONS:
        kept = holds(op, lhs, rhs)
        values = kept.astype(np.float64) if return_bool else lhs
        present = met if return_bool else met & kept
    else:
        values, present = compute(op, lhs, rhs), met
    collisions = present if legacy else met
    if matching.card == "one-to-one":
        for rows in groups:
            if len(rows) > 1 and (collisions[rows].sum(axis=0) > 1).any():
                raise failed(
                    "multiple matches for labels: many-to-one matching must be explicit (group_left/group_right)"
                )
    dropped = drops_name(op, return_bool, atan2_keeps_name=legacy)
    labels = _result_labels([many.labels[i] for i in m], [one.labels[i] for i in o], matching, dropped)
    if matching.card != "one-to-one":
        _refuse_ambiguous_groups(labels, groups, collisions)
    return unique(grid(labels, values, None if full and present is met else present))


def _refuse_ambiguous_groups(labels: tuple[LabelSet, ...], groups: list[list[int]], collisions: Mask) -> None:
    for rows in groups:
        if len(rows) < 2:
            continue
        same: dict[LabelSet, list[int]] = {}
        for i in rows:
            same.setdefault(labels[i], []).append(i)
        for alike in same.values():
            if len(alike) > 1 and (collisions[alike].sum(axis=0) > 1).any():
                raise failed("multiple matches for labels: grouping labels must ensure unique matches")


def _result_labels(
    many: list[LabelSet], one: list[LabelSet], matching: Matching, dropped: bool
) -> tuple[LabelSet, ...]:
    if matching.card == "one-to-one":
        names = frozenset(matching.labels)
        if matching.on:
            kept = names - {METRIC_NAME} if dropped else names
            return tuple(x.keep(kept) for x in many)
        if dropped and not names:
            return tuple(x.nameless() for x in many)
        gone = names | {METRIC_NAME} if dropped else names
        return tuple(x.drop(gone) for x in many) if gone else tuple(many)
    labels = [x.nameless() for x in many] if dropped else list(many)
    for name in matching.include:
        labels = [x.replace(name, y.get(name)) for x, y in zip(labels, one, strict=True)]
    return tuple(labels)


def _group(signature: Signature) -> str:
    return "{" + ", ".join(f'{k}="{v}"' for k, v in signature) + "}"


def _shown(labels: LabelSet) -> str:
    return "{" + ", ".join(f'{k}="{v}"' for k, v in labels.pairs) + "}"
