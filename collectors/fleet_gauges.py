"""Rows of the fleet's queries by rank and replica: gauges on a grid, rates at an instant."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from collectors.identity import FleetTree, Rank
from collectors.model import Floats, Frame, Labels, Vector
from collectors.scraped import MODEL, PID, Key
from collectors.signals import SIGNAL, Plan

GAUGES = ("requests_waiting", "requests_running", "kv_cache_usage")


@dataclass(frozen=True)
class RankGauges:
    """The gauges of every rank on one grid: arrays of shape (ranks, steps), NaN where there is no sample."""

    owners: tuple[tuple[Key, Rank], ...]
    values: Mapping[str, Floats]
    """By canonical signal."""
    rows_of: Mapping[Key, tuple[int, ...]]
    seen: frozenset[str]
    """Signals that have a series somewhere in the window."""

    def total(self, signal: str, key: Key) -> Floats:
        """Sum over a replica's ranks; NaN where none has a sample."""
        rows: Floats = self.values[signal][list(self.rows_of.get(key, ()))]
        return _sum_known(rows, self.values[signal].shape[1])

    def highest(self, signal: str, key: Key) -> Floats:
        rows = self.values[signal][list(self.rows_of.get(key, ()))]
        if len(rows) < 2:
            return rows[0] if len(rows) else np.full(self.values[signal].shape[1], np.nan)
        return np.where(np.isnan(rows).all(axis=0), np.nan, np.max(np.nan_to_num(rows, nan=-np.inf), axis=0))


def _sum_known(rows: Floats, steps: int) -> Floats:
    if len(rows) == 1:
        only: Floats = rows[0]
        return only
    if not len(rows):
        return np.full(steps, np.nan)
    return np.where(np.isnan(rows).all(axis=0), np.nan, np.nansum(rows, axis=0))


def rank_gauges(frame: Frame, plan: Plan) -> RankGauges:
    """Rows of the gauge query by rank; of two names for one signal the preferred one counts where it has a sample.

    A process with several API servers answers in several rows: the highest counts. One that is scraped twice is read from the
    scraper that saw most of it, the others fill its gaps: the highest of two moments would be more than there ever was.
    """
    signal_of = {name: (signal, i) for signal in GAUGES for i, name in enumerate(plan.spellings(signal))}
    rank_label = plan.tree.rank_label
    index: dict[tuple[Key, Rank], int] = {}
    placed: list[tuple[str, int, int, int]] = []
    for row, labels in enumerate(frame.labels):
        known = signal_of.get(labels.get("__name__", ""))
        if known is None:
            continue
        owner = (plan.tree.key_of(labels), Rank(labels.get(rank_label, ""), labels.get(MODEL, "")))
        placed.append((known[0], known[1], index.setdefault(owner, len(index)), row))
    values = {signal: np.full((len(index), frame.window.steps), np.nan) for signal in GAUGES}
    best: dict[tuple[str, int], int] = {}
    for signal, preference, at, _ in placed:
        best[signal, at] = min(preference, best.get((signal, at), preference))
    scraped: dict[tuple[str, int], dict[tuple[tuple[str, str], ...], Floats]] = defaultdict(dict)
    for signal, preference, at, row in placed:
        into, sampled = values[signal][at], frame.values[row]
        if preference == best[signal, at]:
            if plan.tree.duplicated:
                scraper = _scraper(frame.labels[row])
                into = scraped[signal, at].setdefault(scraper, np.full(frame.window.steps, np.nan))
            np.fmax(into, sampled, out=into)
    for (signal, at), lines in scraped.items():
        for _, line in sorted(lines.items(), key=lambda item: (int(np.isnan(item[1]).sum()), item[0])):
            into = values[signal][at]
            np.copyto(into, line, where=np.isnan(into))
    for signal, preference, at, row in placed:
        if preference > best[signal, at]:
            into = values[signal][at]
            np.copyto(into, frame.values[row], where=np.isnan(into))
    rows_of: dict[Key, list[int]] = defaultdict(list)
    for (key, _), at in index.items():
        rows_of[key].append(at)
    return RankGauges(
        tuple(index), values, {k: tuple(v) for k, v in rows_of.items()}, frozenset(signal for signal, *_ in placed)
    )


def _scraper(labels: Labels) -> tuple[tuple[str, str], ...]:
    """What tells the scrapes of one process apart; API servers of one scrape differ in the pid only."""
    return tuple(sorted(pair for pair in labels.items() if pair[0] not in ("__name__", PID)))


STALE_INTERVALS = 2.5
"""A sample older than this many scrapes is no longer the present state; one missed scrape is forgiven."""


def without_stale_tails(
    gauges: RankGauges, tree: FleetTree, times_seconds: Floats, interval_seconds: float
) -> RankGauges:
    """The gauges without the points that a source repeats after a series ended.

    A Prometheus that scraped the target itself ends a series with a staleness marker; one that was filled later, and some managed
    services, go on showing the last sample for the lookback of five minutes.
    """
    values = {signal: rows.copy() for signal, rows in gauges.values.items()}
    for key, rows in gauges.rows_of.items():
        replica = tree.replica(key)
        if replica is None or replica.sampled_ms is None:
            continue
        ended = times_seconds > replica.sampled_ms / 1000 + STALE_INTERVALS * interval_seconds
        if ended.any():
            for table in values.values():
                table[np.ix_(np.asarray(rows), np.flatnonzero(ended))] = np.nan
    return RankGauges(gauges.owners, values, gauges.rows_of, gauges.seen)


def just_missed(
    gauges: RankGauges, tree: FleetTree, times_seconds: Floats, interval_seconds: float | None
) -> frozenset[Key]:
    """Replicas whose last scrape failed, but not the ones just before: a missed scrape or two is no outage."""
    if interval_seconds is None or len(times_seconds) < 2:
        return frozenset()
    patience = STALE_INTERVALS * interval_seconds + float(times_seconds[1] - times_seconds[0])
    recent = times_seconds >= times_seconds[-1] - patience
    running = gauges.values["requests_running"]
    return frozenset(
        replica.key
        for replica in tree.replicas
        if replica.up is False
        and (rows := gauges.rows_of.get(replica.key))
        and not bool(np.isnan(running[np.asarray(rows)][:, recent]).all())
    )


@dataclass(frozen=True)
class InstantRates:
    """Rates per rank at the picture's instant, by part name, and their sums per replica."""

    by_rank: Mapping[str, Mapping[tuple[Key, str], float]]
    """part -> (replica key, engine) -> per second"""
    by_replica: Mapping[str, Mapping[Key, float]]

    def of(self, part: str, key: Key) -> float | None:
        return self.by_replica.get(part, {}).get(key)


def instant_rates(vector: Vector, plan: Plan) -> InstantRates:
    """Rows of an `or` chain of rates, by rank (or by replica where the query kept no rank)."""
    ranks: dict[str, dict[tuple[Key, str], float]] = defaultdict(dict)
    replicas: dict[str, dict[Key, float]] = defaultdict(dict)
    for labels, value in zip(vector.labels, vector.values.tolist(), strict=True):
        part, key, engine = labels.get(SIGNAL, ""), plan.tree.key_of(labels), labels.get(plan.tree.rank_label, "")
        ranks[part][key, engine] = ranks[part].get((key, engine), 0.0) + value
        replicas[part][key] = replicas[part].get(key, 0.0) + value
    return InstantRates(ranks, replicas)
