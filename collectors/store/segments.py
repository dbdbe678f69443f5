"""Sealed segments: a closed span of the store as gzipped series lines, the body of an incident file.

`NUMBER-START-END.jsonl.gz`: the log file it was made of, and the times (ms) of its first and last sample.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from collectors.model import Samples
from collectors.series_lines import read_series_lines, sort_key, write_series_lines
from collectors.store.blocks import Blocks
from collectors.store.log_writer import DiskCalls, WholeFile
from collectors.store.matchers import Matcher

GZIP_LEVEL = 3
_NAME = re.compile(r"(\d+)-(-?\d+)-(-?\d+)\.jsonl\.gz")


@dataclass(frozen=True)
class Segment:
    """One sealed file."""

    path: Path
    number: int
    start_ms: int
    end_ms: int


def list_segments(folder: Path) -> list[Segment]:
    """The segments of a folder, oldest first."""
    found = []
    for path in folder.iterdir():
        name = _NAME.fullmatch(path.name)
        if name is not None:
            found.append(Segment(path, *(int(part) for part in name.groups())))
    return sorted(found, key=lambda segment: segment.number)


def read_segment(segment: Segment) -> Iterator[Samples]:
    """Its series. Raises SeriesLineError, OSError, EOFError or zlib.error when it is damaged."""
    with gzip.open(segment.path, "rb") as file:
        yield from read_series_lines(cast(BinaryIO, file))


def write_segment(
    folder: Path, number: int, series: Iterable[Samples], start_ms: int, end_ms: int, calls: DiskCalls
) -> Segment | None:
    """Seal sorted series whose samples lie in start_ms <= t <= end_ms; None when there are none.

    The file appears whole or not at all. Raises OSError; nothing is left behind then.
    """
    segment = Segment(folder / f"{number:08d}-{start_ms}-{end_ms}.jsonl.gz", number, start_ms, end_ms)
    unfinished = segment.path.with_suffix(".part")
    try:
        with (
            WholeFile(unfinished, calls) as raw,
            gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=GZIP_LEVEL, mtime=0) as file,
        ):
            lines = write_series_lines(cast(BinaryIO, file), series)
        if not lines:
            unfinished.unlink()
            return None
        calls.replace(unfinished, segment.path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
    return segment


def sorted_series(blocks: Blocks, start_ms: int, end_ms: int) -> Iterator[Samples]:
    """Series in the order of an incident file, one metric at a time so that memory stays small."""
    names = sorted({labels.get("__name__") for labels in blocks.series((), start_ms, end_ms)})
    for name in names:
        of_name = blocks.samples((Matcher("__name__", "=", name),), start_ms - 1, end_ms)
        yield from sorted(of_name, key=lambda samples: sort_key(samples.labels))
