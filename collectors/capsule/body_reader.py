"""Reading the body of an incident file: series lines in gzip members that can be read one by one.

A gzip file may consist of several members; any gunzip reads them as one text. The manifest lists where each member lies and which metrics it
holds, so that a question about three metrics unpacks and parses three metrics. The last member is the table of timestamps, which the series of
a target share. Reading trusts nothing: sizes are limits, names are checked.
"""

from __future__ import annotations

import hashlib
import os
import threading
import weakref
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

from collectors.capsule.body_writer import MAX_SERIES
from collectors.capsule.lines import MAX_TABLE_BYTES, TABLE_LINE, LineDecoder, decode_times
from collectors.capsule.manifest import BODY_FILE, Body, Member, TimeTable
from collectors.model import Int64s, Samples
from collectors.series_lines import MAX_LINE_BYTES, SeriesLineError, line_name, sort_key
from collectors.source import SourceBroken

MAX_SAMPLES = 8_000_000_000
"""A week of 64 replicas at 5 s has 3.2e9."""
MAX_RAW_BYTES = 32 * 1024**3
MAX_MEMBER_RAW_BYTES = 1024**3
MAX_REMEMBERED_BYTES = 8 * 1024**2
"""Members that stay unpacked for the next question."""
MAX_RATIO = 400
"""Unpacked against packed size, checked above RATIO_FREE_BYTES. Idle fleets reach 60; gzip itself ends at 1030."""
RATIO_FREE_BYTES = 256 * 1024**2
_READ_BYTES = 1024 * 1024


class FileRange:
    """Bytes that lie in a file from `offset` on. The file stays open until this is forgotten, so replacing it does no harm. Thread-safe."""

    def __init__(self, path: Path, offset: int, size: int) -> None:
        self._descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor)
        self._offset = offset
        self.size = size

    def read(self, start: int, count: int) -> bytes:
        return os.pread(self._descriptor, count, self._offset + start)


class MemoryRange:
    """Bytes in memory, read like a FileRange."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def read(self, start: int, count: int) -> bytes:
        return self._data[start : start + count]


class _Table:
    """Timestamp vectors by their number, decoded when first asked for."""

    def __init__(self, lines: list[bytes]) -> None:
        self._lines = lines
        self._decoded: dict[int, Int64s] = {}

    def __getitem__(self, number: int) -> Int64s:
        times = self._decoded.get(number)
        if times is None:
            if not 0 <= number < len(self._lines):
                raise SeriesLineError(f"there are no timestamps {number} in the table of {len(self._lines)}")
            times = self._decoded[number] = decode_times(self._lines[number], f"timestamps {number}")
        return times


class BodyReader:
    """Reads series of a body on demand. Thread-safe."""

    def __init__(self, packed: FileRange | MemoryRange, body: Body, where: str) -> None:
        self._packed = packed
        self._size = packed.size
        self._where = where
        self.body = body
        self._times: _Table | None = None
        self._members: dict[int, list[tuple[bytes, str | None]]] = {}
        self._remembered_bytes = 0
        self._lock = threading.Lock()
        self._check_account()

    def _check_account(self) -> None:
        body = self.body
        if body.bytes != self._size:
            raise SourceBroken(
                f"{self._where}: {BODY_FILE} has {self._size} bytes, its manifest says {body.bytes}",
                "The file is cut off or was changed; take another copy",
            )
        if body.series > MAX_SERIES:
            raise SourceBroken(f"{self._where} has {body.series} series, more than the {MAX_SERIES} that are read")
        if body.samples > MAX_SAMPLES:
            raise SourceBroken(f"{self._where} has {body.samples} samples, more than the {MAX_SAMPLES} that are read")
        _check_bomb(body.raw_bytes, body.bytes, self._where)
        if not body.members:
            return
        end = 0
        for member in body.members:
            if member.offset != end or member.raw_bytes > MAX_MEMBER_RAW_BYTES:
                raise SourceBroken(f"{self._where}: the manifest's list of members is damaged at byte {end}")
            end += member.bytes
        totals = [
            sum(getattr(member, field) for member in body.members) for field in ("raw_bytes", "series", "samples")
        ]
        if body.times is not None:
            if body.times.offset != end or body.times.raw_bytes > MAX_TABLE_BYTES:
                raise SourceBroken(f"{self._where}: the manifest's place of the timestamps is damaged")
            end += body.times.bytes
            totals[0] += body.times.raw_bytes
        if end != body.bytes or totals != [body.raw_bytes, body.series, body.samples]:
            raise SourceBroken(f"{self._where}: the manifest's members do not add up to its body")

    def verify(self, progress: Callable[[float, str], None] | None = None) -> None:
        """Compare the body's sha256 with the manifest's. Raises SourceBroken."""
        digest = hashlib.sha256()
        for start in range(0, self._size, _READ_BYTES * 8):
            digest.update(self._read(start, min(_READ_BYTES * 8, self._size - start)))
            if progress is not None:
                progress(min(1.0, (start + _READ_BYTES * 8) / self._size), "checking the hash")
        if digest.hexdigest() != self.body.sha256:
            raise SourceBroken(
                f"{self._where}: the sha256 of {BODY_FILE} is not the one in its manifest",
                "The file is damaged or was changed; take another copy",
            )

    def metric_names(self) -> frozenset[str] | None:
        """All metric names; None when the manifest lists no members and only reading would tell."""
        if not self.body.members:
            return None
        return frozenset(name for member in self.body.members for name in member.metrics)

    def read(
        self, wanted: Collection[str] | None = None, progress: Callable[[float, str], None] | None = None
    ) -> Iterator[Samples]:
        """Series of the wanted metrics (None: all), in the order of the file. Raises SourceBroken naming line and reason."""
        decoder = LineDecoder(self._vector)
        number = 0
        seen: set[int] = set()
        chosen = {
            member.offset: member.bytes
            for member in self.body.members
            if wanted is None or any(name in wanted for name in member.metrics)
        }
        all_bytes, done_bytes = sum(chosen.values()), 0
        for member in self.body.members or (None,):
            if member is not None and member.offset not in chosen:
                number += member.series
                continue
            if progress is not None and member is not None:
                progress(done_bytes / all_bytes, "reading samples")
                done_bytes += member.bytes
            samples_left = member.samples if member is not None else MAX_SAMPLES
            for line, name in self._named(member, remember=wanted is not None):
                number += 1
                if number > MAX_SERIES:
                    raise SourceBroken(f"{self._where} has more than the {MAX_SERIES} series that are read")
                if name is not None and member is not None and name not in member.metrics:
                    raise self._unlisted(number, name)
                if name is not None and wanted is not None and name not in wanted:
                    continue
                series = self._decoded(decoder, line, number)
                samples_left -= series.times_ms.size
                if samples_left < 0:
                    raise SourceBroken(f"{self._where}: line {number}: more samples than its manifest says")
                key = sort_key(series.labels)
                if member is not None and key[0] not in member.metrics:
                    raise self._unlisted(number, key[0])
                if hash(key) in seen:
                    raise SourceBroken(f"{self._where}: line {number}: the series {dict(series.labels)} comes twice")
                seen.add(hash(key))
                if wanted is None or key[0] in wanted:
                    yield series
        if progress is not None:
            progress(1.0, "reading samples")

    def _unlisted(self, number: int, name: str) -> SourceBroken:
        return SourceBroken(f"{self._where}: line {number} holds {name!r}, which its manifest does not list")

    def _decoded(self, decoder: LineDecoder, line: bytes, number: int) -> Samples:
        try:
            return decoder.decode(line, number)
        except SeriesLineError as error:
            raise SourceBroken(f"{self._where}: {error.cause}", error.next_step) from None

    def _vector(self, number: int) -> Int64s:
        """Timestamps of a table line. Raises SeriesLineError."""
        if self._times is None:
            table = self.body.times
            if table is None:
                lines = [line for line in self._scan() if line.startswith(TABLE_LINE)]
            else:
                lines = self._unpacked(table).splitlines()
                if len(lines) != table.vectors:
                    raise SourceBroken(
                        f"{self._where}: {BODY_FILE} has not the number of timestamps that its manifest says"
                    )
            self._times = _Table(lines)
        return self._times[number]

    def _named(self, member: Member | None, *, remember: bool) -> Iterable[tuple[bytes, str | None]]:
        """Lines of a member with the metric names that can be told without parsing."""
        if member is None:
            return ((line, line_name(line)) for line in self._scan() if not line.startswith(TABLE_LINE))
        known = self._members.get(member.offset)
        if known is not None:
            return known
        lines = self._unpacked(member).splitlines()
        if len(lines) != member.series:
            raise SourceBroken(f"{self._where}: {BODY_FILE} has not the number of series that its manifest says")
        named = [(line, line_name(line)) for line in lines]
        if remember:
            self._remember(member, named)
        return named

    def _remember(self, member: Member, named: list[tuple[bytes, str | None]]) -> None:
        """Keep a member unpacked: one screen's questions touch the same few, one after the other."""
        with self._lock:
            if self._remembered_bytes + member.raw_bytes > MAX_REMEMBERED_BYTES:
                self._members.clear()
                self._remembered_bytes = 0
            if member.raw_bytes <= MAX_REMEMBERED_BYTES and member.offset not in self._members:
                self._members[member.offset] = named
                self._remembered_bytes += member.raw_bytes

    def _unpacked(self, part: Member | TimeTable) -> bytes:
        unpacker = zlib.decompressobj(31)
        try:
            raw = unpacker.decompress(self._read(part.offset, part.bytes), part.raw_bytes + 1)
        except zlib.error as error:
            raise SourceBroken(f"{self._where}: {BODY_FILE} is damaged at byte {part.offset}: {error}") from None
        if len(raw) != part.raw_bytes or not unpacker.eof or unpacker.unused_data:
            raise SourceBroken(f"{self._where}: {BODY_FILE} does not unpack to the size that its manifest says")
        return raw

    def _scan(self) -> Iterator[bytes]:
        """Lines of a body without a list of members, unpacked in bounded pieces."""
        unpacker = zlib.decompressobj(31)
        rest, unpacked, packed_at = b"", 0, 0
        pending = b""
        while packed_at < self._size or pending:
            if not pending:
                pending = self._read(packed_at, min(_READ_BYTES, self._size - packed_at))
                packed_at += len(pending)
            try:
                raw = unpacker.decompress(pending, _READ_BYTES * 8)
            except zlib.error as error:
                raise SourceBroken(f"{self._where}: {BODY_FILE} is damaged: {error}") from None
            pending = unpacker.unconsumed_tail
            if unpacker.eof:
                pending = unpacker.unused_data
                unpacker = zlib.decompressobj(31)
            unpacked += len(raw)
            _check_bomb(unpacked, self._size, self._where)
            *lines, rest = (rest + raw).split(b"\n")
            if len(rest) > MAX_LINE_BYTES:
                raise SourceBroken(f"{self._where}: a line is longer than {MAX_LINE_BYTES} bytes")
            yield from (line for line in lines if line.strip())
        if rest.strip():
            yield rest

    def _read(self, start: int, count: int) -> bytes:
        return self._packed.read(start, count)


def _check_bomb(raw_bytes: int, packed_bytes: int, where: str) -> None:
    if raw_bytes > MAX_RAW_BYTES:
        raise SourceBroken(f"{where} unpacks to more than the {MAX_RAW_BYTES >> 30} GiB that are read")
    if raw_bytes > RATIO_FREE_BYTES and raw_bytes > MAX_RATIO * packed_bytes:
        raise SourceBroken(f"{where} unpacks to more than {MAX_RATIO} times its size, as no recording does")
