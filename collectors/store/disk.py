"""The data folder of a store: `log/NUMBER.log` as scrapes come, `segments/` for what is sealed, `metadata.json`, and a lock.

A log file covers a segment's span; when it is complete, a process of its own seals the same rows as a segment. A restart replays the logs (a
damaged one is replaced by its segment when there is one); both go together when they are past retention.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

import orjson

from collectors.model import MetricMeta
from collectors.source import SourceError
from collectors.store.blocks import Blocks
from collectors.store.log import LogEncoder
from collectors.store.log_writer import DiskCalls, LogWriter
from collectors.store.replay import (
    LogFile,
    TakeGroup,
    TakeSeries,
    log_files,
    replay_log,
    replay_segment,
)
from collectors.store.rows import Row
from collectors.store.sealing import SealingProcess, complete_log
from collectors.store.segments import Segment, list_segments, sorted_series, write_segment

log = logging.getLogger(__name__)

SPAN_MS = 1_800_000
"""What a log file covers: it is read back row by row until it is complete and rewritten, so it bounds how long a start takes."""
LOG_FILE_BYTES = 256 * 1024 * 1024


class StoreError(SourceError):
    """A data folder that cannot be used; the message says why and what to try."""


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
        self._sealing = SealingProcess() if calls is None else None
        self._closed: list[LogFile] = []
        self._sealed: list[Segment] = []
        self._failures_before = 0
        self._seal_failure = ""
        self._writing = threading.Lock()
        try:
            for path in (self._logs, self._segments):
                path.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(folder / "lock")
            for unfinished in (*self._logs.glob("*.part"), *self._segments.glob("*.part")):
                unfinished.unlink()
        except OSError as error:
            raise StoreError(
                f"cannot use {folder}: {error.strerror}", "choose a folder that can be written with --data"
            ) from None
        taken = [number for number, _ in log_files(self._logs)]
        taken += [segment.number for segment in list_segments(self._segments)]
        self._next_number = max(taken, default=0) + 1
        self._begin_file()

    def _begin_file(self) -> None:
        self._current = LogFile(self._logs / f"{self._next_number:08d}.log", self._next_number)
        self._next_number += 1
        self._encoder = LogEncoder()
        self._writer = LogWriter(self._current.path, self._calls)

    # ---- reading back

    def replay(self, since_ms: int, take_group: TakeGroup, take_series: TakeSeries) -> None:
        """Give back everything kept, oldest file first; what cannot be read is said and left out."""
        self._sealed = list_segments(self._segments)
        segments = {segment.number: segment for segment in self._sealed}
        logs = {number: path for number, path in log_files(self._logs) if number != self._current.number}
        if segments or logs:
            log.info("reading back %s: %d logs, %d segments", self._folder, len(logs), len(segments))
        for number in sorted(segments.keys() | logs.keys()):
            segment, path = segments.get(number), logs.get(number)
            if segment is not None and segment.end_ms < since_ms:
                if path is not None:
                    self._closed.append(LogFile(path, number, segment.start_ms, segment.end_ms))
                continue
            if path is not None:
                file = LogFile(path, number)
                if replay_log(file, segment, take_group):
                    self._closed += [] if file.empty else [file]
                    continue
            if segment is not None:
                replay_segment(segment, take_series)

    # ---- writing

    def write(self, row: Row) -> None:
        """Log one row. It outlives the process from here on, unless `failure` says that the disk refuses."""
        with self._writing:
            due = not self._current.empty and row.time_ms - self._current.start_ms >= self._span_ms
            if (due or self._writer.file_bytes > LOG_FILE_BYTES) and not self._writer.failure:
                self._rotate()
            self._current.cover(row.time_ms, row.time_ms)
            self._writer.append(self._encoder.encode(row))

    def _rotate(self) -> None:
        self._writer.close()
        self._failures_before += self._writer.failures
        self._closed.append(self._current)
        self._begin_file()

    def upkeep(self, blocks: Blocks, cutoff_ms: int) -> int:
        """Sync, retry, seal what is due and drop what is past retention; returns the time from which samples are kept."""
        if not self._trying("use the folders", self._folders_are_there):
            return cutoff_ms
        with self._writing:
            if self._writer.failure and not self._writer.overflowed:
                self._writer.flush()
            overflowed, descriptor = self._writer.overflowed, self._writer.duplicate()
        if descriptor is not None:
            self._sync(descriptor)
        if overflowed:
            self._recover(blocks)
        self._complete(cutoff_ms)
        return self._drop(cutoff_ms)

    def _complete(self, cutoff_ms: int) -> None:
        """Seal and rewrite the logs that nothing is added to any more; what the disk refuses is tried again the next time."""
        due = [file for file in list(self._closed) if not file.complete and file.end_ms >= cutoff_ms]
        if due and self._trying("seal", functools.partial(self._complete_logs, [file.path for file in due])):
            for file in due:
                file.complete = True
        if due:
            self._trying("list segments", self._list_segments)

    def _list_segments(self) -> None:
        self._sealed = list_segments(self._segments)

    def _folders_are_there(self) -> None:
        """Somebody may have cleared the folder under a running store: what is in memory is kept, logging begins anew."""
        for path in (self._logs, self._segments):
            path.mkdir(parents=True, exist_ok=True)
        with self._writing:
            missing = [file for file in self._closed if not file.path.exists()]
            self._closed = [file for file in self._closed if file not in missing]
            if self._writer.file_bytes and not self._current.path.exists():
                log.error("%s is gone; a new log is begun, what the old one held is in memory only", self._current.path)
                self._writer.close()
                self._failures_before += self._writer.failures
                self._begin_file()

    def _complete_logs(self, paths: list[Path]) -> None:
        if self._sealing is not None:
            self._sealing.complete(paths, self._segments)
            return
        for path in paths:
            complete_log(path, self._segments, self._calls)

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

    def _seal(self, file: LogFile, blocks: Blocks, end_ms: int) -> bool:
        def write() -> None:
            series = sorted_series(blocks, file.start_ms, end_ms)
            write_segment(self._segments, file.number, series, file.start_ms, end_ms, self._calls)

        return self._trying("seal", write)

    def _trying(self, what: str, work: Callable[[], None]) -> bool:
        """Whether the disk took it; a refusal is said once for each reason."""
        try:
            work()
        except OSError as error:
            refused = f"cannot {what} in {self._folder}: {error.strerror or error}; trying again"
            if refused != self._seal_failure:
                log.error("%s", refused)
            self._seal_failure = refused
            return False
        self._seal_failure = ""
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
            with contextlib.suppress(OSError):
                unfinished.unlink()

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
            with contextlib.suppress(OSError):
                for path in folder.iterdir():
                    with contextlib.suppress(FileNotFoundError):
                        total += path.stat().st_size
        return total

    def stop_sealing(self) -> None:
        """Let a seal that is at work end now; it is done after the next start."""
        if self._sealing is not None:
            self._sealing.stop()

    def close(self) -> None:
        """Write what waits, and give the folder free."""
        self._writer.close()
        os.close(self._lock)


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
