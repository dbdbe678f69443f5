"""Functions of one sample at a time, and of dates."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from collectors.model import Floats


def _sgn(v: Floats) -> Floats:
    return np.where(v < 0, -1.0, np.where(v > 0, 1.0, v))


MATH: dict[str, Callable[[Floats], Floats]] = {
    "abs": np.abs,
    "ceil": np.ceil,
    "floor": np.floor,
    "exp": np.exp,
    "sqrt": np.sqrt,
    "ln": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "rad": lambda v: v * np.pi / 180,
    "deg": lambda v: v * 180 / np.pi,
    "sgn": _sgn,
}


def rounded(values: Floats, nearest: Floats) -> Floats:
    """To the nearest multiple; ties go up. The inverse is what Prometheus multiplies with."""
    with np.errstate(all="ignore"):
        inverse = 1.0 / nearest
        return np.floor(values * inverse + 0.5) / inverse


MAX_SECONDS = 2.0**62
"""Beyond it, and for NaN, Prometheus's answer depends on the processor; ours is NaN."""


def _split(seconds: Floats) -> tuple[np.ndarray, np.ndarray]:
    """Whole days since 1970 and the second of the day; the fraction of a second is dropped towards zero, as Go does."""
    whole = np.trunc(np.where(np.abs(seconds) < MAX_SECONDS, seconds, 0.0)).astype(np.int64)
    return whole // 86400, whole % 86400


def date_part(name: str, seconds: Floats) -> Floats:
    """A part of the UTC date of unix seconds, by PromQL's name; NaN where they are no date."""
    with np.errstate(invalid="ignore"):
        return np.where(np.abs(seconds) < MAX_SECONDS, DATES[name](seconds), np.nan)


def _civil(days: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Year, month, day of the proleptic Gregorian calendar (Howard Hinnant's days algorithm)."""
    shifted = days + 719468
    era = shifted // 146097
    of_era = shifted - era * 146097
    year_of_era = (of_era - of_era // 1460 + of_era // 36524 - of_era // 146096) // 365
    of_year = of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted_month = (5 * of_year + 2) // 153
    day = of_year - (153 * shifted_month + 2) // 5 + 1
    month = np.where(shifted_month < 10, shifted_month + 3, shifted_month - 9)
    return year_of_era + era * 400 + (month <= 2), month, day


_BEFORE_MONTH = np.array([0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334])
_MONTH_DAYS = np.array([31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])


def _leap(year: np.ndarray) -> np.ndarray:
    return np.asarray((year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0)))


def _of_date(pick: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]) -> Callable[[Floats], Floats]:
    return lambda seconds: pick(*_civil(_split(seconds)[0])).astype(np.float64)


DATES: dict[str, Callable[[Floats], Floats]] = {
    "minute": lambda s: (_split(s)[1] // 60 % 60).astype(np.float64),
    "hour": lambda s: (_split(s)[1] // 3600).astype(np.float64),
    "day_of_week": lambda s: ((_split(s)[0] + 4) % 7).astype(np.float64),
    "day_of_month": _of_date(lambda y, m, d: d),
    "day_of_year": _of_date(lambda y, m, d: _BEFORE_MONTH[m - 1] + d + (_leap(y) & (m > 2))),
    "days_in_month": _of_date(lambda y, m, d: _MONTH_DAYS[m - 1] + (_leap(y) & (m == 2))),
    "month": _of_date(lambda y, m, d: m),
    "year": _of_date(lambda y, m, d: y),
}
"""Parts of a UTC date from unix seconds."""
