"""Arithmetic of a queue and a cache over time: arrivals, drain, forecast, seats. Plain arrays in, values out; NaN = unknown."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from collectors.fleet_picture import Drain, Forecast
from collectors.model import Floats

FEWEST_FIRST_TOKENS = 5
"""Fewer first tokens in the window than this make waiting / rate a guess."""
NEGLIGIBLE_PER_SECOND = 1e-3
"""A queue that changes by less than four requests an hour stands still."""
FULL_RATIO = 0.99
SLOPE_ODDS = 0.01
"""A slope counts when the lower end of its one-sided interval at these odds still fills the cache."""
SLOWEST_IN_LINES = 4.0
"""Within so many times the length of the line that it is read from; the best estimate within one."""
FEWEST_FORECAST_POINTS = 8
CEILING_SHARE = 0.5
CEILING_STEPS = 3
SEATS_KV_RATIO = 0.9
"""With the cache fuller than this, running stops for want of blocks, and its ceiling says nothing about seats."""


def duration_words(seconds: float) -> str:
    """'40 s', '3 m 40 s', '2 h 5 m', '3 d 2 h'."""
    whole = max(round(seconds), 0)
    for big, size, small, part in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= size:
            rest = (whole % size) // part
            return f"{whole // size} {big}" + (f" {rest} {small}" if rest else "")
    return f"{whole} s"


def wait_seconds(waiting: float, first_tokens_per_second: float, window_seconds: float) -> float | None:
    """Little's law: waiting / rate of first tokens. None unless waiting > 0 and at least 5 first tokens fell in the window.

    The count is the rate times the window, so it may miss the true one by the rate's extrapolation; half a token is forgiven.
    """
    if not waiting > 0 or not first_tokens_per_second * window_seconds >= FEWEST_FIRST_TOKENS - 0.5:
        return None
    return waiting / first_tokens_per_second


def waiting_change_per_second(waiting: Floats, shift: int, window_seconds: float) -> Floats:
    """d(waiting)/dt of each replica over the same range as the rates: (replicas, steps), NaN where either end is unknown."""
    change = np.full(waiting.shape, np.nan)
    if 0 < shift < waiting.shape[1]:
        change[:, shift:] = (waiting[:, shift:] - waiting[:, :-shift]) / window_seconds
    return change


def whole_windows_from(begin_ms: int | None, start_ms: int, step_ms: int, window_ms: int) -> int:
    """The first step of a grid whose rate window lies wholly behind the first sample; 0 where the beginning is not in sight.

    A rate over a window that the data fill only partly comes out too low in proportion: a fleet whose recording begins would
    look as if its traffic did.
    """
    if begin_ms is None:
        return 0
    return max(0, -(-(begin_ms + window_ms - start_ms) // step_ms))


def arrivals_per_second(first_tokens: Floats, change: Floats) -> Floats:
    """Estimated arrivals: rate of first tokens + d(waiting)/dt summed over replicas; never below zero.

    Blind to requests aborted while waiting; too high while preempted requests go back to the queue. `change` has shape
    (replicas, steps); a replica that comes or goes within the window adds nothing there.
    """
    known = ~np.isnan(change)
    total = np.where(known.any(axis=0), np.nansum(change, axis=0), np.nan)
    return np.maximum(first_tokens + total, 0.0)


def drain(waiting: float, excess_per_second: float, first_tokens_per_second: float = math.nan) -> Drain:
    """When `waiting` requests are gone if the queue goes on changing by `excess_per_second`."""
    if math.isnan(waiting):
        return Drain("unknown", None, None, "unknown: the queue is not scraped")
    if waiting <= 0:
        return Drain("empty", 0.0, None if math.isnan(excess_per_second) else excess_per_second, "empty")
    if math.isnan(excess_per_second):
        return Drain("unknown", None, None, "unknown: too little history to see the queue change")
    if excess_per_second < -NEGLIGIBLE_PER_SECOND:
        seconds = waiting / -excess_per_second
        return Drain("clears", seconds, excess_per_second, f"clears in {duration_words(seconds)}")
    if excess_per_second <= NEGLIGIBLE_PER_SECOND:
        why = "no request gets its first token" if first_tokens_per_second == 0 else "arrivals equal completions"
        return Drain("never", None, excess_per_second, f"never at this rate: {why}")
    return Drain("never", None, excess_per_second, f"never: arrivals exceed completions by {excess_per_second:.2g}/s")


def kv_forecast(times_seconds: Floats, usage: Floats) -> Forecast:
    """When a KV cache is full, from its recent samples (ratio 0..1), one point per scrape.

    The rule: a straight line through the samples reaches 1 within its own length; the slowest slope that they allow - lower end of
    the slope's 99 % interval, Student's t, from the residuals - reaches it within four; and a bent line does not turn before it.
    Releases make a saw-tooth whose neighbours resemble each other: the interval counts only as many samples as are independent.
    Points repeated between scrapes would pass for more evidence than there is: thin the grid to the scrape interval first.
    """
    known = ~np.isnan(usage)
    if not known.any() or not known[-1]:
        return Forecast("unknown", None, None, "unknown: not scraped")
    t, y = times_seconds[known], usage[known]
    if y[-1] >= FULL_RATIO:
        return Forecast("full", 0.0, None, "full")
    if len(y) < FEWEST_FORECAST_POINTS:
        return Forecast("unknown", None, None, "unknown: too few samples")
    length = float(t[-1] - t[0])
    x = t - t.mean()
    spread = float(np.dot(x, x))
    slope = float(np.dot(x, y - y.mean())) / spread
    level = float(y.mean()) + slope * float(x[-1])
    seconds = max(1.0 - level, 0.0) / slope if slope > 0 else math.inf
    if seconds > length:  # no line is drawn further than it is long
        return Forecast("steady", None, slope, "steady")
    slowest = slope - _slope_doubt(x, y - y.mean() - slope * x, spread)
    if slowest <= 0 or (1.0 - level) / slowest > SLOWEST_IN_LINES * length or _turns_below_full(t, y, length):
        return Forecast("steady", None, slope, "steady")
    return Forecast("fills", seconds, slope, f"full in {duration_words(seconds)} at this slope")


def _slope_doubt(x: Floats, residual: Floats, spread: float) -> float:
    """Half the width of the slope's interval. Neighbours that resemble each other (first-order autocorrelation, with Kendall's
    correction for having been taken about a fitted line) leave fewer independent samples."""
    count, power = len(x), float(np.dot(residual, residual))
    alike = float(np.dot(residual[1:], residual[:-1])) / power if power > 0 else 0.0
    alike = min(max((alike * count + 2) / (count - 4), 0.0), 0.98)
    independent = count * (1 - alike) / (1 + alike)
    error = math.sqrt(power / (count - 2) / spread * (1 + alike) / (1 - alike))
    return student_quantile(SLOPE_ODDS, max(independent - 2, 2.0)) * error


def _turns_below_full(t: Floats, y: Floats, length: float) -> bool:
    """Whether a parabola through the samples bends so much that it never gets to 1 within two lengths of the line."""
    bend, tilt, now = np.polyfit((t - t[-1]) / length, y, 2)
    if bend >= 0:
        return False
    top = min(max(-tilt / (2 * bend), 0.0), 2.0)
    return bool((bend * top + tilt) * top + now < 1.0)


def student_quantile(odds: float, freedom: float) -> float:
    """The value that Student's t exceeds with these one-sided odds; Cornish and Fisher's expansion, within 8 % from 2 degrees on."""
    z, v = NormalDist().inv_cdf(1 - odds), freedom
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    )


def seats_ceiling(running: Floats, waiting: Floats, usage: Floats) -> int | None:
    """max_num_seqs of one rank as its running ceiling implies it; None unless a ceiling shows.

    A ceiling: while work waited and blocks were free, running stood at its highest value at least three steps and half of that
    time. The arrays are one rank's, shape (steps,).
    """
    pressed = (waiting > 0) & ~np.isnan(running) & ~(usage >= SEATS_KV_RATIO)
    if not pressed.any():
        return None
    top = float(np.nanmax(running))
    at_top = int(np.sum(running[pressed] >= top))
    if top < 1 or at_top < CEILING_STEPS or at_top < CEILING_SHARE * int(pressed.sum()):
        return None
    return round(top)
