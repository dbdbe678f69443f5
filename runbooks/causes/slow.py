"""engine_slow: the token gap is up although nothing about the work explains it."""

from __future__ import annotations

import numpy as np

from runbooks.reading import Reading
from runbooks.scene import Scene, Suspicion

READS = frozenset({"inter_token_latency", "time_to_first_token", "requests_running"})
EXPLAINS = frozenset({"overload", "seat_limited", "client_aborts"})


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
    block_ms = round(max(1000 * limits("engine_slow", "block_seconds"), 2 * reading.pace.interval_ms))
    window_ms = round(max(1000 * limits("engine_slow", "window_seconds"), 4 * block_ms))
    end = reading.seen_ms
    newest = _blocks(reading, end - window_ms, end, block_ms)
    onset = _onset(reading, end - window_ms, block_ms, newest)
    earlier = _blocks(reading, max(reading.window_start_ms, onset - 12 * window_ms), onset - block_ms, block_ms)
    earlier = earlier[~np.isnan(earlier) & _at_ease(reading, len(earlier), onset - block_ms, block_ms)]
    if np.isnan(newest).any() or len(newest) < 3 or len(earlier) < limits("engine_slow", "baseline_blocks"):
        return None
    usual = float(np.median(earlier))
    if float(np.median(newest)) < limits("engine_slow", "gap_ratio") * usual or newest.min() <= earlier.max():
        return None
    before, now = (reading.window_start_ms, onset - block_ms), (end - window_ms, end)
    grown = _load_growth(reading, before, now)
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
            f"token gap {1000 * float(np.median(newest)):.0f} ms against {1000 * usual:.0f} ms before",
            f"the work did not grow ({words}, against before)",
            f"each quarter of the last {window_ms / 1000:.0f} s was slower than the slowest stretch before",
        ),
        aggravated_by=("cold_compile_after_start",) if fresh else (),
        runner_up="overload",
        separating_check="read clocks, power and temperature of the device, and what else runs on the host",
        cannot_know=("why: throttling, a noisy neighbour and cold compilation look alike in these metrics",),
        reads=READS,
        explains=EXPLAINS,
    )


def _blocks(
    reading: Reading, start_ms: int, end_ms: int, block_ms: int
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Mean token gap of consecutive blocks, the last one ending at end_ms, oldest first."""
    ends = np.arange(end_ms, start_ms + block_ms - 1, -block_ms)[::-1]
    return np.array([reading.rank.mean("inter_token_latency", int(e) - block_ms, int(e)) for e in ends])


def _at_ease(reading: Reading, count: int, end_ms: int, block_ms: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which of the earlier blocks had no queue and no preemption: an earlier incident is no yardstick."""
    ends = end_ms - block_ms * np.arange(count - 1, -1, -1)
    return np.array(
        [
            not reading.rank.gauge("requests_waiting", int(e) - block_ms, int(e)).sum() > 0
            and not reading.rank.increase("preemptions", int(e) - block_ms, int(e)) > 0
            for e in ends
        ],
        dtype=bool,
    )


def _onset(reading: Reading, from_ms: int, block_ms: int, newest: np.ndarray[tuple[int], np.dtype[np.float64]]) -> int:
    """Walk back from the newest window while blocks stay as slow as its fastest; where that ends, slowness began."""
    floor = 0.8 * float(np.nanmin(newest)) if len(newest) and not np.isnan(newest).all() else np.inf
    onset = from_ms
    while onset - block_ms >= reading.window_start_ms:
        gap = reading.rank.mean("inter_token_latency", onset - block_ms, onset)
        if gap != gap or gap < floor:
            break
        onset -= block_ms
    return onset


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
