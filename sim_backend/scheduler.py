"""The decisions of vLLM 0.11.0's V1 scheduler: one engine core, synchronous, one KV cache group of full attention.

One step is `schedule()`, the model run, then `update()`. Every request wants its known tokens minus its computed tokens; there is no prefill or
decode phase. Running requests are served in order of admission, then the head of the waiting queue is admitted as long as blocks, seats and
token budget last. A running request that gets no block preempts; a waiting one never does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from sim_backend.kv.pool import BlockPool, BrokenInvariant
from sim_backend.kv.table import TableClaim, validate_table
from sim_backend.queues import Policy, WaitingQueue, waiting_queue
from sim_backend.request import Request, Status


class SchedulerConfigError(ValueError):
    """A combination of settings with which the real engine refuses to start."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Names are those of the engine's flags; tokens, blocks and sequences."""

    num_gpu_blocks: int
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int = 8192
    long_prefill_token_threshold: int = 0
    policy: Policy = "fcfs"
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    max_loras: int = 0
    """0: no LoRA."""

    def validate(self) -> None:
        """Raises SchedulerConfigError where the real engine would refuse to start."""
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise SchedulerConfigError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_num_seqs ({self.max_num_seqs}): raise the one or lower the other"
            )
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise SchedulerConfigError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) is smaller than max_model_len ({self.max_model_len}) and chunked prefill is off: "
                "enable it or raise the budget"
            )
        if self.policy not in ("fcfs", "priority"):
            raise SchedulerConfigError(f"policy {self.policy!r}: fcfs or priority")


@dataclass(slots=True)
class PrefixStats:
    """Lookups since the last statistics; queries and hits in tokens."""

    requests: int = 0
    queries: int = 0
    hits: int = 0


@dataclass(slots=True)
class Step:
    """What `schedule()` decided. `scheduled` can name a request that is also in `preempted`: a defect of 0.11.0 under the priority policy."""

    scheduled: dict[Request, int] = field(default_factory=dict)
    new: list[Request] = field(default_factory=list)
    resumed: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    admitted_tokens: dict[Request, int] = field(default_factory=dict)
    """For new and resumed: the tokens that counted as computed at admission."""
    total_tokens: int = 0
    context_tokens: int = 0
    """Sum over the scheduled of their computed tokens after the step: the KV entries that attention reads."""
    twice_pairs: int = 0
    """Twice the number of query-key pairs: sum of n x (2 x computed after - n)."""


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """State at the end of the update phase of a step, after finished requests left."""

    num_running: int
    num_waiting: int
    kv_cache_usage_ratio: float
    prefix: PrefixStats


class Scheduler:
    """Queues, running list and block tables of one engine."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.pool = BlockPool(config.num_gpu_blocks, caching=config.enable_prefix_caching)
        self.running: list[Request] = []
        self.waiting: WaitingQueue = waiting_queue(config.policy)
        self.requests: dict[str, Request] = {}
        self.prefix_stats = PrefixStats()
        self.has_finished = False
        """Some request ended and the workers have not been told: one more step is due."""

    # -- queue in and out --

    def add(self, request: Request, now: float = 0.0) -> None:
        """Accept a request; `now` is the engine clock and stamps QUEUED. A live id is refused."""
        if request.id in self.requests:
            raise ValueError(f"request id {request.id!r} is already in this engine")
        self.requests[request.id] = request
        request.events.append(("QUEUED", now))
        self.waiting.add(request)

    def abort(self, request_ids: Iterable[str]) -> list[Request]:
        """Drop live requests at once, wherever they are, and free their blocks. Unknown and finished ids are ignored. Returns the dropped."""
        dropped: list[Request] = []
        for request_id in request_ids:
            request = self.requests.get(request_id)
            if request is None or request.status is Status.FINISHED:
                continue
            if request.status is Status.RUNNING:
                self.running.remove(request)
            else:
                self.waiting.remove((request,))
            self._finish(request)
            request.finish_reason = "abort"
            dropped.append(request)
        return dropped

    @property
    def has_requests(self) -> bool:
        """Whether the engine would make a step now."""
        return bool(self.running) or len(self.waiting) > 0 or self.has_finished

    # -- one step --

    def schedule(self, now: float = 0.0, *, decoding: int = 0) -> Step:
        """Decide the next step; `now` (engine clock) stamps SCHEDULED and PREEMPTED. Computed tokens move on at once.

        The first `decoding` running requests are plain decodes that the caller books itself: one token each, blocks included. They are left out of
        the result; the caller has made sure that nobody needs to be preempted.
        """
        step = Step()
        budget, rest = self._schedule_running(step, now, decoding)
        if not step.preempted and budget and len(self.waiting):
            rest += self._schedule_waiting(step, budget, now)
        scheduled = step.scheduled
        plain = len(scheduled) - len(rest)
        tokens, context = plain, step.context_tokens
        pairs = 2 * context - plain
        for request in rest:
            count = scheduled[request]
            length = request.computed = request.computed + count
            tokens += count
            context += length
            pairs += count * (length + length - count)
        step.total_tokens, step.context_tokens, step.twice_pairs = tokens, context, pairs
        self.has_finished = False
        return step

    def _schedule_running(self, step: Step, now: float, first: int) -> tuple[int, list[Request]]:
        """Serve the running list; returns the budget left and the scheduled requests whose computed tokens have not moved on yet.

        Under fcfs a request that was served can no longer become a victim in this step, so a plain decode moves on at once.
        """
        config = self.config
        budget, threshold = config.max_num_batched_tokens - first, config.long_prefill_token_threshold
        longest = config.max_model_len - 1
        size = config.block_size
        caching = config.enable_prefix_caching
        running, scheduled, pool = self.running, step.scheduled, self.pool
        last = size - 1
        fcfs = config.policy == "fcfs"
        rest: list[Request] = []
        index, context = first, 0
        while index < len(running) and budget:
            request = running[index]
            computed = request.computed
            count = request.num_tokens - computed
            if count != 1:
                if 0 < threshold < count:
                    count = threshold
                count = min(count, budget)
            if computed + count > longest:
                count = longest - computed
            if count <= 0:
                index += 1
                continue
            if count == 1:
                # The common step of a decode: a token into a block that has room, the last token of a block, the first one of a new block.
                offset = computed % size
                if not offset:
                    blocks = request.blocks
                    if len(blocks) * size == computed and pool.num_free:
                        blocks.append(pool.take())
                        plain = not caching or (request.cached_blocks * size == computed and last > 0)
                    else:
                        plain = False
                else:
                    plain = not caching or offset != last
                if plain and fcfs:
                    scheduled[request] = 1
                    computed += 1
                    request.computed = computed
                    context += computed
                    budget -= 1
                    index += 1
                    continue
            while not self._allocate(request, count):
                victim = self._preempt(step, now)
                if victim is request:
                    step.context_tokens = context
                    return budget, rest
            scheduled[request] = count
            rest.append(request)
            budget -= count
            index += 1
        step.context_tokens = context
        return budget, rest

    def _schedule_waiting(self, step: Step, budget: int, now: float) -> list[Request]:
        """Admit from the head of the queue; returns the admitted."""
        config = self.config
        threshold = config.long_prefill_token_threshold
        waiting, running = self.waiting, self.running
        set_aside: list[Request] = []
        adapters = {request.lora_id for request in step.scheduled if request.lora_id} if config.max_loras else set()
        while len(waiting) and budget and len(running) < config.max_num_seqs:
            request = waiting.head()
            if request.status is Status.WAITING_FOR_GRAMMAR or (
                config.max_loras
                and request.lora_id
                and len(adapters) == config.max_loras
                and request.lora_id not in adapters
            ):
                set_aside.append(waiting.pop())
                continue
            hits: list[int] = []
            computed = request.computed
            if not computed:
                hits = self._lookup(request)
                computed = len(hits) * config.block_size
            count = request.num_tokens - computed
            if 0 < threshold < count:
                count = threshold
            if not config.enable_chunked_prefill and count > budget:
                set_aside.append(waiting.pop())
                continue
            count = min(count, budget)
            if not self._allocate(request, count, hits):
                break
            waiting.pop()
            running.append(request)
            request.events.append(("SCHEDULED", now))
            (step.resumed if request.status is Status.PREEMPTED else step.new).append(request)
            request.status = Status.RUNNING
            request.computed = computed
            step.admitted_tokens[request] = computed
            if request.num_cached_tokens < 0:
                request.num_cached_tokens = computed
            if request.lora_id:
                adapters.add(request.lora_id)
            step.scheduled[request] = count
            budget -= count
        # Not reversed: under fcfs the requests set aside come back in the opposite order, as they do in the real engine.
        for request in set_aside:
            waiting.put_in_front(request)
        return [*step.new, *step.resumed]

    def update(self, step: Step) -> list[Request]:
        """After the model run: every scheduled request that reached the end of its known tokens gets one token; the finished leave.

        Returns the requests that produced a token, in the order of `scheduled`; `finish_reason` is set on those that ended.
        """
        sampled: list[Request] = []
        finished: list[Request] = []
        for request in step.scheduled:
            known = request.num_tokens
            if request.computed != known:
                continue
            request.num_tokens = known + 1
            length = request.output_len = request.output_len + 1
            sampled.append(request)
            if length >= request.finish_len:
                request.finish_reason = request.finish.reason
                finished.append(request)
        if finished:
            self.drop_finished(finished)
        return sampled

    def drop_finished(self, finished: list[Request]) -> None:
        """Requests that ended in the update phase leave the queues; their blocks are freed in the order given."""
        self.waiting.remove([request for request in finished if request.status is Status.PREEMPTED])
        gone = set(finished)
        self.running[:] = [request for request in self.running if request not in gone]
        for request in finished:
            self._finish(request)

    def take_stats(self) -> SchedulerStats:
        """The statistics of the step that was just updated; the prefix lookups start anew."""
        prefix, self.prefix_stats = self.prefix_stats, PrefixStats()
        return SchedulerStats(len(self.running), len(self.waiting), self.pool.usage_ratio, prefix)

    def head_is_blocked(self) -> bool:
        """Whether the head of the queue is one that only blocks can stop: not a grammar or an adapter, which would set it aside."""
        head = self.waiting.head()
        return (
            head.status is not Status.WAITING_FOR_GRAMMAR and not head.computed and self.config.enable_chunked_prefill
        )

    def failed_lookup(self, times: int) -> PrefixStats:
        """What `times` more lookups of the blocked head of the queue count."""
        self._lookup(self.waiting.head())
        once, self.prefix_stats = self.prefix_stats, PrefixStats()
        return PrefixStats(once.requests * times, once.queries * times, once.hits * times)

    # -- blocks --

    def _lookup(self, request: Request) -> list[int]:
        """The blocks that hold a known prefix; the last known token is always left to compute. Every attempt counts in the statistics."""
        if not self.config.enable_prefix_caching or request.skip_prefix_lookup:
            return []
        size = self.config.block_size
        limit = (request.num_tokens - 1) // size
        hits = self.pool.lookup(request.chain.upto(limit), limit) if limit else []
        stats = self.prefix_stats
        stats.requests += 1
        stats.queries += request.num_tokens
        stats.hits += len(hits) * size
        return hits

    def _allocate(self, request: Request, count: int, hits: list[int] | None = None) -> bool:
        """Slots for `count` more tokens behind the computed ones (and behind `hits`). False, and nothing changed, when blocks are short."""
        config, pool = self.config, self.pool
        size = config.block_size
        held = request.blocks
        reached = request.computed + count + (len(hits) * size if hits else 0)
        needed = -(-min(reached, config.max_model_len) // size) - len(held) - (len(hits) if hits else 0)
        if needed > 0 or hits:
            if needed + (pool.evictable(hits) if hits else 0) > pool.num_free:
                return False
            if hits:
                pool.touch(hits)
                held.extend(hits)
                request.cached_blocks = len(hits)
            if needed > 0:
                held.extend(pool.allocate(needed))
        if config.enable_prefix_caching:
            full = min(reached, request.num_tokens) // size
            done = request.cached_blocks
            if full > done:
                pool.store(request.chain.upto(full)[done:full], held[done:full])
                request.cached_blocks = full
        return True

    def forget_cache(self) -> None:
        """Lose the prefix cache but for the blocks that running requests hold."""
        if not self.pool.reset_cache():
            self.pool.forget_free()

    def _preempt(self, step: Step, now: float) -> Request:
        """Take the victim's blocks and put it in front of the queue. It stays in `scheduled` if it already was there."""
        running = self.running
        if self.config.policy == "priority":
            victim = max(running, key=lambda request: (request.priority, request.arrival_time))
            running.remove(victim)
        else:
            victim = running.pop()
        self._free(victim)
        victim.computed = 0
        victim.status = Status.PREEMPTED
        victim.events.append(("PREEMPTED", now))
        self.waiting.put_in_front(victim)
        step.preempted.append(victim)
        return victim

    def _free(self, request: Request) -> None:
        self.pool.release(reversed(request.blocks))
        request.blocks = []
        request.cached_blocks = 0

    def _finish(self, request: Request) -> None:
        self._free(request)
        request.status = Status.FINISHED
        del self.requests[request.id]
        self.has_finished = True

    def check(self) -> None:
        """Raises BrokenInvariant or BadBlockTable unless the books of the pool, the tables, the queues and the seats agree."""
        self.pool.check(request.blocks for request in self.requests.values())
        for request in self.running:
            done = request.computed
            claim = TableClaim(request.id, tuple(request.blocks), done, "auto")
            size = self.config.block_size
            validate_table(claim, self.pool, request.blocks, block_size=size, cache_dtype="auto", writes_from=done)
        if len(self.running) > self.config.max_num_seqs:
            raise BrokenInvariant(f"{len(self.running)} running on {self.config.max_num_seqs} seats")
        queued = {request.id for request in (*self.running, *self.waiting)}
        if queued != set(self.requests) or len(queued) != len(self.running) + len(self.waiting):
            raise BrokenInvariant("a live request is in no queue, or in two")
