"""Inner expressions that were computed already: the four quantiles of one refresh share one sum of rates.

An entry remembers which lanes it read and up to which instant; it holds until one of them gets a sample in that span.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from collectors.store.lanes import Lane
from collectors.store.promql.grids import Grid
from collectors.store.promql.notes import Notes
from collectors.store.snapshots import Snapshot


@dataclass(frozen=True)
class Touch:
    """A lane as it was when it was read, and the last instant that was asked for."""

    lane: Lane
    rows_seen: int
    amended: int
    until_ms: int

    def holds(self, now: Snapshot) -> bool:
        """Whether reading from that snapshot of the lane would give the same samples.

        The snapshot may be the earlier one: another query, begun later, can have left the entry.
        """
        if now.amended != self.amended or now.rows_seen < self.rows_seen:
            return False
        if now.rows_seen == self.rows_seen:
            return True
        newer = now.first_row_after(self.rows_seen)
        return newer is None or newer > self.until_ms


@dataclass(frozen=True)
class Entry:
    """A result, what was noticed on the way, and what it rests on."""

    value: Grid
    notes: Notes
    touched: tuple[Touch, ...]
    generation: int

    @property
    def nbytes(self) -> int:
        return (
            self.value.values.nbytes
            + (0 if self.value.present is None else self.value.present.nbytes)
            + 64 * len(self.value.labels)
        )


class Memo:
    """The most recently used results, bounded in bytes. Thread-safe."""

    def __init__(self, limit_bytes: int = 64 << 20) -> None:
        self._limit = limit_bytes
        self._held: OrderedDict[Any, Entry] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()
        self.hits = 0
        self.misses = 0

    def get(self, key: Any, generation: int, snapshot: Callable[[Lane], Snapshot]) -> Entry | None:
        """A result that still holds for the lanes as the asking query sees them."""
        with self._lock:
            entry = self._held.get(key)
        valid = (
            entry is not None
            and entry.generation == generation
            and all(t.holds(snapshot(t.lane)) for t in entry.touched)
        )
        with self._lock:
            if entry is not None and not valid and self._held.get(key) is entry:
                del self._held[key]
                self._bytes -= entry.nbytes
            if valid and key in self._held:
                self._held.move_to_end(key)
            self.hits += valid
            self.misses += not valid
        return entry if valid else None

    def put(self, key: Any, entry: Entry) -> None:
        """Remember a result."""
        entry.value.values.setflags(write=False)  # shared from now on
        size = entry.nbytes
        if size > self._limit // 4:
            return
        with self._lock:
            old = self._held.pop(key, None)
            self._bytes += size - (old.nbytes if old is not None else 0)
            self._held[key] = entry
            while self._bytes > self._limit:
                _, dropped = self._held.popitem(last=False)
                self._bytes -= dropped.nbytes
