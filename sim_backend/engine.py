"""One engine core (one data-parallel rank) on a clock that its owner moves: drain the queue, schedule, run, update, report.

`advance(until)` completes every step that ends by `until`; a step that began but ends later stays in flight, its decisions taken. Between two
events - an arrival, a finish, a block running out - decode steps are determined: `_glide` takes them in one go, with the same decisions and the
same floating-point operations as one by one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from sim_backend.cost import StepCost
from sim_backend.frontend import RequestClock
from sim_backend.metrics import EngineMetrics, IterationStats
from sim_backend.request import Request, Status
from sim_backend.scheduler import PrefixStats, Scheduler, SchedulerStats, Step

Sink = Callable[[Request, float], None]
"""Called for a live request at each of its outputs, with the front end's time; `finish_reason` is set at the last."""


@dataclass(frozen=True, slots=True)
class Message:
    """Something on its way into the engine: an added request or the id of an aborted one."""

    at: float
    kind: Literal["add", "abort"]
    request: Request


class EngineCore:
    """Scheduler, step clock and front-end books of one rank. All times are seconds on the owner's clock."""

    def __init__(
        self,
        scheduler: Scheduler,
        cost: StepCost,
        metrics: EngineMetrics,
        *,
        output_delay_seconds: float = 0.0,
        glide: bool = True,
        on_output: Sink | None = None,
        on_finish: Sink | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.cost = cost
        self.metrics = metrics
        self.inbox: deque[Message] = deque()
        self.clock = 0.0
        """End of the last step, or the last instant known to be idle."""
        self.steps = 0
        self.paced = False
        """Real time: while outputs are followed, a step ends when it is seen to have ended, so that the metrics hold what clients saw."""
        self.watched = 0
        """Live requests whose outputs somebody follows one by one: no gliding while there are any."""
        self._glides = glide and scheduler.config.block_size > 1
        self._output_delay = output_delay_seconds
        self._on_output = on_output
        self._on_finish = on_finish
        self._step: Step | None = None
        self._ends = math.inf
        self._halted_at: float | None = None
        self._steady = False
        self._idle = False
        """The last step scheduled nothing and changed nothing, though requests wait."""
        self._last_ts = 0.0

    # -- queue --

    def submit(self, request: Request, at: float) -> None:
        """Put a request into the input queue; it is accepted at the first drain at or after `at`. Instants must not go back."""
        self.inbox.append(Message(at, "add", request))

    def abort(self, request: Request, at: float) -> None:
        """The client is gone: the front end forgets the request at once, the engine drops it at its next drain."""
        if request.front is None or request.finish_reason is not None:
            return
        request.front = None
        self._steady = False
        self.inbox.append(Message(at, "abort", request))

    # -- faults --

    def halt(self, now: float) -> None:
        """The worker hangs: the step in flight does not end and no other begins; the gauges keep their values."""
        if self._halted_at is None:
            self._halted_at = now

    def resume(self, now: float) -> None:
        """The worker goes on; the step in flight lasted as much longer as the halt."""
        if self._halted_at is None:
            return
        if self._step is not None:
            self._ends += now - self._halted_at
        self.clock = max(self.clock, now) if self._step is None else self.clock
        self._halted_at = None

    @property
    def halted(self) -> bool:
        return self._halted_at is not None

    # -- time --

    def next_event(self) -> float:
        """When something happens next if nobody intervenes; infinity when idle or halted."""
        if self._halted_at is not None:
            return math.inf
        if self._step is not None:
            return self._ends
        if self.scheduler.has_requests:
            return self.clock
        return max(self.clock, self.inbox[0].at) if self.inbox else math.inf

    def advance(self, until: float) -> None:
        """Complete every step that ends by `until`, and begin the one that is then due."""
        if self._halted_at is not None:
            return
        scheduler = self.scheduler
        inbox = self.inbox
        while True:
            if self._step is not None:
                if self._ends > until:
                    return
                if self.paced and self.watched:
                    self._ends = until
                self._complete()
            if inbox and inbox[0].at <= self.clock:
                self._drain()
            if not scheduler.has_requests:
                if not inbox or inbox[0].at > until:
                    return
                self.clock = max(self.clock, inbox[0].at)
                continue
            if self._steady and self._glides and not self.watched and scheduler.running and self._glide(until):
                continue
            if self.clock > until:
                return
            if self._idle and self._glides and self._spin(until):
                continue
            self._begin()

    def _drain(self) -> None:
        inbox, clock = self.inbox, self.clock
        self._idle = False
        while inbox and inbox[0].at <= clock:
            message = inbox.popleft()
            if message.kind == "add":
                self.scheduler.add(message.request, clock)
                self._steady = self._steady and len(self.scheduler.running) == self.scheduler.config.max_num_seqs
            else:
                self.scheduler.abort((message.request.id,))

    def _begin(self) -> None:
        step = self.scheduler.schedule(self.clock)
        self._step = step
        self._ends = self.clock + self.cost.seconds(
            step.total_tokens, len(step.scheduled), step.context_tokens, step.twice_pairs
        )

    def _complete(self) -> None:
        step = self._step
        assert step is not None
        self._step = None
        now = self.clock = self._ends
        self.steps += 1
        scheduler = self.scheduler
        sampled = scheduler.update(step)
        iteration = self._report(sampled, now) if sampled else None
        stats = scheduler.take_stats()
        self.metrics.record(stats, iteration)
        running = scheduler.running
        finished = len(iteration.finished) if iteration is not None else 0
        full = len(running) == scheduler.config.max_num_seqs
        self._steady = (
            iteration is not None
            and len(sampled) == len(step.scheduled) == len(running) + finished
            and not step.preempted
            and (not stats.num_waiting or full)
            and all(request.front is not None for request in running)
        )
        self._idle = (
            self._glides
            and not step.scheduled
            and not running
            and stats.num_waiting > 0
            and scheduler.head_is_blocked()
        )
        self._last_ts = now

    def _spin(self, until: float) -> bool:
        """Empty steps while the head of the queue cannot be admitted and nothing else runs: each one looks its prefix up again."""
        clock, seconds, done = self.clock, self.cost.seconds(0, 0, 0, 0), 0
        upcoming = self.inbox[0].at if self.inbox else math.inf
        while upcoming > clock and clock + seconds <= until:
            clock += seconds
            done += 1
        if not done:
            return False
        self.clock = self._last_ts = clock
        self.steps += done
        prefix = self.scheduler.failed_lookup(done)
        self.metrics.record(
            SchedulerStats(0, len(self.scheduler.waiting), self.scheduler.pool.usage_ratio, prefix), None
        )
        return True

    def _report(self, sampled: list[Request], now: float) -> IterationStats:
        """The front end's reading of one message."""
        iteration = IterationStats()
        wall = now + self._output_delay
        on_output = self._on_output if self.watched else None
        gaps = iteration.inter_token_latencies
        gap, repeats, tokens = -1.0, 0, 0
        for request in sampled:
            front: RequestClock | None = request.front
            if front is None:
                continue
            if front.is_prefilling or request.events:
                if repeats:
                    gaps.append((gap, repeats))
                    gap, repeats = -1.0, 0
                front.output(iteration, 1, request.events, now, wall)
                request.events = []
            else:
                tokens += 1
                passed = now - front.last_token_ts
                if passed == gap:
                    repeats += 1
                else:
                    if repeats:
                        gaps.append((gap, repeats))
                    gap, repeats = passed, 1
                front.last_token_ts = now
            if request.finish_reason is None:
                if on_output is None:
                    continue
                if request.output_len != front.stop_after:
                    on_output(request, wall)
                    continue
                request.finish_reason = "stop"
                request.front = None
                self.inbox.append(Message(now, "abort", request))
            front.num_generation_tokens = request.output_len  # one token a record here, so not counted one by one
            front.finish(iteration, request.finish_reason, wall)
            if self._on_finish is not None:
                self._on_finish(request, wall)
        if repeats:
            gaps.append((gap, repeats))
        iteration.num_generation_tokens += tokens
        return iteration

    def _glide(self, until: float) -> bool:
        """Decode steps until something else than plain decoding is due. Every running request gets one token per step.

        False when the step that is due now must be taken by itself.
        """
        scheduler, pool, cost = self.scheduler, self.scheduler.pool, self.cost
        running, size = scheduler.running, scheduler.config.block_size
        longest = scheduler.config.max_model_len - 1
        caching = scheduler.config.enable_prefix_caching
        count = len(running)
        limit = min(request.finish_len - request.output_len for request in running)
        fits = min(longest - request.computed for request in running)
        if fits < limit:  # its last token would not be scheduled as a plain one
            limit = fits
        # Requests by the step (modulo block size) at which they need a block; a block is full, and cached, in the step before.
        due: list[list[int]] = [[] for _ in range(size)]
        context = 0
        for index, request in enumerate(running):
            due[-request.computed % size].append(index)
            context += request.computed
        upcoming = self.inbox[0].at if self.inbox else math.inf
        clock, last_ts, done, alone = self.clock, self._last_ts, 0, False
        observe = self.metrics.inter_token_latency.observe
        seconds = cost.seconds
        while done < limit and clock <= until and upcoming > clock:
            context += count
            ends = clock + seconds(count, count, context, 2 * context - count)
            if ends > until:
                alone = True
                break
            needing = due[done % size]
            filling = due[(done + 1) % size] if caching else ()
            if needing or filling:
                if len(needing) > pool.num_free:
                    alone = True
                    break
                self._grow(needing, filling, done)
            clock = ends
            observe(clock - last_ts, count)
            last_ts = clock
            done += 1
        if done:
            self.clock = self._last_ts = clock
            self._settle(done, count)
        return done > 0 and not alone

    def _grow(self, needing: list[int], filling: list[int] | tuple[()], done: int) -> None:
        """The block changes of one gliding step, in the order of the running list: `needing` get a block, `filling` fill theirs."""
        running, pool = self.scheduler.running, self.scheduler.pool
        size = self.scheduler.config.block_size
        if needing and filling:
            order = sorted([*((index, True) for index in needing), *((index, False) for index in filling)])
        else:
            order = [*((index, True) for index in needing), *((index, False) for index in filling)]
        for index, needs in order:
            request = running[index]
            if needs:
                request.blocks.append(pool.take())
                continue
            full = (request.computed + done + 1) // size
            start = request.cached_blocks
            if full > start:
                pool.store(request.chain.upto(full)[start:full], request.blocks[start:full])
                request.cached_blocks = full

    def _settle(self, done: int, count: int) -> None:
        """Book `done` gliding steps of `count` requests, the finishes of the last one included."""
        scheduler = self.scheduler
        running = scheduler.running
        clock = self.clock
        finished: list[Request] = []
        for request in running:
            request.computed += done
            request.num_tokens += done
            request.output_len += done
            request.front.last_token_ts = clock
            if request.output_len >= request.finish_len:
                request.finish_reason = request.finish.reason
                finished.append(request)
        self.steps += done
        metrics = self.metrics
        metrics.generation_tokens += count * done
        metrics.iteration_tokens.observe(count, done)
        scheduler.has_finished = False
        if finished:
            iteration = IterationStats()
            wall = clock + self._output_delay
            scheduler.drop_finished(finished)
            for request in finished:
                front: RequestClock = request.front
                assert request.finish_reason is not None
                front.num_generation_tokens = request.output_len
                front.finish(iteration, request.finish_reason, wall)
                if self._on_finish is not None:
                    self._on_finish(request, wall)
            metrics.record_finished(iteration)
            self._steady = not len(scheduler.waiting)
        stats = SchedulerStats(
            len(scheduler.running), len(scheduler.waiting), scheduler.pool.usage_ratio, PrefixStats()
        )
        metrics.record(stats, None)


def live(request: Request) -> bool:
    """Whether somebody still waits for this request."""
    return request.front is not None and request.status is not Status.FINISHED
