"""kv_limited and sequence_hog: requests wait, or are preempted, for want of KV blocks."""

from __future__ import annotations

from runbooks.causes.wait import wait_words
from runbooks.episodes import recurring_since
from runbooks.inferred import preempting_since_ms
from runbooks.reading import Reading
from runbooks.scene import Scene, Suspicion
from runbooks.wording import digits

READS = frozenset({"requests_running", "requests_waiting", "kv_cache_usage"})
EXPLAINS = frozenset(
    ["overload", "seat_limited", "prefill_limited", "engine_slow", "cold_prefix_cache", "client_aborts"]
)


def kv_limited(scene: Scene) -> list[Suspicion]:
    """Ranks whose queue or speed is set by the KV pool, and those of them where a few sequences own it."""
    found = []
    for place, reading in scene.readings.items():
        if scene.state(place) not in ("serving", "prefill_only"):
            continue
        suspicion = _waits_for_blocks(reading) if reading.queued else _thrashes(reading)
        if suspicion is not None:
            found.append(suspicion)
    return found


def blocks_short(reading: Reading) -> bool:
    """Whether the head of the queue waits for blocks rather than for a seat or for budget.

    A blocked head is looked up again every step; where prefix caching is off only the level of the pool, or preemptions,
    can tell. A rank that sits at its ceiling with room in the pool waits for seats.
    """
    full = reading.limits("kv_pressure", "full_ratio")
    if reading.lookups_inflated:
        return True
    if reading.preemptions > 0 and reading.kv_max >= full:
        return True
    if reading.caching and not reading.pinned and reading.lookups_per_prompt_token < 1.5:
        return reading.kv_median >= full and reading.kv_max >= 0.97
    return reading.kv_median >= full


def _waits_for_blocks(reading: Reading) -> Suspicion | None:
    if not blocks_short(reading):
        return None
    evidence = [
        f"{wait_words(reading)}, while {digits(reading.running_mean)} run on average",
        f"KV usage {reading.kv_median:.0%} (median), {reading.kv_max:.0%} at most",
    ]
    if reading.lookups_inflated:
        ratio = reading.lookups_per_prompt_token
        times = f"{ratio:.0f} times" if ratio < 1e6 else "without any admission,"
        evidence.append(f"prompts are looked up {times} over in the prefix cache: the head of the queue does not fit")
    against = []
    if reading.pinned and not reading.lookups_inflated and not reading.preemptions > 0:
        against.append(f"running sits at {reading.ceiling:.0f}, the highest value seen: seats may be the limit")
    hog = _hog(reading)
    if hog is not None:
        return hog
    return Suspicion(
        cause="kv_limited",
        confidence="likely",
        places=(reading.place,),
        since_ms=reading.queue_since_ms,
        evidence=tuple(evidence),
        against=tuple(against),
        aggravated_by=_preempting(reading),
        runner_up="sequence_hog" if reading.running <= 4 else "overload",
        separating_check="list the running requests by length: one or two that own most of the pool are a hog, many alike are a small pool",
        cannot_know=(
            "how many blocks each request holds",
            "the hit ratio: blocked heads and preempted requests are looked up again",
        ),
        reads=READS,
        explains=EXPLAINS,
    )


def _hog(reading: Reading) -> Suspicion | None:
    """Few sequences hold the pool and nobody has been admitted for a minute while they go on."""
    silence_ms = 1000 * reading.limits("sequence_hog", "no_admission_seconds")
    start, end = reading.last_ms(round(max(silence_ms, reading.pace.recent_ms)))
    since = reading.queue_since_ms
    if since is None or end - since < silence_ms or not reading.running >= 1:
        return None
    each = reading.kv_median / reading.running
    admitted = reading.rank.increase("time_to_first_token", start, end)
    tokens = reading.rank.increase("generation_tokens", start, end)
    if each < reading.limits("sequence_hog", "share_of_pool_each") or admitted > 0 or not tokens > 0:
        return None
    head = reading.head_tokens
    pool = reading.rank.cache.pool_tokens
    evidence = [
        f"{reading.running:.0f} sequences hold {reading.kv_median:.0%} of the pool ({each:.0%} each) and go on",
        f"nobody got a first token for {(end - start) / 1000:.0f} s while {reading.waiting:.0f} wait",
    ]
    if head == head and pool:
        evidence.append(f"the head needs about {head:,.0f} tokens, {pool * (1 - reading.kv_median):,.0f} are free")
    return Suspicion(
        cause="sequence_hog",
        confidence="likely",
        places=(reading.place,),
        since_ms=since,
        evidence=tuple(evidence),
        aggravated_by=_preempting(reading),
        runner_up="kv_limited",
        separating_check="list the running requests by length and compare with what waits",
        cannot_know=("which requests they are",),
        reads=READS | {"time_to_first_token", "generation_tokens"},
        explains=EXPLAINS | {"kv_limited"},
    )


def _thrashes(reading: Reading) -> Suspicion | None:
    """A full pool without a standing queue: sequences are preempted and recomputed over and over."""
    full = reading.limits("kv_pressure", "full_ratio")
    hidden = reading.hidden_preemptions
    finished = max(reading.increase("requests_finished"), 1.0)
    counted = reading.preemptions
    preempting = counted >= 2 and counted / finished >= reading.limits("preemption", "per_finished")
    if not (preempting or hidden) or not reading.kv_max >= full:
        return None
    speed = _speed_left(reading)
    slow = speed is not None and speed <= reading.limits("kv_pressure", "speed_left_ratio")
    several = hidden >= reading.limits("kv_pressure", "hidden_preemptions")
    if not (preempting or slow or several):
        return None
    least = reading.gauge("kv_cache_usage").min()
    evidence = [f"KV usage reached {reading.kv_max:.0%} in the recent window, {least:.0%} at the least"]
    if counted > 0:
        evidence.append(f"{counted:.0f} preemptions for {finished:.0f} finished requests in the recent window")
    if hidden:
        evidence.append(f"blocks of {hidden} sequences were taken back while nobody left: preemptions not yet counted")
    if slow:
        evidence.append(f"{speed:.0%} of the tokens per second that the same number of sequences made before")
    return Suspicion(
        cause="kv_limited",
        confidence="likely" if slow or preempting else "possible",
        places=(reading.place,),
        since_ms=_thrashing_since_ms(reading),
        evidence=tuple(evidence),
        aggravated_by=("preemption_thrash",),
        runner_up="engine_slow",
        separating_check="watch KV usage and running together: usage that falls while nobody finishes is preemption",
        cannot_know=("the number of preemptions: one shows only with the victim's next token",),
        reads=READS | {"generation_tokens"},
        explains=EXPLAINS,
    )


def _thrashing_since_ms(reading: Reading) -> int | None:
    """When the preemptions began to be counted; while none is, since when the pool keeps reaching full."""
    quiet_ms = 2 * reading.pace.recent_ms
    counted = preempting_since_ms(reading.rank, quiet_ms)
    if counted is not None:
        return counted
    times, usage = reading.series("kv_cache_usage")
    return recurring_since(times, usage >= reading.limits("kv_pressure", "full_ratio"), reading.seen_ms, quiet_ms)


def _speed_left(reading: Reading) -> float | None:
    """Generation rate now over the best earlier one with at least nine tenths of the running requests."""
    counter = reading.rank.counter("generation_tokens")
    if counter is None:
        return None
    length = reading.pace.recent_ms
    values = reading.gauge("requests_running")
    if not len(values):
        return None
    now, running = reading.rate("generation_tokens"), float(values.mean())
    best = 0.0
    hop = max(
        reading.pace.interval_ms, length // 4
    )  # windows overlap: where scrapes are rare, few of them fit side by side
    end = reading.seen_ms - length
    while end - length >= reading.epoch_ms:
        then = reading.rank.gauge("requests_running", end - length, end)
        if len(then) and 0.9 * running <= float(then.mean()) <= 1.5 * running:
            best = max(best, counter.rate(end - length, end))
        end -= hop
    return now / best if best > 0 else None


def _preempting(reading: Reading) -> tuple[str, ...]:
    return ("preemption_thrash",) if reading.preemptions > 0 or reading.hidden_preemptions >= 2 else ()
