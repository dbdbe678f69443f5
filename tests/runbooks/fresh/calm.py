"""Situations in which nothing is wrong, however it may look."""

from __future__ import annotations

from random import Random

from sim_backend.scenario import Aborts, Arrivals, Chat, Fault, Lengths, Load, SharedPrefix
from tests.runbooks.fresh.draws import Shape, capacity, chat, fleet, interval, lengths, scenario, stepped
from tests.runbooks.fresh.made import Situation


def steady(random: Random, seed: int) -> Situation:
    shape, place = chat(random), fleet(random)
    rate = capacity(place, shape) * place.replicas * random.uniform(0.15, 0.6)
    prefix = (
        SharedPrefix(families=random.randint(2, 20), tokens=random.randint(64, 1500)) if random.random() < 0.5 else None
    )
    load = Load(arrivals=Arrivals(kind=random.choice(("poisson", "gamma")), rate=rate), shared_prefix=prefix, **shape)
    return Situation(
        "steady", seed, scenario(place, [load], seconds=600), interval(random), dropped_ratio=random.choice((0, 0.03))
    )


def bursts(random: Random, seed: int) -> Situation:
    """Now and then thirty requests come at once; seats are plenty."""
    shape, place = chat(random), fleet(random, 1, 3)
    rate = capacity(place, shape) * place.replicas * random.uniform(0.1, 0.3)
    loads = [Load(name="chat", arrivals=Arrivals(rate=rate), **shape)]
    for number in range(4):
        at = 100 + 120 * number + random.uniform(0, 60)
        loads.append(
            Load(
                name=f"burst {number}",
                arrivals=Arrivals(kind="burst", count=random.randint(10, 40)),
                start_seconds=at,
                **shape,
            )
        )
    return Situation("bursts", seed, scenario(place, loads, seconds=600), interval(random))


def absorbed_queue(random: Random, seed: int) -> Situation:
    """A few seats and a burst larger than them: it waits for some seconds and is gone."""
    shape: Shape = {"prompt": lengths(random, 100, 500), "output": lengths(random, 30, 80)}
    place = fleet(random, 1, 3, engine={"max_num_seqs": random.choice((16, 32))})
    most = capacity(place, shape)
    rate = most * place.replicas * random.uniform(0.1, 0.4)
    loads = [Load(name="chat", arrivals=Arrivals(rate=rate), **shape)]
    count = int(place.replicas * min(int(place.engine["max_num_seqs"]) + 4 * most, 12 * most))
    for number in range(3):
        loads.append(
            Load(
                name=f"burst {number}",
                arrivals=Arrivals(kind="burst", count=max(2, count)),
                start_seconds=130 + 150 * number,
                **shape,
            )
        )
    return Situation("absorbed_queue", seed, scenario(place, loads, seconds=600), interval(random))


def diurnal(random: Random, seed: int) -> Situation:
    """A day in small: from a tenth to three quarters of what the fleet takes, and back."""
    shape, place = chat(random), fleet(random, 1, 4)
    most = capacity(place, shape) * place.replicas
    wave = Arrivals(kind="diurnal", rate=0.4 * most, amplitude=0.8, period_seconds=random.uniform(500, 900))
    return Situation("diurnal", seed, scenario(place, [Load(arrivals=wave, **shape)]), interval(random))


def ramp(random: Random, seed: int) -> Situation:
    """Morning: the load grows from almost nothing to two thirds within minutes."""
    shape, place = chat(random), fleet(random, 1, 4)
    most = capacity(place, shape) * place.replicas
    rising = Arrivals(kind="ramp", rate=0.02 * most, rate_to=0.65 * most, period_seconds=random.uniform(200, 600))
    return Situation("ramp", seed, scenario(place, [Load(arrivals=rising, **shape)], seconds=720), interval(random))


def jump(random: Random, seed: int) -> Situation:
    """Traffic doubles to four times at once and stays within what the fleet takes."""
    shape, place = chat(random), fleet(random, 1, 4)
    most = capacity(place, shape) * place.replicas
    low = random.uniform(0.12, 0.2) * most
    load = Load(arrivals=stepped(low, 300, low * random.uniform(2, 3.5), 620), **shape)
    return Situation("jump", seed, scenario(place, [load]), interval(random))


def idle_night(random: Random, seed: int) -> Situation:
    """One request in many seconds, on several replicas."""
    load = Load(arrivals=Arrivals(rate=random.uniform(0.004, 0.06)), **chat(random))
    return Situation("idle_night", seed, scenario(fleet(random), [load], seconds=1200), interval(random))


def prefill_workers(random: Random, seed: int) -> Situation:
    """Prompts only, one token each: there is no token gap to be measured."""
    shape: Shape = {"prompt": lengths(random, 300, 3000), "output": Lengths(mean=1)}
    place = fleet(random, 1, 3)
    rate = capacity(place, shape) * place.replicas * random.uniform(0.1, 0.4)
    return Situation(
        "prefill_workers",
        seed,
        scenario(place, [Load(arrivals=Arrivals(rate=rate), **shape)], seconds=600),
        interval(random),
    )


def long_context(random: Random, seed: int) -> Situation:
    """Few requests of ten thousand tokens and more: each takes a while and owns much."""
    shape: Shape = {"prompt": Lengths(kind="uniform", low=6000, high=14000), "output": lengths(random, 200, 900)}
    place = fleet(random, 1, 3)
    rate = capacity(place, shape) * place.replicas * random.uniform(0.1, 0.35)
    return Situation(
        "long_context",
        seed,
        scenario(place, [Load(arrivals=Arrivals(rate=rate), **shape)], seconds=720),
        interval(random),
    )


def long_answers(random: Random, seed: int) -> Situation:
    """Few requests that talk for minutes: little begins, little ends."""
    shape: Shape = {"prompt": lengths(random, 100, 600), "output": Lengths(kind="uniform", low=3000, high=8000)}
    load = Load(arrivals=Arrivals(rate=random.uniform(0.03, 0.15)), **shape)
    return Situation("long_answers", seed, scenario(fleet(random, 1, 3), [load], seconds=900), interval(random))


def ranks(random: Random, seed: int) -> Situation:
    """Data-parallel ranks behind one address."""
    shape = chat(random)
    place = fleet(random, 1, 2, ranks=random.choice((2, 4, 8)))
    rate = (
        capacity(place.model_copy(update={"ranks": 1}), shape) * place.replicas * place.ranks * random.uniform(0.1, 0.5)
    )
    return Situation(
        "ranks", seed, scenario(place, [Load(arrivals=Arrivals(rate=rate), **shape)], seconds=480), interval(random)
    )


def conversations(random: Random, seed: int) -> Situation:
    """Chats that resend their history: the hit ratio is high and wanders."""
    shape, place = chat(random), fleet(random, 1, 3)
    rate = capacity(place, shape) * place.replicas * random.uniform(0.01, 0.03)
    load = Load(arrivals=Arrivals(rate=rate), chat=Chat(turns=5, think_seconds=10), **shape)
    return Situation("conversations", seed, scenario(place, [load], seconds=720), interval(random))


def closed_loop(random: Random, seed: int) -> Situation:
    """A fixed number of clients that never pause: running stands at their number."""
    shape, place = chat(random), fleet(random, 1, 2)
    clients = Arrivals(
        kind="closed", clients=random.randint(2, 24) * place.replicas, think_seconds=random.choice((0.01, 0.5))
    )
    return Situation(
        "closed_loop", seed, scenario(place, [Load(arrivals=clients, **shape)], seconds=720), interval(random)
    )


def some_hang_up(random: Random, seed: int) -> Situation:
    """A twentieth of the clients leaves, some prompts are too long: background noise of any service."""
    shape, place = chat(random), fleet(random, 1, 3)
    rate = capacity(place, shape) * place.replicas * random.uniform(0.2, 0.5)
    load = Load(
        arrivals=Arrivals(rate=rate),
        aborts=Aborts(ratio=0.04, mean_seconds=3),
        oversized_ratio=0.01,
        bad_key_ratio=0.01,
        **shape,
    )
    return Situation("some_hang_up", seed, scenario(place, [load], seconds=600), interval(random))


def rollout(random: Random, seed: int) -> Situation:
    """Every replica is replaced, one after the other: told as restarts, and nothing worse."""
    shape, place = chat(random), fleet(random, 3, 5)
    rate = capacity(place, shape) * place.replicas * random.uniform(0.15, 0.4)
    faults = [
        Fault(
            kind="crash",
            start_seconds=200 + 120 * index,
            stop_seconds=240 + 120 * index,
            restart_after_seconds=random.uniform(8, 20),
            replicas=[index],
        )
        for index in range(place.replicas)
    ]
    made = scenario(place, [Load(arrivals=Arrivals(rate=rate), **shape)], faults, seconds=300 + 120 * place.replicas)
    return Situation(
        "rollout",
        seed,
        made,
        interval(random),
        always_allowed=frozenset({"replica_restarted", "replica_down", "cold_prefix_cache"}),
    )


def scale_up(random: Random, seed: int) -> Situation:
    """A replica joins after some minutes; its peers were there before."""
    shape, place = chat(random), fleet(random, 2, 5)
    rate = capacity(place, shape) * place.replicas * random.uniform(0.15, 0.45)
    made = scenario(place, [Load(arrivals=Arrivals(rate=rate), **shape)], seconds=600)
    return Situation("scale_up", seed, made, interval(random), born={place.replicas - 1: random.uniform(150, 300)})


def scale_down(random: Random, seed: int) -> Situation:
    """A replica is taken away, target and all: nobody said how many there should be."""
    shape, place = chat(random), fleet(random, 2, 5)
    rate = capacity(place, shape) * (place.replicas - 1) * random.uniform(0.15, 0.45)
    made = scenario(place, [Load(arrivals=Arrivals(rate=rate), **shape)], seconds=600)
    return Situation("scale_down", seed, made, interval(random), gone={0: random.uniform(150, 300)})


def two_models(random: Random, seed: int) -> Situation:
    """Two services behind one scraper: each replica has its own clients, one busy, one quiet, and neither is hot for that."""
    place = fleet(random, 2, 2)
    busy, quiet = chat(random), chat(random)
    loads = [
        Load(
            name="busy", arrivals=Arrivals(rate=capacity(place, busy) * random.uniform(0.4, 0.6)), replicas=[0], **busy
        ),
        Load(
            name="quiet",
            arrivals=Arrivals(rate=capacity(place, quiet) * random.uniform(0.02, 0.1)),
            replicas=[1],
            **quiet,
        ),
    ]
    return Situation("two_models", seed, scenario(place, loads, seconds=600), interval(random))


def longer_prompts(random: Random, seed: int) -> Situation:
    """The mix changes for good, from short to long prompts, within what the fleet takes."""
    place = fleet(random, 1, 4)
    short: Shape = {"prompt": lengths(random, 100, 300), "output": lengths(random, 60, 200)}
    longer: Shape = {"prompt": lengths(random, 1500, 3000), "output": lengths(random, 60, 200)}
    loads = [
        Load(
            name="short",
            arrivals=Arrivals(rate=capacity(place, short) * place.replicas * 0.25),
            stop_seconds=350,
            **short,
        ),
        Load(
            name="longer",
            arrivals=Arrivals(rate=capacity(place, longer) * place.replicas * 0.3),
            start_seconds=350,
            **longer,
        ),
    ]
    return Situation("longer_prompts", seed, scenario(place, loads, seconds=720), interval(random))


CALM = (
    steady, bursts, absorbed_queue, diurnal, ramp, jump, idle_night, prefill_workers, long_context, long_answers, ranks,
    conversations, closed_loop, some_hang_up, rollout, scale_up, scale_down, two_models, longer_prompts,
)  # fmt: skip
