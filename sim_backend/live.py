"""Real time: one cluster driven by the wall clock inside an asyncio loop."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable

from sim_backend.cluster import Cluster

IDLE_TICK_SECONDS = 0.1
"""How often time is let pass when nobody follows single tokens: a scrape asks for the present anyway."""
SHORTEST_SLEEP_SECONDS = 0.0005


class LiveFleet:
    """Keeps a cluster at the present. `clock` gives monotonic seconds; run time begins when this object is made."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float]) -> None:
        self.cluster = cluster
        self._clock = clock
        self._began = clock()
        self._wake = asyncio.Event()
        self.dial = 1.0

    def now(self) -> float:
        """Seconds since the start, never behind what was already simulated."""
        return max(self._clock() - self._began, self.cluster.now)

    def catch_up(self) -> float:
        """Let everything happen that is over by now; returns now."""
        now = self.now()
        self.cluster.advance(now)
        return now

    def poke(self) -> None:
        """Something new was put in: do not sleep past it."""
        self._wake.set()

    def turn_dial(self, dial: float) -> None:
        self.catch_up()
        self.dial = dial
        self.cluster.turn_dial(dial)
        self.poke()

    @property
    def watched(self) -> bool:
        return any(engine.watched for replica in self.cluster.replicas for engine in replica.engines)

    async def drive(self) -> None:
        """Until cancelled: step by step while somebody follows tokens, in ticks otherwise."""
        while True:
            now = self.catch_up()
            pause = IDLE_TICK_SECONDS
            if self.watched:
                event = self.cluster.next_event()
                if event < math.inf:
                    pause = min(pause, max(event - now, SHORTEST_SLEEP_SECONDS))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), pause)
            self._wake.clear()
