"""Whole series in: which of them share a timeline, so that one timestamp vector serves all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from collectors.model import Floats, Int64s, Labels, Samples
from collectors.store.packing import NO_SAMPLE

UNION_SLACK = 1.25
"""A target is one lane when the union of its series' times is at most this much longer than the longest of them."""

Loaded = tuple[list[Labels], Int64s, Floats]


def load_samples(samples: Iterable[Samples]) -> Iterator[Loaded]:
    """(labels, times, matrix) groups: series of a target with a common timeline, NO_SAMPLE where one has no sample.

    Raises ValueError for a series whose times do not strictly increase.
    """
    targets: dict[tuple[str, str], list[Samples]] = {}
    for one in samples:
        if not len(one.times_ms):
            continue
        if len(one.times_ms) > 1 and not (np.diff(one.times_ms) > 0).all():
            raise ValueError(f"times of {dict(one.labels)} do not strictly increase")
        targets.setdefault((one.labels.get("job", ""), one.labels.get("instance", "")), []).append(one)
    for members in targets.values():
        longest = max(len(one.times_ms) for one in members)
        distinct = list({one.times_ms.tobytes(): one.times_ms for one in members}.values())
        union = distinct[0] if len(distinct) == 1 else np.unique(np.concatenate(distinct))
        if len(union) <= UNION_SLACK * longest + 1:
            yield _matrix(members, union)
            continue
        timelines: dict[bytes, list[Samples]] = {}
        for one in members:
            timelines.setdefault(one.times_ms.tobytes(), []).append(one)
        for same in timelines.values():
            yield _matrix(same, same[0].times_ms)


def _matrix(members: list[Samples], times_ms: Int64s) -> Loaded:
    values = np.full((len(members), len(times_ms)), NO_SAMPLE)
    for row, one in enumerate(members):
        if len(one.times_ms) == len(times_ms):
            values[row] = one.values
        else:
            values[row, np.searchsorted(times_ms, one.times_ms)] = one.values
    return [one.labels for one in members], np.array(times_ms, dtype=np.int64), values
