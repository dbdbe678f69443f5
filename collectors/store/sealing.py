"""Completing logs: what nothing is added to any more is sealed as a segment and rewritten in groups.

    python -m collectors.store.sealing SEGMENTS_FOLDER LOG...

Done in a process of its own: seconds of sorting and compressing in the store's process would hold up the scrapes until healthy targets looked down.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from collectors.model import Floats, Int64s, Samples
from collectors.series_lines import sort_key
from collectors.store.log import MAGIC, LogEncoder, RowGroup
from collectors.store.log_reader import LogReader, merged
from collectors.store.log_writer import DiskCalls, WholeFile
from collectors.store.segments import list_segments, write_segment
from collectors.store.series import LabelSet

REWRITE_ROWS = 128
NICENESS = 15
_ROOT = Path(__file__).resolve().parents[2]


def complete_log(path: Path, segments: Path, calls: DiskCalls) -> None:
    """Seal one log as a segment, unless there is one, and rewrite it in groups, unless it is. Raises OSError; either is then as it was.

    A log that is damaged somewhere is sealed up to there and not rewritten.
    """
    number = int(path.stem)
    reader = LogReader(path)
    groups = list(merged(reader.groups(), REWRITE_ROWS))
    times_ms = [group.times_ms for group in groups if len(group.times_ms)]
    if not times_ms:
        return
    if all(segment.number != number for segment in list_segments(segments)):
        first_ms, last_ms = (int(pick(pick(times) for times in times_ms)) for pick in (min, max))
        write_segment(segments, number, series_of(groups), first_ms, last_ms, calls)
    if reader.single_rows and reader.damage is None:
        _rewrite(path, groups, calls)


def series_of(groups: Iterable[RowGroup]) -> Iterator[Samples]:
    """Whole series in the order of an incident file. Samples that are not newer than all before are left out, as they were in memory."""
    parts: dict[LabelSet, list[tuple[Int64s, Floats]]] = {}
    for group in groups:
        for series, values in zip(group.series, group.values, strict=True):
            parts.setdefault(series, []).append((group.times_ms, values))
    for series in sorted(parts, key=sort_key):
        times_ms = np.concatenate([times for times, _ in parts[series]])
        values = np.concatenate([values for _, values in parts[series]])
        newer = np.ones(len(times_ms), dtype=bool)
        newer[1:] = times_ms[1:] > np.maximum.accumulate(times_ms)[:-1]
        yield Samples(series, times_ms[newer], values[newer])


def _rewrite(path: Path, groups: Iterable[RowGroup], calls: DiskCalls) -> None:
    encoder, unfinished = LogEncoder(), path.with_suffix(".part")
    try:
        with WholeFile(unfinished, calls) as out:
            out.write(MAGIC)
            for group in groups:
                out.write(encoder.encode_group(group))
        calls.replace(unfinished, path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise


class SealingProcess:
    """Completes logs in a child process of low priority, one at a time."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[str] | None = None
        self._stopped = False

    def complete(self, paths: Sequence[Path], segments: Path) -> None:
        """Wait until all are completed. Raises OSError with the child's reason."""
        if self._stopped:
            return
        command = [sys.executable, "-m", "collectors.store.sealing", str(segments.resolve())]
        command += [str(path.resolve()) for path in paths]
        with subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as child:
            self._child = child
            if self._stopped:
                child.terminate()
            _, said = child.communicate()
            self._child = None
        if child.returncode and not self._stopped:
            reason = said.strip().splitlines()[-1:] or [f"the sealing process ended with {child.returncode}"]
            raise OSError(0, reason[0])

    def stop(self) -> None:
        """End a child that is at work; what it has not finished is done after the next start."""
        self._stopped = True
        child = self._child
        if child is not None:
            with contextlib.suppress(ProcessLookupError):
                child.terminate()


def main(arguments: Sequence[str]) -> int:
    os.nice(NICENESS)
    try:
        for path in arguments[1:]:
            complete_log(Path(path), Path(arguments[0]), DiskCalls())
    except OSError as error:
        print(error.strerror or error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
