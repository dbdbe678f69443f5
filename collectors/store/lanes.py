"""A lane: series that were sampled at the same instants, one timestamp vector over a (columns, rows) matrix.

A scrape target is one lane. The newest rows lie open in a plain matrix, older ones are sealed into packed chunks.
One writer per lane; readers work on the snapshot they took: an append publishes its row last, and whatever would
move existing cells (growing, sealing) makes new arrays and leaves the old ones to those who still read them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from collectors.model import STALE_BITS, Floats, Int64s
from collectors.store.chunks import Chunk, DecodedCache, sealed
from collectors.store.packing import NO_SAMPLE, NO_SAMPLE_BITS, Columns, bits_of
from collectors.store.snapshots import OpenRows, Piece, Snapshot, special_rows

SEAL_ROWS = 512
"""Rows of a sealed chunk: 43 minutes at 5 s. Longer packs better, shorter leaves less lying open."""


class Lane:
    """Series of one timeline. Columns only ever get added; times strictly increase."""

    def __init__(self, sids: Sequence[int] = ()) -> None:
        self.sids: list[int] = list(sids)
        self.column_of: dict[int, int] = {sid: c for c, sid in enumerate(self.sids)}
        self.last_ms = -(2**62)
        self._resting: list[int] = []
        self._free: list[int] = []
        self.closed = False
        """Nothing is appended any more."""
        self._now = Snapshot((), OpenRows.room_for(len(self.sids), 16), 0, 0, 0)
        """Replaced as a whole by every change, so that rows and their count are never seen apart."""

    # ---- writing

    def column(self, sid: int) -> int:
        """The column of a series, added when the lane did not have it."""
        column = self.column_of.get(sid)
        if column is None:
            if self._free:
                column = self._free.pop()
                self.sids[column] = sid
            else:
                column = len(self.sids)
                self.sids.append(sid)
            self.column_of[sid] = column
        return column

    def forget(self, sid: int) -> None:
        """A series that holds nothing any more: its column is empty, and free for another after the next drop.

        Not at once, since a query that began before may still read the column under the old name.
        """
        column = self.column_of.pop(sid, None)
        if column is not None:
            self.sids[column] = -1
            self._resting.append(column)

    def append(self, t_ms: int, columns: Columns, values: Floats, special: bool) -> None:
        """Add a row at `t_ms` > last_ms. `special`: some value is a staleness marker."""
        chunks, head = self._now.chunks, self._now.head
        if head.rows >= SEAL_ROWS:
            chunks, head = self._seal(chunks, head)
        width = len(self.sids)
        if head.rows == len(head.times_ms) or width > len(head.values):
            rows = min(max(16, 2 * head.rows), SEAL_ROWS) if head.rows == len(head.times_ms) else len(head.times_ms)
            columns_room = width if width <= len(head.values) or not head.rows else width + width // 8
            head = head.widened(max(columns_room, len(head.values)), rows)
        row = head.rows
        head.times_ms[row] = t_ms
        if len(columns) == len(head.values) and len(columns) == width:
            head.values[columns, row] = values
        else:
            missing = np.ones(len(head.values), dtype=bool)
            missing[columns] = False
            head.values[columns, row] = values
            head.special |= missing
        if special:
            head.special[columns[bits_of(values) == np.uint64(STALE_BITS)]] = True
        head.rows = row + 1
        self.last_ms = t_ms
        self._publish(chunks, head, added=1)

    def last_row(self, columns: Columns) -> Floats:
        """The values of the newest row, NO_SAMPLE where a column has none."""
        chunks, head = self._now.chunks, self._now.head
        out = np.full(len(columns), NO_SAMPLE)
        if head.rows:
            known = columns < len(head.values)
            out[known] = head.values[columns[known], head.rows - 1]
        elif chunks:
            out = chunks[-1].decode(columns)[:, -1]
        return out

    def amend_last(self, columns: Columns, values: Floats) -> None:
        """Fill empty cells of the newest row (which is open)."""
        chunks, head = self._now.chunks, self._now.head
        if len(self.sids) > len(head.values):
            head = head.widened(len(self.sids), len(head.times_ms))
        head.values[columns, head.rows - 1] = values
        head.special[columns] = special_rows(head.values[columns, : head.rows])
        self._publish(chunks, head, amended=True)

    def load(self, times_ms: Int64s, values: Floats) -> None:
        """Bulk rows for all columns of a new lane: `values` (columns, rows), times strictly increasing."""
        chunks: list[Chunk] = []
        full = len(times_ms) - len(times_ms) % SEAL_ROWS
        for start in range(0, full, SEAL_ROWS):
            part = slice(start, start + SEAL_ROWS)
            chunks.append(sealed(times_ms[part], values[:, part]))
        rest = len(times_ms) - full
        if rest:
            # What ends a load seldom grows again: packed as it is.
            chunks.append(sealed(times_ms[full:], values[:, full:]))
        self._publish(tuple(chunks), OpenRows.room_for(0, 1), added=len(times_ms))
        self.closed = True
        self.last_ms = int(times_ms[-1])

    def close(self) -> None:
        """Seal what lies open: nothing will be appended any more."""
        chunks, head = self._now.chunks, self._now.head
        if head.rows:
            chunks, _ = self._seal(chunks, head)
        self._publish(chunks, OpenRows.room_for(0, 1), amended=True)
        self.closed = True

    def extend(self, columns: Columns, times_ms: Int64s, values: Floats) -> None:
        """Bulk rows after `last_ms` for some columns: `values` (len(columns), rows), times strictly increasing."""
        chunks, head = self._now.chunks, self._now.head
        if head.rows:
            chunks, head = self._seal(chunks, head)
        added: list[Chunk] = []
        for start in range(0, len(times_ms), SEAL_ROWS):
            part = slice(start, start + SEAL_ROWS)
            wide = np.full((len(self.sids), len(times_ms[part])), NO_SAMPLE)
            wide[columns] = values[:, part]
            added.append(sealed(times_ms[part], wide))
        self._publish((*chunks, *added), OpenRows.room_for(len(self.sids), 16), added=len(times_ms))
        self.last_ms = int(times_ms[-1])

    def _publish(self, chunks: tuple[Chunk, ...], head: OpenRows, *, added: int = 0, amended: bool = False) -> None:
        was = self._now
        self._now = Snapshot(chunks, head, head.rows, was.rows_seen + added, was.amended + amended)

    def _seal(self, chunks: tuple[Chunk, ...], head: OpenRows) -> tuple[tuple[Chunk, ...], OpenRows]:
        chunk = sealed(head.times_ms[: head.rows], head.values[: len(self.sids), : head.rows])
        return (*chunks, chunk), OpenRows.room_for(len(self.sids), SEAL_ROWS)

    def drop_before(self, t_ms: int) -> set[int]:
        """Drop sealed chunks, and an open matrix, that end before `t_ms`; the series that hold nothing any more."""
        self._free += self._resting
        self._resting = []
        chunks, head = self._now.chunks, self._now.head
        kept = tuple(c for c in chunks if c.times_ms[-1] >= t_ms)
        first_open = int(np.searchsorted(head.times_ms[: head.rows], t_ms))
        if first_open == head.rows or first_open > head.rows // 2:
            rest = head.rows - first_open
            width = max(len(self.sids), len(head.values))
            shorter = OpenRows.room_for(width, max(16, len(head.times_ms)) if rest else 16)
            shorter.times_ms[:rest] = head.times_ms[first_open : head.rows]
            shorter.values[: len(head.values), :rest] = head.values[:, first_open : head.rows]
            shorter.special[:] = special_rows(shorter.values[:, :rest])
            shorter.rows = rest
            head = shorter
        if len(kept) == len(chunks) and head is self._now.head:
            return set()
        self._publish(kept, head, amended=True)
        return self._without_samples(kept, head)

    def _without_samples(self, chunks: tuple[Chunk, ...], head: OpenRows) -> set[int]:
        alive = np.zeros(len(self.sids), dtype=bool)
        for chunk in chunks:
            alive[: len(chunk.place)] |= chunk.place >= 0
        held = (bits_of(head.values[:, : head.rows]) != np.uint64(NO_SAMPLE_BITS)).any(axis=1)
        alive[: len(held)] |= held[: len(alive)]
        return {self.sids[c] for c in np.flatnonzero(~alive) if self.sids[c] >= 0}

    # ---- reading

    def extent_ms(self) -> tuple[int, int] | None:
        """First and last time of the lane."""
        chunks, head = self._now.chunks, self._now.head
        if chunks:
            return int(chunks[0].times_ms[0]), self.last_ms
        return (int(head.times_ms[0]), self.last_ms) if head.rows else None

    @property
    def rows(self) -> int:
        chunks, head = self._now.chunks, self._now.head
        return sum(len(c.times_ms) for c in chunks) + head.rows

    @property
    def nbytes(self) -> int:
        chunks, head = self._now.chunks, self._now.head
        return sum(c.nbytes for c in chunks) + head.values.nbytes + head.times_ms.nbytes

    @property
    def rows_open(self) -> int:
        """Rows in the open matrix: the newest row can be filled in only while it lies there."""
        return self._now.rows

    @property
    def sample_count(self) -> int:
        """Samples held, markers included."""
        chunks, head = self._now.chunks, self._now.head
        return sum(c.sample_count for c in chunks) + int(
            (bits_of(head.values[:, : head.rows]) != np.uint64(NO_SAMPLE_BITS)).sum()
        )

    def snapshot(self) -> Snapshot:
        """The lane as it is now, to be read from."""
        return self._now

    def read(self, columns: Columns, start_ms: int, end_ms: int, cache: DecodedCache) -> Piece | None:
        """Samples of columns with start_ms <= t <= end_ms; None when the lane has no row there."""
        return self.snapshot().read(columns, start_ms, end_ms, cache)

    def last_sample(self, column: int, since_ms: int, cache: DecodedCache) -> tuple[int, float] | None:
        """Time and value of the newest sample of a column that is not older than `since_ms`."""
        return self.snapshot().last_sample(column, since_ms, cache)
