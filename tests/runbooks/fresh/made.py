"""A drawn situation, and its recording: the simulator's scrapes under other names, with the labels that a scraper adds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from random import Random

import numpy as np

from collectors.model import Samples
from sim_backend.run import run
from sim_backend.scenario import Scenario
from tests.runbooks.recorded_source import RecordedSource

START_MS = 1_788_000_000_000
SETTLE_SECONDS = 300.0
"""The diagnosis looks back fifteen minutes; five after the last request has stopped waiting, an incident is over."""


@dataclass(frozen=True)
class Wrong:
    """One thing that is wrong. Seconds from the start; `replicas` None = the fleet, of which any part may be named."""

    cause: str
    start: float
    stop: float
    lead: float
    """It must be named from `start + lead` on, and until `stop`."""
    replicas: tuple[int, ...] | None = None
    rank: int | None = None
    accept: frozenset[str] = frozenset()
    """Causes that are as good; where there are any, `possible` will do."""
    soft: bool = False
    """`possible` will do: the metrics leave it open."""
    needs_queue: bool = False
    """Visible only while requests wait: instants without a queue at its place are not asked."""


@dataclass(frozen=True)
class Situation:
    """What is simulated and what must be said about it."""

    kind: str
    seed: int
    scenario: Scenario
    interval_seconds: float
    wrong: tuple[Wrong, ...] = ()
    allowed: frozenset[str] = frozenset()
    """May be said beside, from the first onset on."""
    always_allowed: frozenset[str] = frozenset()
    dropped_ratio: float = 0.0
    """Share of the scrapes that never reach the recording."""
    born: Mapping[int, float] = field(default_factory=dict)
    """Replica -> when it joins: nothing of it is seen before."""
    gone: Mapping[int, float] = field(default_factory=dict)
    """Replica -> when it is scaled away: nothing of it is seen after, not even `up`."""

    @property
    def seconds(self) -> float:
        return self.scenario.duration_seconds


@dataclass(frozen=True)
class Recording:
    """A situation as a source, with the names its replicas have there."""

    situation: Situation
    source: RecordedSource
    instances: tuple[str, ...]
    queued: Mapping[int, tuple[np.ndarray, np.ndarray]]
    """Replica -> (seconds, waiting requests)."""

    def waits(self, replicas: tuple[int, ...] | None, since: float, until: float) -> bool:
        """Whether requests waited at every scrape of a stretch, at each of the replicas (at one of the fleet)."""
        asked = replicas if replicas is not None else tuple(self.queued)
        each = []
        for replica in asked:
            times, waiting = self.queued[replica]
            chosen = waiting[(times >= since) & (times <= until)]
            each.append(bool(len(chosen) and (chosen > 1).all()))
        return any(each) if replicas is None else all(each)

    @property
    def drained(self) -> float:
        """When requests last waited anywhere; 0 when none ever did."""
        last = [float(times[waiting > 0].max()) for times, waiting in self.queued.values() if (waiting > 0).any()]
        return max(last, default=0.0)

    def instants(self, step: float) -> Iterator[tuple[float, tuple[Wrong, ...] | None]]:
        """(seconds, what must be named then; None = nothing). Times open to debate are left out."""
        situation = self.situation
        begins = min((one.start for one in situation.wrong), default=situation.seconds + 1)
        ends = max((one.stop for one in situation.wrong), default=0.0)
        at = max(60.0, 5 * situation.interval_seconds) + Random(situation.seed).uniform(0, step)
        while at <= situation.seconds:
            if (
                at < begins - 2 * situation.interval_seconds
                or (situation.wrong and at > max(ends, self.drained) + SETTLE_SECONDS)
                or not situation.wrong
            ):
                yield at, None
            else:
                due = tuple(one for one in situation.wrong if self._due(one, at))
                between = all(at < one.start or at > one.stop or one in due for one in situation.wrong)
                if due and between:
                    yield at, due
            at += step

    def _due(self, one: Wrong, at: float) -> bool:
        if not one.start + one.lead <= at <= one.stop:
            return False
        return not one.needs_queue or self.waits(one.replicas, at - one.lead, at)


def names_of(situation: Situation) -> tuple[tuple[str, ...], dict[str, str], list[dict[str, str]]]:
    """(instance of each replica, labels of all, labels of each), drawn from what scrapers write."""
    random = Random(f"names {situation.seed}")
    count = situation.scenario.fleet.replicas
    style = random.choice(("plain", "ip", "pod", "ipv6", "odd"))
    shuffled = random.sample(range(200, 200 + 3 * count), count)
    instances = {
        "plain": [f"gpu{n}.example:8000" for n in shuffled],
        "ip": [f"10.{random.randint(0, 9)}.3.{n % 250}:80{n % 90 + 10}" for n in shuffled],
        "pod": [f"10.42.0.{n % 250}:8000" for n in shuffled],
        "ipv6": [f"[fd00::{n:x}]:8000" for n in shuffled],
        "odd": [f'n"{n}\\{{x}}:1' for n in shuffled],
    }[style]
    common = {"job": random.choice(("vllm", "llm/serving", "vllm-decode"))}
    each: list[dict[str, str]] = [{} for _ in range(count)]
    if style == "pod":
        common["namespace"] = "llm"
        each = [{"pod": f"vllm-7d9f-{n:x}", "node": f"node-{n % 5}"} for n in shuffled]
    return tuple(instances), common, each


def recorded(situation: Situation) -> Recording:
    """Simulates a situation: the same one, the same samples."""
    made = run(
        situation.scenario,
        seed=situation.seed,
        start_ms=START_MS,
        scrape_interval_seconds=situation.interval_seconds,
    )
    instances, common, each = names_of(situation)
    number = {replica.instance: index for index, replica in enumerate(made.cluster.replicas)}
    lost = Random(f"lost {situation.seed}")
    columns: dict[tuple[str, tuple[tuple[str, str], ...]], tuple[list[int], list[float]]] = {}
    queued: dict[int, dict[int, float]] = {index: {} for index in range(len(instances))}
    keys: dict[int, list[tuple[str, tuple[tuple[str, str], ...]]]] = {}
    held = []
    for scrape in made:
        index = number[scrape.instance]
        at = (scrape.t_ms - START_MS) / 1000
        if at < situation.born.get(index, 0.0) or at > situation.gone.get(index, float("inf")):
            continue
        if lost.random() < situation.dropped_ratio:
            continue
        if id(scrape.layout) not in keys:
            held.append(scrape.layout)
            keys[id(scrape.layout)] = [
                (
                    name,
                    tuple(sorted({**labels, **common, **each[index], "instance": instances[index]}.items())),
                )
                for name, labels in zip(scrape.layout.names, scrape.layout.labels, strict=True)
            ]
        for key, value in zip(keys[id(scrape.layout)], scrape.values.tolist(), strict=True):
            times, values = columns.setdefault(key, ([], []))
            times.append(scrape.t_ms)
            values.append(value)
            if key[0] == "vllm:num_requests_waiting":
                queued[index][scrape.t_ms] = queued[index].get(scrape.t_ms, 0.0) + value
    samples = [
        Samples({"__name__": name, **dict(labels)}, np.array(times, dtype=np.int64), np.array(values))
        for (name, labels), (times, values) in columns.items()
    ]
    waiting = {
        index: ((np.array(sorted(seen)) - START_MS) / 1000, np.array([seen[t] for t in sorted(seen)]))
        for index, seen in queued.items()
    }
    return Recording(situation, RecordedSource(samples, f"{situation.kind} {situation.seed}"), instances, waiting)
