"""A fleet on one clock: replicas, the router in front of them, the load, the faults - and the truth about all of it.

`advance(until)` is the only way time passes, in virtual and in real time alike. Times are seconds from the start of the run.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

from sim_backend.cost import ProfileError, load_profile
from sim_backend.engine import EngineCore
from sim_backend.exposition import Page
from sim_backend.faults import CAUSE_OF, Lens, set_slowdown
from sim_backend.replica import Replica
from sim_backend.resize import for_replicas
from sim_backend.scenario import Fault, Load, Scenario, ScenarioError, Truth
from sim_backend.scheduler import SchedulerConfigError
from sim_backend.startup_log import startup_log
from sim_backend.workload import Call, Stream

QUANTUM_SECONDS = 0.05
"""When calls follow answers, replicas move in lockstep of this; a follow-up is never earlier than what was already simulated."""

HELD_BY_ANOTHER_RATIO = 0.4
"""oom_at_start: the share of the device that a forgotten process holds."""


class Cluster:
    """Replicas `0..n-1` of one scenario; with `replicas`, on another number than it states (`for_replicas`)."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        seed: int = 1,
        replicas: int | None = None,
        instances: Sequence[str] | None = None,
        epoch_seconds: float = 0.0,
        glide: bool = True,
        paced: bool = False,
    ) -> None:
        count = replicas if replicas is not None else scenario.fleet.replicas
        scenario = for_replicas(scenario, count)
        self.scenario = scenario
        self.seed = seed
        self.epoch_seconds = epoch_seconds
        names = list(instances) if instances is not None else [f"vllm-{index}:8000" for index in range(count)]
        fleet = scenario.fleet
        try:
            profile = load_profile(fleet.profile)
            self.replicas = [
                Replica(
                    names[index],
                    profile,
                    {**fleet.engine, **fleet.per_replica.get(str(index), {})},
                    ranks=fleet.ranks,
                    epoch_seconds=epoch_seconds,
                    glide=glide,
                    paced=paced,
                    answered=self._answered,
                )
                for index in range(count)
            ]
        except (ProfileError, SchedulerConfigError, TypeError) as error:
            raise ScenarioError(f"scenario {scenario.name}, fleet: {error}") from error
        self.now = 0.0
        self.calls = 0
        self.streams = [Stream(index, _placed(load, count), seed) for index, load in enumerate(scenario.load)]
        self.active: list[Fault] = []
        self.history: list[Truth] = list(scenario.truth)
        self._open_truths: dict[int, int] = {}
        self._failed_starts: dict[str, list[str]] = {}
        self._lenses = [Lens(Random(f"{seed}/lens/{index}")) for index in range(count)]
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._sequence = itertools.count()
        self._turn = 0
        self._chats = any(load.chat is not None or load.arrivals.kind == "closed" for load in scenario.load)
        self._looks = self._chats or fleet.routing == "least_waiting" or fleet.ranks > 1
        known = {truth.cause for truth in scenario.truth}
        for fault in scenario.fault:
            if CAUSE_OF[fault.kind] not in known and not scenario.truth:
                self.history.append(_truth_of(fault))
            self.at(fault.start_seconds, partial(self.inject, fault))

    # -- time --

    def at(self, when: float, event: Callable[[float], None]) -> None:
        """Run `event(now)` at that instant, before calls of the same instant."""
        heapq.heappush(self._events, (when, next(self._sequence), event))

    def next_event(self) -> float:
        """The next instant at which anything happens."""
        calls = min((stream.peek() for stream in self.streams), default=math.inf)
        event = self._events[0][0] if self._events else math.inf
        return min(calls, event, *(replica.next_event() for replica in self.replicas))

    def advance(self, until: float, only: int | None = None) -> None:
        """Let time pass. `only` moves just that replica to `until`, the others when they are asked for; calls and events happen anyway."""
        streams = self.streams
        while True:
            stream = min(streams, key=Stream.peek) if streams else None
            upcoming = stream.peek() if stream is not None else math.inf
            event = self._events[0][0] if self._events else math.inf
            due = min(upcoming, event)
            if self._chats:
                # An answer on the way there may bring an earlier call: go in small steps and look again.
                step = min(due, until, self.now + QUANTUM_SECONDS)
                if step > self.now:
                    self._move_all(step)
                    continue
            if due > until:
                break
            self.now = max(self.now, due)
            if event <= upcoming:
                heapq.heappop(self._events)[2](self.now)
            elif stream is not None:
                self.place(stream.pop(), self.now)
        self.now = max(self.now, until)
        if only is None:
            self._move_all(self.now)
        else:
            self.replicas[only].advance(until)

    def _move_all(self, until: float) -> None:
        for replica in self.replicas:
            replica.advance(until)
        self.now = max(self.now, until)

    # -- calls --

    def place(self, call: Call, now: float) -> None:
        """Route one call and hand it to a replica; plan the moment its client hangs up, if it will."""
        self.calls += 1
        index = self.route(call, now)
        replica = self.replicas[index]
        if replica.state == "engine_dead":
            replica.advance(now)
        ticket = replica.submit(call, now)
        if ticket is not None and call.abort_after_seconds is not None:

            def hang_up(at: float) -> None:
                replica.advance(at)
                replica.hang_up(call.id, at)

            self.at(now + call.abort_after_seconds, hang_up)

    def route(self, call: Call, now: float) -> int:
        """The replica for a call. A load balancer's health check takes a replica that is down out of the turn, when another is left; who is pinned
        to one replica passes it by."""
        allowed = [index for index in call.replicas or range(len(self.replicas)) if index < len(self.replicas)]
        if not allowed:
            allowed = list(range(len(self.replicas)))
        if len(allowed) > 1:
            allowed = [index for index in allowed if self.replicas[index].state == "up"] or allowed
        if self._looks:
            for index in allowed:
                self.replicas[index].advance(now)
        if self.scenario.fleet.routing == "least_waiting":
            return min(allowed, key=lambda index: (self.replicas[index].waiting, len(self.replicas[index].in_flight())))
        self._turn += 1
        return allowed[self._turn % len(allowed)]

    def _answered(self, call: Call, at: float) -> None:
        if call.stream < len(self.streams) and call.stream >= 0:
            self.streams[call.stream].answered(call, at)

    def turn_dial(self, dial: float) -> None:
        """Multiply the rate of every stream that obeys, from now on."""
        for stream in self.streams:
            stream.turn_dial(dial, self.now)

    # -- faults --

    def inject(self, fault: Fault, now: float) -> None:
        """Begin a fault; its end is planned when it has one."""
        self.active.append(fault)
        for index in self.touched(fault):
            self._begin(fault, index, now)
        if fault.stop_seconds is not None:
            self.at(max(fault.stop_seconds, now), lambda at: self.clear(fault, at))

    def inject_with_truth(self, fault: Fault, now: float) -> Truth:
        """Begin a fault that no scenario foresaw and enter it in the ground truth."""
        truth = _truth_of(fault)
        self.history.append(truth)
        self._open_truths[id(fault)] = len(self.history) - 1
        self.inject(fault, now)
        return truth

    def clear(self, fault: Fault, now: float) -> None:
        """End a fault; a replica that was down because of it starts."""
        if fault not in self.active:
            return
        self.active.remove(fault)
        place = self._open_truths.pop(id(fault), None)
        if place is not None:
            self.history[place] = self.history[place].model_copy(update={"stop_seconds": now})
        for index in self.touched(fault):
            replica = self.replicas[index]
            replica.advance(now)
            if fault.kind == "halt":
                for engine in self._engines(fault, index):
                    engine.resume(now)
            elif fault.kind in ("crash", "engine_dead", "oom_at_start") and replica.state != "up":
                replica.boot(now)
            set_slowdown(replica, self.faults_of(index), now)

    def touched(self, fault: Fault) -> list[int]:
        """Indexes of the replicas a fault is about."""
        return [index for index in range(len(self.replicas)) if fault.replicas is None or index in fault.replicas]

    def faults_of(self, index: int) -> list[Fault]:
        return [fault for fault in self.active if fault.replicas is None or index in fault.replicas]

    def _engines(self, fault: Fault, index: int) -> list[EngineCore]:
        engines = self.replicas[index].engines
        return [engine for rank, engine in enumerate(engines) if fault.rank is None or fault.rank == rank]

    def _begin(self, fault: Fault, index: int, now: float) -> None:
        replica = self.replicas[index]
        replica.advance(now)
        match fault.kind:
            case "halt":
                for engine in self._engines(fault, index):
                    engine.halt(now)
            case "crash" | "oom_at_start":
                replica.crash(now)
                if fault.restart_after_seconds is not None and fault.kind == "crash":
                    self.at(now + fault.restart_after_seconds, lambda at: self._restart(fault, index, at))
                if fault.kind == "oom_at_start":
                    self._failed_starts[replica.instance] = self.startup_log(index)
            case "engine_dead":
                replica.kill_engine(now)
                self.at(now + 6.0, replica.advance)
            case "mass_abort":
                for call_id in replica.in_flight():
                    replica.hang_up(call_id, now)
            case "reset_prefix_cache":
                for engine in self._engines(fault, index):
                    engine.scheduler.forget_cache()
            case "frozen_gauges" if replica.state != "down":
                self._lenses[index].freeze(replica.pages(), fault)
            case _:
                pass
        self._refresh(fault, index, now)

    def _restart(self, fault: Fault, index: int, now: float) -> None:
        replica = self.replicas[index]
        if fault in self.active and replica.state == "down":
            replica.boot(now)
        self._refresh(fault, index, now)

    def _refresh(self, fault: Fault, index: int, now: float) -> None:
        """Step times under the active faults; a warm-up changes them in stages."""
        replica = self.replicas[index]
        replica.advance(now)
        set_slowdown(replica, self.faults_of(index), now)
        if fault.warm_up_seconds and fault in self.active:
            ends = fault.start_seconds + (fault.restart_after_seconds or 0.0) + fault.warm_up_seconds
            stage = fault.warm_up_seconds / 4
            if now < ends:
                self.at(now + stage, lambda at: self._refresh(fault, index, at))

    # -- what a scraper and a judge see --

    def scrape(self, index: int) -> Sequence[Page]:
        """What /metrics of a replica answers now. Raises ScrapeLost when it does not; the replica must be up."""
        return self._lenses[index].look(self.replicas[index].pages(), self.faults_of(index))

    def startup_log(self, index: int) -> list[str]:
        """What the last start of a replica printed."""
        replica = self.replicas[index]
        faults = [fault for fault in self.faults_of(index) if fault.kind == "oom_at_start"]
        began = faults[0].start_seconds if faults else replica.started_at
        held = HELD_BY_ANOTHER_RATIO * replica.profile.memory.device_gib if faults else 0.0
        return startup_log(
            replica.profile, replica.config, self.epoch_seconds + began, ranks=replica.num_ranks, held_gib=held
        )

    def ground_truth(self) -> dict[str, Any]:
        """What is wrong, where and when, as plain data; instants in epoch milliseconds, `to_ms` None while it lasts."""
        scenario = self.scenario
        return {
            "scenario": scenario.name,
            "what": scenario.what,
            "seed": self.seed,
            "expect": scenario.expect.model_dump(),
            "incidents": [
                incident
                for truth in self.history
                for incident in self._incidents(truth)
                if incident["from_ms"] <= self._ms(self.now)
            ],
            "faults": [fault.model_dump() for fault in scenario.fault],
            "failed_starts": dict(self._failed_starts),
        }

    def _incidents(self, truth: Truth) -> list[dict[str, Any]]:
        starts = [truth.start_seconds]
        if truth.repeat_seconds is not None:
            starts = [
                truth.start_seconds + turn * truth.repeat_seconds
                for turn in range(int(max(0.0, self.now - truth.start_seconds) // truth.repeat_seconds) + 1)
            ]
        length = None if truth.stop_seconds is None else truth.stop_seconds - truth.start_seconds
        touched = range(len(self.replicas)) if truth.replicas is None else truth.replicas
        scope = "rank" if truth.rank is not None else "fleet" if truth.replicas is None else "replica"
        where = {
            "scope": scope,
            "replicas": [
                {"instance": self.replicas[index].instance, "engine": str(truth.rank or 0)}
                for index in touched
                if index < len(self.replicas)
            ],
        }
        return [
            {
                "cause": truth.cause,
                "where": where,
                "from_ms": self._ms(start),
                "to_ms": None if length is None else self._ms(start + length),
            }
            for start in starts
        ]

    def _ms(self, seconds: float) -> int:
        return round((self.epoch_seconds + seconds) * 1000)


def _placed(load: Load, count: int) -> Load:
    """`not_replicas` as the list of those that are left."""
    if not load.not_replicas:
        return load
    left = [index for index in range(count) if index not in load.not_replicas]
    return load.model_copy(update={"replicas": left})


def _truth_of(fault: Fault) -> Truth:
    return Truth(
        cause=CAUSE_OF[fault.kind],
        start_seconds=fault.start_seconds,
        stop_seconds=fault.stop_seconds,
        replicas=fault.replicas,
        rank=fault.rank,
    )
