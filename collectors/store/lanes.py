"""A lane: series that were sampled at the same instants, one timestamp vector over a (columns, rows) matrix.

A scrape target is one lane. The newest rows lie open in a plain matrix, older ones are sealed into packed chunks.
One writer per lane; readers work on the snapshot they took: an append publishes its row last, and whatever would
move existing cells (growing, sealing) makes new arrays and leaves the old ones to those who still read them.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collectors.model import STALE_BITS, Floats, Int64s
from collectors.store.packing import NO_SAMPLE, NO_SAMPLE_BITS, Columns, PackedColumns, bits_of, pack

Mask = npt.NDArray[np.bool_]

SEAL_ROWS = 512
"""Rows of a sealed chunk: 43 minutes at 5 s. Longer packs better, shorter leaves less lying open."""

_serials = itertools.count()


class DecodedCache:
    """The most recently decoded pieces of sealed chunks, bounded in bytes. Thread-safe."""

    def __init__(self, limit_bytes: int = 64 << 20) -> None:
        self._limit = limit_bytes
        self._held: OrderedDict[tuple[int, bytes], tuple[Floats, Mask]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        return self._bytes

    def decode(self, chunk: Chunk, columns: Columns) -> tuple[Floats, Mask]:
        """Columns of a chunk, read-only, and which of them have gaps or markers."""
        key = (chunk.serial, columns.tobytes())
        with self._lock:
            held = self._held.get(key)
            if held is not None:
                self._held.move_to_end(key)
                return held
        values = chunk.decode(columns)
        decoded = values, ~chunk.clean(columns)
        with self._lock:
            if key not in self._held and values.nbytes <= self._limit // 4:
                self._held[key] = decoded
                self._bytes += values.nbytes
                while self._bytes > self._limit:
                    _, (dropped, _) = self._held.popitem(last=False)
                    self._bytes -= dropped.nbytes
        return decoded


@dataclass(frozen=True)
class Chunk:
    """Sealed rows of a lane. `place[c]` is the packed column of the lane's column c, -1 where it has no sample here."""

    serial: int
    start_ms: int
    end_ms: int
    times_ms: Int64s
    place: npt.NDArray[np.int32]
    packed: PackedColumns

    @property
    def nbytes(self) -> int:
        return self.times_ms.nbytes + self.place.nbytes + self.packed.nbytes

    def places(self, columns: Columns) -> npt.NDArray[np.int32]:
        """Packed columns of lane columns; lane columns younger than this chunk have none."""
        if len(columns) and int(columns.max()) < len(self.place):
            return self.place[columns]
        known = columns < len(self.place)
        out = np.full(len(columns), -1, dtype=np.int32)
        out[known] = self.place[columns[known]]
        return out

    def decode(self, columns: Columns) -> Floats:
        """A (len(columns), rows) matrix with NO_SAMPLE where a column is absent."""
        place = self.places(columns)
        if (place >= 0).all():
            return self.packed.decode(place.astype(np.intp))
        out = np.full((len(columns), self.packed.rows), NO_SAMPLE)
        here = place >= 0
        if here.any():
            out[here] = self.packed.decode(place[here].astype(np.intp))
        return out

    def clean(self, columns: Columns) -> npt.NDArray[np.bool_]:
        """True for columns with an ordinary sample in every row."""
        place = self.places(columns)
        return (place >= 0) & self.packed.clean[place]


@dataclass
class _Open:
    """The open matrix. `special[c]`: column c has a gap or a marker somewhere in its rows."""

    times_ms: Int64s
    values: Floats
    special: npt.NDArray[np.bool_]
    rows: int = 0

    @classmethod
    def room_for(cls, columns: int, rows: int) -> _Open:
        return cls(np.empty(rows, dtype=np.int64), np.full((columns, rows), NO_SAMPLE), np.zeros(columns, dtype=bool))

    def widened(self, columns: int, rows: int) -> _Open:
        wider = _Open.room_for(columns, rows)
        wider.times_ms[: self.rows] = self.times_ms[: self.rows]
        wider.values[: len(self.values), : self.rows] = self.values[:, : self.rows]
        wider.special[: len(self.special)] = self.special
        wider.special[len(self.special) :] = self.rows > 0
        wider.rows = self.rows
        return wider


@dataclass(frozen=True)
class Piece:
    """What a lane holds of some columns in some span: `dirty[c]` says that column c has gaps or markers in it."""

    times_ms: Int64s
    values: Floats
    dirty: npt.NDArray[np.bool_]


class Lane:
    """Series of one timeline. Columns only ever get added; times strictly increase."""

    def __init__(self, sids: Sequence[int] = ()) -> None:
        self.sids: list[int] = list(sids)
        self.column_of: dict[int, int] = {sid: c for c, sid in enumerate(self.sids)}
        self.last_ms = -(2**62)
        self._resting: list[int] = []
        self._free: list[int] = []
        self.rows_seen = 0
        """Rows ever appended: with `amended` it tells a cache whether what it read is still all there is."""
        self.amended = 0
        self._state: tuple[tuple[Chunk, ...], _Open] = ((), _Open.room_for(len(self.sids), 16))

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
        chunks, head = self._state
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
        self._state = (chunks, head)
        self.rows_seen += 1

    def last_row(self, columns: Columns) -> Floats:
        """The values of the newest row, NO_SAMPLE where a column has none."""
        chunks, head = self._state
        out = np.full(len(columns), NO_SAMPLE)
        if head.rows:
            known = columns < len(head.values)
            out[known] = head.values[columns[known], head.rows - 1]
        elif chunks:
            out = chunks[-1].decode(columns)[:, -1]
        return out

    def amend_last(self, columns: Columns, values: Floats) -> None:
        """Fill empty cells of the newest row (which is open)."""
        chunks, head = self._state
        if len(self.sids) > len(head.values):
            head = head.widened(len(self.sids), len(head.times_ms))
        head.values[columns, head.rows - 1] = values
        head.special[columns] = _special(head.values[columns, : head.rows])
        self._state = (chunks, head)
        self.amended += 1

    def load(self, times_ms: Int64s, values: Floats) -> None:
        """Bulk rows for all columns of a new lane: `values` (columns, rows), times strictly increasing."""
        chunks: list[Chunk] = []
        full = len(times_ms) - len(times_ms) % SEAL_ROWS
        for start in range(0, full, SEAL_ROWS):
            part = slice(start, start + SEAL_ROWS)
            chunks.append(_sealed(times_ms[part], values[:, part]))
        rest = len(times_ms) - full
        if rest:
            # What ends a load seldom grows again: packed as it is.
            chunks.append(_sealed(times_ms[full:], values[:, full:]))
        self._state = (tuple(chunks), _Open.room_for(0, 16))
        self.last_ms = int(times_ms[-1])
        self.rows_seen += len(times_ms)

    def _seal(self, chunks: tuple[Chunk, ...], head: _Open) -> tuple[tuple[Chunk, ...], _Open]:
        sealed = _sealed(head.times_ms[: head.rows].copy(), head.values[:, : head.rows])
        return (*chunks, sealed), _Open.room_for(len(self.sids), SEAL_ROWS)

    def drop_before(self, t_ms: int) -> set[int]:
        """Drop sealed chunks, and an open matrix, that end before `t_ms`; the series that hold nothing any more."""
        self._free += self._resting
        self._resting = []
        chunks, head = self._state
        kept = tuple(c for c in chunks if c.times_ms[-1] >= t_ms)
        first_open = int(np.searchsorted(head.times_ms[: head.rows], t_ms))
        if first_open == head.rows or first_open > head.rows // 2:
            rest = head.rows - first_open
            width = max(len(self.sids), len(head.values))
            shorter = _Open.room_for(width, max(16, len(head.times_ms)) if rest else 16)
            shorter.times_ms[:rest] = head.times_ms[first_open : head.rows]
            shorter.values[: len(head.values), :rest] = head.values[:, first_open : head.rows]
            shorter.special[:] = _special(shorter.values[:, :rest])
            shorter.rows = rest
            head = shorter
        if len(kept) == len(chunks) and head is self._state[1]:
            return set()
        self._state = (kept, head)
        self.amended += 1
        return self._without_samples(kept, head)

    def _without_samples(self, chunks: tuple[Chunk, ...], head: _Open) -> set[int]:
        alive = np.zeros(len(self.sids), dtype=bool)
        for chunk in chunks:
            alive[: len(chunk.place)] |= chunk.place >= 0
        held = (bits_of(head.values[:, : head.rows]) != np.uint64(NO_SAMPLE_BITS)).any(axis=1)
        alive[: len(held)] |= held[: len(alive)]
        return {self.sids[c] for c in np.flatnonzero(~alive) if self.sids[c] >= 0}

    # ---- reading

    def extent_ms(self) -> tuple[int, int] | None:
        """First and last time of the lane."""
        chunks, head = self._state
        if chunks:
            return int(chunks[0].times_ms[0]), self.last_ms
        return (int(head.times_ms[0]), self.last_ms) if head.rows else None

    @property
    def rows(self) -> int:
        chunks, head = self._state
        return sum(len(c.times_ms) for c in chunks) + head.rows

    @property
    def nbytes(self) -> int:
        chunks, head = self._state
        return sum(c.nbytes for c in chunks) + head.values.nbytes + head.times_ms.nbytes

    @property
    def rows_open(self) -> int:
        """Rows in the open matrix: the newest row can be filled in only while it lies there."""
        return self._state[1].rows

    @property
    def sample_count(self) -> int:
        """Samples held, markers included."""
        chunks, head = self._state
        sealed = sum(int((c.place >= 0).sum()) * len(c.times_ms) for c in chunks)
        return sealed + int((bits_of(head.values[:, : head.rows]) != np.uint64(NO_SAMPLE_BITS)).sum())

    def last_sample(self, column: int, since_ms: int, cache: DecodedCache) -> tuple[int, float] | None:
        """Time and value of the newest sample of a column that is not older than `since_ms`."""
        piece = self.read(np.array([column], dtype=np.intp), since_ms, self.last_ms, cache)
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
        _, head = self._state
        return int(head.times_ms[head.rows - newer]) if newer <= head.rows else -(2**62)

    def read(self, columns: Columns, start_ms: int, end_ms: int, cache: DecodedCache) -> Piece | None:
        """Samples of columns with start_ms <= t <= end_ms; None when the lane has no row there."""
        chunks, head = self._state
        rows = head.rows
        parts: list[tuple[Int64s, Floats]] = []
        dirty = np.zeros(len(columns), dtype=bool)
        for chunk in chunks:
            if chunk.end_ms < start_ms or chunk.start_ms > end_ms:
                continue
            values, gaps = cache.decode(chunk, columns)
            dirty = dirty | gaps
            if start_ms <= chunk.start_ms and chunk.end_ms <= end_ms:
                parts.append((chunk.times_ms, values))
                continue
            a, b = _span(chunk.times_ms, start_ms, end_ms)
            parts.append((chunk.times_ms[a:b], values[:, a:b]))
        if rows and head.times_ms[0] <= end_ms and head.times_ms[rows - 1] >= start_ms:
            a, b = _span(head.times_ms[:rows], start_ms, end_ms)
            if a < b:
                values, gaps = _open_columns(head, columns, a, b)
                parts.append((head.times_ms[a:b], values))
                dirty = dirty | gaps
        parts = [part for part in parts if len(part[0])]
        if not parts:
            return None
        if len(parts) == 1:
            return Piece(parts[0][0], parts[0][1], dirty)
        return Piece(np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts], axis=1), dirty)


def _open_columns(head: _Open, columns: Columns, a: int, b: int) -> tuple[Floats, npt.NDArray[np.bool_]]:
    if not len(columns) or int(columns.max()) < len(head.values):
        return head.values[columns, a:b], head.special[columns]
    known = columns < len(head.values)
    values = np.full((len(columns), b - a), NO_SAMPLE)
    values[known] = head.values[columns[known], a:b]
    special = np.ones(len(columns), dtype=bool)
    special[known] = head.special[columns[known]]
    return values, special


def _special(values: Floats) -> npt.NDArray[np.bool_]:
    bits = bits_of(values)
    return np.asarray(((bits == np.uint64(NO_SAMPLE_BITS)) | (bits == np.uint64(STALE_BITS))).any(axis=1))


def _span(times_ms: Int64s, start_ms: int, end_ms: int) -> tuple[int, int]:
    return int(times_ms.searchsorted(start_ms)), int(times_ms.searchsorted(end_ms, side="right"))


def _sealed(times_ms: Int64s, values: Floats) -> Chunk:
    alive = (bits_of(values) != np.uint64(NO_SAMPLE_BITS)).any(axis=1)
    place = np.where(alive, np.cumsum(alive) - 1, -1).astype(np.int32)
    times_ms = np.array(times_ms, dtype=np.int64)
    packed = pack(np.ascontiguousarray(values[alive]))
    return Chunk(next(_serials), int(times_ms[0]), int(times_ms[-1]), times_ms, place, packed)


def lanes_bytes(lanes: Iterable[Lane]) -> int:
    """Bytes of samples and times in these lanes."""
    return sum(lane.nbytes for lane in lanes)
