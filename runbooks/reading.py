"""What one rank's metrics say at an instant: the quantities that causes reason with. Arithmetic only, no judgement.

All windows stay inside the process that runs now, so that no restart mixes two lives. Rates are plain differences
between scrapes. The formulas follow the V1 scheduler of vLLM 0.11.0 (what each metric counts, and when it moves).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from collectors.model import Floats, Int64s
from collectors.observed import NAN, Rank, Replica, index_at
from runbooks.episodes import holding_since
from runbooks.inferred import hidden_preemptions, longest_silence_ms
from runbooks.thresholds import Pace, Thresholds
from runbooks.verdicts import Place

PROGRESS = ("generation_tokens", "prompt_tokens", "time_to_first_token", "iteration_tokens", "requests_finished")
"""Anything here growing means that the engine got something done (scheduler facts I3-I8)."""


@dataclass(frozen=True)
class Reading:
    """One rank at one instant. `seats`, `token_budget`: configured by the operator or None."""

    replica: Replica
    rank: Rank
    at_ms: int
    pace: Pace
    limits: Thresholds
    objective_seconds: float
    seats: int | None = None
    token_budget: int | None = None

    @property
    def place(self) -> Place:
        return Place(self.rank.instance, self.rank.engine)

    # ---- windows -----------------------------------------------------------------------------------------------------

    @cached_property
    def seen_ms(self) -> int:
        """The newest scrape at or before the instant that brought this rank's gauges."""
        brought = np.zeros(len(self.rank.times_ms), dtype=bool)
        for values in self.rank.gauges.values():
            brought |= ~np.isnan(values)
        past = np.flatnonzero(brought[: index_at(self.rank.times_ms, self.at_ms) + 1])
        return int(self.rank.times_ms[past[-1]]) if len(past) else 0

    @cached_property
    def epoch_ms(self) -> int:
        """First scrape of the process that answered last."""
        return self.replica.epoch_start_ms(self.seen_ms)

    @property
    def window_start_ms(self) -> int:
        """First scrape of the window, whatever process answered then."""
        return int(self.rank.times_ms[0])

    @cached_property
    def recent(self) -> tuple[int, int]:
        return self.last_ms(self.pace.recent_ms)

    def last_ms(self, length_ms: int) -> tuple[int, int]:
        """The window of a length that ends at the newest scrape, cut at the start of the process."""
        return max(self.epoch_ms, self.seen_ms - length_ms), self.seen_ms

    def series(self, signal: str) -> tuple[Int64s, Floats]:
        """Times and values of a gauge in this process, gaps left out."""
        values = self.rank.gauges.get(signal)
        if values is None:
            return np.empty(0, dtype=np.int64), np.empty(0)
        times = self.rank.times_ms
        chosen = ~np.isnan(values) & (times >= self.epoch_ms) & (times <= self.seen_ms)
        return times[chosen], values[chosen]

    def gauge(self, signal: str) -> Floats:
        """Values of a gauge in the recent window."""
        return self.rank.gauge(signal, *self.recent)

    def rate(self, signal: str) -> float:
        return self.rank.rate(signal, *self.recent)

    def increase(self, signal: str) -> float:
        return self.rank.increase(signal, *self.recent)

    def common_scrapes(self, signals: Sequence[str], start_ms: int, end_ms: int) -> tuple[int, int] | None:
        """First and last scrape in [start, end] that brought all of the signals; None when there are not two of them.

        A series that was away for a while brings the growth of that time in one scrape: a balance must not span it.
        """
        times = self.rank.times_ms
        whole = (times >= start_ms) & (times <= end_ms)
        away = np.zeros(len(times), dtype=bool)
        for signal in signals:
            counter = self.rank.counter(signal)
            values = counter.values if counter is not None else self.rank.gauges.get(signal)
            if values is None:
                return None
            away |= np.isnan(values) & self.replica.answered
        seen = np.flatnonzero(whole & self.replica.answered)
        gaps = np.flatnonzero(away[seen])
        if len(gaps):
            seen = seen[gaps[-1] + 1 :]
        return (int(times[seen[0]]), int(times[seen[-1]])) if len(seen) > 1 else None

    # ---- queue -------------------------------------------------------------------------------------------------------

    @cached_property
    def running(self) -> float:
        return self.rank.last("requests_running", self.seen_ms)

    @cached_property
    def waiting(self) -> float:
        return self.rank.last("requests_waiting", self.seen_ms)

    @cached_property
    def queue_since_ms(self) -> int | None:
        """Since when requests have been waiting without a break."""
        times, values = self.series("requests_waiting")
        return holding_since(times, values > 0)

    @cached_property
    def wait_seconds(self) -> float:
        """Waiting / rate of first tokens (Little); infinite when requests wait and none got a first token."""
        waiting = self.gauge("requests_waiting")[-3:]
        rate = self.rate("time_to_first_token")
        if not len(waiting) or waiting.mean() == 0:
            return 0.0
        return float(waiting.mean()) / rate if rate > 0 else math.inf

    @cached_property
    def queued(self) -> bool:
        """A queue that stood for the hold time and costs longer than the objective."""
        since = self.queue_since_ms
        if since is None or self.seen_ms - since < self.pace.hold_ms:
            return False
        return self.wait_seconds >= self.objective_seconds * self.limits("waiting_growth", "wait_over_objective")

    @cached_property
    def arrivals(self) -> float:
        """Requests per second, estimated: first tokens + growth of the queue (blind to aborts while waiting)."""
        return self.arrivals_in(*self.recent)

    def arrivals_in(self, start_ms: int, end_ms: int) -> float:
        """The same over any window inside this process; NaN without two scrapes."""
        rate = self.rank.rate("time_to_first_token", start_ms, end_ms)
        waiting = self.rank.gauge("requests_waiting", start_ms - 1, end_ms)
        if len(waiting) < 2 or rate != rate:
            return rate
        return max(0.0, rate + float(waiting[-1] - waiting[0]) * 1000 / max(end_ms - start_ms, 1))

    @cached_property
    def drains_in_seconds(self) -> float | None:
        """Time until the queue is empty at the slope of the last two recent windows; None when it does not shrink."""
        start, end = self.last_ms(2 * self.pace.recent_ms)
        values = self.rank.gauge("requests_waiting", start, end)
        if len(values) < 3 or values[-1] >= values[0]:
            return None
        return float(values[-1]) * (end - start) / 1000 / float(values[0] - values[-1])

    @cached_property
    def ceiling(self) -> float:
        """Seats when configured, else the most that ever ran in this process inside the window."""
        if self.seats is not None:
            return float(self.seats)
        _, values = self.series("requests_running")
        return float(values.max()) if len(values) else NAN

    @cached_property
    def pinned(self) -> bool:
        """Whether running stays at its ceiling while requests wait."""
        values = self.gauge("requests_running")
        if not len(values) or not self.ceiling > 0:
            return False
        slack = max(1.0, (1 - self.limits("waiting_growth", "pinned_share")) * self.ceiling)
        return float(np.quantile(values, 0.25)) >= self.ceiling - slack and self.ceiling > 1

    @cached_property
    def before(self) -> tuple[int, int] | None:
        """The stretch of this process before the queue began, when it is long enough to compare with."""
        return self.before_ms(self.queue_since_ms)

    def before_ms(self, since_ms: int | None) -> tuple[int, int] | None:
        """The stretch of this process that ended one scrape before an onset; None when shorter than the hold time."""
        if since_ms is None:
            return None
        end = since_ms - self.pace.interval_ms
        start = max(self.epoch_ms, end - 10 * self.pace.recent_ms)
        return (start, end) if end - start >= self.pace.hold_ms else None

    # ---- token gap ---------------------------------------------------------------------------------------------------

    @cached_property
    def gap_seconds(self) -> float:
        return self.rank.mean("inter_token_latency", *self.recent)

    @cached_property
    def gap_before_seconds(self) -> float:
        return self.rank.mean("inter_token_latency", *self.before) if self.before else NAN

    @cached_property
    def running_before(self) -> float:
        values = self.rank.gauge("requests_running", *self.before) if self.before else np.empty(0)
        busy = values[values > 0]
        return float(busy.mean()) if len(busy) else NAN

    @cached_property
    def batch_share_of_gap(self) -> float:
        """Share of the token gap that the batch makes: b*n / (a + b*n) of the line through (before, now).

        Adding a seat raises throughput by 1 - this share of a seat. NaN when the batch did not change.
        """
        running = self.gauge("requests_running")
        if not len(running):
            return NAN
        now, before = float(running.mean()), self.running_before
        if not (now - before >= max(1.0, 0.25 * now)) or not self.gap_seconds > 0:
            return NAN
        slope = (self.gap_seconds - self.gap_before_seconds) / (now - before)
        return min(1.0, max(0.0, slope * now / self.gap_seconds))

    # ---- prefill and prefix cache ------------------------------------------------------------------------------------

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

    # ---- KV cache ----------------------------------------------------------------------------------------------------

    @cached_property
    def kv_median(self) -> float:
        values = self.gauge("kv_cache_usage")
        return float(np.median(values)) if len(values) else NAN

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

    # ---- progress ----------------------------------------------------------------------------------------------------

    @cached_property
    def last_progress_ms(self) -> int | None:
        """The newest scrape at which any progress counter had grown; None when none did in this process."""
        rises = [
            rise
            for signal in PROGRESS
            if (counter := self.rank.counter(signal)) is not None
            and (rise := counter.last_rise_ms(self.seen_ms)) is not None
            and rise >= self.epoch_ms
        ]
        return max(rises) if rises else None

    @cached_property
    def measures_progress(self) -> bool:
        return any(self.rank.counter(signal) is not None for signal in PROGRESS)

    @cached_property
    def silent_since_ms(self) -> int:
        """The scrape of the last progress, or the start of what is known."""
        return self.last_progress_ms if self.last_progress_ms is not None else self.epoch_ms

    @cached_property
    def silent_ms(self) -> int:
        return self.seen_ms - self.silent_since_ms

    @cached_property
    def longest_silence_ms(self) -> int:
        """Longest earlier time without progress that ended by itself while requests ran: a step can be that long here."""
        return longest_silence_ms(self.rank, PROGRESS, self.epoch_ms, self.seen_ms)

    @cached_property
    def busy_since_ms(self) -> int:
        """The scrape after the newest silence that lasted the hold time: tokens have flowed since."""
        counter = self.rank.counter("generation_tokens")
        if counter is None:
            return self.epoch_ms
        chosen = (self.rank.times_ms >= self.epoch_ms) & (self.rank.times_ms <= self.seen_ms)
        times, total = self.rank.times_ms[chosen], counter.total[chosen]
        rises = times[1:][np.diff(total) > 0]
        if not len(rises):
            return self.epoch_ms
        gaps = np.flatnonzero(np.diff(rises) > self.pace.hold_ms)
        return int(rises[gaps[-1] + 1]) if len(gaps) else int(rises[0])

    @cached_property
    def work_before_silence(self) -> bool:
        """Whether the gauges showed work during the newest silence: they may have been old then."""
        times, running = self.series("requests_running")
        quiet = running[times < self.busy_since_ms]
        return bool(len(quiet) and quiet[-1] > 0)

    @cached_property
    def work(self) -> float:
        """Requests on board by the newest gauges."""
        return self.running + self.waiting

    @cached_property
    def work_since_ms(self) -> int | None:
        """Since when the gauges have shown work without a break."""
        times, running = self.series("requests_running")
        _, waiting = self.series("requests_waiting")
        if len(running) != len(waiting):
            return None
        return holding_since(times, running + waiting > 0, forgiven=0)

    def moved(self, signal: str, since_ms: int) -> bool:
        """Whether a gauge changed its value after an instant."""
        values = self.rank.gauge(signal, since_ms - 1, self.seen_ms)
        return len(values) > 1 and bool(np.ptp(values) > 0)
