"""The windows of a range vector: for each series and step, which samples lie in (t - range, t]."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from collectors.model import Floats, Int64s
from collectors.store.promql.compensated import plain_sum_is_exact_enough
from collectors.store.selection import Rows, Selection

T = TypeVar("T", bound=np.generic)
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Windows:
    """`ends_ms[j]` is the right end of step j's window (offset applied); `closed_left` as in Prometheus 2.x."""

    selection: Selection
    ends_ms: Int64s
    range_ms: int
    closed_left: bool
    check_time: Callable[[], None] = lambda: None
    """Called now and then in long loops; raises when the query's time is over."""

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.selection.labels), len(self.ends_ms)

    @cached_property
    def line_low(self) -> Rows:
        """First row of each window, by timeline and step."""
        return self.selection.rows_until(self.ends_ms - self.range_ms, inclusive=not self.closed_left)

    @cached_property
    def line_high(self) -> Rows:
        """Row behind each window, by timeline and step."""
        return self.selection.rows_until(self.ends_ms, inclusive=True)

    @cached_property
    def line_count(self) -> Rows:
        """Samples in each window, by timeline and step."""
        return self.line_high - self.line_low

    def by_series(self, of_lines: npt.NDArray[T]) -> npt.NDArray[T]:
        """A (timelines, steps) array spread over the series."""
        return of_lines if self._one_series_a_line else of_lines[self.selection.line_of]

    @cached_property
    def _one_series_a_line(self) -> bool:
        lines = self.selection.line_of
        return len(lines) == self.selection.lines and bool((lines == np.arange(len(lines))).all())

    @cached_property
    def count(self) -> Rows:
        """Samples in each window, by series and step."""
        return np.asarray(self.by_series(self.line_count), dtype=np.int64)

    @cached_property
    def first(self) -> Rows:
        """Flat index of the first sample of each window, by series and step (meaningless where count is 0)."""
        return np.asarray(self.by_series(self.line_low) + self.selection.value_from[:, None], dtype=np.int64)

    @cached_property
    def last(self) -> Rows:
        """Flat index of the last sample of each window (meaningless where count is 0)."""
        return np.asarray(self.by_series(self.line_high) + (self.selection.value_from[:, None] - 1), dtype=np.int64)

    def value_at(self, index: Rows) -> Floats:
        """Values at flat indices; indices outside are clipped, to be masked by the caller."""
        return self.selection.values.take(index, mode="clip")

    def time_of_line_row(self, rows: Rows) -> Int64s:
        """Times at rows of the timelines: (timelines, steps) in and out; rows outside are clipped."""
        return self.selection.times_ms.take(rows + self.selection.line_from[:, None], mode="clip")

    def terms(self) -> Iterator[tuple[Floats, Mask]]:
        """The samples of all windows, oldest first: the j-th sample of each window and where there is a j-th."""
        longest = int(self.line_count.max(initial=0))
        for j in range(longest):
            if j % 64 == 63:
                self.check_time()
            yield self.value_at(self.first + j), self.count > j

    def reduce(self, ufunc: np.ufunc) -> Floats:
        """A ufunc over the samples of each window, in order; meaningless where count is 0."""
        values = np.append(self.selection.values, 0.0)
        pairs = np.empty((*self.shape, 2), dtype=np.int64)
        pairs[..., 0] = self.first
        pairs[..., 1] = self.last + 1
        np.clip(pairs, 0, len(values) - 1, out=pairs)
        with np.errstate(invalid="ignore", over="ignore"):
            return np.asarray(ufunc.reduceat(values, pairs.ravel())[::2].reshape(self.shape), dtype=np.float64)

    @cached_property
    def plain_sums_do(self) -> bool:
        """Whether sums need no compensation (see compensated)."""
        return plain_sum_is_exact_enough(self.selection.values)

    def pairs_between(self, flagged: Mask) -> Rows:
        """How many flagged neighbours each window holds; `flagged[i]` speaks of samples i and i + 1 of the flat vector."""
        before = np.concatenate(([0], np.cumsum(flagged)))
        some = self.count > 1
        first, last = np.where(some, self.first, 0), np.where(some, self.last, 0)
        return np.asarray(before[last] - before[first], dtype=np.int64)

    def neighbours(self) -> tuple[Floats, Floats, Mask]:
        """Each sample of the flat vector, its successor, and whether both are of the same series."""
        values = self.selection.values
        same = np.ones(max(0, len(values) - 1), dtype=bool)
        ends = self.selection.value_from + self.selection.series_rows() - 1
        same[ends[ends < len(same)]] = False
        return values[:-1], values[1:], same
