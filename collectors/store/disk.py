"""The data folder of a store: `log/NUMBER.log` as scrapes come, `segments/` for what is sealed, `metadata.json`, and a lock.

A log file covers a segment's span; some time after it is closed the same span is sealed from memory as a segment. A restart replays the logs (a
damaged one is replaced by its segment when there is one); both go together when they are past retention.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from collectors.model import MetricMeta, Samples
from collectors.series_lines import SeriesLineError
from collectors.source import SourceError
from collectors.store.blocks import Blocks
from collectors.store.log import LogEncoder, LogReader
from collectors.store.log_writer import DiskCalls, LogWriter
from collectors.store.rows import Row
from collectors.store.segments import Segment, list_segments, read_segment, write_segment

log = logging.getLogger(__name__)

SPAN_MS = 3_600_000
LOG_FILE_BYTES = 256 * 1024 * 1024
LATE_SECONDS = 60.0
"""How long after its end a log file may still be joined by scrapes that began before: sealing waits for them."""
_LOG_NAME = re.compile(r"(\d{8,})\.log")


class StoreError(SourceError):
    """A data folder that cannot be used; the message says why and what to try."""


@dataclass
class _LogFile:
    """A log file on disk and the span of its rows."""

    path: Path
    number: int
    start_ms: int = 2**62
    end_ms: int = -(2**62)
    closed_at: float = 0.0

    def cover(self, time_ms: int) -> None:
        self.start_ms, self.end_ms = min(self.start_ms, time_ms), max(self.end_ms, time_ms)

    @property
    def empty(self) -> bool:
        return self.end_ms < self.start_ms


class Disk:
    """An open data folder. Writing never raises: what the disk refuses waits (see LogWriter)."""

    def __init__(
        self,
        folder: Path,
        *,
        span_ms: int = SPAN_MS,
        retention_bytes: int | None = None,
        calls: DiskCalls | None = None,
    ) -> None:
        self._folder, self._logs, self._segments = folder, folder / "log", folder / "segments"
        self._span_ms, self._retention_bytes = span_ms, retention_bytes
        self._calls = calls or DiskCalls()
        self._closed: list[_LogFile] = []
        self._sealed: list[Segment] = []
        self._failures_before = 0
        self._seal_failure = ""
        self._writing = threading.Lock()
        try:
            for path in (self._logs, self._segments):
                path.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(folder / "lock")
        except OSError as error:
            raise StoreError(
                f"cannot use {folder}: {error.strerror}", "choose a folder that can be written with --data"
            ) from None
        self._next_number = 1 + max(
            [0, *(int(m.group(1)) for p in self._logs.iterdir() if (m := _LOG_NAME.fullmatch(p.name)))]
        )
        self._next_number = max([self._next_number, *(segment.number + 1 for segment in list_segments(self._segments))])
        self._begin_file()

    def _begin_file(self) -> None:
        self._current = _LogFile(self._logs / f"{self._next_number:08d}.log", self._next_number)
        self._next_number += 1
        self._encoder = LogEncoder()
        self._writer = LogWriter(self._current.path, self._calls)

    # ---- reading back

    def replay(
        self, since_ms: int, take_row: Callable[[Row], None], take_series: Callable[[Iterable[Samples]], object]
    ) -> None:
        """Give back everything kept, oldest file first; what cannot be read is said and left out."""
        self._sealed = list_segments(self._segments)
        segments = {segment.number: segment for segment in self._sealed}
        logs = {int(m.group(1)): path for path in self._logs.iterdir() if (m := _LOG_NAME.fullmatch(path.name))}
        for number in sorted(segments.keys() | logs.keys()):
            segment, path = segments.get(number), logs.get(number)
            if segment is not None and segment.end_ms < since_ms:
                continue
            if path is not None and self._replay_log(path, number, segment, take_row):
                continue
            if segment is not None:
                try:
                    take_series(list(read_segment(segment)))
                except (SeriesLineError, OSError, EOFError, zlib.error) as error:
                    log.error("%s is damaged and left out: %s", segment.path, error)

    def _replay_log(self, path: Path, number: int, segment: Segment | None, take_row: Callable[[Row], None]) -> bool:
        """Whether the log was used. With a segment at hand a damaged log is not."""
        file = _LogFile(path, number)
        try:
            if segment is not None and not _intact(path):
                log.warning("%s is damaged; its sealed segment is used instead", path)
                return False
            reader = LogReader(path)
            for row in reader.rows():
                file.cover(row.time_ms)
                take_row(row)
        except OSError as error:
            log.error("cannot read %s: %s", path, error.strerror)
            return False
        if not file.empty:
            self._closed.append(file)
        if reader.damage is not None:
            self._cut(path, reader.damage.at_byte, reader.damage.file_bytes, reader.damage.reason)
        elif file.empty:
            path.unlink(missing_ok=True)
        return True

    @staticmethod
    def _cut(path: Path, at_byte: int, file_bytes: int, reason: str) -> None:
        log.warning(
            "%s: %s at byte %d; the last %d bytes are cut off, the rest is kept",
            path,
            reason,
            at_byte,
            file_bytes - at_byte,
        )
        with contextlib.suppress(
            OSError
        ):  # a disk that takes no change now leaves the tail, and the next start says the same
            if at_byte == 0:
                path.rename(path.with_suffix(".damaged"))
            else:
                os.truncate(path, at_byte)

    # ---- writing

    def write(self, row: Row) -> None:
        """Log one row. It outlives the process from here on, unless `failure` says that the disk refuses."""
        with self._writing:
            due = not self._current.empty and row.time_ms - self._current.start_ms >= self._span_ms
            if (due or self._writer.file_bytes > LOG_FILE_BYTES) and not self._writer.failure:
                self._rotate()
            self._current.cover(row.time_ms)
            self._writer.append(self._encoder.encode(row))

    def _rotate(self) -> None:
        self._writer.close()
        self._failures_before += self._writer.failures
        self._current.closed_at = time.monotonic()
        self._closed.append(self._current)
        self._begin_file()

    def upkeep(self, blocks: Blocks, cutoff_ms: int) -> int:
        """Sync, retry, seal what is due and drop what is past retention; returns the time from which samples are kept."""
        with self._writing:
            if self._writer.failure and not self._writer.overflowed:
                self._writer.flush()
            overflowed, descriptor = self._writer.overflowed, self._writer.duplicate()
        if descriptor is not None:
            self._sync(descriptor)
        if overflowed:
            self._recover(blocks)
        sealed = {segment.number for segment in self._sealed}
        for file in list(self._closed):
            waited = time.monotonic() - file.closed_at >= LATE_SECONDS
            if (
                file.number not in sealed
                and waited
                and file.end_ms >= cutoff_ms
                and not self._seal(file, blocks, file.end_ms)
            ):
                break
        return self._drop(cutoff_ms)

    def _recover(self, blocks: Blocks) -> None:
        """After an overflow: seal the whole span of the current file from memory, then log anew."""
        with self._writing:  # rows wait meanwhile, so that none falls between the segment and the new log
            newest = blocks.extent_ms()
            if newest is None or not self._seal(self._current, blocks, newest[1]):
                return
            self._writer.close()
            self._failures_before += self._writer.failures
            self._current.path.unlink(missing_ok=True)
            self._begin_file()

    def _sync(self, descriptor: int) -> None:
        try:
            self._calls.fsync(descriptor)
        except OSError as error:
            log.error("cannot sync %s: %s", self._current.path, error.strerror)
        finally:
            os.close(descriptor)

    def _seal(self, file: _LogFile, blocks: Blocks, end_ms: int) -> bool:
        try:
            segment = write_segment(self._segments, file.number, blocks, file.start_ms, end_ms, self._calls)
        except OSError as error:
            reason = error.strerror or str(error)
            if reason != self._seal_failure:
                log.error("cannot seal a segment in %s: %s; trying again", self._segments, reason)
            self._seal_failure = reason
            return False
        self._seal_failure = ""
        if segment is not None:
            self._sealed.append(segment)
        return True

    def _drop(self, cutoff_ms: int) -> int:
        kept = self.disk_bytes()
        by_number: dict[int, int] = {}
        for number, end_ms in [(f.number, f.end_ms) for f in self._closed] + [
            (s.number, s.end_ms) for s in self._sealed
        ]:
            by_number[number] = max(end_ms, by_number.get(number, end_ms))
        for number, end_ms in sorted(by_number.items()):
            too_much = self._retention_bytes is not None and kept > self._retention_bytes
            if end_ms >= cutoff_ms and not too_much:
                continue
            paths = [f.path for f in self._closed if f.number == number] + [
                s.path for s in self._sealed if s.number == number
            ]
            for path in paths:
                with contextlib.suppress(FileNotFoundError):
                    kept -= path.stat().st_size
                    path.unlink()
            with self._writing:
                self._closed = [file for file in self._closed if file.number != number]
            self._sealed = [segment for segment in self._sealed if segment.number != number]
            cutoff_ms = max(cutoff_ms, end_ms + 1)
        return cutoff_ms

    def write_metadata(self, metadata: Mapping[str, MetricMeta]) -> None:
        """Keep TYPE and HELP for the next start. They come again with every scrape, so a refusal costs nothing."""
        path = self._folder / "metadata.json"
        unfinished = path.with_suffix(".part")
        try:
            unfinished.write_bytes(orjson.dumps({name: asdict(meta) for name, meta in sorted(metadata.items())}))
            self._calls.replace(unfinished, path)
        except OSError as error:
            log.warning("cannot write %s: %s", path, error.strerror)

    def read_metadata(self) -> dict[str, MetricMeta]:
        """TYPE and HELP from the last run; empty when there is none or it is damaged."""
        try:
            kept = orjson.loads((self._folder / "metadata.json").read_bytes())
            return {str(name): MetricMeta(**said) for name, said in kept.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            log.warning("metadata.json is left out: %s", error)
            return {}

    # ---- what there is to say

    @property
    def failure(self) -> str:
        """What the disk last refused; empty when it takes writes."""
        return self._writer.failure

    @property
    def pending_bytes(self) -> int:
        """Bytes that wait for the disk."""
        return self._writer.pending_bytes

    @property
    def write_failures(self) -> int:
        """Writes refused since the start."""
        return self._failures_before + self._writer.failures

    def disk_bytes(self) -> int:
        """Bytes of logs and segments."""
        total = 0
        for folder in (self._logs, self._segments):
            for path in folder.iterdir():
                with contextlib.suppress(FileNotFoundError):
                    total += path.stat().st_size
        return total

    def close(self) -> None:
        """Write what waits, and give the folder free."""
        self._writer.close()
        os.close(self._lock)


def _intact(path: Path) -> bool:
    reader = LogReader(path)
    for _ in reader.rows():
        pass
    return reader.damage is None


def _locked(path: Path) -> int:
    """An exclusive lock that ends with the process. Raises StoreError when another one holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.read(descriptor, 32).decode("ascii", "replace").strip()
        os.close(descriptor)
        raise StoreError(
            f"{path.parent} is in use by another store{f' (process {holder})' if holder else ''}",
            "stop it, or choose another folder with --data",
        ) from None
    with contextlib.suppress(OSError):  # a full disk: the lock holds all the same
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor
