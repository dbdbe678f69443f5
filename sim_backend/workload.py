"""Who asks for what, when: seeded streams of calls. Same scenario and seed, same calls."""

from __future__ import annotations

import csv
import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Literal

from sim_backend.scenario import Arrivals, Lengths, Load, ScenarioError

Segments = tuple[tuple[int, int], ...]
CallKind = Literal["normal", "oversized", "bad_key"]


@dataclass(frozen=True, slots=True)
class Call:
    """One request as a client makes it. The text is a list of (seed, tokens); equal leading segments are equal prefixes."""

    id: str
    at: float
    prompt: Segments
    output_len: int
    """Where the model would stop by itself."""
    max_tokens: int
    output_seed: int
    kind: CallKind = "normal"
    endpoint: str = "/v1/chat/completions"
    n: int = 1
    priority: int = 0
    tenant: str = ""
    replicas: tuple[int, ...] | None = None
    rank: int | None = None
    abort_after_seconds: float | None = None
    turn: int = 0
    stream: int = 0
    prompt_logprobs: bool = False
    """Log-probabilities of the prompt were asked for: its prefix is not looked up."""

    @property
    def prompt_len(self) -> int:
        return sum(length for _, length in self.prompt)


def draw_length(lengths: Lengths, random: Random) -> int:
    """One token count."""
    if lengths.kind == "uniform":
        return random.randint(lengths.low, lengths.high)
    if lengths.kind == "fixed":
        return max(1, round(lengths.mean))
    sigma = math.sqrt(math.log(1 + lengths.cv**2))
    value = random.lognormvariate(math.log(lengths.mean) - sigma * sigma / 2, sigma)
    return min(max(round(value), lengths.low), lengths.high)


def rate_at(arrivals: Arrivals, t: float) -> tuple[float, float]:
    """(rate at `t` seconds into the stream, the highest rate it ever has); requests per second."""
    match arrivals.kind:
        case "ramp":
            share = min(max(t / arrivals.period_seconds, 0.0), 1.0)
            return arrivals.rate + (arrivals.rate_to - arrivals.rate) * share, max(arrivals.rate, arrivals.rate_to)
        case "diurnal":
            swing = arrivals.amplitude * math.sin(2 * math.pi * t / arrivals.period_seconds - math.pi / 2)
            return arrivals.rate * (1 + swing), arrivals.rate * (1 + arrivals.amplitude)
        case "steps":
            cycle = sum(seconds for seconds, _ in arrivals.steps)
            left = t % cycle
            highest = max(rate for _, rate in arrivals.steps)
            for seconds, rate in arrivals.steps:
                if left < seconds:
                    return rate, highest
                left -= seconds
            return arrivals.steps[-1][1], highest
        case _:
            return arrivals.rate, arrivals.rate


class Stream:
    """The calls of one `[[load]]`, in order of time. `dial` multiplies its rate and may change at any time."""

    def __init__(self, index: int, load: Load, seed: int) -> None:
        self.index = index
        self.load = load
        self.dial = 1.0
        self._random = Random(f"{seed}/{index}/{load.name}")
        self._count = 0
        self._tag = (seed & 0xFFFF) << 40 | index << 32
        self._follow_ups: list[tuple[float, int, Call]] = []
        self._trace = iter(_read_trace(load.arrivals)) if load.arrivals.kind == "trace" else None
        if load.arrivals.kind == "steps" and sum(seconds for seconds, _ in load.arrivals.steps) <= 0:
            raise ScenarioError(f"load {load.name}: arrivals.steps needs [seconds, rate] pairs with time in them")
        self._opening = self._openings()
        self._next_opening = self._first_opening()

    # -- what comes next --

    def peek(self) -> float:
        """When the next call comes; infinity when none is planned."""
        opening = self._next_opening
        follow_up = self._follow_ups[0][0] if self._follow_ups else math.inf
        return min(opening, follow_up)

    def pop(self) -> Call:
        """The next call."""
        if self._follow_ups and self._follow_ups[0][0] <= self._next_opening:
            return heapq.heappop(self._follow_ups)[2]
        call = self._make(self._next_opening)
        self._next_opening = next(self._opening, math.inf)
        return call

    def turn_dial(self, dial: float, now: float) -> None:
        """Multiply the rate from `now` on. Open arrivals have no memory, so the next one is drawn anew."""
        if dial == self.dial or not self.load.obeys_dial:
            return
        self.dial = dial
        if self.load.arrivals.kind in ("poisson", "ramp", "diurnal", "steps", "gamma"):
            self._opening = self._openings(max(now, self.load.start_seconds))
            self._next_opening = next(self._opening, math.inf)

    def answered(self, call: Call, at: float) -> None:
        """A call ended (answer, reject or hang-up) at `at`: a waiting client or the next turn of a chat may follow."""
        chat = self.load.chat
        if chat is not None and call.turn + 1 < chat.turns and call.kind == "normal":
            pause = self._random.expovariate(1 / chat.think_seconds) if chat.think_seconds else 0.0
            self._push(self._next_turn(call, at + max(pause, 0.05)))
        elif self.load.arrivals.kind == "closed":
            think = self.load.arrivals.think_seconds
            pause = self._random.expovariate(1 / think) if think else 0.0
            self._push(self._make(at + max(pause, 0.001)))

    def _push(self, call: Call) -> None:
        if self.load.stop_seconds is None or call.at < self.load.stop_seconds:
            heapq.heappush(self._follow_ups, (call.at, self._count, call))

    # -- making calls --

    def _first_opening(self) -> float:
        return next(self._opening, math.inf)

    def _openings(self, start: float | None = None) -> Iterator[float]:
        """Instants at which a new client or conversation appears."""
        load, arrivals, random = self.load, self.load.arrivals, self._random
        begin = load.start_seconds if start is None else start
        stop = math.inf if load.stop_seconds is None else load.stop_seconds
        if arrivals.kind == "closed":
            yield from (begin + 0.01 * number for number in range(arrivals.clients))
            return
        if arrivals.kind == "burst":
            yield from (begin + 1e-4 * number for number in range(arrivals.count))
            return
        if self._trace is not None:
            yield from self._trace_openings(begin, stop)
            return
        t = begin
        while True:
            if arrivals.kind == "gamma":
                if not arrivals.rate * self.dial:
                    return
                shape = 1 / arrivals.cv**2
                t += random.gammavariate(shape, 1 / (shape * arrivals.rate * self.dial))
            else:
                highest = rate_at(arrivals, 0.0)[1] * self.dial
                if not highest:
                    return
                t += random.expovariate(highest)
                if t < stop and random.random() * highest > rate_at(arrivals, t - load.start_seconds)[0] * self.dial:
                    continue
            if t >= stop:
                return
            yield t

    def _trace_openings(self, begin: float, stop: float) -> Iterator[float]:
        assert self._trace is not None
        for at, prompt, output in self._trace:
            if begin + at >= stop:
                return
            self._lengths = (prompt, output)
            yield begin + at

    _lengths: tuple[int, int] | None = None

    def _make(self, at: float) -> Call:
        load, random = self.load, self._random
        self._count += 1
        number = self._tag | self._count
        if self._lengths is not None:
            prompt_len, output_len = self._lengths
        else:
            prompt_len, output_len = draw_length(load.prompt, random), draw_length(load.output, random)
        prompt: Segments = ((number << 1, prompt_len),)
        if load.shared_prefix is not None:
            family = random.randrange(load.shared_prefix.families)
            prompt = ((-1 - (self._tag >> 8 | family), load.shared_prefix.tokens), *prompt)
        kind: CallKind = "normal"
        if load.oversized_ratio and random.random() < load.oversized_ratio:
            kind = "oversized"
        elif load.bad_key_ratio and random.random() < load.bad_key_ratio:
            kind = "bad_key"
        abort = None
        if load.aborts is not None and random.random() < load.aborts.ratio:
            patience = load.aborts.mean_seconds
            abort = patience if load.aborts.exactly else random.expovariate(1 / patience)
        return Call(
            id=f"{load.name}-{self._count}",
            at=at,
            prompt=prompt,
            output_len=output_len,
            max_tokens=load.max_tokens or output_len,
            output_seed=number << 1 | 1,
            kind=kind,
            endpoint=load.endpoint,
            n=load.n,
            priority=random.choice(load.priorities) if load.priorities else 0,
            tenant=f"tenant-{random.randrange(load.tenants)}" if load.tenants else "",
            replicas=tuple(load.replicas) if load.replicas is not None else None,
            rank=load.rank,
            abort_after_seconds=abort,
            stream=self.index,
        )

    def _next_turn(self, call: Call, at: float) -> Call:
        fresh = self._make(at)
        answered = min(call.output_len, call.max_tokens)
        return replace(
            fresh,
            prompt=(*call.prompt, (call.output_seed, answered), *fresh.prompt[-1:]),
            turn=call.turn + 1,
            tenant=call.tenant,
        )


def _read_trace(arrivals: Arrivals) -> list[tuple[float, int, int]]:
    """(seconds, prompt tokens, output tokens), stretched to `rescale_rate` when given. Raises ScenarioError."""
    path = Path(arrivals.file)
    try:
        with path.open(newline="") as lines:
            rows = [
                (float(row["arrived_at_s"]), int(row["prompt_tokens"]), int(row["output_tokens"]))
                for row, _ in zip(csv.DictReader(lines), range(arrivals.limit or 1 << 40), strict=False)
            ]
    except (OSError, KeyError, ValueError) as error:
        raise ScenarioError(
            f"trace {arrivals.file!r}: {error}. It needs the columns arrived_at_s, prompt_tokens, output_tokens"
        ) from error
    if arrivals.rescale_rate and len(rows) > 1 and rows[-1][0] > rows[0][0]:
        first = rows[0][0]
        factor = (len(rows) - 1) / (rows[-1][0] - first) / arrivals.rescale_rate
        rows = [(max(0.0, (at - first) * factor), prompt, output) for at, prompt, output in rows]
    return rows
