"""A lane as it was at one moment: what a query reads, unmoved by the rows that are appended meanwhile."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collectors.model import STALE_BITS, Floats, Int64s
from collectors.store.chunks import Chunk, DecodedCache, Mask
from collectors.store.packing import NO_SAMPLE, NO_SAMPLE_BITS, Columns, bits_of


@dataclass
class OpenRows:
    """The open matrix. `special[c]`: column c has a gap or a marker somewhere in its rows."""

    times_ms: Int64s
    values: Floats
    special: npt.NDArray[np.bool_]
    rows: int = 0

    @classmethod
    def room_for(cls, columns: int, rows: int) -> OpenRows:
        """An empty matrix."""
        return cls(np.empty(rows, dtype=np.int64), np.full((columns, rows), NO_SAMPLE), np.zeros(columns, dtype=bool))

    def widened(self, columns: int, rows: int) -> OpenRows:
        """The same rows in a bigger matrix; this one stays to those who read it."""
        wider = OpenRows.room_for(columns, rows)
        wider.times_ms[: self.rows] = self.times_ms[: self.rows]
        wider.values[: len(self.values), : self.rows] = self.values[:, : self.rows]
        wider.special[: len(self.special)] = self.special
        wider.special[len(self.special) :] = self.rows > 0
        wider.rows = self.rows
        return wider


def special_rows(values: Floats) -> Mask:
    """Rows (first axis) with a gap or a staleness marker somewhere."""
    bits = bits_of(values)
    return np.asarray(((bits == np.uint64(NO_SAMPLE_BITS)) | (bits == np.uint64(STALE_BITS))).any(axis=1))


@dataclass(frozen=True)
class Piece:
    """What a lane holds of some columns in some span: `dirty[c]` says that column c has gaps or markers in it."""

    times_ms: Int64s
    values: Floats
    dirty: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Snapshot:
    """Sealed chunks, the open matrix and how many of its rows were there.

    `rows_seen` (rows ever appended) and `amended` (changes of what was there) tell whether two snapshots hold the same.
    """

    chunks: tuple[Chunk, ...]
    head: OpenRows
    rows: int
    rows_seen: int
    amended: int

    def last_sample(self, column: int, since_ms: int, cache: DecodedCache) -> tuple[int, float] | None:
        """Time and value of the newest sample of a column that is not older than `since_ms`."""
        piece = self.read(np.array([column], dtype=np.intp), since_ms, 2**62, cache)
        if piece is None:
            return None
        held = np.flatnonzero(bits_of(piece.values[0]) != np.uint64(NO_SAMPLE_BITS))
        return (int(piece.times_ms[held[-1]]), piece.values[0, held[-1]]) if len(held) else None

    def first_row_after(self, rows_seen: int) -> int | None:
        """The time of the first row appended after the first `rows_seen` rows; None when there is none.

        Only rows still in the open matrix are looked at: older ones count as 'before everything'.
        """
        newer = self.rows_seen - rows_seen
        if newer <= 0:
            return None
        return int(self.head.times_ms[self.rows - newer]) if newer <= self.rows else -(2**62)

    def held(self, columns: Columns, start_ms: int, end_ms: int) -> Mask:
        """Which columns have a sample or a marker with start_ms <= t <= end_ms. Only what the span cuts through is decoded."""
        found = np.zeros(len(columns), dtype=bool)
        for chunk in self.chunks:
            a, b = _span(chunk.times_ms, start_ms, end_ms)
            if a == b:
                continue
            there = chunk.places(columns) >= 0
            if b - a == len(chunk.times_ms):
                found |= there
                continue
            found[there] |= chunk.clean(columns[there])
            unsure = np.flatnonzero(there & ~found)
            found[unsure] |= _any_sample(chunk.decode(columns[unsure], a, b))
        a, b = _span(self.head.times_ms[: self.rows], start_ms, end_ms)
        if a < b:
            unsure = np.flatnonzero(~found)
            found[unsure] |= _any_sample(_open_columns(self.head, columns[unsure], a, b)[0])
        return found

    def read(self, columns: Columns, start_ms: int, end_ms: int, cache: DecodedCache) -> Piece | None:
        """Samples of columns with start_ms <= t <= end_ms; None when the lane has no row there."""
        head, rows = self.head, self.rows
        parts: list[tuple[Int64s, Floats]] = []
        dirty: Mask | None = None
        for chunk in self.chunks:
            if chunk.end_ms < start_ms or chunk.start_ms > end_ms:
                continue
            times_ms = chunk.times_ms
            if start_ms <= chunk.start_ms and chunk.end_ms <= end_ms:
                values, gaps = cache.decode(chunk, columns, 0, len(times_ms))
            else:
                a, b = _span(times_ms, start_ms, end_ms)
                if a >= b:
                    continue
                times_ms = times_ms[a:b]
                values, gaps = cache.decode(chunk, columns, a, b)
            dirty = gaps if dirty is None else dirty | gaps
            parts.append((times_ms, values))
        if rows and head.times_ms[0] <= end_ms and head.times_ms[rows - 1] >= start_ms:
            a, b = _span(head.times_ms[:rows], start_ms, end_ms)
            if a < b:
                values, gaps = _open_columns(head, columns, a, b)
                parts.append((head.times_ms[a:b], values))
                dirty = gaps if dirty is None else dirty | gaps
        if dirty is None:
            return None
        if len(parts) == 1:
            return Piece(parts[0][0], parts[0][1], dirty)
        return Piece(np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts], axis=1), dirty)


def _any_sample(values: Floats) -> Mask:
    return np.asarray((bits_of(values) != np.uint64(NO_SAMPLE_BITS)).any(axis=1))


def _open_columns(head: OpenRows, columns: Columns, a: int, b: int) -> tuple[Floats, npt.NDArray[np.bool_]]:
    if not len(columns) or int(columns.max()) < len(head.values):
        return head.values[columns, a:b], head.special[columns]
    known = columns < len(head.values)
    values = np.full((len(columns), b - a), NO_SAMPLE)
    values[known] = head.values[columns[known], a:b]
    special = np.ones(len(columns), dtype=bool)
    special[known] = head.special[columns[known]]
    return values, special


def _span(times_ms: Int64s, start_ms: int, end_ms: int) -> tuple[int, int]:
    return int(times_ms.searchsorted(start_ms)), int(times_ms.searchsorted(end_ms, side="right"))
