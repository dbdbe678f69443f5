"""One engine core (one data-parallel rank) on a clock that its owner moves: drain the queue, schedule, run, update, report.

`advance(until)` completes every step that ends by `until`; a step that began but ends later stays in flight, its decisions taken. Requests that
decode in step are booked together (`cohort.py`), and where they are alone whole runs of steps are taken in one go: the same decisions and the same
floating-point operations as one by one, which `glide=False` does.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Literal

from sim_backend.cohort import Cohort, cohort_of, extend
from sim_backend.cost import StepCost
from sim_backend.metrics import EngineMetrics, IterationStats
from sim_backend.reporting import ALONE, Reporter, Together
from sim_backend.request import Request
from sim_backend.scheduler import PrefixStats, Scheduler, SchedulerStats, Step


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
        reporter: Reporter | None = None,
        glide: bool = True,
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
        self._glides = glide and scheduler.config.block_size > 1 and not scheduler.config.max_loras
        self._reporter = reporter or Reporter()
        self._step: Step | None = None
        self._ends = math.inf
        self._halted_at: float | None = None
        self._cohort: Cohort | None = None
        self._decoding = 0
        """Members of the cohort in the step that is in flight; 0 when it is an ordinary one."""
        self._idle = False
        """The last step scheduled nothing and changed nothing, though requests wait."""

    # -- queue --

    def submit(self, request: Request, at: float) -> None:
        """Put a request into the input queue; it is accepted at the first drain at or after `at`. Instants must not go back."""
        self.inbox.append(Message(at, "add", request))

    def abort(self, request: Request, at: float) -> None:
        """The client is gone: the front end forgets the request at once, the engine drops it at its next drain."""
        if request.front is None or request.finish_reason is not None:
            return
        self._dissolve()
        request.front = None
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
            cohort = self._cohort
            if cohort is not None and self._is_alone(cohort) and self._glide(cohort, until):
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
            else:
                self.scheduler.abort((message.request.id,))

    def _begin(self) -> None:
        cohort = self._cohort
        if cohort is not None and not self._fits(cohort):
            self._dissolve()
            cohort = None
        scheduler = self.scheduler
        if cohort is None:
            step = scheduler.schedule(self.clock)
            self._ends = self.clock + self.cost.seconds(
                step.total_tokens, len(step.scheduled), step.context_tokens, step.twice_pairs
            )
        else:
            cohort.grow()
            count = self._decoding = cohort.count
            step = scheduler.schedule(self.clock, decoding=count)
            context = cohort.context + count
            self._ends = self.clock + self.cost.seconds(
                count + step.total_tokens,
                count + len(step.scheduled),
                context + step.context_tokens,
                2 * context - count + step.twice_pairs,
            )
        self._step = step

    def _fits(self, cohort: Cohort) -> bool:
        """Whether the step that is due can be taken with the cohort as a whole: budget and blocks for it and for whoever runs behind it."""
        if self.watched:
            return False
        config = self.scheduler.config
        budget = config.max_num_batched_tokens - cohort.count
        if budget < 0:
            return False
        behind = len(self.scheduler.running) - cohort.count
        needed = cohort.blocks_due()
        if behind:
            needed += (
                budget // config.block_size + behind + 1
            )  # more than they can ask for, so that nobody is preempted
        return needed <= self.scheduler.pool.num_free

    def _complete(self) -> None:
        step = self._step
        assert step is not None
        self._step = None
        now = self.clock = self._ends
        self.steps += 1
        scheduler = self.scheduler
        cohort, decoded, together = self._cohort, self._decoding, ALONE
        if decoded and cohort is not None:
            gap = now - cohort.last_ts
            cohort.book(1, now)
            ended = cohort.take_ended()
            if ended:
                scheduler.drop_finished(ended)
            together = Together(decoded, gap, ended)
        self._decoding = 0
        sampled = scheduler.update(step)
        iteration = None
        if sampled or decoded:
            iteration, stopped = self._reporter.message(together, sampled, now, followed=self.watched > 0)
            self.inbox.extend(Message(now, "abort", request) for request in stopped)
        stats = scheduler.take_stats()
        self.metrics.record(stats, iteration)
        running = scheduler.running
        self._idle = (
            self._glides
            and not decoded
            and not step.scheduled
            and not running
            and stats.num_waiting > 0
            and scheduler.head_is_blocked()
        )
        if self._glides and not self.watched:
            self._gather(now)

    def _gather(self, now: float) -> None:
        """Whoever decodes in step from here on joins the cohort."""
        running, cohort = self.scheduler.running, self._cohort
        if cohort is None:
            config = self.scheduler.config
            self._cohort = cohort_of(
                running, self.scheduler.pool, config.block_size, caching=config.enable_prefix_caching, last_ts=now
            )
        elif cohort.count < len(running):
            extend(cohort, running)
        if self._cohort is not None and not self._cohort.count:
            self._cohort = None

    def _is_alone(self, cohort: Cohort) -> bool:
        """Whether the next steps are the cohort's and nothing else: nobody runs behind it and nobody can be admitted."""
        scheduler = self.scheduler
        running = len(scheduler.running)
        if cohort.count != running or self.watched or running > scheduler.config.max_num_batched_tokens:
            return False
        return not len(scheduler.waiting) or running == scheduler.config.max_num_seqs

    def _spin(self, until: float) -> bool:
        """Empty steps while the head of the queue cannot be admitted and nothing else runs: each one looks its prefix up again."""
        clock, seconds, done = self.clock, self.cost.seconds(0, 0, 0, 0), 0
        upcoming = self.inbox[0].at if self.inbox else math.inf
        while upcoming > clock and clock + seconds <= until:
            clock += seconds
            done += 1
        if not done:
            return False
        self.clock = clock
        self.steps += done
        prefix = self.scheduler.failed_lookup(done)
        self.metrics.record(
            SchedulerStats(0, len(self.scheduler.waiting), self.scheduler.pool.usage_ratio, prefix), None
        )
        return True

    def _glide(self, cohort: Cohort, until: float) -> bool:
        """Steps in which the cohort is alone: nobody waits for a seat that is free, nobody else runs.

        False when the step that is due now must be taken by itself.
        """
        pool, seconds, count = self.scheduler.pool, self.cost.seconds, cohort.count
        upcoming = self.inbox[0].at if self.inbox else math.inf
        observe = self.metrics.inter_token_latency.observe
        clock, last_ts, context, done, alone = self.clock, cohort.last_ts, cohort.context, 0, False
        limit = cohort.next_end - cohort.ticks
        while done < limit and clock <= until and upcoming > clock:
            context += count
            ends = clock + seconds(count, count, context, 2 * context - count)
            if ends > until or cohort.blocks_due() > pool.num_free:
                alone = True
                break
            cohort.grow()
            clock = ends
            observe(clock - last_ts, count)
            last_ts = clock
            done += 1
            cohort.ticks += 1
        if not done:
            return False
        cohort.ticks -= done
        cohort.book(done, clock)
        self.clock = clock
        self._settle(cohort, count, done)
        return not alone

    def _settle(self, cohort: Cohort, count: int, done: int) -> None:
        """Book `done` gliding steps of `count` requests, the ends that the last one brought included."""
        scheduler, metrics = self.scheduler, self.metrics
        self.steps += done
        metrics.generation_tokens += count * done
        metrics.iteration_tokens.observe(count, done)
        scheduler.has_finished = False
        ended = cohort.take_ended()
        if ended:
            iteration = IterationStats()
            scheduler.drop_finished(ended)
            for request in ended:
                self._reporter.end(
                    request, request.finish.reason, iteration, self.clock + self._reporter.output_delay_seconds
                )
            metrics.record_finished(iteration)
            if not cohort.count:
                self._cohort = None
        stats = SchedulerStats(
            len(scheduler.running), len(scheduler.waiting), scheduler.pool.usage_ratio, PrefixStats()
        )
        metrics.record(stats, None)

    def settle(self) -> None:
        """Write the counters of every running request as of the last step, for somebody who wants to look at them."""
        if self._cohort is not None:
            for request in self.scheduler.running[: self._cohort.count]:
                self._cohort.settle(request)

    def _dissolve(self) -> None:
        """Everybody on their own again; a step of the cohort that is in flight becomes an ordinary one."""
        cohort = self._cohort
        if cohort is None:
            return
        self.settle()
        self._cohort = None
        if self._decoding and self._step is not None:
            members = self.scheduler.running[: self._decoding]
            for request in members:
                request.computed += 1
            self._step.scheduled = {**dict.fromkeys(members, 1), **self._step.scheduled}
        self._decoding = 0
