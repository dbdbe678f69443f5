"""One scraped target laid on its scrape times: from sheets of raw samples to a Replica with its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from collectors.model import Floats, Int64s, Labels, is_stale
from collectors.observed import CacheConfig, Counter, Histogram, HttpSeries, Rank, Replica
from collectors.observed_counters import Flags, added, all_mended
from collectors.observed_layout import BucketRows, EngineRows, Names, RankRows, bucket_rows, engine_rows
from collectors.sheets import Share, Sheet, TargetKey, rows_of

NO_BUCKETS = (np.empty(0), np.empty(0, dtype=np.int64), np.empty((0, 0)))


@dataclass
class Target:
    """All samples of one scraped target, by what they are."""

    key: TargetKey
    engine: list[Sheet] = field(default_factory=list)
    web: list[Sheet] = field(default_factory=list)
    own: list[Sheet] = field(default_factory=list)
    info: list[Sheet] = field(default_factory=list)
    buckets: list[Sheet] = field(default_factory=list)

    @property
    def labels(self) -> dict[str, str]:
        return dict(self.key)

    def times_ms(self) -> Int64s:
        """Every instant at which any series of the target has a sample (or a staleness marker)."""
        return _union([*self.own, *self.engine, *self.web])

    def plan(self, names: Names) -> EngineRows:
        """What the engine series are."""
        return engine_rows(_shares(self.engine), names)


def _shares(sheets: Sequence[Sheet]) -> tuple[Share, ...]:
    return tuple(sheet.share for sheet in sheets)


def _union(sheets: Sequence[Sheet]) -> Int64s:
    distinct = {sheet.times_ms.tobytes(): sheet.times_ms for sheet in sheets}
    if len(distinct) == 1:
        return next(iter(distinct.values()))
    return np.unique(np.concatenate(list(distinct.values()))) if distinct else np.empty(0, dtype=np.int64)


def _laid(times_ms: Int64s, sheets: Sequence[Sheet]) -> Floats:
    """The sheets one above the other on times that hold all of theirs: NaN where a series has no sample or a staleness marker."""
    key = times_ms.tobytes()
    laid = []
    for sheet in sheets:
        values = sheet.values
        if not sheet.plain and (stale := is_stale(values)).any():
            values = np.where(stale, np.nan, values)
        if sheet.times_ms.tobytes() != key:
            wider = np.full((len(values), len(times_ms)), np.nan)
            wider[:, np.searchsorted(times_ms, sheet.times_ms)] = values
            values = wider
        laid.append(values)
    if len(laid) == 1:
        return laid[0]
    return np.concatenate(laid) if laid else np.empty((0, len(times_ms)))


class _Grid:
    """The scrape times of one target, and what its process told at them."""

    def __init__(self, target: Target, plan: EngineRows) -> None:
        self.times_ms = target.times_ms()
        self.places: dict[int, int] = {}
        self.engine = _laid(self.times_ms, target.engine)
        own = _laid(self.times_ms, target.own)
        named = {row.labels["__name__"]: row.row for row in rows_of(_shares(target.own))}
        nothing = np.full(len(self.times_ms), np.nan)

        def of(name: str) -> Floats:
            return own[named[name]] if name in named else nothing

        self.up = of("up")
        self.starts_seconds = of("process_start_time_seconds")
        self.scrape_duration_seconds = of("scrape_duration_seconds")
        self.answered: Flags = ~np.isnan(self.starts_seconds)
        if not self.answered.any():  # several API servers export no process_*: engine series stand for it
            self.answered = np.asarray(~np.isnan(self.engine[plan.answering]).all(axis=0))

    def counters(self, values: Floats) -> list[Counter]:
        return all_mended(self.times_ms, values, self.answered, self.starts_seconds, self.places)


class _Buckets:
    """The buckets of a target at the scrapes for which they were fetched, near the two ends of the window."""

    def __init__(self, sheets: Sequence[Sheet], names: Names) -> None:
        together: dict[Share, list[Sheet]] = {}
        for sheet in sheets:
            together.setdefault(sheet.share, []).append(sheet)
        wider = [_end_to_end(pieces) for pieces in together.values()]
        self._rows = bucket_rows(_shares(wider), names)
        self._times_ms = _union(wider)
        self._counts = np.ascontiguousarray(_laid(self._times_ms, wider).T)
        self.gapless = not np.isnan(self._counts).any()

    def of(self, engine: str, name: str) -> tuple[Floats, Int64s, Floats]:
        """(edges [e], times_ms [k], cumulative counts [k, e]) of one histogram."""
        found: BucketRows | None = self._rows.get((engine, name))
        if found is None:
            return NO_BUCKETS
        if found.single is not None:
            counts = self._counts[:, found.single]
        else:
            counts = np.stack([np.fmax.reduce(self._counts[:, rows], axis=1) for rows in found.rows], axis=1)
        if self.gapless:
            return found.edges, self._times_ms, counts
        seen = ~np.isnan(counts).all(axis=1)
        return found.edges, self._times_ms[seen], counts[seen]


def _end_to_end(pieces: Sequence[Sheet]) -> Sheet:
    """Pieces of the very same series, one after the other in time."""
    if len(pieces) == 1:
        return pieces[0]
    return Sheet(
        pieces[0].share,
        np.concatenate([piece.times_ms for piece in pieces]),
        np.concatenate([piece.values for piece in pieces], axis=1),
        all(piece.plain for piece in pieces),
    )


def replica_of(target: Target, name: str, names: Names, interval_ms: int) -> Replica:
    """One target as a Replica with its ranks, ordered by engine number."""
    plan = target.plan(names)
    grid = _Grid(target, plan)
    buckets = _Buckets(target.buckets, names)
    counted = dict(zip(plan.counting.tolist(), grid.counters(grid.engine[plan.counting]), strict=True))
    cache = _cache_config(target.info, len(plan.ranks))
    return Replica(
        instance=name,
        labels=target.labels,
        times_ms=grid.times_ms,
        interval_ms=median_gap_ms(np.diff(grid.times_ms)) if len(grid.times_ms) > 1 else interval_ms,
        up=grid.up,
        process_start_seconds=grid.starts_seconds,
        scrape_duration_seconds=grid.scrape_duration_seconds,
        answered=grid.answered,
        http=_http(target.web, grid),
        ranks=tuple(_rank(name, rank, grid, counted, buckets, cache) for rank in plan.ranks),
    )


def median_gap_ms(gaps_ms: Int64s) -> int:
    """The median of some distances in whole milliseconds, what lies between two rounded down. `gaps_ms` is not empty."""
    ordered = np.sort(gaps_ms)
    return (int(ordered[(len(ordered) - 1) // 2]) + int(ordered[len(ordered) // 2])) // 2


def _http(sheets: Sequence[Sheet], grid: _Grid) -> tuple[HttpSeries, ...]:
    counters = grid.counters(_laid(grid.times_ms, sheets))
    return tuple(
        HttpSeries(
            row.labels.get("handler", ""), row.labels.get("method", ""), row.labels.get("status", ""), counters[row.row]
        )
        for row in rows_of(_shares(sheets))
    )


def _rank(
    instance: str, rank: RankRows, grid: _Grid, counted: dict[int, Counter], buckets: _Buckets, cache: CacheConfig
) -> Rank:
    gauges = {  # copies of one gauge, one per API server process: the largest is the newest
        signal: grid.engine[rows[0]] if len(rows) == 1 else np.fmax.reduce(grid.engine[list(rows)])
        for signal, rows in rank.gauges.items()
    }
    counters = {signal: added([counted[row] for row in rows]) for signal, rows in rank.counters.items()}
    histograms = {
        signal: Histogram(
            added([counted[row] for row in sums]),
            added([counted[row] for row in counts]),
            *buckets.of(rank.engine, name),
            gapless=buckets.gapless,
        )
        for signal, (name, sums, counts) in rank.histograms.items()
    }
    return Rank(instance, rank.engine, rank.model, grid.times_ms, gauges, counters, histograms, cache, grid.places)


def _cache_config(info: Sequence[Sheet], ranks: int) -> CacheConfig:
    """With data parallelism every rank shows the sum of all ranks' blocks (0.11.0), so it is shared out here."""
    if not info:
        return CacheConfig()
    newest = max(rows_of(_shares(info)), key=lambda row: int(info[row.sheet].times_ms[-1]))
    labels: Labels = newest.labels
    caching = labels.get("enable_prefix_caching")
    blocks = _whole(labels.get("num_gpu_blocks"))
    return CacheConfig(
        _whole(labels.get("block_size")),
        blocks // ranks if blocks is not None and ranks > 1 else blocks,
        None if caching not in ("True", "False") else caching == "True",
    )


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None
