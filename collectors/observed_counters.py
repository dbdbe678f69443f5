"""Counters mended: resets bridged, births found, children added up; one series or a whole matrix of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from collectors.model import Floats, Int64s
from collectors.observed import Counter

Flags = npt.NDArray[np.bool_]


Places = dict[int, int]


def mended(
    times_ms: Int64s, values: Floats, answered: Flags, starts_seconds: Floats, places: Places | None = None
) -> Counter:
    """A counter with its running total. `places`: see Scraped.

    A series that appears late counts from zero when its target had been scraped without it, or when its process began
    inside the window; otherwise its first value is history. answered [n]: the scrape brought samples of the process.
    """
    places = {} if places is None else places
    seen = np.flatnonzero(~np.isnan(values))
    total = np.zeros(len(values))
    if not len(seen):
        return Counter(times_ms, values, total, places=places)
    first = int(seen[0])
    steps = np.diff(values[seen])
    fell = steps < 0
    born_ms = None
    if first > 0:
        start = float(starts_seconds[first])
        fresh = start == start and start * 1000 >= times_ms[0]
        if fresh or bool(answered[:first].any()):
            total[first], born_ms = values[first], int(times_ms[first])
    total[seen[1:]] = np.where(fell, values[seen[1:]], steps)
    drops_ms = tuple(int(t) for t in times_ms[seen[1:][fell]])
    return Counter(times_ms, values, np.cumsum(total), drops_ms, born_ms, places)


def all_mended(
    times_ms: Int64s, values: Floats, answered: Flags, starts_seconds: Floats, places: Places | None = None
) -> list[Counter]:
    """Every row of `values` (series, scrapes) as `mended` gives it; those without a gap in one step, as nearly all are."""
    places = {} if places is None else places
    whole: Flags = np.asarray(~np.isnan(values).any(axis=1))
    steps = np.diff(values, axis=1)
    fell = steps < 0
    falls: Flags = np.asarray(fell.any(axis=1))
    total = np.zeros(values.shape)
    total[:, 1:] = np.where(fell, values[:, 1:], steps) if falls.any() else steps
    np.cumsum(total, axis=1, out=total)
    found = []
    for row in range(len(values)):
        if whole[row]:
            drops_ms = tuple(times_ms[1:][fell[row]].tolist()) if falls[row] else ()
            found.append(Counter(times_ms, values[row], total[row], drops_ms, None, places))
        else:
            found.append(mended(times_ms, values[row], answered, starts_seconds, places))
    return found


def added(parts: Sequence[Counter]) -> Counter:
    """The sum of the children of one counter (finished reasons, API server processes), each mended by itself."""
    if len(parts) == 1:
        return parts[0]
    stacked = np.array([part.values for part in parts])
    missing = np.isnan(stacked)
    values = np.nansum(stacked, axis=0) if missing.any() else np.sum(stacked, axis=0)
    values[missing.all(axis=0)] = np.nan
    return Counter(
        parts[0].times_ms,
        values,
        np.sum([part.total for part in parts], axis=0),
        tuple(sorted({t for part in parts for t in part.drops_ms})),
        next((part.born_ms for part in parts if part.born_ms is not None), None),
        parts[0].places,
    )
