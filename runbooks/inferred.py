"""What no metric of 0.11.0 says outright and the samples still show: uncounted preemptions, how long a step can be."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from collectors.observed import Rank
from runbooks.episodes import moving_since


def hidden_preemptions(rank: Rank, start_ms: int, end_ms: int) -> int:
    """Preemptions between two instants that show in the gauges only: blocks given back, or a running request waiting
    again, while nobody left. The counter moves with the victim's next token, its blocks are freed at once (facts I9, E4).
    """
    times = rank.times_ms
    usage, running = rank.gauges.get("kv_cache_usage"), rank.gauges.get("requests_running")
    waiting, finished = rank.gauges.get("requests_waiting"), rank.counter("requests_finished")
    if usage is None or running is None or waiting is None or finished is None:
        return 0
    chosen = np.flatnonzero((times > start_ms) & (times <= end_ms) & ~np.isnan(usage) & ~np.isnan(running + waiting))
    if len(chosen) < 2:
        return 0
    used, run, wait = usage[chosen], running[chosen], waiting[chosen]
    left = (np.diff(run + wait) < 0) | (np.diff(finished.total[chosen]) > 0)
    share = np.maximum(0.01, 0.3 / np.maximum((run + wait)[:-1], 1.0))
    freed = -np.diff(used) > share
    put_back = (np.diff(run) < 0) & (np.diff(wait) > 0)
    return int(np.sum((freed | put_back) & ~left & (used[:-1] > 0.5)))


def longest_silence_ms(rank: Rank, progress: Sequence[str], start_ms: int, end_ms: int) -> int:
    """Longest time between two scrapes with progress, in between which requests ran all along; 0 when there is none."""
    running = rank.gauges.get("requests_running")
    if running is None or len(running) < 2:
        return 0
    moved = np.zeros(len(running), dtype=bool)
    for signal in progress:
        counter = rank.counter(signal)
        if counter is not None:
            moved[1:] |= counter.total[1:] > counter.total[:-1]
    moved &= (rank.times_ms >= start_ms) & (rank.times_ms <= end_ms)
    places = np.flatnonzero(moved)
    if len(places) < 2:
        return 0
    # what lies between two rises: the lowest number of running requests from the earlier on, the later left out
    lowest = np.fmin.reduceat(running, places)[:-1]
    lengths = np.diff(rank.times_ms[places])[lowest > 0]
    return int(lengths.max(initial=0))


def preempting_since_ms(rank: Rank, quiet_ms: int) -> int | None:
    """When the preemptions that go on now began to be counted; None while none is counted, or after a pause longer than `quiet_ms`."""
    counter = rank.counter("preemptions")
    return None if counter is None else moving_since(counter.times_ms, counter.total, quiet_ms)
