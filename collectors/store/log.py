"""The log of scrapes: framed records, each with its length and checksum, readable up to the first damaged byte.

A file begins with MAGIC; a frame is `length:u32 crc32:u32 kind:u8 payload`. Series are written once per file and numbered, a layout is a list of these
numbers, a row is a layout, a time and the values that differ in their bits from the row of that layout before. Values lie byte by byte (all first bytes, all
second bytes ...) so that zlib finds what counters have in common. A file that is complete is rewritten in groups, many rows of a layout at once and series
by series: smaller, and several times faster to read back.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import orjson

from collectors.model import Floats, Int64s
from collectors.store.rows import Row
from collectors.store.series import LabelSet

MAGIC = b"pagewatch scrape log 1\n"
FRAME_HEAD = struct.Struct("<IIB")
LAYOUT_HEAD = struct.Struct("<I")
ROW_HEAD = struct.Struct("<Iq")
GROUP_HEAD = struct.Struct("<II")
SERIES, LAYOUT, ROW, GROUP = 1, 2, 3, 4
MAX_PAYLOAD_BYTES = 1 << 30
LAYOUTS_KEPT = 1024
"""Layouts a writer remembers; one that was forgotten is written again."""

GROUP_ROWS = 512

Bits = npt.NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class RowGroup:
    """Rows of one layout: `values[i, j]` belongs to `series[i]` at `times_ms[j]`, in the order in which they were written."""

    target: str
    series: tuple[LabelSet, ...]
    times_ms: Int64s
    values: Floats


class _Written:
    """A layout as written to the file: its number and the bits of its last row."""

    def __init__(self, number: int, width: int) -> None:
        self.number = number
        self.bits: Bits = np.zeros(width, dtype=np.uint64)


class LogEncoder:
    """Rows to frames, for one file from its beginning. Frames must reach the file in order, each whole."""

    def __init__(self) -> None:
        self._series: dict[LabelSet, int] = {}
        self._layouts: dict[tuple[str, tuple[LabelSet, ...]], _Written] = {}
        self._latest: dict[str, tuple[tuple[LabelSet, ...], _Written]] = {}
        self._next_layout = 0

    def encode(self, row: Row) -> bytes:
        """The frames of a row: its layout first when the file does not have it yet."""
        before = self._latest.get(row.target)
        if before is not None and before[0] is row.series:
            return self._row(row, before[1])
        frames, written = self._layout(row.target, row.series)
        self._latest[row.target] = (row.series, written)
        return frames + self._row(row, written)

    def encode_group(self, group: RowGroup) -> bytes:
        """The frames of a group of rows. Not to be mixed with `encode` in one file."""
        frames, written = self._layout(group.target, group.series)
        bits = np.ascontiguousarray(group.values, dtype=np.float64).view(np.uint64)
        bits[:, 1:] ^= bits[:, :-1].copy()
        planes = np.ascontiguousarray(bits.astype("<u8").view(np.uint8).reshape(*bits.shape, 8).transpose(2, 0, 1))
        packed = zlib.compress(group.times_ms.astype("<i8").tobytes() + planes.tobytes(), 1)
        return frames + frame(GROUP, GROUP_HEAD.pack(written.number, len(group.times_ms)) + packed)

    def _layout(self, target: str, series: tuple[LabelSet, ...]) -> tuple[bytes, _Written]:
        written = self._layouts.get((target, series))
        return (b"", written) if written is not None else self._new_layout(target, series)

    def _new_layout(self, target: str, series: tuple[LabelSet, ...]) -> tuple[bytes, _Written]:
        fresh = [one for one in dict.fromkeys(series) if one not in self._series]
        frames = frame(SERIES, zlib.compress(orjson.dumps([one.as_dict() for one in fresh]), 1)) if fresh else b""
        for one in fresh:
            self._series[one] = len(self._series)
        numbers = np.array([self._series[one] for one in series], dtype=np.int32)
        steps = np.diff(numbers, prepend=np.int32(0)).astype("<i4")
        written = _Written(self._next_layout, len(series))
        self._next_layout += 1
        packed = zlib.compress(orjson.dumps(target) + b"\n" + steps.tobytes(), 1)
        if len(self._layouts) >= LAYOUTS_KEPT:
            self._layouts.clear()
        self._layouts[(target, series)] = written
        return frames + frame(LAYOUT, LAYOUT_HEAD.pack(written.number) + packed), written

    @staticmethod
    def _row(row: Row, written: _Written) -> bytes:
        bits = np.ascontiguousarray(row.values, dtype=np.float64).view(np.uint64)
        changed = bits != written.bits
        moved = bits[changed].astype("<u8").view(np.uint8).reshape(-1, 8).T.tobytes()
        written.bits = bits.copy()
        packed = zlib.compress(np.packbits(changed).tobytes() + moved, 1)
        return frame(ROW, ROW_HEAD.pack(written.number, row.time_ms) + packed)


def frame(kind: int, payload: bytes) -> bytes:
    """A record as it stands in the file."""
    crc = zlib.crc32(payload, kind)
    return FRAME_HEAD.pack(len(payload), crc, kind) + payload
