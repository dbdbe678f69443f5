"""A Prometheus data folder or snapshot, dumped by `promtool tsdb dump` (read only; the server may go on running).

The dump prints staleness markers as NaN. A single NaN behind a number is taken as a marker: Prometheus writes just one when a series ends.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from collectors.capsule.format_openmetrics import parse_labels
from collectors.model import STALE, Floats, Samples
from collectors.series_lines import SeriesLineError, check_times
from collectors.source import SourceBroken

_BLOCK = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")


def is_tsdb(path: Path) -> bool:
    """True for a folder with Prometheus blocks or a write-ahead log in it."""
    return (path / "wal").is_dir() or any(
        _BLOCK.fullmatch(entry.name) and (entry / "meta.json").is_file() for entry in path.iterdir()
    )


def read_tsdb(path: Path) -> Iterator[Samples]:
    """The series of a data folder. Raises SourceBroken when promtool is missing or refuses."""
    promtool = shutil.which("promtool")
    if promtool is None:
        raise SourceBroken(
            "promtool is needed to read a Prometheus data folder", "Install it (Debian: apt install prometheus)"
        )
    with tempfile.TemporaryDirectory(prefix="pagewatch-tsdb-") as stand_in, tempfile.TemporaryFile() as errors:
        _link_into(Path(stand_in), path.resolve())
        process = subprocess.Popen(
            [promtool, "tsdb", "dump", stand_in],
            stdout=subprocess.PIPE,
            stderr=errors,
            stdin=subprocess.DEVNULL,
        )
        try:
            assert process.stdout is not None
            yield from _grouped(process.stdout, str(path))
            if process.wait() != 0:
                errors.seek(0)
                said = errors.read(2000).decode("utf-8", "replace").strip().splitlines()
                raise SourceBroken(f"promtool cannot read {path}: {said[-1] if said else 'no reason given'}")
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _link_into(stand_in: Path, data: Path) -> None:
    """A folder of links that has what promtool insists on: snapshots and backfilled folders come without a `wal`."""
    for entry in data.iterdir():
        if _BLOCK.fullmatch(entry.name) and entry.is_dir():
            block = stand_in / entry.name  # a link to a folder would not be taken for a block
            block.mkdir()
            for part in entry.iterdir():
                (block / part.name).symlink_to(part)
        elif entry.name in ("wal", "chunks_head"):
            (stand_in / entry.name).symlink_to(entry)
    (stand_in / "wal").mkdir(exist_ok=True)


def _grouped(lines: Iterator[bytes] | object, where: str) -> Iterator[Samples]:
    key = b""
    values: list[float] = []
    times: list[int] = []
    for number, line in enumerate(lines, 1):  # type: ignore[arg-type, var-annotated]
        end = line.rfind(b"} ") + 1
        parts = line[end:].split()
        if end <= 0 or len(parts) != 2:
            raise SourceBroken(f"{where}: line {number} of promtool's dump cannot be read", "Is it a newer promtool?")
        if line[:end] != key and times:
            yield _series(key, times, values, where)
            values, times = [], []
        key = line[:end]
        values.append(float(parts[0]))
        times.append(int(parts[1]))
    if times:
        yield _series(key, times, values, where)


def _series(key: bytes, times: list[int], values: list[float], where: str) -> Samples:
    try:
        labels = parse_labels(key.decode("utf-8").strip()[1:-1])
        stamps = np.array(times, dtype=np.int64)
        check_times(stamps, f"{where}: {labels.get('__name__', '')}")
    except SeriesLineError as error:
        raise SourceBroken(error.cause, error.next_step) from None
    except ValueError:
        raise SourceBroken(f"{where}: promtool's dump holds the series {key[:80]!r}, which cannot be read") from None
    return Samples(labels, stamps, _with_markers(np.array(values)))


def _with_markers(values: Floats) -> Floats:
    missing = np.isnan(values)
    alone = missing.copy()
    alone[1:] &= ~missing[:-1]
    alone[:-1] &= ~missing[1:]
    alone[0] = False
    return np.where(alone, STALE, values)
