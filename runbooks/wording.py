"""Figures as an operator reads them: three significant digits, milliseconds below a second, a unit always."""

from __future__ import annotations

import math

_PERCENT = "ratio"


def worded(value: float | None, unit: str) -> str:
    """`0.42, "ratio"` -> '42 %'; `0.03, "seconds"` -> '30 ms'; None -> 'no data'."""
    if value is None or math.isnan(value):
        return "no data"
    if math.isinf(value):
        return ("more" if value > 0 else "less") + f" than any {unit or 'number'}"
    if unit == _PERCENT:
        return f"{_digits(value * 100)} %"
    if unit == "seconds":
        if 0 < abs(value) < 1:
            return f"{_digits(value * 1000)} ms"
        return f"{_digits(value / 60)} min" if abs(value) >= 600 else f"{_digits(value)} s"
    if unit == "bytes":
        return f"{_digits(value / 2**30)} GiB" if abs(value) >= 2**30 else f"{_digits(value / 2**20)} MiB"
    return f"{_digits(value)} {unit}".rstrip()


def _digits(value: float) -> str:
    if value == 0:
        return "0"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{min(decimals, 6)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
