"""What one diagnosis looks at: replicas and ranks as numpy arrays on their own scrape times.

Every array of a replica has one entry per scrape attempt (`times_ms`), NaN where that scrape brought nothing. Counters
carry a running total in which resets are mended and a series born above zero counts from zero. Nothing here judges.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress

import numpy as np
import numpy.typing as npt

from collectors.model import Floats, Int64s, Labels

NAN = float("nan")


def index_at(times_ms: Int64s, at_ms: int) -> int:
    """Index of the last time <= at_ms; -1 when there is none."""
    return int(times_ms.searchsorted(at_ms, side="right")) - 1


class Scraped:
    """Something on the scrape times of a replica. `places` is shared by all of it: an instant is looked up once, and laws and causes ask for
    the same few dozen instants thousands of times."""

    times_ms: Int64s
    places: dict[int, int]

    def at(self, at_ms: int) -> int:
        """Index of the last scrape <= at_ms; -1 when there is none."""
        found = self.places.get(at_ms)
        if found is None:
            found = self.places[at_ms] = index_at(self.times_ms, at_ms)
        return found


@dataclass(frozen=True)
class Counter(Scraped):
    """A counter on its replica's scrape times.

    values: raw, NaN where the scrape brought nothing. total: increases added up since the start of the window (a fall
    counts the new value as the increase, as Prometheus does), carried over gaps. drops_ms: scrapes at which the raw
    value fell. born_ms: the scrape at which the series appeared although its target had been scraped without it; what
    it held then is part of `total` (rate() never sees that).
    """

    times_ms: Int64s
    values: Floats
    total: Floats
    drops_ms: tuple[int, ...] = ()
    born_ms: int | None = None
    places: dict[int, int] = field(default_factory=dict, repr=False, compare=False)

    def increase(self, start_ms: int, end_ms: int) -> float:
        """Increase between the last scrapes at or before start and end; NaN without two scrapes to compare."""
        last, first = self.at(end_ms), max(self.at(start_ms), 0)
        if last <= first:
            return NAN
        return float(self.total[last] - self.total[first])

    def rate(self, start_ms: int, end_ms: int) -> float:
        """Increase per second of the time between the two scrapes that `increase` compares; NaN when it is."""
        last, first = self.at(end_ms), max(self.at(start_ms), 0)
        if last <= first:
            return NAN
        return float(self.total[last] - self.total[first]) * 1000.0 / float(self.times_ms[last] - self.times_ms[first])

    def last_rise_ms(self, until_ms: int) -> int | None:
        """The latest scrape at or before until_ms at which the counter had grown; None when it never did."""
        last = self.at(until_ms)
        if last < 1:
            return None
        if self.total[last] > self.total[last - 1]:
            return int(self.times_ms[last])
        rises = np.flatnonzero(self.total[1 : last + 1] > self.total[:last])
        return int(self.times_ms[rises[-1] + 1]) if len(rises) else None


@dataclass(frozen=True)
class Histogram:
    """A classic histogram: sum and count over the whole window, buckets only near the instants that were asked for.

    edges: upper bounds ascending, +Inf last. bucket_times_ms [k] and buckets [k, edges]: cumulative counts at the
    scrapes that were fetched with buckets (the last few and the first few of the window).
    """

    sum: Counter
    count: Counter
    edges: Floats
    bucket_times_ms: Int64s
    buckets: Floats
    gapless: bool = False
    """Known to have a count in every bucket at every one of `bucket_times_ms`."""

    @cached_property
    def complete(self) -> npt.NDArray[np.bool_]:
        """At which of `bucket_times_ms` every bucket has a count."""
        return np.asarray(~np.isnan(self.buckets).any(axis=1))

    @cached_property
    def always_complete(self) -> bool:
        return self.gapless or bool(self.complete.all())

    def mean(self, start_ms: int, end_ms: int) -> float:
        """Mean of the observations made between two instants; NaN when there were none."""
        count = self.count.increase(start_ms, end_ms)
        return self.sum.increase(start_ms, end_ms) / count if count > 0 else NAN


@dataclass(frozen=True)
class HttpSeries:
    """One child of http_requests_total: `status` is grouped (2xx .. 5xx) in vLLM."""

    handler: str
    method: str
    status: str
    counter: Counter

    @property
    def generates(self) -> bool:
        """Whether the route makes tokens (the OpenAI and the plain generation routes)."""
        return self.handler.rstrip("/").endswith(GENERATING_ROUTES)


GENERATING_ROUTES = ("/completions", "/responses", "/generate", "/v1/messages", "/invocations", "/embeddings")


@dataclass(frozen=True)
class CacheConfig:
    """What cache_config_info tells; None = not told."""

    block_size_tokens: int | None = None
    blocks: int | None = None
    prefix_caching: bool | None = None

    @property
    def pool_tokens(self) -> int | None:
        """Usable KV slots in tokens; one block is the null block and never usable (scheduler facts G1)."""
        if self.block_size_tokens is None or self.blocks is None:
            return None
        return (self.blocks - 1) * self.block_size_tokens


@dataclass(frozen=True)
class Rank(Scraped):
    """One engine of a replica. `gauges`, `counters`, `histograms` are keyed by canonical signal; absent = no series."""

    instance: str
    engine: str
    model: str
    times_ms: Int64s
    gauges: Mapping[str, Floats]
    counters: Mapping[str, Counter]
    histograms: Mapping[str, Histogram]
    cache: CacheConfig = CacheConfig()
    places: dict[int, int] = field(default_factory=dict, repr=False, compare=False)

    def gauge(self, signal: str, start_ms: int, end_ms: int) -> Floats:
        """Values of a gauge scraped with start < t <= end, without the gaps; empty when there are none."""
        values = self.gauges.get(signal)
        if values is None:
            return np.empty(0)
        window = values[self.at(start_ms) + 1 : self.at(end_ms) + 1]
        return window[~np.isnan(window)]

    def last(self, signal: str, at_ms: int) -> float:
        """The newest value of a gauge at or before an instant; NaN when there is none."""
        values = self.gauges.get(signal)
        if values is None:
            return NAN
        newest = self.at(at_ms)
        if newest >= 0 and values[newest] == values[newest]:
            return float(values[newest])
        seen = values[: newest + 1]
        seen = seen[~np.isnan(seen)]
        return float(seen[-1]) if len(seen) else NAN

    def increase(self, signal: str, start_ms: int, end_ms: int) -> float:
        """Increase of a counter, or of a histogram's count; NaN when the series is absent."""
        counter = self.counter(signal)
        return counter.increase(start_ms, end_ms) if counter is not None else NAN

    def rate(self, signal: str, start_ms: int, end_ms: int) -> float:
        """Rate per second of a counter, or of a histogram's count; NaN when the series is absent."""
        counter = self.counter(signal)
        return counter.rate(start_ms, end_ms) if counter is not None else NAN

    def mean(self, signal: str, start_ms: int, end_ms: int) -> float:
        """Mean observation of a histogram between two instants; NaN when nothing was observed."""
        histogram = self.histograms.get(signal)
        return histogram.mean(start_ms, end_ms) if histogram is not None else NAN

    def counter(self, signal: str) -> Counter | None:
        """The counter of a signal; for a histogram its count."""
        found = self.counters.get(signal)
        if found is None and signal in self.histograms:
            return self.histograms[signal].count
        return found

    def present(self, at_ms: int, since_ms: int) -> frozenset[str]:
        """Signals with at least one sample in (since, at]."""
        names, shown, everywhere = self._shown
        first, behind = self.at(since_ms) + 1, self.at(at_ms) + 1
        if everywhere and first < behind:
            return everywhere
        seen = np.asarray(shown[:, first:behind].any(axis=1))
        return frozenset(compress(names, seen.tolist()))

    @cached_property
    def _shown(self) -> tuple[tuple[str, ...], npt.NDArray[np.bool_], frozenset[str]]:
        """The signals; at which scrapes each has a sample, (signals, scrapes); all of them where each has one at every scrape."""
        lines = [
            *self.gauges.items(),
            *((name, counter.values) for name, counter in self.counters.items()),
            *((name, histogram.count.values) for name, histogram in self.histograms.items()),
        ]
        values = np.array([line for _, line in lines]).reshape(len(lines), len(self.times_ms))
        names, shown = tuple(name for name, _ in lines), ~np.isnan(values)
        return names, shown, frozenset(names) if shown.all() else frozenset()


@dataclass(frozen=True)
class Replica:
    """One scraped target. `up` is NaN where the source holds no `up` sample for that scrape; `answered`: it brought samples.

    duplicates: label sets under which the same process was found again (HA pair, two jobs); their samples are not used.
    """

    instance: str
    labels: Labels
    times_ms: Int64s
    interval_ms: int
    up: Floats
    process_start_seconds: Floats
    scrape_duration_seconds: Floats
    answered: npt.NDArray[np.bool_]
    http: tuple[HttpSeries, ...]
    ranks: tuple[Rank, ...]
    duplicates: tuple[Labels, ...] = ()

    @property
    def model(self) -> str:
        return self.ranks[0].model if self.ranks else ""

    @cached_property
    def restarts_ms(self) -> tuple[int, ...]:
        """Scrapes that were the first to show a new process_start_time_seconds."""
        seen = np.flatnonzero(~np.isnan(self.process_start_seconds))
        starts = self.process_start_seconds[seen]
        moved = np.flatnonzero(np.abs(np.diff(starts)) > 0.5) + 1  # clocks are whole or exact; 0.5 s forgives rounding
        return tuple(int(t) for t in self.times_ms[seen[moved]])

    @cached_property
    def start_times_alternate(self) -> bool:
        """Whether the process start time ever moves back: two processes answer in turn behind one address."""
        starts = self.process_start_seconds[~np.isnan(self.process_start_seconds)]
        return bool((np.diff(starts) < -0.5).any())

    def epoch_start_ms(self, at_ms: int) -> int:
        """First scrape of the process that runs at an instant, as far as the window shows."""
        past = [] if self.start_times_alternate else [t for t in self.restarts_ms if t <= at_ms]
        return past[-1] if past else (int(self.times_ms[0]) if len(self.times_ms) else at_ms)

    def http_increase(self, start_ms: int, end_ms: int, *, statuses: str = "", generating: bool = True) -> float:
        """Requests that ended between two instants. statuses: first digits to count ("45" = 4xx and 5xx; "" = all)."""
        chosen = [
            series.counter.increase(start_ms, end_ms)
            for series in self.http
            if (not statuses or series.status[:1] in statuses) and (series.generates or not generating)
        ]
        known = [value for value in chosen if value == value]
        return float(sum(known)) if known else (0.0 if self.http else NAN)


@dataclass(frozen=True)
class Observations:
    """Everything one diagnosis reads, fetched once. `start_ms` is the first sample that was found (>= at - lookback)."""

    at_ms: int
    start_ms: int
    interval_ms: int
    replicas: tuple[Replica, ...]
    engine_version: str = ""
    warnings: tuple[str, ...] = ()
    query_count: int = 0
    source_name: str = ""

    def ranks(self) -> Iterator[tuple[Replica, Rank]]:
        """Every rank with its replica, ordered by instance and engine."""
        for replica in self.replicas:
            for rank in replica.ranks:
                yield replica, rank

    def replica(self, instance: str) -> Replica | None:
        return next((replica for replica in self.replicas if replica.instance == instance), None)
