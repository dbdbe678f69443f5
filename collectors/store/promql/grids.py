"""What an expression is worth at every step of a query: series by steps, one scalar a step, or a text."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from collectors.model import Floats
from collectors.remembered import of_labels
from collectors.store.promql.errors import failed
from collectors.store.series import LabelSet

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Grid:
    """An instant vector at each step: `values` (series, steps); `present` None means every cell holds a sample.

    A present NaN is a value like any other; what an absent cell holds in `values` means nothing.
    """

    labels: tuple[LabelSet, ...]
    values: Floats
    present: Mask | None = None
    ordered: bool = field(default=False, compare=False)
    """The order of the series is part of the answer (sort, topk at an instant)."""

    @property
    def steps(self) -> int:
        return int(self.values.shape[1])

    def mask(self) -> Mask:
        """`present`, written out."""
        return np.ones(self.values.shape, dtype=bool) if self.present is None else self.present

    def at(self, rows: npt.NDArray[np.intp] | list[int]) -> Grid:
        """Some of the series."""
        chosen = tuple(self.labels[i] for i in rows)
        return Grid(chosen, self.values[rows], None if self.present is None else self.present[rows], self.ordered)

    def with_values(self, values: Floats) -> Grid:
        """Other values for the same series and cells."""
        return Grid(self.labels, values, self.present, self.ordered)

    def with_labels(self, labels: tuple[LabelSet, ...]) -> Grid:
        """Other labels for the same values."""
        return Grid(labels, self.values, self.present, self.ordered)


@dataclass(frozen=True)
class ScalarRow:
    """A scalar at each step: `values` (steps,)."""

    values: Floats


@dataclass(frozen=True)
class TextValue:
    """A string literal."""

    value: str


Value = Grid | ScalarRow | TextValue


def empty_grid(steps: int) -> Grid:
    """No series."""
    return Grid((), np.zeros((0, steps)))


def grid(labels: tuple[LabelSet, ...], values: Floats, present: Mask | None, *, ordered: bool = False) -> Grid:
    """A grid without series that are never there, its mask left out where it is full."""
    if present is None or not len(labels):
        return Grid(labels, values, None, ordered)
    if present.all():
        return Grid(labels, values, None, ordered)
    alive = present.any(axis=1)
    if alive.all():
        return Grid(labels, values, present, ordered)
    rows = np.flatnonzero(alive)
    return Grid(tuple(labels[i] for i in rows), values[rows], present[rows], ordered)


def nameless(source: Grid, *, per_step: bool = True) -> Grid:
    """Without metric names. Raises PromQLError when that makes two series one (at a step; at all when not `per_step`)."""
    labels = source.labels
    shorter = of_labels(labels, "nameless", lambda: tuple(one.nameless() for one in labels))
    return unique(source.with_labels(shorter), per_step=per_step)


def unique(
    source: Grid, message: str = "vector cannot contain metrics with the same labelset", *, per_step: bool = True
) -> Grid:
    """One row per label set: rows that never meet are merged. Raises PromQLError where they do."""
    labels = source.labels
    if of_labels(labels, "distinct", lambda: len(set(labels)) == len(labels)):
        return source
    if not per_step:
        raise failed(message)
    rows: dict[LabelSet, list[int]] = {}
    for i, one in enumerate(source.labels):
        rows.setdefault(one, []).append(i)
    mask = source.mask()
    values = np.empty((len(rows), source.steps))
    present = np.empty((len(rows), source.steps), dtype=bool)
    for out, members in enumerate(rows.values()):
        held = mask[members]
        if len(members) > 1 and (held.sum(axis=0) > 1).any():
            raise failed(message)
        present[out] = held.any(axis=0)
        values[out] = source.values[members[0]]
        for i in members[1:]:
            np.copyto(values[out], source.values[i], where=mask[i])
    return grid(tuple(rows), values, present, ordered=source.ordered)


def spread(source: Grid, steps: int) -> Grid:
    """A grid of one step repeated for all steps (a pinned selector is worth the same at each)."""
    if source.steps == steps:
        return source
    present = None if source.present is None else np.repeat(source.present, steps, axis=1)
    return Grid(source.labels, np.repeat(source.values, steps, axis=1), present, source.ordered)
