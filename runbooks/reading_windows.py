"""One rank at an instant: which scrapes count as now, and its series cut to the process that answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, TypeVar

import numpy as np

from collectors.model import Floats, Int64s
from collectors.observed import Rank, Replica, index_at
from runbooks.thresholds import Pace, Thresholds
from runbooks.verdicts import Place

R = TypeVar("R", bound="RankWindows")
T = TypeVar("T")


def once(judged: Callable[[R], T]) -> Callable[[R], T]:
    """A judgement of a reading that states, laws and causes all ask for is made once."""

    @wraps(judged)
    def remembered(reading: R) -> T:
        if judged not in reading.judged:
            reading.judged[judged] = judged(reading)
        found: T = reading.judged[judged]
        return found

    return remembered


@dataclass(frozen=True)
class RankWindows:
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

    @cached_property
    def judged(self) -> dict[object, Any]:
        """See `once`."""
        return {}

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
        found = self._cut.get(signal)
        if found is None:
            found = self._cut[signal] = self._cut_to_process(signal)
        return found

    @cached_property
    def _cut(self) -> dict[str, tuple[Int64s, Floats]]:
        return {}

    def _cut_to_process(self, signal: str) -> tuple[Int64s, Floats]:
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

    @cached_property
    def running(self) -> float:
        return self.rank.last("requests_running", self.seen_ms)

    @cached_property
    def waiting(self) -> float:
        return self.rank.last("requests_waiting", self.seen_ms)

    def moved(self, signal: str, since_ms: int) -> bool:
        """Whether a gauge changed its value after an instant."""
        values = self.rank.gauge(signal, since_ms - 1, self.seen_ms)
        return len(values) > 1 and bool(np.ptp(values) > 0)
