"""The running requests that decode in step with each other, booked together.

Each of them gets one token per step, so their counters move by the same amount: a cohort counts ticks and writes a member's own counters only when
it leaves. What differs is known in advance: in which steps (modulo the block size) a member needs a block, and in which step it ends.
"""

from __future__ import annotations

from collections.abc import Sequence

from sim_backend.kv.pool import BlockPool
from sim_backend.request import Request


class Cohort:
    """The first `count` requests of a running list, all plain decodes whose last tokens came at the same instant `last_ts`."""

    __slots__ = (
        "_due",
        "_ends",
        "_pool",
        "_seats",
        "_size",
        "caching",
        "context",
        "count",
        "last_ts",
        "next_end",
        "ticks",
    )

    def __init__(self, pool: BlockPool, block_size: int, *, caching: bool, last_ts: float) -> None:
        self.count = 0
        self.context = 0
        """Sum of the members' computed tokens."""
        self.ticks = 0
        self.last_ts = last_ts
        self.caching = caching
        self.next_end = 1 << 62
        """The tick that ends the first member."""
        self._pool = pool
        self._size = block_size
        self._due: list[list[tuple[int, Request]]] = [[] for _ in range(block_size)]
        self._ends: dict[int, list[Request]] = {}
        self._seats = 0

    def join(self, request: Request) -> None:
        """The next request of the running list is a plain decode now, with the same last token's instant as the others."""
        ticks = self.ticks
        request.joined = ticks
        request.seat = self._seats = self._seats + 1
        self.count += 1
        self.context += request.computed
        self._due[(ticks - request.computed) % self._size].append((request.seat, request))
        end = ticks + request.finish_len - request.output_len
        self._ends.setdefault(end, []).append(request)
        if end < self.next_end:
            self.next_end = end

    def blocks_due(self) -> int:
        """How many members need a block in the step that is due."""
        return len(self._due[self.ticks % self._size])

    def grow(self) -> None:
        """The block changes of the step that is due, in the order of the running list: a new block, or a block that fills and enters the cache."""
        due, size, ticks, pool = self._due, self._size, self.ticks, self._pool
        needing = due[ticks % size]
        filling = due[(ticks + 1) % size] if self.caching else ()
        if not filling:
            for _, request in needing:
                request.blocks.append(pool.take())
        elif not needing:
            for _, request in filling:
                self._fill(request)
        else:
            full = {seat for seat, _ in filling}
            for seat, request in sorted([*needing, *filling]):
                if seat in full:
                    self._fill(request)
                else:
                    request.blocks.append(pool.take())

    def _fill(self, request: Request) -> None:
        index = (request.computed + self.ticks - request.joined) // self._size
        if request.cached_blocks == index:
            self._pool.store_one(request.chain.upto(index + 1)[index], request.blocks[index])
            request.cached_blocks = index + 1

    def book(self, ticks: int, last_ts: float) -> None:
        """`ticks` more steps are over, the last one at `last_ts`."""
        self.ticks += ticks
        self.context += ticks * self.count
        self.last_ts = last_ts

    def take_ended(self) -> list[Request]:
        """The members whose last token this tick brought, in the order of the running list; they leave with their counters written."""
        if self.ticks < self.next_end:
            return []
        ended = self._ends.pop(self.ticks)
        self.next_end = min(self._ends, default=1 << 62)
        for request in ended:
            self._due[(request.joined - request.computed) % self._size].remove((request.seat, request))
            self.settle(request)
            self.count -= 1
            self.context -= request.computed
        return ended

    def settle(self, request: Request) -> None:
        """Write a member's counters as of now."""
        ticks = self.ticks - request.joined
        if ticks:
            request.joined = self.ticks
            request.computed += ticks
            request.num_tokens += ticks
            request.output_len += ticks
            request.front.last_token_ts = self.last_ts


def cohort_of(
    running: Sequence[Request], pool: BlockPool, block_size: int, *, caching: bool, last_ts: float
) -> Cohort | None:
    """The cohort at the head of a running list, None when its first request is not decoding."""
    cohort = Cohort(pool, block_size, caching=caching, last_ts=last_ts)
    extend(cohort, running)
    return cohort if cohort.count else None


def extend(cohort: Cohort, running: Sequence[Request]) -> None:
    """Take in the requests behind the cohort that decode in step with it, up to the first one that does not."""
    last_ts = cohort.last_ts
    for index in range(cohort.count, len(running)):
        request = running[index]
        front = request.front
        if (
            front is None
            or front.last_token_ts != last_ts
            or request.num_tokens - request.computed != 1
            or request.events
        ):
            return
        cohort.join(request)
