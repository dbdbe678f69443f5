"""cold_prefix_cache: the hit ratio fell from a warm level, and nothing inflates the lookups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from collectors.model import Int64s
from collectors.observed import NAN, Counter
from runbooks.quantile import quantile
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
    if len(stretches) < 3:
        return None
    ratios = np.array([stretch.ratio for stretch in stretches])
    best = quantile(ratios[:-1], WARM_QUANTILE)
    cold = ratios <= limits("cold_prefix_cache", "left_ratio") * best
    if not cold[-1]:  # a lucky stretch may end a cold spell or be an accident: judge it together with the one before
        pair = stretches[-2:]
        together = sum(s.ratio * s.prompts for s in pair) / sum(s.prompts for s in pair)
        cold[-1] = bool(cold[-2]) and together <= limits("cold_prefix_cache", "left_ratio") * best
        if not cold[-1]:
            return None
    first = len(cold) - 1
    while first > 0 and (cold[first - 1] or (first > 1 and cold[first - 2])):
        first -= 1
    warm = float(np.median(ratios[:first])) if first else 0.0
    if warm < limits("cold_prefix_cache", "warm_ratio") or cold[:first].mean() > limits(
        "cold_prefix_cache", "cold_before_ratio"
    ):
        return None
    for side in (stretches[:first], stretches[first:]):
        if sum(s.prompts for s in side) < limits("cold_prefix_cache", "prompts_each_side"):
            return None
        if side[-1].end_ms - side[0].start_ms < 1000 * limits("cold_prefix_cache", "seconds_each_side"):
            return None
    since = stretches[first].start_ms
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
class _Stretch:
    start_ms: int
    end_ms: int
    ratio: float
    prompts: float


def _stretches(reading: Reading, prompts: int) -> list[_Stretch]:
    """Hit ratio of consecutive stretches that each hold at least `prompts` first tokens, oldest first.

    Stretches in which lookups were repeated or requests preempted are left out: their ratio means nothing.
    """
    rank = reading.rank
    lookups, hits = rank.counter("prefix_cache_queries"), rank.counter("prefix_cache_hits")
    first_tokens = rank.counter("time_to_first_token")
    if lookups is None or hits is None or first_tokens is None:
        return []
    found: list[_Stretch] = []
    step = round(max(1000 * reading.limits("cold_prefix_cache", "stretch_seconds"), 2 * reading.pace.interval_ms))
    steps = max(0, (reading.seen_ms - reading.window_start_ms + reading.pace.interval_ms) // step)
    instants = reading.seen_ms - step * np.arange(steps + 1)
    looked, hit, prompted, preempted = (
        _increases(counter, instants)
        for counter in (lookups, hits, rank.counter("prompt_tokens"), rank.counter("preemptions"))
    )
    arrived, firsts, lasts = _totals(first_tokens, instants)
    end = 0
    for start in range(1, steps + 1):
        admitted = arrived[end] - arrived[start]
        if not admitted >= prompts or lasts[end] <= firsts[start]:
            continue
        looked_up = looked(start, end)
        readable = looked_up <= LOOKED_UP_ONCE * prompted(start, end) and not preempted(start, end) > 0
        if looked_up > 0 and readable:
            ratio = min(1.0, hit(start, end) / looked_up)
            found.append(_Stretch(int(instants[start]), int(instants[end]), ratio, admitted))
        end = start
    return found[::-1]


def _increases(counter: Counter | None, instants: Int64s) -> Callable[[int, int], float]:
    """`Counter.increase` between two of many instants (by their place), each of them looked up once; NaN without a counter."""
    if counter is None or not len(counter.times_ms):
        return lambda start, end: NAN
    totals, firsts, lasts = _totals(counter, instants)
    return lambda start, end: totals[end] - totals[start] if lasts[end] > firsts[start] else NAN


def _totals(counter: Counter, instants: Int64s) -> tuple[list[float], list[int], list[int]]:
    """What a counter had counted by each of some instants, and the places of the scrapes: the first one for those before it, and -1."""
    places = counter.times_ms.searchsorted(instants, side="right") - 1
    at = np.maximum(places, 0)
    return counter.total[at].tolist(), at.tolist(), places.tolist()
