"""The front end of one engine: reads the outputs of a step, keeps the per-request clocks, tells whoever follows a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sim_backend.frontend import RequestClock
from sim_backend.metrics import IterationStats
from sim_backend.request import FinishReason, Request

Sink = Callable[[Request, float], None]
"""Called for a live request at each of its outputs, with the front end's time; `finish_reason` is set at the last."""


@dataclass(frozen=True, slots=True)
class Together:
    """What a cohort's step brought: `count` requests waited `gap` seconds for their token, `ended` of them for the last one."""

    count: int
    gap: float
    ended: Sequence[Request] = ()


ALONE = Together(0, -1.0)


@dataclass(slots=True)
class Reporter:
    """Turns the outputs of a step into statistics. `output_delay_seconds` lies between an engine's timestamp and the front end's clock."""

    output_delay_seconds: float = 0.0
    on_output: Sink | None = None
    on_finish: Sink | None = None

    def message(
        self, together: Together, sampled: list[Request], now: float, *, followed: bool
    ) -> tuple[IterationStats, list[Request]]:
        """(statistics of a message with timestamp `now`, requests that a stop string ended: the engine must be told to drop them).

        First the cohort, then `sampled` in order. `followed`: somebody wants every single output.
        """
        iteration = IterationStats()
        wall = now + self.output_delay_seconds
        on_output = self.on_output if followed else None
        gaps = iteration.inter_token_latencies
        gap, repeats, tokens = together.gap, together.count, together.count
        stopped: list[Request] = []
        for request in together.ended:
            self.end(request, request.finish.reason, iteration, wall)
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
            reason = request.finish_reason
            if reason is not None:
                self.end(request, reason, iteration, wall)
            elif on_output is not None:
                if request.output_len == front.stop_after:
                    self.end(request, "stop", iteration, wall)
                    request.front = None
                    stopped.append(request)
                else:
                    on_output(request, wall)
        if repeats:
            gaps.append((gap, repeats))
        iteration.num_generation_tokens += tokens
        return iteration, stopped

    def end(self, request: Request, reason: FinishReason, iteration: IterationStats, wall: float) -> None:
        """A sequence's last record was seen at `wall`."""
        request.finish_reason = reason
        front: RequestClock = request.front
        front.num_generation_tokens = request.output_len  # one token a record here, so not counted one by one
        front.finish(iteration, reason, wall)
        if self.on_finish is not None:
            self.on_finish(request, wall)
