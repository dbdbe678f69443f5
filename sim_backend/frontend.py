"""What the API server derives from an engine's outputs: the per-request clocks and the statistics of one message.

Two clocks: `wall` is the front end's, on which requests arrive; engine timestamps are monotonic and comparable with nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sim_backend.metrics import FinishedRequest, IterationStats
from sim_backend.request import EventType, FinishReason


@dataclass(slots=True)
class ParentRequest:
    """A request with n > 1: its sequences are engine requests of their own, two histograms are observed once for all of them."""

    n: int
    unfinished: int
    longest: int = 0


class RequestClock:
    """The front end's book of one sequence."""

    __slots__ = (
        "arrival_time",
        "first_token_ts",
        "is_prefilling",
        "last_token_ts",
        "max_tokens",
        "num_generation_tokens",
        "parent",
        "prompt_len",
        "queued_ts",
        "scheduled_ts",
        "stop_after",
    )

    def __init__(
        self, arrival_time: float, prompt_len: int, max_tokens: int | None, parent: ParentRequest | None = None
    ) -> None:
        self.arrival_time = arrival_time
        self.prompt_len = prompt_len
        self.max_tokens = max_tokens
        self.parent = parent
        self.stop_after = 0
        """A stop string completes with this output token: the front end ends the request, the engine learns of it afterwards. 0: never."""
        self.is_prefilling = True
        self.num_generation_tokens = 0
        self.queued_ts = 0.0
        self.scheduled_ts = 0.0
        self.first_token_ts = 0.0
        self.last_token_ts = 0.0

    def output(
        self,
        stats: IterationStats,
        num_new_tokens: int,
        events: Sequence[tuple[EventType, float]],
        engine_ts: float,
        wall: float,
    ) -> None:
        """One record of this sequence in a message with timestamp `engine_ts`, handled at `wall`; adds to `stats`."""
        stats.num_generation_tokens += num_new_tokens
        self.num_generation_tokens += num_new_tokens
        for event, stamped in events:
            if event == "PREEMPTED":
                stats.num_preempted += 1
            elif event == "QUEUED":
                self.queued_ts = stamped
            elif not self.scheduled_ts:  # only the first admission counts
                self.scheduled_ts = stamped
        if self.is_prefilling:
            self.is_prefilling = False
            stats.num_prompt_tokens += self.prompt_len
            stats.times_to_first_token.append(wall - self.arrival_time)
            self.first_token_ts = engine_ts
        else:
            add_gap(stats, engine_ts - self.last_token_ts)
        self.last_token_ts = engine_ts

    def finish(self, stats: IterationStats, reason: FinishReason, wall: float) -> None:
        """The final record was seen at `wall`; adds the finish observations to `stats`."""
        decode = self.last_token_ts - self.first_token_ts
        gaps = self.num_generation_tokens - 1
        stats.finished.append(
            FinishedRequest(
                finish_reason=reason,
                e2e_latency=wall - self.arrival_time,
                num_prompt_tokens=self.prompt_len,
                num_generation_tokens=self.num_generation_tokens,
                max_tokens_param=self.max_tokens,
                queued_time=self.scheduled_ts - self.queued_ts,
                prefill_time=self.first_token_ts - self.scheduled_ts,
                inference_time=self.last_token_ts - self.scheduled_ts,
                decode_time=decode,
                mean_time_per_output_token=decode / gaps if gaps > 0 else 0.0,
            )
        )
        parent = self.parent
        if parent is None:
            stats.max_num_generation_tokens.append(self.num_generation_tokens)
            stats.n_params.append(1)
            return
        parent.longest = max(parent.longest, self.num_generation_tokens)
        parent.unfinished -= 1
        if not parent.unfinished:
            stats.max_num_generation_tokens.append(parent.longest)
            stats.n_params.append(parent.n)


def add_gap(stats: IterationStats, seconds: float) -> None:
    """One more inter-token latency; equal neighbours are kept as one run."""
    gaps = stats.inter_token_latencies
    if gaps and gaps[-1][0] == seconds:
        gaps[-1] = (seconds, gaps[-1][1] + 1)
    else:
        gaps.append((seconds, 1))
