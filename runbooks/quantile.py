"""The quantile and the median of a few numbers: what numpy gives, to the bit, without the tenth of a millisecond that its general way takes."""

from __future__ import annotations

import math

from collectors.model import Floats


def quantile(values: Floats, q: float) -> float:
    """Linear between neighbours, 0 <= q <= 1; NaN when one of the values is. Raises IndexError without values."""
    ordered = sorted(values.tolist())
    if any(value != value for value in ordered):
        return math.nan
    place = (len(ordered) - 1) * q
    below = math.floor(place)
    if below >= len(ordered) - 1:
        return float(ordered[-1])
    low, high, share = ordered[below], ordered[below + 1], place - below
    return float(high - (high - low) * (1 - share) if share >= 0.5 else low + (high - low) * share)


def median(values: Floats) -> float:
    """The middle one, or the mean of both; NaN when one of the values is. Raises IndexError without values."""
    ordered = sorted(values.tolist())
    if any(value != value for value in ordered):
        return math.nan
    half = len(ordered) // 2
    return float(ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2)
