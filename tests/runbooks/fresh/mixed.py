"""Two things wrong at once, on different replicas."""

from __future__ import annotations

from random import Random
from typing import Any

from sim_backend.scenario import Arrivals, Fault, Load, SharedPrefix
from tests.runbooks.fresh.draws import capacity, chat, fleet, interval, scenario
from tests.runbooks.fresh.made import Situation, Wrong
from tests.runbooks.fresh.troubles import lead, onset

FAULTS: tuple[tuple[str, dict[str, Any], str, float, frozenset[str]], ...] = (
    ("stalled", {"kind": "halt"}, "engine_stalled", 60, frozenset()),
    (
        "slow",
        {"kind": "slow", "factor": 3.0},
        "engine_slow",
        110,
        frozenset({"replica_imbalance", "overload", "seat_limited"}),
    ),
    ("down", {"kind": "crash"}, "replica_down", 60, frozenset({"replica_restarted"})),
    ("lost_metric", {"kind": "removed_metric"}, "metrics_missing", 75, frozenset()),
    ("two_servers", {"kind": "interleaved_servers"}, "metrics_untrustworthy", 60, frozenset()),
    ("flat", {"kind": "flat_buckets"}, "metrics_untrustworthy", 60, frozenset()),
)


def pair(random: Random, seed: int) -> Situation:
    """Two faults on two of several replicas, at different times, for a while together."""
    every = interval(random)
    one, other = random.sample(FAULTS, 2)
    while one[2] == other[2]:
        one, other = random.sample(FAULTS, 2)
    shape, place = chat(random), fleet(random, 3, 5)
    first, second = random.sample(range(place.replicas), 2)
    rate = max(capacity(place, shape) * random.uniform(0.15, 0.3), 1.0) * place.replicas
    start, stop = onset(random, every)
    later = start + random.uniform(0, 60)
    ends = max(stop, later + 200)
    faults = [
        Fault(start_seconds=start, stop_seconds=ends, replicas=[first], **one[1]),
        Fault(start_seconds=later, stop_seconds=ends, replicas=[second], **other[1]),
    ]
    wrong = (
        Wrong(one[2], start, ends, lead(every, one[3]), (first,)),
        Wrong(other[2], later, ends, lead(every, other[3]), (second,)),
    )
    prefix = SharedPrefix(families=6, tokens=320)
    made = scenario(
        place, [Load(arrivals=Arrivals(rate=rate), shared_prefix=prefix, **shape)], faults, seconds=ends + 60
    )
    return Situation(f"{one[0]}+{other[0]}", seed, made, every, wrong, one[4] | other[4])


def refused_and_fault(random: Random, seed: int) -> Situation:
    """Refused prompts at every replica while something happens to one."""
    every = interval(random)
    one = random.choice(FAULTS[:3])
    shape, place = chat(random), fleet(random, 2, 4)
    rate = max(capacity(place, shape) * random.uniform(0.15, 0.3), 1.5) * place.replicas
    start, stop = onset(random, every)
    hit = random.randrange(place.replicas)
    loads = [
        Load(name="chat", arrivals=Arrivals(rate=rate), **shape),
        Load(
            name="too long",
            arrivals=Arrivals(rate=rate),
            oversized_ratio=0.9,
            start_seconds=start,
            stop_seconds=stop,
            **shape,
        ),
    ]
    wrong = (
        Wrong("admission_rejects", start, stop, lead(every, 75)),
        Wrong(one[2], start, stop, lead(every, one[3]), (hit,)),
    )
    made = scenario(
        place, loads, [Fault(start_seconds=start, stop_seconds=stop, replicas=[hit], **one[1])], seconds=stop + 60
    )
    return Situation(f"refused+{one[0]}", seed, made, every, wrong, one[4])


MIXED = (pair, pair, refused_and_fault)
