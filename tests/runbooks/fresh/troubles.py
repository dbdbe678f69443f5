"""Situations in which one thing is wrong."""

from __future__ import annotations

from random import Random
from typing import Any

from sim_backend.scenario import Aborts, Arrivals, Fault, Fleet, Lengths, Load, SharedPrefix
from tests.runbooks.fresh.draws import FAST_PROFILES, Shape, capacity, chat, fleet, interval, lengths, scenario, stepped
from tests.runbooks.fresh.made import Situation, Wrong

QUEUE = frozenset({"overload", "seat_limited", "prefill_limited"})


def onset(random: Random, every: float) -> tuple[float, float]:
    """When a trouble begins and ends: later and longer where scrapes are rare, so that as many fall before it and into it."""
    start = random.uniform(240, 420) + 5 * every
    return start, start + random.uniform(200, 280) + 8 * every


def lead(every: float, seconds: float = 90.0) -> float:
    """How long it may take to be named: some time, and nine scrapes."""
    return max(seconds, 9 * every)


def _surge(
    kind: str,
    random: Random,
    seed: int,
    place: Fleet,
    shape: dict[str, Any],
    cause: str,
    accept: frozenset[str],
    **more: Any,
) -> Situation:
    every = interval(random)
    start, stop = onset(random, every)
    most = capacity(place, shape) * place.replicas
    before, high = most * random.uniform(0.2, 0.5), most * random.uniform(1.25, 2.2)
    made = scenario(place, [Load(arrivals=stepped(before, start, high, stop, 0.2 * most), **shape)], seconds=stop + 60)
    wrong = Wrong(cause, start, stop, lead(every), accept=accept, needs_queue=True)
    return Situation(kind, seed, made, every, (wrong,), frozenset(more.get("allowed", ())))


def overload(random: Random, seed: int) -> Situation:
    shape: Shape = {"prompt": lengths(random, 100, 300), "output": lengths(random, 150, 400)}
    place = fleet(random, 1, 3, profile=random.choice(FAST_PROFILES))
    return _surge("overload", random, seed, place, shape, "overload", frozenset({"seat_limited", "prefill_limited"}))


def seats(random: Random, seed: int) -> Situation:
    place = fleet(random, 1, 5, engine={"max_num_seqs": random.choice((4, 8, 12, 16, 24, 40))})
    return _surge("seats", random, seed, place, chat(random), "seat_limited", frozenset({"overload"}))


def small_pool(random: Random, seed: int) -> Situation:
    """The pool holds some ten to forty requests."""
    shape: Shape = {"prompt": lengths(random, 200, 1500), "output": lengths(random, 100, 700)}
    each = shape["prompt"].mean + shape["output"].mean
    most = shape["prompt"].high + shape["output"].high
    blocks = int(max(random.uniform(10, 40) * each, 1.5 * most) / 16)
    place = fleet(random, 1, 4, engine={"num_gpu_blocks_override": blocks})
    return _surge("small_pool", random, seed, place, shape, "kv_limited", frozenset())


def small_budget(random: Random, seed: int) -> Situation:
    shape: Shape = {"prompt": lengths(random, 2000, 5000), "output": Lengths(kind="uniform", low=8, high=48)}
    place = fleet(
        random,
        1,
        4,
        engine={"max_num_batched_tokens": random.choice((256, 512, 1024))},
        profile=random.choice(FAST_PROFILES),
    )
    return _surge("small_budget", random, seed, place, shape, "prefill_limited", frozenset({"overload"}))


def hot_replica(random: Random, seed: int) -> Situation:
    every = interval(random)
    start, stop = onset(random, every)
    shape = chat(random)
    place = fleet(random, 3, 6, engine={"max_num_seqs": random.choice((16, 32))})
    most, hot = capacity(place, shape), random.randrange(place.replicas)
    loads = [
        Load(name="all", arrivals=Arrivals(rate=most * place.replicas * random.uniform(0.1, 0.25)), **shape),
        Load(
            name="pinned",
            arrivals=Arrivals(rate=most * random.uniform(1.2, 1.8)),
            replicas=[hot],
            start_seconds=start,
            stop_seconds=stop,
            **shape,
        ),
    ]
    wrong = Wrong("replica_imbalance", start, stop, lead(every), (hot,), needs_queue=True)
    return Situation("hot_replica", seed, scenario(place, loads, seconds=stop + 60), every, (wrong,), QUEUE)


def hot_rank(random: Random, seed: int) -> Situation:
    every = interval(random)
    start, stop = onset(random, every)
    shape = chat(random)
    place = fleet(random, 1, 2, ranks=random.choice((2, 4)), engine={"max_num_seqs": random.choice((8, 16))})
    most = capacity(place.model_copy(update={"ranks": 1}), shape)
    hot, rank = random.randrange(place.replicas), random.randrange(place.ranks)
    loads = [
        Load(name="all", arrivals=Arrivals(rate=most * place.replicas * place.ranks * random.uniform(0.1, 0.25)), **shape),
        Load(
            name="pinned", arrivals=Arrivals(rate=most * random.uniform(1.2, 1.8)), replicas=[hot], rank=rank,
            start_seconds=start, stop_seconds=stop, **shape,
        ),
    ]  # fmt: skip
    wrong = Wrong("rank_imbalance", start, stop, lead(every), (hot,), rank, needs_queue=True)
    return Situation("hot_rank", seed, scenario(place, loads, seconds=stop + 60), every, (wrong,), QUEUE)


def giant_head(random: Random, seed: int) -> Situation:
    """A prompt longer than the pool stands at the head."""
    every = interval(random)
    start, stop = onset(random, every)
    shape: Shape = {"prompt": lengths(random, 100, 500), "output": lengths(random, 40, 200)}
    blocks = random.randint(350, 700)
    place = fleet(random, 1, 3, engine={"num_gpu_blocks_override": blocks})
    hit = random.randrange(place.replicas)
    giant = Lengths(mean=min(15_000, 16 * blocks * random.uniform(1.1, 1.6)))
    loads = [
        Load(name="chat", arrivals=Arrivals(rate=capacity(place, shape) * place.replicas * random.uniform(0.1, 0.3)), **shape),
        Load(
            name="giant", arrivals=Arrivals(kind="burst", count=1), start_seconds=start, prompt=giant, output=Lengths(mean=20),
            replicas=[hit], aborts=Aborts(ratio=1, mean_seconds=stop - start, exactly=True), obeys_dial=False,
        ),
    ]  # fmt: skip
    wrong = Wrong("unadmittable_head", start, stop, lead(every), (hit,))
    return Situation(
        "giant_head", seed, scenario(place, loads, seconds=stop + 60), every, (wrong,), frozenset({"kv_limited"})
    )


def cold_cache(random: Random, seed: int) -> Situation:
    """The template changes: what the prompts shared before is shared no more."""
    every = interval(random)
    start, stop = onset(random, every)
    place = fleet(random, 1, 3, profile=random.choice(FAST_PROFILES))
    shape: Shape = {"prompt": lengths(random, 100, 300), "output": lengths(random, 60, 200)}
    tokens = random.randint(1000, 3000)
    whole: Shape = {
        **shape,
        "prompt": Lengths(kind="lognormal", mean=tokens + shape["prompt"].mean, cv=0.15, low=tokens, high=3 * tokens),
    }
    rate = capacity(place, whole) * place.replicas * random.uniform(0.2, 0.45)
    prefix = SharedPrefix(families=random.randint(2, 12), tokens=tokens)
    loads = [
        Load(name="before", arrivals=Arrivals(rate=rate), shared_prefix=prefix, stop_seconds=start, **shape),
        Load(name="changed", arrivals=Arrivals(rate=rate), start_seconds=start, stop_seconds=stop, **whole),
        Load(name="again", arrivals=Arrivals(rate=rate), shared_prefix=prefix, start_seconds=stop, **shape),
    ]
    wrong = Wrong("cold_prefix_cache", start, stop, lead(every, 120), accept=frozenset())
    return Situation(
        "cold_cache",
        seed,
        scenario(place, loads, seconds=stop + 60),
        every,
        (wrong,),
        frozenset({"prefill_limited", "overload"}),
    )


def hang_ups(random: Random, seed: int) -> Situation:
    """Half of the clients and more leave after their first tokens."""
    every = interval(random)
    start, stop = onset(random, every)
    place = fleet(random, 1, 3)
    shape: Shape = {"prompt": lengths(random, 150, 900), "output": lengths(random, 200, 400)}
    rate = max(capacity(place, shape) * random.uniform(0.2, 0.5), 1.0) * place.replicas
    leave = Aborts(ratio=random.uniform(0.5, 0.9), mean_seconds=random.uniform(0.6, 1.2))
    loads = [
        Load(name="before", arrivals=Arrivals(rate=rate), stop_seconds=start, **shape),
        Load(
            name="impatient",
            arrivals=Arrivals(rate=rate),
            aborts=leave,
            start_seconds=start,
            stop_seconds=stop,
            **shape,
        ),
        Load(name="after", arrivals=Arrivals(rate=rate), start_seconds=stop, **shape),
    ]
    wrong = Wrong("client_aborts", start, stop, lead(every, 75))
    return Situation("hang_ups", seed, scenario(place, loads, seconds=stop + 60), every, (wrong,))


def refused(random: Random, seed: int) -> Situation:
    every = interval(random)
    start, stop = onset(random, every)
    shape, place = chat(random), fleet(random, 1, 4)
    rate = max(capacity(place, shape) * random.uniform(0.15, 0.5), 1.0) * place.replicas
    loads = [
        Load(name="chat", arrivals=Arrivals(rate=rate), **shape),
        Load(
            name="too long", arrivals=Arrivals(rate=rate * random.uniform(0.2, 1.5)), oversized_ratio=random.uniform(0.7, 1.0),
            start_seconds=start, stop_seconds=stop, **shape,
        ),
    ]  # fmt: skip
    wrong = Wrong("admission_rejects", start, stop, lead(every, 75))
    return Situation("refused", seed, scenario(place, loads, seconds=stop + 60), every, (wrong,))


def _fault(
    kind: str,
    random: Random,
    seed: int,
    cause: str,
    fault: dict[str, Any],
    lead_seconds: float = 75.0,
    low: int = 1,
    **more: Any,
) -> Situation:
    """Something happens to one replica of a fleet under moderate load."""
    every = interval(random)
    start, stop = onset(random, every)
    shape = chat(random)
    place = fleet(random, low, 5, ranks=more.pop("ranks", 1))
    hit = random.randrange(place.replicas)
    rate = (
        capacity(place.model_copy(update={"ranks": 1}), shape) * place.replicas * place.ranks * random.uniform(0.2, 0.4)
    )
    prefix = SharedPrefix(families=6, tokens=320) if more.pop("prefix", False) else None
    load = Load(arrivals=Arrivals(rate=max(rate, 1.0 * place.replicas)), shared_prefix=prefix, **shape)
    made = scenario(
        place,
        [load],
        [Fault(start_seconds=start, stop_seconds=stop, replicas=[hit], **fault)],
        seconds=stop + more.pop("tail", 60.0),
    )
    wrong = Wrong(cause, start, stop, lead(every, lead_seconds), (hit,), **more.pop("wrong", {}))
    return Situation(kind, seed, made, every, (wrong,), frozenset(more.pop("allowed", ())), **more)


def slow(random: Random, seed: int) -> Situation:
    fault = {"kind": "slow", "factor": random.uniform(2.2, 4)}
    return _fault(
        "slow", random, seed, "engine_slow", fault, 110, allowed=("replica_imbalance", "overload", "seat_limited")
    )


def stalled(random: Random, seed: int) -> Situation:
    return _fault("stalled", random, seed, "engine_stalled", {"kind": "halt"}, 60, allowed=("replica_imbalance",))


def down(random: Random, seed: int) -> Situation:
    return _fault(
        "down",
        random,
        seed,
        "replica_down",
        {"kind": "crash"},
        60,
        allowed=("replica_restarted", "overload", "seat_limited"),
    )


def core_dead(random: Random, seed: int) -> Situation:
    return _fault(
        "core_dead", random, seed, "replica_down", {"kind": "engine_dead"}, 60, allowed=("replica_restarted",),
        wrong={"accept": frozenset({"engine_stalled"})},
    )  # fmt: skip


def restarted(random: Random, seed: int) -> Situation:
    every, start = interval(random), random.uniform(240, 420)
    shape, place = chat(random), fleet(random, 1, 4)
    hit, back = random.randrange(place.replicas), random.uniform(5, 40)
    load = Load(arrivals=Arrivals(rate=capacity(place, shape) * place.replicas * random.uniform(0.2, 0.4)), **shape)
    fault = Fault(
        kind="crash", start_seconds=start, stop_seconds=start + 60, restart_after_seconds=back, replicas=[hit]
    )
    wrong = Wrong("replica_restarted", start + back, start + back + 500, 3 * every + 5, (hit,))
    made = scenario(place, [load], [fault], seconds=start + 420)
    return Situation("restarted", seed, made, every, (wrong,), frozenset({"replica_down", "cold_prefix_cache"}))


def crash_loop(random: Random, seed: int) -> Situation:
    every, start = interval(random), random.uniform(240, 360)
    shape, place = chat(random), fleet(random, 1, 4)
    hit = random.randrange(place.replicas)
    load = Load(arrivals=Arrivals(rate=capacity(place, shape) * place.replicas * random.uniform(0.1, 0.3)), **shape)
    period = max(random.uniform(70, 110), 5 * every)
    faults = [
        Fault(
            kind="crash",
            start_seconds=start + n * period,
            stop_seconds=start + n * period + 30,
            restart_after_seconds=15,
            replicas=[hit],
        )
        for n in range(4)
    ]
    wrong = Wrong(
        "replica_restarted", start, start + 4 * period, period + 3 * every, (hit,), accept=frozenset({"replica_down"})
    )
    made = scenario(place, [load], faults, seconds=start + 4 * period)
    return Situation("crash_loop", seed, made, every, (wrong,), frozenset({"replica_down", "cold_prefix_cache"}))


def lost_metric(random: Random, seed: int) -> Situation:
    metric = random.choice(
        ("vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc", "vllm:time_to_first_token_seconds",
         "vllm:generation_tokens", "vllm:request_success", "vllm:e2e_request_latency_seconds")
    )  # fmt: skip
    return _fault("lost_metric", random, seed, "metrics_missing", {"kind": "removed_metric", "metric": metric}, 75)


def lost_rank(random: Random, seed: int) -> Situation:
    ranks = random.choice((2, 4))
    fault = {"kind": "missing_rank", "rank": random.randrange(ranks)}
    return _fault(
        "lost_rank", random, seed, "metrics_missing", fault, 75, ranks=ranks, allowed=("metrics_untrustworthy",)
    )


def lost_scrapes(random: Random, seed: int) -> Situation:
    fault = {"kind": "missing_scrape", "ratio": random.uniform(0.5, 0.65)}
    return _fault(
        "lost_scrapes",
        random,
        seed,
        "metrics_missing",
        fault,
        120,
        allowed=("replica_down",),
        wrong={"accept": frozenset({"replica_down"})},
    )


def two_servers(random: Random, seed: int) -> Situation:
    return _fault("two_servers", random, seed, "metrics_untrustworthy", {"kind": "interleaved_servers"}, 60)


def flat_buckets(random: Random, seed: int) -> Situation:
    return _fault("flat_buckets", random, seed, "metrics_untrustworthy", {"kind": "flat_buckets"}, 60)


def more_hits(random: Random, seed: int) -> Situation:
    return _fault("more_hits", random, seed, "metrics_untrustworthy", {"kind": "hits_above_queries"}, 60, prefix=True)


def all_frozen(random: Random, seed: int) -> Situation:
    fault = {"kind": "frozen_gauges"}
    return _fault(
        "all_frozen", random, seed, "stale_gauges", fault, 120, wrong={"accept": frozenset({"metrics_untrustworthy"})}
    )


def wrong_keys(random: Random, seed: int) -> Situation:
    """401 for a flood of requests: no metric shows it, nothing may be claimed."""
    every = interval(random)
    start, stop = onset(random, every)
    shape, place = chat(random), fleet(random, 1, 3)
    rate = capacity(place, shape) * place.replicas * random.uniform(0.2, 0.4)
    loads = [
        Load(name="chat", arrivals=Arrivals(rate=rate), **shape),
        Load(
            name="flood",
            arrivals=Arrivals(rate=rate * 2),
            bad_key_ratio=1.0,
            start_seconds=start,
            stop_seconds=stop,
            **shape,
        ),
    ]
    return Situation("wrong_keys", seed, scenario(place, loads, seconds=stop + 60), every)


TROUBLES = (
    overload, seats, small_pool, small_budget, hot_replica, hot_rank, giant_head, cold_cache, hang_ups, refused, slow, stalled, down,
    core_dead, restarted, crash_loop, lost_metric, lost_rank, lost_scrapes, two_servers, flat_buckets, more_hits, all_frozen, wrong_keys,
)  # fmt: skip
