"""VictoriaMetrics JSON lines (`/api/v1/export` and `/api/v1/import`): the schema of our own body, with the differences that matter.

VictoriaMetrics 1.79 writes staleness markers as `null` but refuses a line that holds `null` or an infinity, so those samples are left out on
export. Its export may cut one series into several lines; they are joined when their times do not overlap.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import BinaryIO

import numpy as np

from collectors.model import Samples
from collectors.series_lines import SeriesLineError, encode_series, read_series_lines, sort_key
from collectors.source import SourceBroken


def read_lines(file: BinaryIO, where: str) -> Iterator[Samples]:
    """The series of an export, as they come. Raises SourceBroken naming the line."""
    try:
        yield from read_series_lines(file)
    except SeriesLineError as error:
        raise SourceBroken(f"{where}: {error.cause}", error.next_step) from None


def joined(series: Iterable[Samples], where: str) -> list[Samples]:
    """Each series once, sorted; pieces of one series are put in order of time. Raises SourceBroken when pieces overlap."""
    pieces: dict[object, list[Samples]] = {}
    for each in series:
        pieces.setdefault(sort_key(each.labels), []).append(each)
    whole: list[Samples] = []
    for parts in pieces.values():
        parts = (
            sorted((part for part in parts if part.times_ms.size), key=lambda part: int(part.times_ms[0])) or parts[:1]
        )
        for earlier, later in zip(parts, parts[1:], strict=False):
            if later.times_ms[0] <= earlier.times_ms[-1]:
                raise SourceBroken(f"{where}: the series {dict(later.labels)} comes twice for the same time")
        if len(parts) == 1:
            whole.append(parts[0])
        else:
            times, values = [part.times_ms for part in parts], [part.values for part in parts]
            whole.append(Samples(parts[0].labels, np.concatenate(times), np.concatenate(values)))
    return sorted(whole, key=lambda each: sort_key(each.labels))


def write_lines(file: BinaryIO, series: Iterable[Samples]) -> int:
    """Lines that VictoriaMetrics' import takes: finite samples only. Returns the sample count."""
    count = 0
    for each in series:
        kept = np.isfinite(each.values)
        if kept.any():
            file.write(encode_series(Samples(each.labels, each.times_ms[kept], each.values[kept])))
            count += int(kept.sum())
    return count
