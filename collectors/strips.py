"""Raw samples timeline by timeline: what was scraped together is one matrix, so that thousands of series cost as little as their targets.

A source that holds its samples that way hands them out so (`GivesStrips`); those of any other are grouped by their times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from collectors.model import Floats, Int64s, Labels, Samples
from collectors.source import Source


@dataclass(frozen=True)
class Strip:
    """Series of one timeline: `values` (series, rows) at `times_ms` (rows,); `places` are the places of their labels in the answer."""

    times_ms: Int64s
    values: Floats
    places: npt.NDArray[np.intp]
    plain: bool = False
    """Known to hold no staleness marker."""


@dataclass(frozen=True)
class Strips:
    """The raw samples of a selector; read-only. Label sets in no strip are of series without samples in the span.

    lasting: the next answer has the very same tuple of labels unless a series came or went, so what is made of it may be kept.
    """

    labels: tuple[Labels, ...]
    strips: tuple[Strip, ...]
    lasting: bool = False


@runtime_checkable
class GivesStrips(Protocol):
    """A source that holds its samples as strips."""

    def strips(self, selector: str, start_ms: int, end_ms: int) -> Strips:
        """What `samples` gives, as strips, in any order. Raises SourceError."""
        ...


def strips_of(source: Source, selector: str, start_ms: int, end_ms: int) -> Strips:
    """Raw samples of a vector selector with start_ms < t <= end_ms from any source. Raises SourceError."""
    if isinstance(source, GivesStrips):
        return source.strips(selector, start_ms, end_ms)
    return grouped(source.samples(selector, start_ms, end_ms))


def grouped(samples: Sequence[Samples]) -> Strips:
    """Series of equal times together."""
    alike: dict[bytes, list[int]] = {}
    for place, series in enumerate(samples):
        if len(series.times_ms):
            alike.setdefault(series.times_ms.tobytes(), []).append(place)
    strips = tuple(
        Strip(samples[places[0]].times_ms, np.array([samples[i].values for i in places]), np.array(places))
        for places in alike.values()
    )
    return Strips(tuple(series.labels for series in samples), strips)
