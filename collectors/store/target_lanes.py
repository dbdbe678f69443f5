"""The lanes of one scrape target: a main lane, side lanes for what is late for it, former main lanes."""

from __future__ import annotations

import threading

from collectors.store.lanes import Lane
from collectors.store.packing import Columns

CROWDED_COLUMNS, CROWDED_FACTOR = 1000, 4
"""A main lane with this many columns more than this many times a scrape's series is left for a new one (churn)."""


class TargetLanes:
    """State of one target, guarded by `lock`."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lanes: list[Lane] = [Lane()]
        """The main lane and the side lanes; all of them grow."""
        self.retired: list[Lane] = []
        """Former main lanes, closed."""
        self.plain: dict[tuple[int, ...], tuple[Columns, int]] = {}
        """Columns in the main lane of layouts whose series grow nowhere else, and until when they are known elsewhere."""

    @property
    def main(self) -> Lane:
        return self.lanes[0]

    def leave_crowded_main(self, series: int) -> None:
        """Begin a new main lane when the columns of this one mostly belong to series that have ended."""
        old = self.main
        if len(old.column_of) <= CROWDED_COLUMNS + CROWDED_FACTOR * series:
            return
        old.close()
        self.retired.append(old)
        self.lanes[0] = Lane()
        self.lanes[0].last_ms = old.last_ms
        self.plain = {}
