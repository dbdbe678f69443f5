"""The queue of one rank: how long it makes people wait, what it waits for, and what the batch does to the token gap."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

from collectors.observed import NAN
from runbooks.episodes import holding_since
from runbooks.quantile import quantile
from runbooks.reading_windows import RankWindows


class QueueReading(RankWindows):
    """Waiting, running and the token gap, now and before the queue began."""

    @cached_property
    def queue_since_ms(self) -> int | None:
        """Since when requests have been waiting without a break."""
        times, values = self.series("requests_waiting")
        return holding_since(times, values > 0)

    @cached_property
    def waiting_mean(self) -> float:
        """Mean of the three newest scrapes: what the wait is reckoned from; NaN where none brought it."""
        waiting = self.gauge("requests_waiting")[-3:]
        return float(waiting.mean()) if len(waiting) else NAN

    @cached_property
    def wait_seconds(self) -> float:
        """Waiting / rate of first tokens (Little); infinite when requests wait and none got a first token."""
        waiting, rate = self.waiting_mean, self.rate("time_to_first_token")
        if not waiting > 0:
            return 0.0
        return waiting / rate if rate > 0 else math.inf

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
    def running_low(self) -> float:
        """Lower quartile of running in the recent window: what it falls to between two full batches."""
        values = self.gauge("requests_running")
        return quantile(values, 0.25) if len(values) else NAN

    @cached_property
    def pinned(self) -> bool:
        """Whether running stays at its ceiling while requests wait."""
        if self.running_low != self.running_low or not self.ceiling > 0:
            return False
        slack = max(1.0, (1 - self.limits("waiting_growth", "pinned_share")) * self.ceiling)
        return self.running_low >= self.ceiling - slack and self.ceiling > 1

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

    @cached_property
    def gap_seconds(self) -> float:
        return self.rank.mean("inter_token_latency", *self.recent)

    @cached_property
    def gap_before_seconds(self) -> float:
        return self.rank.mean("inter_token_latency", *self.before) if self.before else NAN

    @cached_property
    def running_mean(self) -> float:
        """Mean of running in the recent window."""
        values = self.gauge("requests_running")
        return float(values.mean()) if len(values) else NAN

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
