"""Reading a log of scrapes back, up to the first damaged byte, and gathering rows into groups."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson

from collectors.model import Floats, Int64s
from collectors.store.log import (
    FRAME_HEAD,
    GROUP,
    GROUP_HEAD,
    GROUP_ROWS,
    LAYOUT,
    LAYOUT_HEAD,
    MAGIC,
    MAX_PAYLOAD_BYTES,
    ROW,
    ROW_HEAD,
    SERIES,
    Bits,
    RowGroup,
)
from collectors.store.rows import Row
from collectors.store.series import LabelSet


@dataclass(frozen=True)
class Damage:
    """Where a log stops being readable, and why."""

    at_byte: int
    file_bytes: int
    reason: str


class LogReader:
    """Reads a file's rows in order; afterwards `damage` says whether its end was reached."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.single_rows = 0
        """Rows read that were logged as they came."""
        self._file_bytes = 0
        self.damage: Damage | None = None
        self._series: list[LabelSet] = []
        self._layouts: dict[int, tuple[str, tuple[LabelSet, ...]]] = {}
        self._bits: dict[int, Bits] = {}

    def rows(self) -> Iterator[Row]:
        """Every whole row up to the first damage. Raises OSError when the file cannot be read."""
        for group in self.groups():
            for place, time_ms in enumerate(group.times_ms.tolist()):
                yield Row(group.target, time_ms, group.series, np.ascontiguousarray(group.values[:, place]))

    def groups(self) -> Iterator[RowGroup]:
        """The same as groups: one of a single row for each row that was logged as it came."""
        for at_byte, kind, payload in self._frames():
            try:
                group = self._record(kind, payload)
            except (ValueError, KeyError, IndexError, struct.error, zlib.error) as error:
                self._damaged(at_byte, f"a record does not make sense ({type(error).__name__}: {error})")
                return
            if group is not None:
                yield group

    def intact(self) -> bool:
        """Whether every checksum of the file fits; much faster than reading it."""
        for _ in self._frames():
            pass
        return self.damage is None

    def _frames(self) -> Iterator[tuple[int, int, memoryview]]:
        """Place, kind and payload of every frame whose checksum fits, until one does not."""
        raw = memoryview(self._path.read_bytes())
        self._file_bytes = len(raw)
        if raw[: len(MAGIC)] != MAGIC:
            self._damaged(0, "the file does not begin as a scrape log")
            return
        at = len(MAGIC)
        while at < len(raw):
            begin, at = at, at + FRAME_HEAD.size
            if at > len(raw):
                self._damaged(begin, "the last record is cut short")
                return
            length, crc, kind = FRAME_HEAD.unpack_from(raw, begin)
            payload = raw[at : at + length]
            if len(payload) < length or length > MAX_PAYLOAD_BYTES:
                self._damaged(begin, "the last record is cut short")
                return
            if zlib.crc32(payload, kind) != crc:
                self._damaged(begin, "a record's checksum does not fit")
                return
            at += length
            yield begin, kind, payload

    def _damaged(self, at_byte: int, reason: str) -> None:
        self.damage = Damage(at_byte, self._file_bytes, reason)

    def _record(self, kind: int, payload: memoryview) -> RowGroup | None:
        if kind == SERIES:
            self._series.extend(LabelSet(labels) for labels in orjson.loads(zlib.decompress(payload)))
            return None
        if kind == LAYOUT:
            (number,) = LAYOUT_HEAD.unpack_from(payload)
            target, _, steps = zlib.decompress(payload[LAYOUT_HEAD.size :]).partition(b"\n")
            numbers = np.cumsum(np.frombuffer(steps, dtype="<i4")).tolist()
            self._layouts[number] = (orjson.loads(target), tuple(self._series[place] for place in numbers))
            self._bits[number] = np.zeros(len(numbers), dtype=np.uint64)
            return None
        if kind == ROW:
            self.single_rows += 1
            number, time_ms = ROW_HEAD.unpack_from(payload)
            named, series = self._layouts[number]
            values = self._values(number, zlib.decompress(payload[ROW_HEAD.size :]))
            return RowGroup(named, series, np.array([time_ms], dtype=np.int64), values[:, None])
        if kind == GROUP:
            number, rows = GROUP_HEAD.unpack_from(payload)
            named, series = self._layouts[number]
            return RowGroup(
                named, series, *_group_values(zlib.decompress(payload[GROUP_HEAD.size :]), len(series), rows)
            )
        raise ValueError(f"unknown record kind {kind}")

    def _values(self, number: int, data: bytes) -> Floats:
        bits = self._bits[number].copy()
        mask_bytes = (len(bits) + 7) // 8
        raw = np.frombuffer(data, dtype=np.uint8)
        changed = np.unpackbits(raw[:mask_bytes], count=len(bits)).view(np.bool_)
        bits[changed] = np.ascontiguousarray(raw[mask_bytes:].reshape(8, -1).T).view("<u8").ravel()
        self._bits[number] = bits
        return bits.view(np.float64)


def _group_values(data: bytes, columns: int, rows: int) -> tuple[Int64s, Floats]:
    times_ms = np.frombuffer(data, dtype="<i8", count=rows).astype(np.int64)
    planes = np.frombuffer(data, dtype=np.uint8, offset=8 * rows).reshape(8, columns, rows)
    bits = np.ascontiguousarray(planes.transpose(1, 2, 0)).view("<u8").reshape(columns, rows)
    return times_ms, np.bitwise_xor.accumulate(bits, axis=1).view(np.float64)


def merged(groups: Iterable[RowGroup], at_most_rows: int = GROUP_ROWS) -> Iterator[RowGroup]:
    """Groups of about `at_most_rows` rows, made of neighbours of the same target and layout; the rows of a target keep their order."""
    open_groups: dict[str, list[RowGroup]] = {}
    rows: dict[str, int] = {}
    for group in groups:
        held = open_groups.get(group.target)
        if held and (held[0].series is not group.series or rows[group.target] >= at_most_rows):
            yield _joined(open_groups.pop(group.target))
            held = None
        if held is None:
            held = open_groups[group.target] = []
            rows[group.target] = 0
        held.append(group)
        rows[group.target] += len(group.times_ms)
    for held in open_groups.values():
        yield _joined(held)


def _joined(groups: list[RowGroup]) -> RowGroup:
    first = groups[0]
    if len(groups) == 1:
        return first
    times_ms = np.concatenate([group.times_ms for group in groups])
    return RowGroup(first.target, first.series, times_ms, np.concatenate([group.values for group in groups], axis=1))
