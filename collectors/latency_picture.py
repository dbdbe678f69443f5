"""What the Latency page is made of, as values. `collectors.latency.latency_picture` computes them."""

from __future__ import annotations

from dataclasses import dataclass

from collectors.figures import Figure, Finding, Panel, QuantileFigure, QuantilePanel, ShareUnder
from collectors.fleet_picture import Asked
from collectors.model import Floats, SourceInfo, Window


@dataclass(frozen=True)
class HeatMap:
    """Bucket rates of one histogram over time: `rates[i, j]` observations/s in bucket i at step j; NaN = no data."""

    signal: str
    unit: str
    window: Window
    bounds: Floats
    """Upper bound of each bucket, ascending, +Inf last; the lower bound is the one before (0 for the first)."""
    rates: Floats
    slo_threshold: float | None
    promql: tuple[str, ...]
    note: str = ""
    tainted: tuple[str, ...] = ()
    rate_window_ms: int = 0


@dataclass(frozen=True)
class RankedReplica:
    """One replica beside the fleet, for one histogram."""

    key: str
    p50: QuantileFigure
    p99: QuantileFigure
    mean: Figure
    observations: float


@dataclass(frozen=True)
class Ranking:
    """Replicas by the p99 interval of one histogram, worst first; the fleet's own; and what a mean of p99s would say."""

    signal: str
    unit: str
    replicas: tuple[RankedReplica, ...]
    fleet_p50: QuantileFigure
    fleet_p99: QuantileFigure
    fleet_mean: Figure
    fleet_observations: float
    """The sum over `replicas`."""
    mean_of_p99s: Figure
    """The number that averaging dashboards show; wrong, and shown to say so."""
    text: str
    """'a mean of p99s would say 0.84 s; the fleet's p99 is 2.5-5 s'"""
    over_ms: int
    """The stretch before the picture's instant that all of it counts: the window, or its last hour where that is shorter."""


@dataclass(frozen=True)
class Earlier:
    """The same window a while ago: fleet quantiles then, for comparison."""

    label: str
    """'1 h ago', '1 d ago', '1 w ago'"""
    shift_ms: int
    quantiles: tuple[QuantileFigure, ...]
    """Over the whole window now and then: pairs of (now, then) are at equal index with `LatencyPicture.whole`."""
    note: str = ""
    """What to know before comparing: the source's samples begin inside that window."""


@dataclass(frozen=True)
class LatencyPicture:
    """Everything the Latency page shows at one instant."""

    at_ms: int
    window: Window
    source: SourceInfo
    engine_text: str
    scrape_interval_seconds: float | None
    rate_window_ms: int
    panels: tuple[QuantilePanel, ...]
    """TTFT, inter-token, queue, prefill, decode, end to end (`id` is the signal); p50, p95, p99 each."""
    heat_map: HeatMap
    chosen: str
    """The signal of heat map, ranking and comparison."""
    ranking: Ranking
    where_time_goes: Panel
    """Mean seconds per finished request: lines 'queue', 'prefill', 'decode' (engine clock) and 'end to end' (front-end clock)."""
    where_note: str
    slo: ShareUnder | None
    """Share of the chosen histogram's observations under its objective, over the whole window; None without an objective."""
    whole: tuple[QuantileFigure, ...]
    """p50, p95, p99 of the chosen histogram over the whole window."""
    whole_ms: int
    """Length of that window: the one that the page states."""
    earlier: tuple[Earlier, ...]
    findings: tuple[Finding, ...]
    warnings: tuple[str, ...]
    asked: tuple[Asked, ...]

    def panel(self, signal: str) -> QuantilePanel | None:
        return next((panel for panel in self.panels if panel.id == signal), None)
