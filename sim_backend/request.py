"""One request inside an engine, as the scheduler sees it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

from sim_backend.kv.identity import Chain

FinishReason = Literal["stop", "length", "abort"]
EventType = Literal["QUEUED", "SCHEDULED", "PREEMPTED"]


class Status(Enum):
    WAITING = "waiting"
    WAITING_FOR_GRAMMAR = "waiting_for_grammar"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Finish:
    """Why and when a request ends if nobody aborts it: at its `output_len`-th output token."""

    output_len: int
    reason: FinishReason


def planned_finish(prompt_len: int, max_tokens: int, max_model_len: int, stop_index: int | None) -> Finish:
    """The finish rules after each appended token: total >= max_model_len or output >= max_tokens -> length, then the stop token -> stop.

    `stop_index` is the 0-based output index of the stop token, None when there is none. At least one token is produced.
    """
    capped = max(1, min(max_tokens, max_model_len - prompt_len))
    if stop_index is not None and stop_index + 1 < capped:
        return Finish(stop_index + 1, "stop")
    return Finish(capped, "length")


class Request:
    """Scheduler state of one engine sequence. `num_tokens` counts known tokens (prompt + output), `computed` those with KV entries."""

    __slots__ = (
        "arrival_time",
        "blocks",
        "cached_blocks",
        "chain",
        "computed",
        "events",
        "finish",
        "finish_len",
        "finish_reason",
        "front",
        "id",
        "joined",
        "lora_id",
        "num_cached_tokens",
        "num_tokens",
        "output_len",
        "priority",
        "prompt_len",
        "seat",
        "skip_prefix_lookup",
        "status",
    )

    def __init__(
        self,
        request_id: str,
        *,
        prompt_len: int,
        finish: Finish,
        chain: Chain,
        arrival_time: float = 0.0,
        priority: int = 0,
        lora_id: int = 0,
        needs_grammar: bool = False,
        skip_prefix_lookup: bool = False,
        front: Any = None,
    ) -> None:
        self.id = request_id
        self.prompt_len = prompt_len
        self.finish = finish
        self.finish_len = finish.output_len
        self.chain = chain
        self.arrival_time = arrival_time
        self.priority = priority
        self.lora_id = lora_id
        self.skip_prefix_lookup = skip_prefix_lookup
        """Prompt log-probabilities were asked for: no lookup, no statistics."""
        self.status = Status.WAITING_FOR_GRAMMAR if needs_grammar else Status.WAITING
        self.num_tokens = prompt_len
        self.computed = 0
        self.output_len = 0
        self.blocks: list[int] = []
        self.cached_blocks = 0
        """Leading blocks of the table that are in the prefix cache."""
        self.num_cached_tokens = -1
        """What counted as computed at first admission; -1 before it."""
        self.events: list[tuple[EventType, float]] = []
        self.finish_reason: FinishReason | None = None
        self.joined = 0
        self.seat = 0
        """Both belong to the cohort that the request decodes in: the tick at which it joined, and its rank in the order of the running list."""
        self.front: Any = front
        """What the front end keeps for this request; the scheduler never reads it."""

    def __repr__(self) -> str:
        return f"Request({self.id!r}, {self.status.value}, {self.computed}/{self.num_tokens} tokens, {len(self.blocks)} blocks)"

    def grammar_ready(self) -> None:
        """The structured-output grammar is compiled: the request may be scheduled from the next step on."""
        if self.status is Status.WAITING_FOR_GRAMMAR:
            self.status = Status.WAITING
