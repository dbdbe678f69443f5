"""Writing the body of an incident file: series lines in gzip members, one member after the other, the table of timestamps last."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable
from typing import BinaryIO

import numpy as np

from collectors.capsule.lines import MAX_SERIES_SAMPLES, MAX_TABLE_BYTES, encode_line, encode_times
from collectors.capsule.manifest import Body, Member, TimeTable
from collectors.capsule.staleness import target_of
from collectors.model import Int64s, Labels, Samples
from collectors.series_lines import sort_key
from collectors.source import SourceBroken

MEMBER_BYTES = 256 * 1024
"""A member ends at the next metric name after this many bytes, or anywhere after eight times as many."""
MAX_SERIES = 1_000_000
"""Series of one incident file."""


class BodyWriter:
    """Writes sorted series into gzip members; `finish` returns the manifest's account of them. Bounded memory.

    Members follow each other in the order of metric names. Inside a member the series of one target stand together, and the buckets of one
    histogram in the order of their bounds: their counts change at the same scrapes, and deflate finds a repetition only within 32 KB.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self._members: list[Member] = []
        self._lines: list[tuple[_Place, bytes]] = []
        self._raw = self._samples = self._written = self._series = 0
        self._names: list[str] = []
        self._vectors: dict[bytes, int] = {}
        self._table: list[bytes] = []
        self._table_bytes = 0
        self._last: tuple[str, tuple[tuple[str, str], ...]] | None = None

    def add(self, series: Samples) -> None:
        """Append one series. Raises SourceBroken when it does not sort after the one before it (twice, or unsorted), or is too long."""
        key = sort_key(series.labels)
        if self._last is not None and key <= self._last:
            raise SourceBroken(f"series {dict(series.labels)} comes twice or out of order")
        self._series += 1
        if self._series > MAX_SERIES:
            raise SourceBroken(
                f"more than the {MAX_SERIES} series that one incident file holds", "Choose fewer metrics or replicas"
            )
        name = key[0]
        if self._raw >= MEMBER_BYTES and (name != self._names[-1] or self._raw >= 8 * MEMBER_BYTES):
            self._end_member()
        self._last = key
        if series.times_ms.size > MAX_SERIES_SAMPLES:
            raise SourceBroken(
                f"series {dict(series.labels)} has {series.times_ms.size} samples, more than the {MAX_SERIES_SAMPLES} of one incident file",
                "Cut it into shorter pieces",
            )
        line = encode_line(series, self._vector(series.times_ms))
        self._lines.append((_place(series.labels), line))
        self._raw += len(line)
        self._samples += series.times_ms.size
        if not self._names or self._names[-1] != name:
            self._names.append(name)

    def _vector(self, times_ms: Int64s) -> int | bytes:
        """Number of the table line of these timestamps; the line itself when the table is full."""
        key = hashlib.sha256(np.asarray(times_ms, dtype=np.int64).tobytes()).digest()
        if key in self._vectors:
            return self._vectors[key]
        line = encode_times(times_ms)
        if self._table_bytes + len(line) > MAX_TABLE_BYTES:
            return line
        self._vectors[key] = len(self._table)
        self._table.append(line)
        self._table_bytes += len(line)
        return self._vectors[key]

    def _end_member(self) -> None:
        self._lines.sort(key=lambda pair: pair[0])
        packed = self._put(line for _, line in self._lines)
        self._members.append(
            Member(
                offset=self._written - packed,
                bytes=packed,
                raw_bytes=self._raw,
                series=len(self._lines),
                samples=self._samples,
                metrics=tuple(self._names),
            )
        )
        self._lines, self._names = [], []
        self._raw = self._samples = 0

    def _put(self, lines: Iterable[bytes]) -> int:
        """Write one gzip member; its size."""
        packer = zlib.compressobj(9, zlib.DEFLATED, 31)  # 31: gzip framing, whose header zlib writes with mtime 0
        packed = b"".join([*map(packer.compress, lines), packer.flush()])
        self._file.write(packed)
        self._hash.update(packed)
        self._written += len(packed)
        return len(packed)

    def finish(self) -> Body:
        """Write what is left; sizes, hash and members of the whole body."""
        if self._lines or not self._members:
            self._end_member()
        packed = self._put(self._table)
        times = TimeTable(
            offset=self._written - packed,
            bytes=packed,
            raw_bytes=self._table_bytes,
            vectors=len(self._table),
        )
        return Body(
            sha256=self._hash.hexdigest(),
            bytes=self._written,
            raw_bytes=sum(member.raw_bytes for member in self._members) + self._table_bytes,
            series=sum(member.series for member in self._members),
            samples=sum(member.samples for member in self._members),
            members=tuple(self._members),
            times=times,
        )


_Place = tuple[tuple[str, str], str, tuple[tuple[str, str], ...], float, str]


def _place(labels: Labels) -> _Place:
    """Where a series stands inside its member: by target, name, labels but `le`, bound of the bucket."""
    name, pairs = sort_key(labels)
    le = labels.get("le", "")
    try:
        bound = float(le) if le else 0.0
    except ValueError:
        bound = 0.0
    others = tuple(pair for pair in pairs if pair[0] != "le")
    return target_of(labels), name, others, bound if bound == bound else 0.0, le


def sorted_series(series: Iterable[Samples]) -> list[Samples]:
    """Series in the order of an incident file."""
    return sorted(series, key=lambda each: sort_key(each.labels))
