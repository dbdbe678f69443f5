"""One replica: an API server with its engines, what it exposes, and how it breaks. Times are seconds from the start of the run."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from sim_backend.cost import Profile, StepCost
from sim_backend.engine import EngineCore
from sim_backend.exposition import Page, PageSource
from sim_backend.frontend import ParentRequest, RequestClock
from sim_backend.http_metrics import HttpMetrics, process_page
from sim_backend.kv.identity import Chain, ExtraKeys, SegmentChain
from sim_backend.metrics import CacheConfig, ReplicaMetrics
from sim_backend.reporting import Reporter, Sink
from sim_backend.request import Request, planned_finish
from sim_backend.scheduler import Scheduler, SchedulerConfig
from sim_backend.workload import Call

State = Literal["up", "down", "engine_dead"]
HTTP_OVERHEAD_SECONDS = 0.003
"""Parsing, chat template and tokenization: before arrival_time, so only http_* sees it."""
REQUEST_BYTES_PER_TOKEN = 4
REQUEST_BYTES = 180
ERROR_BYTES = 220
DEAD_ENGINE_EXIT_SECONDS = 5.0
"""The API server's watchdog ends it about so long after its engine died."""


@dataclass(slots=True)
class Ticket:
    """A call inside a replica: its engine sequences and what is left of them."""

    call: Call
    engine: EngineCore
    requests: list[Request]
    unfinished: int
    over_http: bool = False
    """Its HTTP metrics are recorded by the server's middleware."""
    sinks: dict[str, Sink] = field(default_factory=dict)


Answered = Callable[[Call, float], None]


class Replica(PageSource):
    """State of one `instance`. `answered` is told when a call is over for its client, whatever the outcome."""

    def __init__(
        self,
        instance: str,
        profile: Profile,
        settings: Mapping[str, object],
        *,
        ranks: int = 1,
        epoch_seconds: float = 0.0,
        glide: bool = True,
        paced: bool = False,
        answered: Answered | None = None,
    ) -> None:
        engine = dict(settings)
        self.enforce_eager = bool(engine.pop("enforce_eager", False))
        self.instance = instance
        self.profile = profile
        self.settings = engine
        self.config: SchedulerConfig = profile.scheduler_config(**engine)
        self.num_ranks = ranks
        self.epoch_seconds = epoch_seconds
        self.state: State = "up"
        self._glide = glide
        self._paced = paced
        self._answered = answered
        self._exits_at = math.inf
        self._tickets: dict[str, Ticket] = {}
        self._of_request: dict[Request, Ticket] = {}
        self.boots = 0
        self.boot(0.0)

    # -- life --

    def boot(self, now: float) -> None:
        """A fresh process: every counter at 0, empty cache, a new start time."""
        self.state = "up"
        self.boots += 1
        self.started_at = now - 12.0 if self.boots == 1 else now
        self._exits_at = math.inf
        created = self.epoch_seconds + self.started_at + 8.0
        pool_blocks = self.config.num_gpu_blocks * self.num_ranks
        override = self.settings.get("num_gpu_blocks_override")
        cache = CacheConfig(
            pool_blocks,
            self.config.block_size,
            self.config.enable_prefix_caching,
            self.profile.memory.utilization_ratio,
            {"num_gpu_blocks_override": str(override)},
        )
        indexes = range(self.num_ranks)
        self.metrics = ReplicaMetrics(
            self.profile.served_model_name, self.config.max_model_len, indexes, cache, created
        )
        self.http = HttpMetrics(created + 1.0)
        self.costs = [StepCost(self.profile, enforce_eager=self.enforce_eager) for _ in indexes]
        self.engines = [
            EngineCore(
                Scheduler(self.config),
                self.costs[index],
                self.metrics.engines[index],
                reporter=Reporter(self.profile.frontend.output_seconds, self._on_output, self._on_finish),
                glide=self._glide,
            )
            for index in indexes
        ]
        for engine in self.engines:
            engine.clock = now
            engine.paced = self._paced
        self._tickets.clear()
        self._of_request.clear()

    def crash(self, now: float) -> None:
        """The processes are gone: clients see a broken connection, a scraper sees nothing."""
        self.state = "down"
        self._drop_everything(now)

    def kill_engine(self, now: float) -> None:
        """The engine core died: in-flight requests fail with 500, /health says 503, the API server exits a little later."""
        if self.state != "up":
            return
        self.state = "engine_dead"
        self._exits_at = now + DEAD_ENGINE_EXIT_SECONDS
        for ticket in list(self._tickets.values()):
            if not ticket.over_http:
                self._http(ticket.call, "5xx", now, now - ticket.call.at)
        self._drop_everything(now)

    def _drop_everything(self, now: float) -> None:
        tickets = list(self._tickets.values())
        self._tickets.clear()
        self._of_request.clear()
        for engine in self.engines:
            engine.halt(now)
        for ticket in tickets:
            for request in ticket.requests:
                request.front = None
                request.finish_reason = request.finish_reason or "abort"
                sink = ticket.sinks.get(request.id)
                if sink is not None:
                    sink(request, now)
            self._tell(ticket.call, now)

    # -- calls --

    def submit(
        self,
        call: Call,
        at: float,
        *,
        chain: Callable[[int], Chain] | None = None,
        sink: Callable[[int], Sink] | None = None,
        stops: Sequence[int | None] = (),
    ) -> Ticket | None:
        """A call arrives. None when it is refused: wrong key (no metric at all), over-long prompt (4xx), dead engine (5xx), process down.

        `chain(i)` gives the identity of the i-th sequence (default: the call's segments), `sink(i)` follows its outputs,
        `stops[i]` is the output index of its stop token; a call with its own chains came over HTTP and was checked there.
        """
        over_http = chain is not None
        if self.state == "down":
            self._tell(call, at)
            return None
        if call.kind == "bad_key":  # the key check runs outside the instrumentator
            self._tell(call, at)
            return None
        if self.state == "engine_dead":
            if not over_http:
                self._http(call, "5xx", at, HTTP_OVERHEAD_SECONDS)
            self._tell(call, at)
            return None
        prompt_len = call.prompt_len
        if not over_http and (call.kind == "oversized" or prompt_len >= self.config.max_model_len):
            self._http(call, "4xx", at, HTTP_OVERHEAD_SECONDS, response_bytes=ERROR_BYTES)
            self._tell(call, at)
            return None
        parent = ParentRequest(call.n, call.n) if call.n > 1 else None
        extra = ExtraKeys(cache_salt=self.salt_of(call.tenant) if call.tenant else None)
        rank = call.rank if call.rank is not None and call.rank < self.num_ranks else self._rank()
        engine = self.engines[rank]
        ticket = Ticket(call, engine, [], call.n, over_http)
        natural = call.output_len - 1 if call.output_len < call.max_tokens else None
        for index in range(call.n):
            seed = call.output_seed if not index else hash((call.output_seed, index))
            request = Request(
                f"{call.id}#{index}" if call.n > 1 else call.id,
                prompt_len=prompt_len,
                finish=planned_finish(
                    prompt_len, call.max_tokens, self.config.max_model_len, stops[index] if over_http else natural
                ),
                chain=chain(index) if chain else SegmentChain(call.prompt, seed, self.config.block_size, extra),
                arrival_time=at,
                priority=call.priority,
                skip_prefix_lookup=call.prompt_logprobs,
                front=RequestClock(at, prompt_len, call.max_tokens, parent),
            )
            ticket.requests.append(request)
            self._of_request[request] = ticket
            if sink is not None:
                ticket.sinks[request.id] = sink(index)
                engine.watched += 1
            engine.submit(request, at + self.profile.frontend.input_seconds)
        self._tickets[call.id] = ticket
        return ticket

    def hang_up(self, call_id: str, now: float) -> bool:
        """The client closes its connection; what was delivered stays counted, nothing is observed at a finish. False when it was over already."""
        ticket = self._tickets.pop(call_id, None)
        if ticket is None:
            return False
        for request in ticket.requests:
            if self._of_request.pop(request, None) is None:
                continue
            ticket.engine.abort(request, now)
            if request.id in ticket.sinks:
                ticket.engine.watched -= 1
        if not ticket.over_http:
            self._http(ticket.call, "2xx", now, now - ticket.call.at + HTTP_OVERHEAD_SECONDS)
        self._tell(ticket.call, now)
        return True

    def in_flight(self) -> list[str]:
        """Ids of the calls inside."""
        return list(self._tickets)

    @property
    def waiting(self) -> int:
        """Calls without a seat, input queues included: what a least-waiting router looks at."""
        return sum(len(engine.scheduler.waiting) + len(engine.inbox) for engine in self.engines)

    def salt_of(self, tenant: str) -> str:
        """The server's choice: a client can neither set nor guess it."""
        return hashlib.sha256(f"{self.instance}/{self.epoch_seconds}/{tenant}".encode()).hexdigest()

    def _rank(self) -> int:
        if self.num_ranks == 1:
            return 0
        loads = [
            4 * (len(engine.scheduler.waiting) + len(engine.inbox)) + len(engine.scheduler.running)
            for engine in self.engines
        ]
        return loads.index(min(loads))

    def _on_output(self, request: Request, wall: float) -> None:
        ticket = self._of_request.get(request)
        if ticket is not None and ticket.sinks:
            ticket.sinks[request.id](request, wall)

    def _on_finish(self, request: Request, wall: float) -> None:
        ticket = self._of_request.pop(request, None)
        if ticket is None:
            return
        sink = ticket.sinks.get(request.id)
        if sink is not None:
            ticket.engine.watched -= 1
            sink(request, wall)
        ticket.unfinished -= 1
        if ticket.unfinished:
            return
        self._tickets.pop(ticket.call.id, None)
        if not ticket.over_http:
            self._http(ticket.call, "2xx", wall, wall - ticket.call.at + HTTP_OVERHEAD_SECONDS)
        self._tell(ticket.call, wall)

    def _http(self, call: Call, status: str, at: float, seconds: float, *, response_bytes: int = 0) -> None:
        self.http.record(
            self.epoch_seconds + at,
            call.endpoint,
            status,
            seconds,
            request_bytes=REQUEST_BYTES + REQUEST_BYTES_PER_TOKEN * call.prompt_len,
            response_bytes=response_bytes,
        )

    def _tell(self, call: Call, at: float) -> None:
        if self._answered is not None:
            self._answered(call, at)

    # -- time --

    def advance(self, until: float) -> None:
        """Everything that is over by `until` has happened."""
        if self.state == "engine_dead" and until >= self._exits_at:
            self.crash(self._exits_at)
        if self.state != "up":
            return
        for engine in self.engines:
            engine.advance(until)

    def next_event(self) -> float:
        if self.state == "engine_dead":
            return self._exits_at
        return min(engine.next_event() for engine in self.engines) if self.state == "up" else math.inf

    def pages(self) -> Sequence[Page]:
        """Process, engine and HTTP families, in the order of the real exposition."""
        handled = sum(engine.generation_tokens for engine in self.metrics.engines.values())
        start = self.epoch_seconds + self.started_at
        steps = sum(engine.steps for engine in self.engines)
        cpu_seconds = 21.0 + 2e-4 * handled + 3e-4 * steps
        process = process_page(round(start, 2), round(cpu_seconds, 2), len(self._tickets), handled)
        return (process, self.metrics.page(), self.http.page())
