"""Where the series of a selection live: lanes, columns in them, and places in the answer."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from collectors.model import Floats, Int64s
from collectors.store.index import SeriesIndex
from collectors.store.lanes import Lane
from collectors.store.matchers import Matcher
from collectors.store.packing import Columns
from collectors.store.series import LabelSet

PLANS_KEPT = 512


@dataclass(frozen=True)
class LanePart:
    """Columns of a lane that a selection reads, and the positions of their series in the selection."""

    lane: Lane
    columns: Columns
    positions: Columns


@dataclass(frozen=True)
class Seats:
    """For each series of a plan, while each of its lanes is read as a whole: the number of its lane, and its row in it."""

    line: npt.NDArray[np.int64]
    row: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Plan:
    """Where the series of a selection live. Series that live in several lanes are listed in `scattered`."""

    labels: tuple[LabelSet, ...]
    parts: tuple[LanePart, ...]
    scattered: frozenset[int]

    @cached_property
    def lanes(self) -> tuple[Lane, ...]:
        return tuple(part.lane for part in self.parts)

    @cached_property
    def seats(self) -> Seats:
        """Meaningless for scattered series."""
        line, row = np.zeros(len(self.labels), dtype=np.int64), np.zeros(len(self.labels), dtype=np.int64)
        for number, part in enumerate(self.parts):
            line[part.positions] = number
            row[part.positions] = np.arange(len(part.positions))
        return Seats(line, row)

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Positions of `labels` in the order of their labels."""
        return tuple(sorted(range(len(self.labels)), key=lambda i: self.labels[i].pairs))


class Planner:
    """Makes plans and remembers them until a series comes or goes. Thread-safe."""

    def __init__(self, index: SeriesIndex, homes: Mapping[int, tuple[Lane, ...]]) -> None:
        self._index = index
        self._homes = homes
        self._plans: OrderedDict[tuple[tuple[Matcher, ...], int], Plan] = OrderedDict()
        self._lock = threading.Lock()

    def plan(self, matchers: tuple[Matcher, ...]) -> Plan:
        """Where the series that satisfy the matchers live."""
        key = (matchers, self._index.generation)
        with self._lock:
            known = self._plans.get(key)
            if known is not None:
                self._plans.move_to_end(key)
                return known
        plan = self._make(self._index.select(matchers))
        with self._lock:
            self._plans[key] = plan
            while len(self._plans) > PLANS_KEPT:
                self._plans.popitem(last=False)
        return plan

    def _make(self, sids: Sequence[int]) -> Plan:
        by_lane: dict[Lane, tuple[list[int], list[int]]] = {}
        scattered: set[int] = set()
        labels: list[LabelSet] = []
        for sid in sids:
            homes, one = self._homes.get(sid, ()), self._index.labels(sid)
            if not homes or one is None:  # not appended yet, or forgotten just now
                continue
            position = len(labels)
            labels.append(one)
            if len(homes) > 1:
                scattered.add(position)
            for lane in homes:
                column = lane.column_of.get(sid)
                if column is not None:
                    columns, positions = by_lane.setdefault(lane, ([], []))
                    columns.append(column)
                    positions.append(position)
        parts = tuple(
            LanePart(lane, np.array(c, dtype=np.intp), np.array(p, dtype=np.intp)) for lane, (c, p) in by_lane.items()
        )
        return Plan(tuple(labels), parts, frozenset(scattered))


def joined(parts: list[tuple[Int64s, Floats]]) -> tuple[Int64s, Floats]:
    """One series from its pieces, as fresh arrays: sorted by time, the first of equal times kept."""
    if len(parts) == 1:
        return parts[0][0].copy(), parts[0][1].copy()
    times = np.concatenate([p[0] for p in parts])
    values = np.concatenate([p[1] for p in parts])
    times, first = np.unique(times, return_index=True)
    return times, values[first]
