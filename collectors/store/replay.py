"""The files of a data folder read back at a start."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from collectors.model import Samples
from collectors.series_lines import SeriesLineError
from collectors.store.log import GROUP_ROWS, RowGroup
from collectors.store.log_reader import LogReader, merged
from collectors.store.segments import Segment, read_segment

log = logging.getLogger(__name__)

_LOG_NAME = re.compile(r"(\d{8,})\.log")

TakeGroup = Callable[[RowGroup], None]
TakeSeries = Callable[[Iterable[Samples]], object]


@dataclass
class LogFile:
    """A log file on disk and the span of its rows."""

    path: Path
    number: int
    start_ms: int = 2**62
    end_ms: int = -(2**62)
    complete: bool = False
    """Whether it is sealed, and its rows stand in groups."""

    def cover(self, first_ms: int, last_ms: int) -> None:
        """Widen the span."""
        self.start_ms, self.end_ms = min(self.start_ms, first_ms), max(self.end_ms, last_ms)

    @property
    def empty(self) -> bool:
        return self.end_ms < self.start_ms


def log_files(folder: Path) -> Iterator[tuple[int, Path]]:
    """Number and path of every log file in a folder."""
    for path in folder.iterdir():
        name = _LOG_NAME.fullmatch(path.name)
        if name is not None:
            yield int(name.group(1)), path


def replay_log(file: LogFile, segment: Segment | None, take_group: TakeGroup) -> bool:
    """Give back the rows of a log and note their span; False when it is not used. With a segment at hand a damaged log is not."""
    try:
        if segment is not None and not LogReader(file.path).intact():
            log.warning("%s is damaged; its sealed segment is used instead", file.path)
            return False
        reader = LogReader(file.path)
        for group in merged(reader.groups(), GROUP_ROWS):
            file.cover(int(group.times_ms.min()), int(group.times_ms.max()))
            take_group(group)
    except OSError as error:
        log.error("cannot read %s: %s", file.path, error.strerror)
        return False
    file.complete = segment is not None and (reader.single_rows == 0 or reader.damage is not None)
    if reader.damage is not None:
        _cut(file.path, reader.damage.at_byte, reader.damage.file_bytes, reader.damage.reason)
    elif file.empty:
        file.path.unlink(missing_ok=True)
    return True


def replay_segment(segment: Segment, take_series: TakeSeries) -> None:
    """Give back the series of a sealed segment; a damaged one is said and left out."""
    try:
        take_series(list(read_segment(segment)))
    except (SeriesLineError, OSError, EOFError, zlib.error) as error:
        log.error("%s is damaged and left out: %s", segment.path, error)


def _cut(path: Path, at_byte: int, file_bytes: int, reason: str) -> None:
    lost = file_bytes - at_byte
    log.warning("%s: %s at byte %d; the last %d bytes are cut off, the rest is kept", path, reason, at_byte, lost)
    with contextlib.suppress(
        OSError
    ):  # a disk that takes no change now leaves the tail, and the next start says the same
        if at_byte == 0:
            path.rename(path.with_suffix(".damaged"))
        else:
            os.truncate(path, at_byte)
