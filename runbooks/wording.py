"""Figures as an operator reads them: three significant digits, milliseconds below a second, a unit always."""

from __future__ import annotations

import math

_PERCENT = "ratio"
_COUNTED = frozenset(
    [
        "falls",
        "preemptions",
        "ranks",
        "replicas",
        "requests",
        "restarts",
        "samples",
        "steps",
        "targets",
        "times",
        "tokens",
    ]
)
"""Units that lose their s beside a one."""


def worded(value: float | None, unit: str) -> str:
    """`0.42, "ratio"` -> '42 %'; `0.03, "seconds"` -> '30 ms'; None -> 'no data'."""
    if value is None or math.isnan(value):
        return "no data"
    if math.isinf(value):
        return ("more" if value > 0 else "less") + f" than any {unit or 'number'}"
    if unit == _PERCENT:
        return f"{digits(value * 100)} %"
    if unit == "seconds":
        if 0 < abs(value) < 1:
            return f"{digits(value * 1000)} ms"
        return f"{digits(value / 60)} min" if abs(value) >= 600 else f"{digits(value)} s"
    if unit == "bytes":
        return f"{digits(value / 2**30)} GiB" if abs(value) >= 2**30 else f"{digits(value / 2**20)} MiB"
    if abs(value) == 1 and unit in _COUNTED:
        unit = unit.removesuffix("s")
    return f"{digits(value)} {unit}".rstrip()


def digits(value: float) -> str:
    """Three significant digits: `5.11`, `0.342`, `1,914`; from 10^15 on with an exponent: `1.5e+18`."""
    if value == 0:
        return "0"
    if not abs(value) < 1e15:
        return f"{value:.3g}"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{min(decimals, 6)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
