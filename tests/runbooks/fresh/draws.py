"""What all drawn situations are made of: lengths, fleets, rates as a share of what a replica was measured to take."""

from __future__ import annotations

from functools import lru_cache
from random import Random
from typing import Any

from sim_backend.run import run
from sim_backend.scenario import Arrivals, Expect, Fleet, Lengths, Load, Scenario

Shape = dict[str, Any]
"""Prompt and output lengths of a load."""
INTERVALS: tuple[float, ...] = (2.0, 5.0, 5.0, 15.0, 15.0, 30.0, 60.0)
FAST_PROFILES = ("llama-3.1-8b-h100", "llama-3-8b-a100")
PROFILES = (*FAST_PROFILES, "llama-3.1-70b-4xh100")


def interval(random: Random) -> float:
    return random.choice(INTERVALS)


def lengths(random: Random, low: float, high: float) -> Lengths:
    """Log-normal token counts with a mean between two."""
    mean = random.uniform(low, high)
    return Lengths(
        kind="lognormal", mean=mean, cv=random.uniform(0.3, 0.9), low=max(4, int(mean / 20)), high=int(mean * 6)
    )


def chat(random: Random) -> Shape:
    """Prompt and output of a chat load."""
    return {"prompt": lengths(random, 150, 1200), "output": lengths(random, 60, 350)}


def fleet(random: Random, low: int = 1, high: int = 5, **more: Any) -> Fleet:
    return Fleet(
        replicas=random.randint(low, high),
        profile=more.pop("profile", None) or random.choice(PROFILES),
        routing=random.choice(("round_robin", "least_waiting")),
        **more,
    )


def scenario(fleet: Fleet, load: list[Load], fault: list[Any] | None = None, seconds: float = 900.0) -> Scenario:
    """A scenario for the simulator; what is true of it is said elsewhere."""
    return Scenario(
        name="drawn",
        what="drawn",
        duration_seconds=seconds,
        fleet=fleet,
        load=load,
        fault=fault or [],
        expect=Expect(outcome="fires", cause="healthy"),
    )


def capacity(fleet: Fleet, shape: Shape) -> float:
    """Requests per second that one replica of a fleet takes of a load when more wait."""
    one = fleet.model_copy(update={"replicas": 1})
    return _capacity(one.model_dump_json(), Load(**shape).model_dump_json())


@lru_cache(maxsize=256)
def _capacity(fleet_json: str, load_json: str) -> float:
    fleet, shape = Fleet.model_validate_json(fleet_json), Load.model_validate_json(load_json)
    clients = 24 * 40 if "max_num_seqs" not in fleet.engine else 3 * int(fleet.engine["max_num_seqs"]) * fleet.ranks
    load = shape.model_copy(update={"arrivals": Arrivals(kind="closed", clients=clients, think_seconds=0.01)})
    made = run(scenario(fleet, [load]), 120.0, seed=5, scrape_interval_seconds=10.0)
    done: list[float] = []
    for scrape in made:
        finished = [
            v
            for name, v in zip(scrape.layout.names, scrape.values, strict=True)
            if name == "vllm:request_success_total"
        ]
        done.append(float(sum(finished)))
    return max(0.05, (done[-1] - done[len(done) // 3]) / (10.0 * (len(done) - 1 - len(done) // 3)))


def stepped(before: float, start: float, high: float, stop: float, after: float | None = None) -> Arrivals:
    """One rate, another between two instants, and back."""
    last = before if after is None else after
    return Arrivals(kind="steps", steps=[(start, before), (stop - start, high), (1_000_000.0, last)])
