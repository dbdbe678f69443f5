"""What a page shows: figures, lines and panels that carry their unit, age, kind of evidence and the PromQL they came from."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

from collectors.model import Floats, Window
from collectors.quantile_values import QuantileInterval, QuantileSeries

Evidence = Literal["measured", "estimated", "derived", "inferred", "configured", "simulated", "documented"]
FigureStatus = Literal["value", "no_data", "not_scraped", "not_in_version"]
"""value (a zero is a value) / scraped, but nothing to compute it from / no such sample arrives / the engine has no such metric."""

STATUS_WORDS: dict[FigureStatus, str] = {
    "value": "",
    "no_data": "no data",
    "not_scraped": "not scraped",
    "not_in_version": "not in this engine version",
}


@dataclass(frozen=True)
class Figure:
    """One number on a page. `value` is None exactly when `status` is not 'value'."""

    status: FigureStatus
    value: float | None
    unit: str
    evidence: Evidence
    promql: tuple[str, ...] = ()
    age_seconds: float | None = None
    """How old the newest sample behind it is at the picture's instant; None where nothing tells."""
    note: str = ""
    """Why there is no value, or what to know before trusting it. Plain text."""
    tainted: tuple[str, ...] = ()
    """Reasons not to trust it (partial response, counted twice ...); pages add what broken laws say."""
    earlier: float | None = None
    """The same figure `earlier_ms` before, where the window reaches that far."""
    earlier_ms: int = 0
    history: Floats | None = field(default=None, compare=False, repr=False)
    """The same figure over the picture's window, for a sparkline; None where only the last value is known."""

    def __post_init__(self) -> None:
        if (self.status == "value") != (self.value is not None and not math.isnan(self.value)):
            raise ValueError(f"a figure with status {self.status!r} cannot hold {self.value!r}")

    @property
    def known(self) -> bool:
        return self.status == "value"

    def with_taint(self, reason: str) -> Figure:
        return self if not reason or reason in self.tainted else replace(self, tainted=(*self.tainted, reason))


def figure(
    value: float | None,
    unit: str,
    evidence: Evidence,
    *,
    promql: tuple[str, ...] = (),
    age_seconds: float | None = None,
    missing: FigureStatus = "no_data",
    note: str = "",
    missing_note: str = "",
) -> Figure:
    """A Figure from a number that may be None or NaN; those become `missing` with `missing_note`."""
    if value is None or math.isnan(value):
        return Figure(missing, None, unit, evidence, promql, age_seconds, missing_note or note)
    return Figure("value", float(value), unit, evidence, promql, age_seconds, note)


@dataclass(frozen=True)
class QuantileFigure:
    """One quantile on a page; `interval` is None exactly when `status` is not 'value'."""

    status: FigureStatus
    interval: QuantileInterval | None
    unit: str
    promql: tuple[str, ...] = ()
    age_seconds: float | None = None
    note: str = ""
    tainted: tuple[str, ...] = ()
    evidence: Evidence = "measured"

    @property
    def known(self) -> bool:
        return self.status == "value"


@dataclass(frozen=True)
class ShareUnder:
    """Share of observations at or under a threshold, exact because the threshold was moved to a bucket edge."""

    share: Figure
    """Ratio 0..1."""
    asked_threshold: float
    threshold: float
    """The bucket edge that was used; differs from the asked one when that is not an edge."""
    objective: float
    """The share that the operator wants."""
    observations: float
    inside: bool | None
    """Whether the objective is met; None when there is nothing to judge."""


@dataclass(frozen=True)
class Line:
    """One series of a panel: values on the panel's window, NaN = a gap."""

    key: str
    """Replica key, or a word such as 'arrivals'."""
    values: Floats
    evidence: Evidence = "measured"


@dataclass(frozen=True)
class Panel:
    """One chart's data: lines on one window, one unit."""

    id: str
    unit: str
    window: Window
    lines: tuple[Line, ...]
    promql: tuple[str, ...]
    status: FigureStatus = "value"
    note: str = ""
    tainted: tuple[str, ...] = ()
    rate_window_ms: int = 0
    """The range that rates were taken over; 0 for gauges."""

    def line(self, key: str) -> Line | None:
        return next((line for line in self.lines if line.key == key), None)


@dataclass(frozen=True)
class QuantilePanel:
    """One chart of quantiles of one histogram over time: a band (the bucket) and an estimate per quantile, and the count."""

    id: str
    unit: str
    window: Window
    series: QuantileSeries
    promql: tuple[str, ...]
    status: FigureStatus = "value"
    note: str = ""
    tainted: tuple[str, ...] = ()
    rate_window_ms: int = 0


@dataclass(frozen=True)
class Finding:
    """Something about how the fleet is seen that an operator should know: counted twice, rank missing, router echo ..."""

    id: str
    where: tuple[str, ...]
    """Replica keys."""
    text: str
    """One plain sentence."""
    taints: tuple[str, ...] = field(default=())
    """Canonical signals that rest on it; empty when the numbers were put right."""
