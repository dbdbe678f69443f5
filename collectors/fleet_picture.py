"""What the Fleet page is made of, as values. `collectors.fleet.fleet_picture` computes them; pages join states and verdicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from collectors.figures import Figure, Finding, Panel, QuantileFigure, QuantilePanel, ShareUnder
from collectors.model import Labels, SourceInfo, Window

Scraped = Literal["up", "down", "gone", "unknown"]
"""up: the last scrape worked / down: it failed / gone: no longer a target / unknown: the source keeps no `up`."""


@dataclass(frozen=True)
class Asked:
    """One query that was put for this picture."""

    what: str
    promql: str
    kind: Literal["instant", "range"]


@dataclass(frozen=True)
class Drain:
    """When the queue clears at the present rates."""

    kind: Literal["empty", "clears", "never", "unknown"]
    seconds: float | None
    excess_per_second: float | None
    """Arrivals minus first tokens (requests/s); positive = the queue grows."""
    text: str
    """'clears in 3 m 40 s', 'never: arrivals exceed completions by 0.8/s', 'empty', or why it is unknown."""


@dataclass(frozen=True)
class Forecast:
    """When a replica's KV cache is full at the present slope."""

    kind: Literal["full", "fills", "steady", "unknown"]
    seconds: float | None
    slope_per_second: float | None
    text: str
    """'full in 4 m at this slope', 'full', 'steady', or why it is unknown."""


@dataclass(frozen=True)
class RankRow:
    """One engine inside a replica (several under data parallelism)."""

    engine: str
    model: str
    present: bool
    """Whether it has samples at the picture's instant."""
    waiting: Figure
    running: Figure
    kv_cache_usage: Figure
    generation_tokens: Figure
    """tokens/s"""


@dataclass(frozen=True)
class ReplicaRow:
    """One line of the replica table. Rates are per second unless the unit says otherwise."""

    key: str
    """Identity as one text: the values of the identity labels joined by '/'. Stable across scrapes."""
    labels: Labels
    """The identity labels and their values."""
    scope: Labels
    """cluster, namespace, job ... as far as the series carry them."""
    models: tuple[str, ...]
    engine_text: str
    """'vLLM 0.11.0', 'vLLM 0.9.2 to 0.10' where the data cannot tell, '' when no engine metric was seen."""
    scraped: Scraped
    age_seconds: float | None
    """Age of the newest engine sample."""
    started_ms: int | None
    """process_start_time_seconds, where it is exported."""
    wait: Figure
    """seconds: waiting / rate of first tokens; needs waiting > 0 and at least 5 first tokens in the window."""
    waiting: Figure
    running: Figure
    seats: Figure
    """max_num_seqs over all ranks: configured, else inferred from a ceiling that running kept while work waited."""
    kv_cache_usage: Figure
    """ratio 0..1, the fullest rank."""
    prompt_tokens: Figure
    generation_tokens: Figure
    first_tokens: Figure
    """requests/s that got their first token"""
    finished: Figure
    time_to_first_token_p99: QuantileFigure
    preemptions: Figure
    """per minute"""
    prefix_hit_ratio: Figure
    capacity_requests: Figure
    """Highest sustained rate of first tokens while work was waiting, requests/s."""
    capacity_tokens: Figure
    """Highest sustained rate of output tokens while work was waiting, tokens/s."""
    kv_forecast: Forecast
    arrivals: Figure
    """requests/s, estimated: first tokens + d(waiting)/dt."""
    drain: Drain
    ranks: tuple[RankRow, ...]


@dataclass(frozen=True)
class FleetTotals:
    """Fleet-wide figures of the status strip and the tiles."""

    wait: Figure
    """seconds: all waiting / rate of all first tokens"""
    worst_wait: Figure
    worst_wait_key: str
    waiting: Figure
    running: Figure
    seats: Figure
    worst_kv_cache_usage: Figure
    worst_kv_key: str
    prompt_tokens: Figure
    generation_tokens: Figure
    arrivals: Figure
    """requests/s, estimated: first tokens + d(waiting)/dt."""
    first_tokens: Figure
    finished: Figure
    preemptions: Figure
    """per minute"""
    prefix_hit_ratio: Figure
    capacity_requests: Figure
    """Sum of the replicas' measured capacities, requests/s; only what was seen while work waited."""
    capacity_tokens: Figure
    time_to_first_token: tuple[QuantileFigure, ...]
    """p50, p95, p99."""
    inter_token_latency_p99: QuantileFigure
    time_to_first_token_slo: ShareUnder
    inter_token_latency_slo: ShareUnder
    drain: Drain
    """Of the queue that takes longest: nothing moves a waiting request to another replica."""
    drain_key: str
    kv_forecast: Forecast
    """Of the replica whose cache fills first."""
    kv_forecast_key: str


@dataclass(frozen=True)
class FleetRow:
    """The replica table added up over the table's own range; units as in `ReplicaRow`."""

    waiting: Figure
    running: Figure
    seats: Figure
    prompt_tokens: Figure
    generation_tokens: Figure
    first_tokens: Figure
    preemptions: Figure
    prefix_hit_ratio: Figure
    """All hits / all lookups."""
    time_to_first_token_p99: QuantileFigure
    """From the replicas' buckets added up."""
    worst_p99_key: str
    worst_p99: QuantileFigure
    mean_of_p99s: Figure
    """seconds: what a dashboard that averages the replicas' p99s would show; wrong, and shown to say so."""


@dataclass(frozen=True)
class FleetPicture:
    """Everything the Fleet page shows at one instant, but for states and verdicts."""

    at_ms: int
    window: Window
    source: SourceInfo
    engine_text: str
    """Versions seen, joined: 'vLLM 0.11.0', 'vLLM 0.11.0 (3), vLLM 0.32.0 (1)'."""
    scrape_interval_seconds: float | None
    rate_window_ms: int
    """Range of the rates behind the figures; panels name their own."""
    replicas: tuple[ReplicaRow, ...]
    """Worst first."""
    replicas_up: int
    replicas_seen: int
    """Scraped now, plus those that left within the window."""
    replicas_desired: Figure
    totals: FleetTotals
    fleet: FleetRow
    waiting: Panel
    running: Panel
    kv_cache_usage: Panel
    flow: Panel
    """Fleet: lines 'arrivals' (estimated), 'first tokens', 'completions', requests/s."""
    time_to_first_token: QuantilePanel
    inter_token_latency: QuantilePanel
    findings: tuple[Finding, ...]
    warnings: tuple[str, ...]
    """What the source said beside its answers (partial response ...); it taints every figure that rests on those."""
    asked: tuple[Asked, ...]

    def replica(self, key: str) -> ReplicaRow | None:
        return next((row for row in self.replicas if row.key == key), None)
