"""engine_slow: the token gap is up although nothing about the work explains it."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from collectors.model import Floats
from collectors.observed import Counter
from runbooks.quantile import median, quantile
from runbooks.reading import Reading
from runbooks.scene import Scene, Suspicion

READS = frozenset({"inter_token_latency", "time_to_first_token", "requests_running"})
EXPLAINS = frozenset({"overload", "seat_limited", "client_aborts"})
NEWEST_BLOCKS = 4
"""The newest minute in quarters; four scrapes where they are further apart."""
CALM_QUANTILE = 0.1
"""Of the blocks before the newest: a level that a slow stretch does not reach until it fills nine tenths of the window."""
BASELINE_BLOCKS = 48
"""No more than this many blocks before the onset are compared with."""


def engine_slow(scene: Scene) -> list[Suspicion]:
    """Ranks whose newest minute is slower, block for block, than the slowest earlier block with at least the same load.

    Load = arrivals, prompt tokens computed, answer length; the batch is left out on purpose, since a slow engine grows
    its own batch (same arrivals, longer stay). Comparing with the slowest earlier block keeps noise out.
    """
    found = []
    for place, reading in scene.readings.items():
        if scene.state(place) not in ("serving", "prefill_only"):
            continue
        suspicion = _suspect(scene, reading)
        if suspicion is not None:
            found.append(suspicion)
    return found


def _suspect(scene: Scene, reading: Reading) -> Suspicion | None:
    limits = scene.limits
    edges = _edges(reading, round(1000 * limits("engine_slow", "block_seconds")))
    gaps = _gaps(reading, edges)
    first = len(gaps) - NEWEST_BLOCKS
    if first < limits("engine_slow", "baseline_blocks") or np.isnan(gaps[first:]).any():
        return None
    newest, before = gaps[first:], gaps[:first]
    measured = before[~np.isnan(before)]
    if not len(measured):
        return None
    calm_level, level = quantile(measured, CALM_QUANTILE), median(newest)
    if level < limits("engine_slow", "gap_ratio") * calm_level:
        return None
    began = _began(gaps, first, math.sqrt(calm_level * level))
    calm = _at_ease(reading, edges[:began]) & ~np.isnan(gaps[: began - 1])
    earlier = gaps[: began - 1][calm][-BASELINE_BLOCKS:]
    if len(earlier) < limits("engine_slow", "baseline_blocks"):
        return None
    usual = median(earlier)
    if level < limits("engine_slow", "gap_ratio") * usual or newest.min() <= earlier.max():
        return None
    onset, end = edges[began], edges[-1]
    now = (onset, end)  # the whole slow stretch: a minute alone is noisy
    grown = _load_growth(reading, (edges[0], edges[began - 1]), now)
    if grown is None or max(grown.values()) > limits("engine_slow", "load_ratio"):
        return None
    if reading.preemptions > 0 or reading.hidden_preemptions or reading.lookups_inflated:
        return None
    words = ", ".join(f"{name} x {ratio:.2f}" for name, ratio in grown.items())
    fresh = reading.epoch_ms > reading.window_start_ms
    return Suspicion(
        cause="engine_slow",
        confidence="likely",
        places=(reading.place,),
        since_ms=onset,
        evidence=(
            f"token gap {1000 * level:.0f} ms against {1000 * usual:.0f} ms before",
            f"the work did not grow ({words}, against before)",
            f"each quarter of the last {(end - edges[first]) / 1000:.0f} s was slower than the slowest stretch before",
        ),
        aggravated_by=("cold_compile_after_start",) if fresh else (),
        runner_up="overload",
        separating_check="read clocks, power and temperature of the device, and what else runs on the host",
        cannot_know=("why: throttling, a noisy neighbour and cold compilation look alike in these metrics",),
        reads=READS,
        explains=EXPLAINS,
    )


def _edges(reading: Reading, block_ms: int) -> list[int]:
    """Scrapes that bound the blocks of the window, oldest first, counted back from the newest: a block is at least nearly
    `block_ms` long, or one scrape interval where that is longer. A block never ends between two scrapes."""
    counter = reading.rank.counter("inter_token_latency")
    if counter is None:
        return []
    seen = ~np.isnan(counter.values) & (counter.times_ms <= reading.seen_ms)
    edges: list[int] = []
    for t in counter.times_ms[seen][::-1].tolist():
        if not edges or edges[-1] - t >= 0.9 * block_ms:
            edges.append(int(t))
    return edges[::-1]


def _at_edges(counter: Counter, edges: list[int]) -> Floats:
    """A counter's total at each edge."""
    return counter.total[np.maximum(counter.times_ms.searchsorted(edges, side="right") - 1, 0)]


def _gaps(reading: Reading, edges: list[int]) -> Floats:
    """Mean token gap of every block; NaN where none was measured."""
    histogram = reading.rank.histograms.get("inter_token_latency")
    if histogram is None or len(edges) < 2:
        return np.empty(0)
    count, total = np.diff(_at_edges(histogram.count, edges)), np.diff(_at_edges(histogram.sum, edges))
    gaps: Floats = np.divide(total, count, out=np.full(len(count), np.nan), where=count > 0)
    return gaps


def _at_ease(reading: Reading, edges: list[int]) -> npt.NDArray[np.bool_]:
    """Which blocks had no queue and no preemption: an earlier incident is no yardstick."""
    times, waiting = reading.rank.times_ms, reading.rank.gauges.get("requests_waiting")
    ease = np.ones(max(0, len(edges) - 1), dtype=bool)
    if waiting is not None:
        queued = np.concatenate(([0], np.cumsum(np.nan_to_num(waiting) > 0)))
        ease &= np.diff(queued[times.searchsorted(edges, side="right")]) == 0
    preempted = reading.rank.counter("preemptions")
    if preempted is not None:
        ease &= ~(np.diff(_at_edges(preempted, edges)) > 0)
    return ease


def _began(gaps: Floats, first: int, between: float) -> int:
    """Walk back from the newest blocks while they lie above what is halfway between calm and slow; one below it is forgiven.

    A slow engine near its limit is not evenly slow: it is told by which of the two levels a block is nearer to.
    """
    began = first
    while began > 1 and (gaps[began - 1] >= between or (began > 2 and gaps[began - 2] >= between)):
        began -= 1
    return began


def _load_growth(reading: Reading, before: tuple[int, int], now: tuple[int, int]) -> dict[str, float] | None:
    """Arrivals, computed prompt tokens and answer length now over before; None when any is unknown."""

    def computed(window: tuple[int, int]) -> float:
        prompt, hits = reading.rank.rate("prompt_tokens", *window), reading.rank.rate("prefix_cache_hits", *window)
        return prompt - (hits if hits == hits else 0.0)

    def answer(window: tuple[int, int]) -> float:
        return reading.rank.mean("request_generation_tokens", *window)

    pairs = {
        "arrivals": (reading.arrivals_in(*now), reading.arrivals_in(*before)),
        "prompt tokens": (computed(now), computed(before)),
    }
    if answer(now) == answer(now) and answer(before) == answer(before):
        pairs["answer length"] = (answer(now), answer(before))
    if any(x != x or y != y or y <= 0 for x, y in pairs.values()):
        return None
    return {name: x / y for name, (x, y) in pairs.items()}
