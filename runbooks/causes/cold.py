"""cold_prefix_cache: the hit ratio fell from a warm level, and nothing inflates the lookups."""

from __future__ import annotations

import numpy as np

from runbooks.reading import Reading
from runbooks.scene import Scene, Suspicion

LOOKED_UP_ONCE = 1.5
"""Lookups per prompt token up to which a stretch counts as looked up once (prompts in prefill are booked later)."""
READS = frozenset({"prefix_cache_queries", "prefix_cache_hits"})


def cold_prefix_cache(scene: Scene) -> list[Suspicion]:
    """Ranks whose prefix hit ratio is down to half or less of what it was in this window.

    Gated: while a head is blocked or requests are preempted the ratio means nothing (0.11.0 counts every lookup).
    """
    found = []
    for place, reading in scene.readings.items():
        if scene.state(place) not in ("serving", "prefill_only") or reading.caching is False:
            continue
        suspicion = _suspect(scene, reading)
        if suspicion is not None:
            found.append(suspicion)
    return found


def _suspect(scene: Scene, reading: Reading) -> Suspicion | None:
    limits = scene.limits
    if reading.lookups_inflated or reading.preemptions > 0:
        return None
    ratios, ends = _ratios(reading, round(limits("cold_prefix_cache", "prompts")))
    if len(ratios) < 3:
        return None
    warm = float(np.quantile(ratios[:-1], 0.75))
    if warm < limits("cold_prefix_cache", "warm_ratio"):
        return None
    cold = ratios <= limits("cold_prefix_cache", "left_ratio") * warm
    if not cold[-1]:
        return None
    first = len(cold) - 1
    while first > 0 and cold[first - 1]:
        first -= 1
    if first < 2 or cold[:first].mean() > 0.3:
        return None
    since, before = int(ends[first - 1]), (reading.window_start_ms, int(ends[first - 1]))
    first_token = reading.rank.mean("time_to_first_token", *reading.recent)
    was = reading.rank.mean("time_to_first_token", *before)
    evidence = [
        f"prefix hit ratio {ratios[-1]:.0%}, it was {warm:.0%} before",
        f"lookups per prompt token {reading.lookups_per_prompt_token:.1f}, no preemption: the ratio can be read",
    ]
    if first_token == first_token and was == was:
        evidence.append(f"time to first token {first_token:.2f} s on average, {was:.2f} s before")
    return Suspicion(
        cause="cold_prefix_cache",
        confidence="likely",
        places=(reading.place,),
        since_ms=since,
        evidence=tuple(evidence),
        runner_up="prefill_limited",
        separating_check="compare the first tokens of prompts before and after: a changed template, salt or adapter splits the cache",
        cannot_know=("whether the prompts changed or the cached blocks were evicted",),
        reads=READS,
        explains=frozenset({"prefill_limited", "engine_slow"}),
    )


def _ratios(reading: Reading, prompts: int) -> tuple[np.ndarray[tuple[int], np.dtype[np.float64]], list[int]]:
    """Hit ratio of stretches that each hold at least `prompts` first tokens, oldest first, with their ends.

    Stretches in which lookups were repeated or requests preempted are left out: their ratio means nothing.
    """
    rank = reading.rank
    lookups, hits = rank.counter("prefix_cache_queries"), rank.counter("prefix_cache_hits")
    first_tokens = rank.counter("time_to_first_token")
    if lookups is None or hits is None or first_tokens is None:
        return np.empty(0), []
    ratios: list[float] = []
    ends: list[int] = []
    end, step = reading.seen_ms, reading.pace.recent_ms
    length = step
    while end - length >= reading.window_start_ms - reading.pace.interval_ms:
        if not first_tokens.increase(end - length, end) >= prompts:
            length += step
            continue
        looked_up = lookups.increase(end - length, end)
        prompt_tokens = rank.increase("prompt_tokens", end - length, end)
        readable = (
            looked_up <= LOOKED_UP_ONCE * prompt_tokens and not rank.increase("preemptions", end - length, end) > 0
        )
        if looked_up > 0 and readable:
            ratios.append(min(1.0, hits.increase(end - length, end) / looked_up))
            ends.append(end)
        end, length = end - length, step
    return np.array(ratios[::-1]), ends[::-1]
