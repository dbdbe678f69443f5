"""deriv, predict_linear and double exponential smoothing over windows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from collectors.model import Floats, Int64s
from collectors.store.promql.compensated import Sum
from collectors.store.promql.windows import Mask, Windows


def linear_regression(windows: Windows, intercept_ms: Int64s | None) -> tuple[Floats, Floats, Mask]:
    """Least squares over each window: slope per second, value at the intercept instant, and where there are two samples.

    `intercept_ms` is one instant per step; None takes each window's first sample.
    """
    shape = windows.shape
    known = windows.count > 1
    line_first = windows.time_of_line_row(windows.line_low)
    origin = line_first if intercept_ms is None else np.broadcast_to(intercept_ms, line_first.shape)
    sums = [Sum(shape) for _ in range(4)]
    constant = np.ones(shape, dtype=bool)
    start = windows.value_at(windows.first)
    for j, (value, where) in enumerate(windows.terms()):
        x = np.asarray(windows.by_series((windows.time_of_line_row(windows.line_low + j) - origin) / 1000))
        constant &= ~where | (value == start)
        with np.errstate(invalid="ignore", over="ignore"):
            for total, term in zip(sums, (x, value, x * value, x * x), strict=True):
                total.add(term, where)
    sum_x, sum_y, sum_xy, sum_xx = (s.result() for s in sums)
    count = np.maximum(windows.count, 1)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        slope = (sum_xy - sum_x * sum_y / count) / (sum_xx - sum_x * sum_x / count)
        intercept = sum_y / count - slope * sum_x / count
        flat_slope = np.where(np.isinf(start), np.nan, 0.0)
        flat_intercept = np.where(np.isinf(start), np.nan, start)
    return np.where(constant, flat_slope, slope), np.where(constant, flat_intercept, intercept), known


def double_exponential_smoothing(windows: Windows, smoothing: Floats, trend: Floats) -> tuple[Floats, Mask]:
    """Holt's linear method over each window, with a factor pair per step, and where there are two samples."""
    known: npt.NDArray[np.bool_] = windows.count > 1
    level_before = np.zeros(windows.shape)
    level = windows.value_at(windows.first)
    slope = windows.value_at(windows.first + 1) - level
    with np.errstate(invalid="ignore", over="ignore"):
        for j, (value, where) in enumerate(windows.terms()):
            if j == 0:
                continue
            # The trend of the first pair is their difference; from then on it follows the smoothed levels.
            carried = slope if j == 1 else trend * (level - level_before) + (1 - trend) * slope
            smoothed = smoothing * value + (1 - smoothing) * (level + carried)
            slope = np.where(where, carried, slope)
            level_before = np.where(where, level, level_before)
            level = np.where(where, smoothed, level)
    return level, known
