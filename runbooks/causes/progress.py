"""engine_stalled, stale_gauges and unadmittable_head: work on the gauges, no progress."""

from __future__ import annotations

from runbooks.frozen import frozen_gauges, one_frozen
from runbooks.reading import Reading
from runbooks.scene import Scene, Suspicion
from runbooks.stillness import Stillness, stillness

QUEUE = frozenset(
    ["overload", "seat_limited", "kv_limited", "prefill_limited", "sequence_hog", "replica_imbalance", "rank_imbalance"]
)
READS = frozenset({"requests_running", "requests_waiting", "generation_tokens", "time_to_first_token"})
SEPARATE_STALL = "send one short request: no token within the objective means stalled, an answer refreshes stale gauges"


def no_progress(scene: Scene) -> list[Suspicion]:
    """One suspicion per rank that holds work and does nothing."""
    found = []
    for place, reading in scene.readings.items():
        if scene.state(place) not in ("stalled", "stale", "prefill_only"):
            continue
        still = stillness(reading)
        suspicion = _suspect(reading, still)
        if suspicion is not None:
            found.append(suspicion)
    return found


def _suspect(reading: Reading, still: Stillness) -> Suspicion | None:
    frozen = frozen_gauges(reading)
    if frozen is not None and frozen.contradicted:
        return Suspicion(
            cause="stale_gauges",
            confidence="likely",
            places=(reading.place,),
            since_ms=frozen.since_ms,
            evidence=(frozen.evidence,),
            runner_up="metrics_untrustworthy",
            separating_check="scrape the replica by hand twice: gauges that stand still there are not written by the engine",
            cannot_know=("how many requests run and wait now",),
            explains=QUEUE | {"client_aborts"},
        )
    common = {"places": (reading.place,), "since_ms": still.since_ms, "evidence": still.evidence, "reads": READS}
    if still.kind in ("stopped", "deaf"):
        return Suspicion(
            cause="engine_stalled",
            confidence="likely",
            runner_up="stale_gauges",
            separating_check=SEPARATE_STALL,
            cannot_know=("why the engine stopped: read its log and the stacks of its processes",),
            explains=QUEUE | {"client_aborts", "stale_gauges", "cold_prefix_cache", "engine_slow"},
            **common,  # type: ignore[arg-type]
        )
    if still.kind == "stale":
        return Suspicion(
            cause="stale_gauges",
            confidence="likely",
            runner_up="engine_stalled",
            separating_check=SEPARATE_STALL,
            cannot_know=("what runs now: the gauges keep the value of the last step",),
            explains=QUEUE | {"engine_stalled", "client_aborts", "engine_slow"},
            **common,  # type: ignore[arg-type]
        )
    if still.kind in ("blocked", "blocked_perhaps"):
        sure = still.kind == "blocked"
        return Suspicion(
            cause="unadmittable_head",
            confidence="likely" if sure else "possible",
            runner_up="kv_limited" if sure else "engine_stalled",
            separating_check="find the oldest request in the gateway's log and compare its length with the KV pool",
            cannot_know=("which request is at the head, and how long it is",),
            explains=QUEUE | {"client_aborts", "cold_prefix_cache", "engine_stalled", "engine_slow"},
            **common,  # type: ignore[arg-type]
        )
    return None


def one_gauge_frozen(scene: Scene) -> list[Suspicion]:
    """A single gauge that stands still while the counters, or the other gauge, show that it must move."""
    found = []
    for place, reading in scene.readings.items():
        one = one_frozen(reading) if scene.state(place) in ("serving", "prefill_only") else None
        if one is not None and one.contradicted:
            found.append(
                Suspicion(
                    cause="metrics_untrustworthy",
                    confidence="likely",
                    places=(place,),
                    since_ms=one.since_ms,
                    evidence=(one.evidence,),
                    runner_up="stale_gauges",
                    separating_check="scrape the replica by hand twice while requests come and go",
                    cannot_know=tuple(f"the true {signal}" for signal in one.signals),
                )
            )
    return found


def head_larger_than_pool(scene: Scene) -> list[Suspicion]:
    """The head is retried once a step: lookups per step is its length. Longer than the pool, it can never be admitted."""
    found = []
    for reading in scene.readings.values():
        pool = reading.rank.cache.pool_tokens
        if pool is None or not reading.waiting > 0 or not reading.head_tokens > pool:
            continue
        since = reading.queue_since_ms
        if since is None or reading.seen_ms - since < reading.pace.hold_ms:
            continue
        if reading.increase("time_to_first_token") > 0:
            continue
        found.append(
            Suspicion(
                cause="unadmittable_head",
                confidence="likely",
                places=(reading.place,),
                since_ms=since,
                evidence=(
                    f"the head of the queue is about {reading.head_tokens:,.0f} tokens long (prefix lookups per step), "
                    f"the pool holds {pool:,}",
                    f"{reading.waiting:.0f} wait behind it and none was admitted in the last {reading.pace.recent_ms / 1000:.0f} s",
                ),
                runner_up="kv_limited",
                separating_check="find the oldest request in the gateway's log and compare its length with the KV pool",
                reads=READS | {"prefix_cache_queries"},
                explains=QUEUE | {"client_aborts", "cold_prefix_cache"},
            )
        )
    return found
