"""Sums as Prometheus 3.x takes them: Kahan's compensation in Neumaier's form, on whole arrays at a time.

Terms arrive one after the other (`add`), each an array over all results at once with a mask of where it counts.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from collectors.model import Floats

Mask = npt.NDArray[np.bool_]


def compensated_step(term: Floats, total: Floats, lost: Floats) -> tuple[Floats, Floats]:
    """One addition: the new total and what rounding has lost so far."""
    with np.errstate(invalid="ignore", over="ignore"):
        after = total + term
        correction = np.where(np.abs(total) >= np.abs(term), (total - after) + term, (term - after) + total)
        return after, np.where(np.isinf(after), 0.0, lost + correction)


class Sum:
    """A compensated sum in every cell."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._total = np.zeros(shape)
        self._lost = np.zeros(shape)

    def add(self, term: Floats, where: Mask) -> None:
        """Add a term where it counts."""
        total, lost = compensated_step(term, self._total, self._lost)
        self._total = np.where(where, total, self._total)
        self._lost = np.where(where, lost, self._lost)

    def result(self) -> Floats:
        """The sums; an infinite one keeps its sign."""
        with np.errstate(invalid="ignore", over="ignore"):
            return np.where(np.isinf(self._total), self._total, self._total + self._lost)


class Mean:
    """A compensated mean in every cell, which turns incremental where the sum would overflow."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._count = np.zeros(shape)
        self._total = np.zeros(shape)
        self._lost = np.zeros(shape)
        self._mean = np.zeros(shape)
        self._incremental = np.zeros(shape, dtype=bool)

    def add(self, term: Floats, where: Mask) -> None:
        """Add a term where it counts."""
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            count = self._count + 1
            total, lost = compensated_step(term, self._total, self._lost)
            first = self._count == 0
            total, lost = np.where(first, term, total), np.where(first, 0.0, lost)
            turning = where & ~first & ~self._incremental & np.isinf(total)
            if turning.any():
                self._mean = np.where(turning, self._total / (count - 1), self._mean)
                self._lost = np.where(turning, self._lost / (count - 1), self._lost)
                self._incremental |= turning
            plain = where & ~self._incremental
            self._total = np.where(plain, total, self._total)
            if self._incremental.any():
                share = (count - 1) / count
                mean, lost_mean = compensated_step(term / count, share * self._mean, share * self._lost)
                on = where & self._incremental
                self._mean = np.where(on, mean, self._mean)
                self._lost = np.where(on, lost_mean, np.where(plain, lost, self._lost))
            else:
                self._lost = np.where(plain, lost, self._lost)
            self._count = np.where(where, count, self._count)

    def result(self) -> Floats:
        """The means; NaN where nothing was added."""
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            plain = self._total / self._count + self._lost / self._count
            return np.where(self._incremental, self._mean + self._lost, plain)


class Variance:
    """The population variance in every cell (Welford's recurrence)."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._count = np.zeros(shape)
        self._mean = np.zeros(shape)
        self._squares = np.zeros(shape)
        self._mean_lost = np.zeros(shape)
        self._squares_lost = np.zeros(shape)

    def add(self, term: Floats, where: Mask) -> None:
        """Add a term where it counts."""
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            count = self._count + 1
            delta = term - (self._mean + self._mean_lost)
            mean, mean_lost = compensated_step(delta / count, self._mean, self._mean_lost)
            spread = delta * (term - (mean + mean_lost))
            squares, squares_lost = compensated_step(spread, self._squares, self._squares_lost)
            self._count = np.where(where, count, self._count)
            self._mean = np.where(where, mean, self._mean)
            self._mean_lost = np.where(where, mean_lost, self._mean_lost)
            self._squares = np.where(where, squares, self._squares)
            self._squares_lost = np.where(where, squares_lost, self._squares_lost)

    def result(self) -> Floats:
        """The variances; NaN where nothing was added."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return (self._squares + self._squares_lost) / self._count


def plain_sum_is_exact_enough(values: Floats) -> bool:
    """Whether adding these up in any order is right to a few units in the last place: one sign, or small whole numbers."""
    if not len(values):
        return True
    with np.errstate(invalid="ignore"):
        low, high = float(values.min()), float(values.max())
    if not (np.isfinite(low) and np.isfinite(high)):
        return False
    if low >= 0 or high <= 0:
        return True
    with np.errstate(over="ignore"):
        return bool((values == np.rint(values)).all()) and float(np.abs(values).sum()) < 2.0**53
