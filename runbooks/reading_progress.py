"""Progress of one rank: when anything last got done, how long silences are here, and since when there is work."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from collectors.observed import NAN
from runbooks.episodes import holding_since
from runbooks.inferred import longest_silence_ms
from runbooks.reading_windows import RankWindows

PROGRESS = ("generation_tokens", "prompt_tokens", "time_to_first_token", "iteration_tokens", "requests_finished")
"""Anything here growing means that the engine got something done (scheduler facts I3-I8)."""


class ProgressReading(RankWindows):
    """Silence and work."""

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
    def silence_seconds(self) -> float:
        """How long nothing has come out although there is work, by raw samples; NaN without work."""
        if not self.measures_progress or not self.work > 0:
            return NAN
        begun = self.work_since_ms
        return (self.seen_ms - max(self.silent_since_ms, begun if begun is not None else 0)) / 1000

    @cached_property
    def patience_ms(self) -> int:
        """Silence that is still ordinary: twenty seconds and three scrapes, or half as much again as the longest that ended by itself."""
        lone_ms = round(1000 * self.limits("engine_stalled", "lone_request_seconds"))
        base_ms = max(1000 * self.limits("engine_stalled", "silent_seconds"), 3 * self.pace.interval_ms)
        return max(round(base_ms), min(self.longest_silence_ms * 3 // 2, lone_ms))

    @cached_property
    def patience_seconds(self) -> float:
        return self.patience_ms / 1000

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
