"""Latency objectives: the anomaly, and an undetermined verdict where no cause explains it."""

from __future__ import annotations

import numpy as np

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
    place = np.flatnonzero(np.isclose(histogram.edges, threshold_seconds, rtol=1e-9))
    counts = histogram.buckets[near]
    if len(counts) < 2 or not len(place):
        return None
    observed = counts[-1] - counts[0]
    total = float(observed[-1])
    return (1 - float(observed[place[0]]) / total, total) if total > 0 else None
