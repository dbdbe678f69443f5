"""Staleness markers for data that lost them: where a target was scraped and a series of it was no longer there.

Prometheus writes a marker at the first scrape that lacks a series which the scrape before it had (a failed scrape lacks all of them but `up` and
the `scrape_*` reports). A range selector's answer does not tell markers, but it tells `up`, which has a sample at every scrape.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from collectors.model import STALE, Int64s, Labels, Samples, is_stale


def target_of(labels: Labels) -> tuple[str, str]:
    """The scraped target that a series belongs to."""
    return labels.get("job", ""), labels.get("instance", "")


def has_markers(series: Iterable[Samples]) -> bool:
    """True when any series holds a staleness marker."""
    return any(bool(is_stale(each.values).any()) for each in series)


def with_markers(series: list[Samples]) -> list[Samples]:
    """The series with markers put in. A series whose times are not scrape times of its target is left alone.

    Only samples up to a marker decide about it, so cutting the data at any instant commutes with this.
    """
    scrapes = scrape_times(series)
    return [marked(each, scrapes.get(target_of(each.labels))) for each in series]


def scrape_times(series: Iterable[Samples]) -> dict[tuple[str, str], Int64s]:
    """When each target was scraped: the times of its `up`."""
    scrapes: dict[tuple[str, str], list[Int64s]] = defaultdict(list)
    for each in series:
        if each.labels.get("__name__") == "up":
            scrapes[target_of(each.labels)].append(each.times_ms)
    return {target: np.unique(np.concatenate(times)) for target, times in scrapes.items()}


def marked(series: Samples, scrapes_ms: Int64s | None) -> Samples:
    """One series with markers at the scrapes of its target that first lack it; unchanged when there is no telling."""
    if scrapes_ms is None or series.times_ms.size == 0 or series.labels.get("__name__") == "up":
        return series
    positions = np.searchsorted(scrapes_ms, series.times_ms)
    if positions[-1] >= scrapes_ms.size or not np.array_equal(scrapes_ms[positions], series.times_ms):
        return series
    following = positions + 1
    ends = np.ones(positions.size, dtype=bool)
    ends[:-1] = positions[1:] != following[:-1]
    ends &= (following < scrapes_ms.size) & ~is_stale(series.values)
    if not ends.any():
        return series
    at = np.flatnonzero(ends) + 1
    return Samples(
        series.labels,
        np.insert(series.times_ms, at, scrapes_ms[following[ends]]),
        np.insert(series.values, at, STALE),
    )
