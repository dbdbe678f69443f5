"""Latency objectives: the anomaly, and an undetermined verdict where no cause explains it."""

from __future__ import annotations

import numpy as np

from runbooks.episodes import holding_since
from runbooks.reading import Reading


def late_share(reading: Reading, signal: str, threshold_seconds: float) -> tuple[float, float] | None:
    """(share over the threshold, observations) in the newest scrapes with buckets; None when the edge or data are missing.

    Exact: the threshold is a bucket edge (the settings see to that).
    """
    histogram = reading.rank.histograms.get(signal)
    if histogram is None or len(histogram.edges) < 2:
        return None
    near = (histogram.bucket_times_ms >= max(reading.epoch_ms, reading.recent[0])) & (
        histogram.bucket_times_ms <= reading.seen_ms
    )
    place = np.flatnonzero(np.abs(histogram.edges - threshold_seconds) <= 1e-8 + 1e-9 * threshold_seconds)
    counts = histogram.buckets[near]
    if len(counts) < 2 or not len(place):
        return None
    observed = counts[-1] - counts[0]
    total = float(observed[-1])
    return (1 - float(observed[place[0]]) / total, total) if total > 0 else None


def late_since_ms(reading: Reading, signal: str, mean_seconds: float) -> int:
    """First scrape of the stretch up to now in which the mean observation has been at least so long.

    Buckets are fetched for the newest scrapes only; sum and count are there for the whole window. While a share s of the
    observations is later than t, their mean is at least s x t: before the mean reached that, the share cannot have been.
    Scrapes without observations say nothing. Where even the newest are below it, it began with the recent window.
    """
    histogram = reading.rank.histograms.get(signal)
    begin = reading.recent[0]
    if histogram is None:
        return begin
    times = histogram.count.times_ms
    chosen = (times >= reading.epoch_ms) & (times <= reading.seen_ms)
    times, count, total = times[chosen], histogram.count.total[chosen], histogram.sum.total[chosen]
    observed = np.diff(count)
    seen = observed > 0
    if not seen.any():
        return begin
    mean = np.diff(total)[seen] / observed[seen]
    since = holding_since(times[1:][seen], mean >= mean_seconds)
    return min(since, reading.seen_ms) if since is not None else begin
