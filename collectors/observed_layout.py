"""Lays raw series of one target on its scrape times and mends its counters: from samples to a Replica with its ranks."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from collectors.dialect import Dialect, load_dialect
from collectors.model import Floats, Int64s, Labels, Samples, is_stale
from collectors.observed import CacheConfig, Counter, Histogram, HttpSeries, Rank, Replica

GAUGES = ("requests_running", "requests_waiting", "kv_cache_usage")
COUNTERS = (
    "preemptions",
    "prompt_tokens",
    "generation_tokens",
    "requests_finished",
    "prefix_cache_queries",
    "prefix_cache_hits",
)
HISTOGRAMS = (
    "time_to_first_token",
    "inter_token_latency",
    "e2e_request_latency",
    "request_queue_time",
    "request_prefill_time",
    "request_decode_time",
    "request_inference_time",
    "request_prompt_tokens",
    "request_generation_tokens",
    "iteration_tokens",
)
"""Canonical signals that a diagnosis reads; the dialect knows their names."""

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Names:
    """The names of the wanted signals in every version of a dialect, without prefix, the preferred one first."""

    by_signal: Mapping[str, tuple[str, ...]]
    prefixes: tuple[str, ...]

    def strip(self, name: str) -> str:
        """A scraped name without the engine's (or a gateway's) prefix."""
        for prefix in self.prefixes:
            if name.startswith(prefix):
                return name[len(prefix) :]
        return name

    def selector(self, signals: Sequence[str], suffixes: Sequence[str] = ("",)) -> str:
        """A vector selector that finds the signals under every prefix; `suffixes` are appended to each name."""
        names = [name + suffix for signal in signals for name in self.by_signal[signal] for suffix in suffixes]
        prefix = "|".join(re.escape(p) for p in self.prefixes)
        return f'{{__name__=~"(?:{prefix})(?:{"|".join(names)})"}}'


@lru_cache(maxsize=4)
def names_of(engine: str = "vllm") -> Names:
    """Names of the signals of this module in the dialect of an engine. Raises ValueError for an unknown engine."""
    dialect: Dialect = load_dialect(engine)
    found: dict[str, list[str]] = {signal: [] for signal in (*GAUGES, *COUNTERS, *HISTOGRAMS, "cache_config")}
    for entry in dialect.entries:
        names = found.get(entry.signal)
        plain = entry.name.removeprefix(dialect.prefix)
        if names is not None and plain not in names:
            names.append(plain)
    prefixes = sorted({dialect.prefix, *dialect.other_prefixes}, key=len, reverse=True)
    return Names({signal: tuple(names) for signal, names in found.items()}, tuple(prefixes))


@dataclass
class Target:
    """All raw series of one scraped target, by what they are."""

    labels: dict[str, str]
    engine: list[Samples] = field(default_factory=list)
    web: list[Samples] = field(default_factory=list)
    own: list[Samples] = field(default_factory=list)
    info: list[Samples] = field(default_factory=list)
    buckets: list[Samples] = field(default_factory=list)

    def times_ms(self) -> Int64s:
        """Every instant at which any series of the target has a sample (or a staleness marker)."""
        distinct: dict[bytes, Int64s] = {}
        for series in (*self.own, *self.engine, *self.web):
            distinct.setdefault(series.times_ms.tobytes(), series.times_ms)
        if not distinct:
            return np.empty(0, dtype=np.int64)
        return np.unique(np.concatenate(list(distinct.values())))


def mended(times_ms: Int64s, values: Floats, answered: Flags, starts_seconds: Floats) -> Counter:
    """A counter with its running total.

    A series that appears late counts from zero when its target had been scraped without it, or when its process began
    inside the window; otherwise its first value is history. answered [n]: the scrape brought samples of the process.
    """
    seen = np.flatnonzero(~np.isnan(values))
    total = np.zeros(len(values))
    if not len(seen):
        return Counter(times_ms, values, total)
    first = int(seen[0])
    steps = np.diff(values[seen])
    fell = steps < 0
    born_ms = None
    if first > 0:
        start = float(starts_seconds[first])
        fresh = start == start and start * 1000 >= times_ms[0]
        if fresh or bool(answered[:first].any()):
            total[first], born_ms = values[first], int(times_ms[first])
    total[seen[1:]] = np.where(fell, values[seen[1:]], steps)
    return Counter(times_ms, values, np.cumsum(total), tuple(int(t) for t in times_ms[seen[1:][fell]]), born_ms)


class Grid:
    """The scrape times of one target, and what every series looks like on them."""

    def __init__(self, target: Target) -> None:
        self.times_ms = target.times_ms()
        self._places: dict[bytes, Int64s] = {}
        own = {series.labels["__name__"]: self.lay(series) for series in target.own}
        nothing = np.full(len(self.times_ms), np.nan)
        self.up = own.get("up", nothing)
        self.starts_seconds = own.get("process_start_time_seconds", nothing)
        self.scrape_duration_seconds = own.get("scrape_duration_seconds", nothing)
        self.answered: Flags = ~np.isnan(self.starts_seconds)
        if not self.answered.any():  # several API servers export no process_*: engine series stand for it
            for series in target.engine[:8]:
                self.answered = self.answered | ~np.isnan(self.lay(series))

    def lay(self, series: Samples) -> Floats:
        """Values on the grid, NaN where the series has no sample or a staleness marker."""
        key = series.times_ms.tobytes()
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = np.searchsorted(self.times_ms, series.times_ms)
        laid = np.full(len(self.times_ms), np.nan)
        laid[place] = np.where(is_stale(series.values), np.nan, series.values)
        return laid

    def gauge(self, series: Sequence[Samples]) -> Floats:
        """One value per scrape; several children (one per API server process) are copies, the largest is the newest."""
        laid = [self.lay(s) for s in series]
        return laid[0] if len(laid) == 1 else np.fmax.reduce(laid)

    def counter(self, series: Sequence[Samples]) -> Counter:
        """The sum over children (finished reasons, API server processes), each mended by itself."""
        parts = [mended(self.times_ms, self.lay(s), self.answered, self.starts_seconds) for s in series]
        if len(parts) == 1:
            return parts[0]
        stacked = np.array([part.values for part in parts])
        values = np.nansum(stacked, axis=0)
        values[np.isnan(stacked).all(axis=0)] = np.nan
        return Counter(
            self.times_ms,
            values,
            np.sum([part.total for part in parts], axis=0),
            tuple(sorted({t for part in parts for t in part.drops_ms})),
            next((part.born_ms for part in parts if part.born_ms is not None), None),
        )

    def buckets(self, children: Mapping[float, Sequence[Samples]]) -> tuple[Floats, Int64s, Floats]:
        """(edges [e], times_ms [k], cumulative counts [k, e]) at the scrapes for which buckets were fetched."""
        edges = np.array(sorted(children))
        if not len(edges):
            return edges, np.empty(0, dtype=np.int64), np.empty((0, 0))
        together = self._together([children[edge] for edge in edges])
        if together is not None:
            return edges, *together
        laid = np.stack([self.gauge(children[edge]) for edge in edges], axis=1)
        seen = ~np.isnan(laid).all(axis=1)
        return edges, self.times_ms[seen], laid[seen]

    def _together(self, children: Sequence[Sequence[Samples]]) -> tuple[Int64s, Floats] | None:
        """(times_ms [k], values [k, children]) of children whose pieces (head and tail of the window) were all scraped at the same instants.

        Nine tenths of all series are buckets, and nearly always they come together: one step instead of one for each. None when they do not.
        """
        pieces = len(children[0])
        if any(len(child) != pieces for child in children):
            return None
        for number, first in enumerate(children[0]):
            key = first.times_ms.tobytes()
            if any(child[number].times_ms.tobytes() != key for child in children):
                return None
        times_ms = np.concatenate([piece.times_ms for piece in children[0]])
        place = np.searchsorted(self.times_ms, times_ms)
        if not len(times_ms) or (np.diff(times_ms) <= 0).any() or place[-1] >= len(self.times_ms):
            return None
        if not np.array_equal(self.times_ms[place], times_ms):
            return None
        values = np.concatenate([np.stack([child[n].values for child in children], axis=1) for n in range(pieces)])
        values[is_stale(values)] = np.nan
        seen = ~np.isnan(values).all(axis=1)
        return times_ms[seen], values[seen]


def replica_of(target: Target, name: str, names: Names, interval_ms: int) -> Replica:
    """One target as a Replica with its ranks, ordered by engine number."""
    grid = Grid(target)
    http = tuple(
        HttpSeries(
            series.labels.get("handler", ""),
            series.labels.get("method", ""),
            series.labels.get("status", ""),
            mended(grid.times_ms, grid.lay(series), grid.answered, grid.starts_seconds),
        )
        for series in target.web
    )
    engines: dict[str, list[Samples]] = defaultdict(list)
    buckets: dict[str, list[Samples]] = defaultdict(list)
    for series in target.engine:
        engines[series.labels.get("engine", "0")].append(series)
    for series in target.buckets:
        buckets[series.labels.get("engine", "0")].append(series)
    cache = _cache_config(target.info, len(engines))
    return Replica(
        instance=name,
        labels=target.labels,
        times_ms=grid.times_ms,
        interval_ms=int(np.median(np.diff(grid.times_ms))) if len(grid.times_ms) > 1 else interval_ms,
        up=grid.up,
        process_start_seconds=grid.starts_seconds,
        scrape_duration_seconds=grid.scrape_duration_seconds,
        answered=grid.answered,
        http=http,
        ranks=tuple(
            _rank(name, engine, engines[engine], buckets[engine], grid, names, cache)
            for engine in sorted(engines, key=lambda e: (len(e), e))
        ),
    )


def _rank(
    instance: str,
    engine: str,
    series: Sequence[Samples],
    buckets: Sequence[Samples],
    grid: Grid,
    names: Names,
    cache: CacheConfig,
) -> Rank:
    named: dict[str, list[Samples]] = defaultdict(list)
    for s in series:
        named[names.strip(s.labels["__name__"])].append(s)
    edges: dict[str, dict[float, list[Samples]]] = defaultdict(lambda: defaultdict(list))
    for s in buckets:
        bound = s.labels.get("le", "")
        edges[names.strip(s.labels["__name__"]).removesuffix("_bucket")][_bound(bound)].append(s)

    def spelled(signal: str, suffix: str = "") -> str | None:
        return next((name for name in names.by_signal[signal] if name + suffix in named), None)

    gauges, counters, histograms = {}, {}, {}
    for signal in GAUGES:
        if (name := spelled(signal)) is not None:
            gauges[signal] = grid.gauge(named[name])
    for signal in COUNTERS:
        if (name := spelled(signal)) is not None:
            counters[signal] = grid.counter(named[name])
    for signal in HISTOGRAMS:
        name = spelled(signal, "_count")
        if name is not None and name + "_sum" in named:
            histograms[signal] = Histogram(
                grid.counter(named[name + "_sum"]), grid.counter(named[name + "_count"]), *grid.buckets(edges[name])
            )
    model = next((s.labels["model_name"] for s in series if "model_name" in s.labels), "")
    return Rank(instance, engine, model, grid.times_ms, gauges, counters, histograms, cache)


def _bound(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _cache_config(info: Sequence[Samples], ranks: int) -> CacheConfig:
    """With data parallelism every rank shows the sum of all ranks' blocks (0.11.0), so it is shared out here."""
    if not info:
        return CacheConfig()
    labels: Labels = max(info, key=lambda s: int(s.times_ms[-1])).labels
    caching = labels.get("enable_prefix_caching")
    blocks = _whole(labels.get("num_gpu_blocks"))
    return CacheConfig(
        _whole(labels.get("block_size")),
        blocks // ranks if blocks is not None and ranks > 1 else blocks,
        None if caching not in ("True", "False") else caching == "True",
    )


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None
