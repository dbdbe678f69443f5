"""Sealed rows of a lane, packed, and a bounded cache of what was decoded of them."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collectors.model import Floats, Int64s
from collectors.store.packing import NO_SAMPLE, NO_SAMPLE_BITS, Columns, PackedColumns, bits_of, pack

Mask = npt.NDArray[np.bool_]

FEW_ROWS = 8
"""Up to this part of a chunk is a few rows."""
_serials = itertools.count()


@dataclass(frozen=True)
class Chunk:
    """Sealed rows of a lane. `place[c]` is the packed column of the lane's column c, -1 where it has no sample here."""

    serial: int
    start_ms: int
    end_ms: int
    times_ms: Int64s
    place: npt.NDArray[np.int32]
    packed: PackedColumns
    sample_count: int

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

    def decode(self, columns: Columns, start: int = 0, stop: int | None = None) -> Floats:
        """A (len(columns), rows) matrix with NO_SAMPLE where a column is absent; of the rows start <= row < stop (at least one)."""
        stop = self.packed.rows if stop is None else stop
        place = self.places(columns)
        if (place >= 0).all():
            return self.packed.decode(place.astype(np.intp), start, stop)
        out = np.full((len(columns), stop - start), NO_SAMPLE)
        here = place >= 0
        if here.any():
            out[here] = self.packed.decode(place[here].astype(np.intp), start, stop)
        return out

    def clean(self, columns: Columns) -> npt.NDArray[np.bool_]:
        """True for columns with an ordinary sample in every row."""
        place = self.places(columns)
        return (place >= 0) & self.packed.clean[place]


def sealed(times_ms: Int64s, values: Floats) -> Chunk:
    """Pack rows (columns, rows) of a lane; columns without a sample are left out."""
    held = bits_of(values) != np.uint64(NO_SAMPLE_BITS)
    alive = held.any(axis=1)
    place = np.where(alive, np.cumsum(alive) - 1, -1).astype(np.int32)
    times_ms = np.array(times_ms, dtype=np.int64)
    times_ms.setflags(write=False)
    packed = pack(np.ascontiguousarray(values[alive]))
    return Chunk(next(_serials), int(times_ms[0]), int(times_ms[-1]), times_ms, place, packed, int(held.sum()))


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

    def decode(self, chunk: Chunk, columns: Columns, start: int, stop: int) -> tuple[Floats, Mask]:
        """Rows start <= row < stop of columns of a chunk, read-only, and which columns have gaps or markers anywhere in it.

        A few rows are decoded alone and not kept: keeping whole chunks for them would drive out what is read again.
        """
        key = (chunk.serial, columns.tobytes())
        with self._lock:
            held = self._held.get(key)
            if held is not None:
                self._held.move_to_end(key)
        if held is None:
            if (stop - start) * FEW_ROWS <= len(chunk.times_ms):
                return chunk.decode(columns, start, stop), ~chunk.clean(columns)
            held = self._decoded(key, chunk, columns)
        return (held[0][:, start:stop], held[1]) if stop - start < len(chunk.times_ms) else held

    def _decoded(self, key: tuple[int, bytes], chunk: Chunk, columns: Columns) -> tuple[Floats, Mask]:
        values = chunk.decode(columns)
        values.setflags(write=False)  # what is handed out is shared
        decoded = values, ~chunk.clean(columns)
        with self._lock:
            if key not in self._held and values.nbytes <= self._limit // 4:
                self._held[key] = decoded
                self._bytes += values.nbytes
                while self._bytes > self._limit:
                    _, (dropped, _) = self._held.popitem(last=False)
                    self._bytes -= dropped.nbytes
        return decoded
