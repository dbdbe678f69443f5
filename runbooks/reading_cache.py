"""Prefill, prefix lookups and KV blocks of one rank: what the scheduler spends its steps and its pool on."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

from collectors.observed import NAN
from runbooks.inferred import hidden_preemptions
from runbooks.quantile import median
from runbooks.reading_queue import QueueReading


class CacheReading(QueueReading):
    """Prompts in prefill, lookups per prompt, the level of the pool and who was thrown out of it."""

    @cached_property
    def _while_queued(self) -> tuple[int, int]:
        """Two recent windows, without the time before the queue began: what it waits for is measured while it waits."""
        start, end = self.last_ms(2 * self.pace.recent_ms)
        since = self.queue_since_ms
        if since is None:
            return start, end
        return max(start, min(since, self.last_ms(self.pace.recent_ms)[0])), end

    @cached_property
    def requests_in_prefill(self) -> float:
        """Mean number of requests in prefill: rate of first tokens x prefill time (Little)."""
        window = self._while_queued
        return self.rank.rate("time_to_first_token", *window) * self.rank.mean("request_prefill_time", *window)

    @cached_property
    def steps_per_prefill(self) -> float:
        """Steps that a prefill takes (prefill time over the token gap, one gap a step); above one, prompts are chunked."""
        window = self._while_queued
        gap = self.rank.mean("inter_token_latency", *window)
        return self.rank.mean("request_prefill_time", *window) / gap if gap > 0 else NAN

    @cached_property
    def tokens_per_step(self) -> float:
        """Tokens computed per counted step in the recent window (hits left out); NaN without counted steps."""
        steps, prompt = self.increase("iteration_tokens"), self.increase("prompt_tokens")
        hits = self.increase("prefix_cache_hits")
        if not steps > 0:
            return NAN
        computed = max(0.0, prompt - hits) if hits == hits and not self.lookups_inflated else prompt
        return (computed + self.increase("generation_tokens")) / steps

    @cached_property
    def prompt_share(self) -> float:
        """Share of prompt tokens (without cache hits) among the tokens computed; hits are left in while inflated."""
        prompt, generated = self.rate("prompt_tokens"), self.rate("generation_tokens")
        hits = self.rate("prefix_cache_hits")
        if not self.lookups_inflated and hits == hits:
            prompt = max(0.0, prompt - hits)
        return prompt / (prompt + generated) if prompt + generated > 0 else NAN

    @cached_property
    def caching(self) -> bool | None:
        """Whether prefix caching is on; None when neither the configuration nor a lookup tells."""
        if self.rank.cache.prefix_caching is not None:
            return self.rank.cache.prefix_caching
        counter = self.rank.counter("prefix_cache_queries")
        if counter is None:
            return None
        values = counter.values[~np.isnan(counter.values)]
        return True if len(values) and values[-1] > 0 else None

    @cached_property
    def lookups_per_prompt_token(self) -> float:
        """Prefix lookups per admitted prompt token; 1 = looked up once, infinite = lookups and no admission."""
        lookups, prompts = self.increase("prefix_cache_queries"), self.increase("prompt_tokens")
        if not lookups > 0:
            return 0.0 if lookups == 0 else NAN
        return lookups / prompts if prompts > 0 else math.inf

    @cached_property
    def lookups_inflated(self) -> bool:
        """Requests are looked up again and again: a head that does not fit, or preempted ones coming back.

        A long prompt in the middle of its prefill is looked up once and booked later: with few admissions the excess
        must be larger than the whole pool to count.
        """
        ratio = self.lookups_per_prompt_token
        if not ratio >= self.limits("kv_pressure", "lookups_per_prompt_token"):
            return False
        if self.increase("time_to_first_token") >= 3:
            return True
        excess = self.increase("prefix_cache_queries") - self.increase("prompt_tokens")
        pool = self.rank.cache.pool_tokens
        return excess > (pool if pool is not None else 1_000_000)

    @cached_property
    def head_tokens(self) -> float:
        """Length of the request at the head of the queue while it is blocked: lookups per step (one lookup a step)."""
        steps = self.increase("iteration_tokens")
        excess = self.increase("prefix_cache_queries") - self.increase("prompt_tokens")
        return excess / steps if steps >= 10 and self.lookups_inflated else NAN

    @cached_property
    def kv_median(self) -> float:
        values = self.gauge("kv_cache_usage")
        return median(values) if len(values) else NAN

    @cached_property
    def kv_max(self) -> float:
        values = self.gauge("kv_cache_usage")
        return float(values.max()) if len(values) else NAN

    @cached_property
    def hidden_preemptions(self) -> int:
        """Preemptions of the last four recent windows that the counter cannot show yet."""
        return hidden_preemptions(self.rank, *self.last_ms(4 * self.pace.recent_ms))

    @cached_property
    def preemptions(self) -> float:
        return self.increase("preemptions")
