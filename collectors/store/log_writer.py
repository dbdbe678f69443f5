"""Appending frames to one log file, through whatever the disk does: what it refuses waits in memory and is written when it takes writes again."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from collectors.store.log import MAGIC

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
PENDING_LIMIT_BYTES = 64 * 1024 * 1024


def _open_for_append(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)


@dataclass(frozen=True)
class DiskCalls:
    """The system calls that can fail; tests pass ones that do."""

    open_append: Callable[[Path], int] = _open_for_append
    write: Callable[[int, bytes], int] = os.write
    truncate: Callable[[int, int], None] = os.ftruncate
    fsync: Callable[[int], None] = os.fsync
    replace: Callable[[Path, Path], None] = os.replace


class LogWriter:
    """One log file being written. No method raises OSError; `failure` says what the disk last refused, empty when it takes writes.

    A record is in the file, whole, when `append` returns and `failure` is empty: it then outlives the process (not a power cut before the
    next `sync`).
    """

    def __init__(self, path: Path, calls: DiskCalls, *, pending_limit_bytes: int = PENDING_LIMIT_BYTES) -> None:
        self.path = path
        self.failure = ""
        self.failures = 0
        self.overflowed = False
        """More was waiting than may wait in memory: what waited was given up, the file ends early."""
        self.file_bytes = 0
        self.pending_bytes = 0
        self._calls = calls
        self._pending_limit = pending_limit_bytes
        self._pending: deque[bytes] = deque()
        self._descriptor: int | None = None
        self._torn = False
        self._retry_at = 0.0
        self._add(MAGIC)

    def append(self, frames: bytes) -> None:
        """Write frames, or keep them until the disk takes them."""
        if self.overflowed:
            return
        self._add(frames)
        if self.failure and time.monotonic() < self._retry_at:
            self._check_room()
            return
        self.flush()

    def flush(self) -> None:
        """Try to write everything that waits."""
        waiting = self.pending_bytes
        try:
            self._write_pending()
        except OSError as error:
            self._refused(error)
            self._check_room()
            return
        if self.failure:
            log.warning("%s takes writes again; %d bytes that waited in memory are written", self.path, waiting)
            self.failure = ""

    def duplicate(self) -> int | None:
        """A second descriptor of the file, to sync it without holding up appends; None while there is no file."""
        return os.dup(self._descriptor) if self._descriptor is not None and not self.failure else None

    def sync(self) -> None:
        """Ask the disk to hold what was written through a power cut."""
        if self._descriptor is not None and not self.failure:
            try:
                self._calls.fsync(self._descriptor)
            except OSError as error:
                self._refused(error)

    def close(self) -> None:
        """Write what waits, sync and close; what still waits then is reported as lost."""
        if self._pending and not self.overflowed:
            self.flush()
        self.sync()
        if self._pending:
            log.error(
                "%s: %d bytes could not be written before the end: %s", self.path, self.pending_bytes, self.failure
            )
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _add(self, frames: bytes) -> None:
        self._pending.append(frames)
        self.pending_bytes += len(frames)

    def _write_pending(self) -> None:
        if self._descriptor is None:
            self._descriptor = self._calls.open_append(self.path)
        if self._torn:
            self._calls.truncate(self._descriptor, self.file_bytes)
            self._torn = False
        while self._pending:
            frames = self._pending[0]
            self._torn = True
            rest = frames
            while rest:  # a full disk may take a part first; the next call names the reason
                written = self._calls.write(self._descriptor, rest)
                if written <= 0:
                    raise OSError(errno.EIO, "the disk took nothing")
                rest = rest[written:]
            self._torn = False
            self._pending.popleft()
            self.pending_bytes -= len(frames)
            self.file_bytes += len(frames)

    def _refused(self, error: OSError) -> None:
        self.failures += 1
        self._retry_at = time.monotonic() + RETRY_SECONDS
        reason = error.strerror or str(error)
        if not self.failure:
            log.error(
                "cannot write %s: %s. Samples are kept in memory and written when the disk takes them; free some space",
                self.path,
                reason,
            )
        self.failure = reason

    def _check_room(self) -> None:
        if self.pending_bytes > self._pending_limit and not self.overflowed:
            log.error(
                "%s: %d bytes wait for the disk, more than may; they are in memory only until it takes a whole segment",
                self.path,
                self.pending_bytes,
            )
            self.overflowed = True
            self._pending.clear()
            self.pending_bytes = 0


class WholeFile:
    """A file that is written once, through DiskCalls, and synced before it is closed. Methods raise OSError."""

    def __init__(self, path: Path, calls: DiskCalls) -> None:
        path.unlink(missing_ok=True)
        self._calls = calls
        self._descriptor = calls.open_append(path)

    def write(self, data: bytes) -> int:
        """Write all of it."""
        view = bytes(data)
        while view:
            view = view[self._calls.write(self._descriptor, view) :]
        return len(data)

    def flush(self) -> None:
        """Nothing is held back."""

    def __enter__(self) -> WholeFile:
        return self

    def __exit__(self, *error: object) -> None:
        try:
            if error[0] is None:
                self._calls.fsync(self._descriptor)
        finally:
            os.close(self._descriptor)
