"""How much a single query may cost."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from collectors.store.promql.errors import PromQLError, bad, failed


@dataclass(frozen=True)
class Limits:
    """Bounds of one query. `max_points` is Prometheus's own 11,000 a series."""

    max_points: int = 11_000
    max_samples: int = 50_000_000
    max_series: int = 200_000
    timeout_seconds: float = 120.0


class Budget:
    """What is left of a query's limits. Each check raises PromQLError when it is used up."""

    def __init__(self, limits: Limits, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._monotonic = monotonic
        self._until = monotonic() + limits.timeout_seconds
        self._samples = 0

    def check_time(self) -> None:
        """Between two nodes of the query."""
        if self._monotonic() > self._until:
            raise PromQLError(
                "timeout", f"query timed out after {self._limits.timeout_seconds:g} s in expression evaluation"
            )

    def check_points(self, steps: int) -> None:
        """The steps of a range query."""
        if steps > self._limits.max_points:
            raise bad(
                f"exceeded maximum resolution of {self._limits.max_points:,} points per timeseries. "
                "Try decreasing the query resolution (?step=XX)"
            )

    def take_samples(self, count: int) -> None:
        """Samples or cells that are about to be held."""
        self._samples += count
        if self._samples > self._limits.max_samples:
            raise failed(
                f"query processing would load too many samples into memory in query execution (over {self._limits.max_samples:,})"
            )

    def check_series(self, count: int) -> None:
        """Series that a selector found."""
        if count > self._limits.max_series:
            raise failed(f"the query selects {count:,} series, more than the limit of {self._limits.max_series:,}")
