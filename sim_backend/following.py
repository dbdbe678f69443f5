"""Following one call through a live replica: outputs as they come, the end, and the client that goes away."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from sim_backend.frontend import RequestClock
from sim_backend.kv.identity import Chain, ExtraKeys, TokenChain
from sim_backend.live import LiveFleet
from sim_backend.openai_protocol import Prepared, Refused
from sim_backend.replica import Replica, Ticket
from sim_backend.reporting import Sink
from sim_backend.request import FinishReason, Request
from sim_backend.text import output_text, output_token, seed_of
from sim_backend.workload import Call

ENGINE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."
T = TypeVar("T")
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Output:
    """One record of one sequence: how many tokens it has now, and why it ended if it did (`stop_string` when a stop string ended it)."""

    sequence: int
    tokens: int
    finish_reason: FinishReason | None
    stop_string: str | None = None


@dataclass(slots=True)
class Answer:
    """The text of one sequence, known in advance: a seed makes every token."""

    seed: int
    limit: int
    """Output tokens unless something cuts it."""
    stop_index: int | None
    cut_after: int = 0
    cut_text: str | None = None
    stop_string: str | None = None

    def text(self, start: int, end: int) -> str:
        """What tokens `start` to `end` (exclusive) add, with a stop string and the token that stops left out."""
        if self.cut_text is not None and end >= self.cut_after:
            before = "".join(output_text(self.seed, index) for index in range(start))
            return self.cut_text[len(before) :]
        last = self.stop_index if self.stop_index is not None else end
        return "".join(output_text(self.seed, index) for index in range(start, min(end, last)))


def plan_answer(
    prepared: Prepared, sequence: int, salt: int, *, ignore_eos: bool, min_tokens: int, stops: list[str]
) -> Answer:
    """Decide what a sequence will say: its natural end is log-normal around 180 tokens unless EOS is ignored; a stop string may cut it."""
    seed = seed_of(prepared.tokens, salt + sequence)
    natural: int | None = None
    if not ignore_eos:
        natural = max(min_tokens, min(4000, round(Random(seed).lognormvariate(5.0, 0.6))))
        natural = natural if natural < prepared.max_tokens else None
    answer = Answer(seed, prepared.max_tokens if natural is None else natural + 1, natural)
    if stops:
        _cut(answer, stops)
    return answer


def _cut(answer: Answer, stops: list[str]) -> None:
    """Find the first stop string in the answer's text; only what a new token can complete is searched again."""
    text = ""
    longest = max(len(stop) for stop in stops)
    for index in range(answer.limit):
        start = max(0, len(text) - longest)
        text += output_text(answer.seed, index)
        found = [(place, stop) for stop in stops if (place := text.find(stop, start)) >= 0]
        if found:
            place, stop = min(found)
            answer.cut_after, answer.cut_text, answer.stop_string = index + 1, text[:place], stop
            return


class Following:
    """A call inside a replica, seen from its client."""

    def __init__(self, live: LiveFleet, index: int, call: Call, prepared: Prepared, answers: list[Answer]) -> None:
        self._live = live
        self._replica: Replica = live.cluster.replicas[index]
        self._outputs: asyncio.Queue[Output] = asyncio.Queue()
        self._call = call
        self._open = len(answers)
        self.answers = answers
        extra = ExtraKeys(cache_salt=self._replica.salt_of(call.tenant) if call.tenant else None)
        size = self._replica.config.block_size

        def chain(sequence: int) -> Chain:
            seed = answers[sequence].seed
            return TokenChain(prepared.tokens, lambda at: output_token(seed, at), size, extra)

        now = live.catch_up()
        stops = [answer.stop_index for answer in answers]
        ticket = self._replica.submit(call, now, chain=chain, sink=self._sink, stops=stops)
        if ticket is None:
            raise Refused(ENGINE_DEAD, "Internal Server Error", 500)
        self._plan_stops(ticket)
        live.poke()

    def _plan_stops(self, ticket: Ticket) -> None:
        for request, answer in zip(ticket.requests, self.answers, strict=True):
            if isinstance(request.front, RequestClock):
                request.front.stop_after = answer.cut_after

    def _sink(self, sequence: int) -> Sink:
        answer = self.answers[sequence]

        def output(request: Request, at: float) -> None:
            cut = request.output_len == answer.cut_after
            self._outputs.put_nowait(
                Output(sequence, request.output_len, request.finish_reason, answer.stop_string if cut else None)
            )

        return output

    async def outputs(self) -> AsyncIterator[Output]:
        """Records in order until every sequence ended. Raises Refused (500) when the engine dies underneath."""
        while self._open:
            output = await self._outputs.get()
            if output.finish_reason == "abort":
                raise Refused(ENGINE_DEAD, "Internal Server Error", 500)
            self._open -= output.finish_reason is not None
            yield output

    def hang_up(self) -> None:
        """The client is gone. Nothing happens when the call was over."""
        if self._open:
            self._open = 0
            now = self._live.catch_up()
            self._replica.hang_up(self._call.id, now)
            self._live.poke()


def next_number() -> int:
    return next(_numbers)


async def until_disconnect(receive: Receive) -> None:
    """Returns when the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_disconnected(work: Awaitable[T], receive: Receive) -> T | None:
    """The result of `work`; None, with the work cancelled, when the client goes first."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(until_disconnect(receive))
    done, _ = await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
    if task in done:
        gone.cancel()
        return task.result()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return None


class EventStream(StreamingResponse):
    """Server-sent events that stop being made the moment the client is gone; `on_close` runs in every case."""

    def __init__(self, events: AsyncIterator[str], on_close: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._on_close = on_close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_disconnected(self.stream_response(send), receive)
        finally:
            self._on_close()
