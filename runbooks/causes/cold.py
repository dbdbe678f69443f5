"""cold_prefix_cache: the hit ratio fell from a warm level, and nothing inflates the lookups."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collectors.model import Floats, Int64s
from collectors.observed import NAN, Counter
from runbooks.quantile import median, quantile
from runbooks.reading import Reading
from runbooks.scene import Scene, Suspicion

LOOKED_UP_ONCE = 1.5
"""Lookups per prompt token up to which a stretch counts as looked up once (prompts in prefill are booked later)."""
WARM_QUANTILE = 0.9
"""The level to compare with: high enough to survive a cold spell that fills most of the window, below a lucky stretch."""
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
    stretches = _stretches(reading, round(limits("cold_prefix_cache", "prompts")))
    if stretches is None or len(stretches.ratios) < 3:
        return None
    ratios, prompts = stretches.ratios, stretches.prompts
    best = quantile(ratios[:-1], WARM_QUANTILE)
    cold = ratios <= limits("cold_prefix_cache", "left_ratio") * best
    if not cold[-1]:  # a lucky stretch may end a cold spell or be an accident: judge it together with the one before
        together = float(ratios[-2] * prompts[-2] + ratios[-1] * prompts[-1]) / (prompts[-2] + prompts[-1])
        cold[-1] = bool(cold[-2]) and together <= limits("cold_prefix_cache", "left_ratio") * best
        if not cold[-1]:
            return None
    first = len(cold) - 1
    while first > 0 and (cold[first - 1] or (first > 1 and cold[first - 2])):
        first -= 1
    warm = median(ratios[:first]) if first else 0.0
    if warm < limits("cold_prefix_cache", "warm_ratio") or cold[:first].mean() > limits(
        "cold_prefix_cache", "cold_before_ratio"
    ):
        return None
    for side in (slice(None, first), slice(first, None)):
        if sum(prompts[side]) < limits("cold_prefix_cache", "prompts_each_side"):
            return None
        length_ms = stretches.end_ms[side][-1] - stretches.start_ms[side][0]
        if length_ms < 1000 * limits("cold_prefix_cache", "seconds_each_side"):
            return None
    since = int(stretches.start_ms[first])
    before = (reading.window_start_ms, since)
    first_token = reading.rank.mean("time_to_first_token", *reading.recent)
    was = reading.rank.mean("time_to_first_token", *before)
    evidence = [
        f"prefix hit ratio {ratios[-1]:.0%}, it was {warm:.0%} before",
        f"lookups per prompt token {reading.lookups_per_prompt_token:.1f}, no preemption: the ratio can be read",
    ]
    if first_token == first_token and was == was:
        evidence.append(f"time to first token {first_token:.2f} s on average, {was:.2f} s before")
    given, gave = (reading.rank.rate("prefix_cache_hits", *span) for span in ((since, reading.seen_ms), before))
    diluted = given >= limits("cold_prefix_cache", "hits_kept_ratio") * gave
    return Suspicion(
        cause="cold_prefix_cache",
        confidence="possible" if diluted else "likely",
        places=(reading.place,),
        since_ms=since,
        evidence=tuple(evidence),
        against=(f"{given:,.0f} tokens/s are hit, {gave:,.0f} before: prompts with nothing to share joined them",)
        if diluted
        else (),
        runner_up="prefill_limited",
        separating_check="compare the first tokens of prompts before and after: a changed template, salt or adapter splits the cache",
        cannot_know=("whether the prompts changed or the cached blocks were evicted",),
        reads=READS,
        explains=frozenset({"prefill_limited", "engine_slow"}),
    )


@dataclass(frozen=True)
class _Stretches:
    """Consecutive stretches of time, oldest first: hit ratio and first tokens of each."""

    start_ms: Int64s
    end_ms: Int64s
    ratios: Floats
    prompts: list[float]


def _stretches(reading: Reading, prompts: int) -> _Stretches | None:
    """Hit ratio of consecutive stretches that each hold at least `prompts` first tokens.

    Stretches in which lookups were repeated or requests preempted are left out: their ratio means nothing.
    """
    rank = reading.rank
    lookups, hits = rank.counter("prefix_cache_queries"), rank.counter("prefix_cache_hits")
    first_tokens = rank.counter("time_to_first_token")
    if lookups is None or hits is None or first_tokens is None:
        return None
    step = round(max(1000 * reading.limits("cold_prefix_cache", "stretch_seconds"), 2 * reading.pace.interval_ms))
    steps = max(0, (reading.seen_ms - reading.window_start_ms + reading.pace.interval_ms) // step)
    instants = reading.seen_ms - step * np.arange(steps + 1)
    arrivals, firsts, lasts = (array.tolist() for array in _totals(first_tokens, instants))
    starts, ends, admitted = [], [], []
    end = 0
    for start in range(1, steps + 1):
        arrived = arrivals[end] - arrivals[start]
        if arrived >= prompts and lasts[end] > firsts[start]:
            starts.append(start)
            ends.append(end)
            admitted.append(arrived)
            end = start
    start_ms, end_ms = instants[starts[::-1]], instants[ends[::-1]]
    with np.errstate(invalid="ignore"):
        looked_up, hit, prompted, preempted = (
            _increases(counter, start_ms, end_ms)
            for counter in (lookups, hits, rank.counter("prompt_tokens"), rank.counter("preemptions"))
        )
    kept = (looked_up <= LOOKED_UP_ONCE * prompted) & ~(preempted > 0) & (looked_up > 0)
    with np.errstate(invalid="ignore"):
        ratios = hit[kept] / looked_up[kept]
    return _Stretches(
        start_ms[kept],
        end_ms[kept],
        np.where(ratios < 1.0, ratios, 1.0),
        [prompts for prompts, good in zip(admitted[::-1], kept.tolist(), strict=True) if good],
    )


def _increases(counter: Counter | None, start_ms: Int64s, end_ms: Int64s) -> Floats:
    """`Counter.increase` of many spans; NaN without a counter."""
    if counter is None or not len(counter.times_ms):
        return np.full(len(start_ms), NAN)
    begun, firsts, _ = _totals(counter, start_ms)
    ended, _, lasts = _totals(counter, end_ms)
    return np.where(lasts > firsts, ended - begun, NAN)


def _totals(counter: Counter, instants: Int64s) -> tuple[Floats, Int64s, Int64s]:
    """What a counter had counted by each of some instants, and the places of the scrapes: the first one for those before it, and -1."""
    places = counter.times_ms.searchsorted(instants, side="right") - 1
    at = np.maximum(places, 0)
    return counter.total[at], at, places
