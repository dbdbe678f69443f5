"""The samples a query reads: which series share a timeline, and all of it laid flat for gathers.

Series of one timeline (a scrape target without gaps) share their row numbers, so that "which rows lie in this window"
is asked once per timeline and step, and each value is then one gather away.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from collectors.model import STALE_BITS, Floats, Int64s
from collectors.store.blocks import Blocks
from collectors.store.lanes import Lane
from collectors.store.packing import NO_SAMPLE_BITS, bits_of
from collectors.store.plans import LanePart, Plan, Seats, joined
from collectors.store.series import LabelSet
from collectors.store.snapshots import Piece, Snapshot
from collectors.strips import Strip

Rows = npt.NDArray[np.int64]
Side = Literal["left", "right"]


class Timelines:
    """The timelines of a selection, and what is asked of them again and again: selectors of one query mostly share them."""

    def __init__(self, times_ms: Sequence[Int64s]) -> None:
        self._each = times_ms
        self._until: dict[tuple[bytes, Side], Rows] = {}
        self.kept: dict[Hashable, Any] = {}
        """What others made of these timelines alone."""

    @cached_property
    def rows(self) -> Rows:
        """Rows of each timeline."""
        return np.array([len(times) for times in self._each], dtype=np.int64)

    @cached_property
    def starts(self) -> Rows:
        """Where each timeline begins in `times_ms`."""
        return _starts(self.rows)

    @cached_property
    def times_ms(self) -> Int64s:
        """All timelines, one behind the other."""
        return np.concatenate(self._each) if self._each else np.zeros(0, dtype=np.int64)

    def rows_until(self, ends_ms: Int64s, *, inclusive: bool) -> Rows:
        """How many rows of each timeline lie before (or at, when inclusive) each end: (lines, len(ends)); not to be written to."""
        side: Side = "right" if inclusive else "left"
        key = ends_ms.tobytes(), side
        found = self._until.get(key)
        if found is None:
            found = self._all_or_none(int(ends_ms[0]), side) if len(ends_ms) == 1 else None
            if found is None:
                found = np.empty((len(self._each), len(ends_ms)), dtype=np.int64)
                for line, times in enumerate(self._each):
                    found[line] = times.searchsorted(ends_ms, side=side)
            found.setflags(write=False)
            self._until[key] = found
        return found

    def _all_or_none(self, end_ms: int, side: Side) -> Rows | None:
        """The answer for one end that lies behind, or before, all rows, as the ends of what was read for one instant do."""
        if self._ends_ms is None:
            return None
        first_ms, last_ms = self._ends_ms
        if last_ms < end_ms + (side == "right"):
            return self.rows[:, None].copy()
        if first_ms >= end_ms + (side == "right"):
            return np.zeros((len(self._each), 1), dtype=np.int64)
        return None

    @cached_property
    def _ends_ms(self) -> tuple[int, int] | None:
        """The first and the last row of all; None when a timeline has none."""
        if not self._each or not self.rows.all():
            return None
        return int(min(times[0] for times in self._each)), int(max(times[-1] for times in self._each))


@dataclass(frozen=True)
class Selection:
    """Series with their samples, timeline by timeline.

    Laid flat on demand: series s owns values[value_from[s] : value_from[s] + n], n rows of timeline line_of[s]; that
    timeline owns times_ms[line_from : line_from + n].
    """

    labels: tuple[LabelSet, ...]
    strips: tuple[Strip, ...]
    shared: Timelines | None = None
    seats: Seats | None = None
    """Where each series sits, where that is known beforehand."""

    @property
    def lines(self) -> int:
        return len(self.strips)

    @cached_property
    def timelines(self) -> Timelines:
        return self.shared or Timelines([strip.times_ms for strip in self.strips])

    @cached_property
    def sample_count(self) -> int:
        return sum(strip.values.size for strip in self.strips)

    @property
    def line_rows(self) -> Rows:
        """Rows of each timeline."""
        return self.timelines.rows

    @property
    def line_from(self) -> Rows:
        """Where each timeline begins in `times_ms`."""
        return self.timelines.starts

    @property
    def times_ms(self) -> Int64s:
        """All timelines, one behind the other."""
        return self.timelines.times_ms

    @cached_property
    def values(self) -> Floats:
        """All samples, strip by strip and series by series."""
        return np.concatenate([strip.values.ravel() for strip in self.strips]) if self.strips else np.zeros(0)

    @cached_property
    def line_of(self) -> Rows:
        """The timeline of each series."""
        if self.seats is not None:
            return self.seats.line
        return self._by_series(lambda line, strip: np.full(len(strip.places), line, dtype=np.int64))

    @cached_property
    def value_from(self) -> Rows:
        """Where each series begins in `values`."""
        starts = _starts(np.array([strip.values.size for strip in self.strips], dtype=np.int64))
        if self.seats is not None:
            return np.asarray(starts[self.seats.line] + self.seats.row * self.line_rows[self.seats.line])
        return self._by_series(
            lambda line, strip: starts[line] + np.arange(len(strip.places), dtype=np.int64) * len(strip.times_ms)
        )

    def _by_series(self, of: Callable[[int, Strip], Rows]) -> Rows:
        out = np.zeros(len(self.labels), dtype=np.int64)
        for line, strip in enumerate(self.strips):
            out[strip.places] = of(line, strip)
        return out

    def rows_until(self, ends_ms: Int64s, *, inclusive: bool) -> Rows:
        """How many rows of each timeline lie before (or at, when inclusive) each end: (lines, len(ends)); not to be written to."""
        return self.timelines.rows_until(ends_ms, inclusive=inclusive)

    def series_rows(self) -> Rows:
        """Number of samples of each series."""
        return self.line_rows[self.line_of]


def _starts(sizes: Rows) -> Rows:
    return np.concatenate(([0], np.cumsum(sizes)[:-1])).astype(np.int64) if len(sizes) else np.zeros(0, dtype=np.int64)


def empty_selection() -> Selection:
    """No series at all."""
    return Selection((), ())


def from_series(series: Sequence[tuple[LabelSet, Int64s, Floats]]) -> Selection:
    """A selection of series with their own timelines."""
    strips = (Strip(times, values[None, :], np.array([i])) for i, (_, times, values) in enumerate(series))
    return Selection(tuple(one for one, _, _ in series), tuple(strips))


def select(
    blocks: Blocks,
    plan: Plan,
    start_ms: int,
    end_ms: int,
    *,
    keep_stale: bool,
    snapshot: Callable[[Lane], Snapshot] = Lane.snapshot,
    shared: dict[Hashable, Timelines] | None = None,
) -> Selection:
    """Read the planned series, start_ms <= t <= end_ms. Staleness markers are dropped unless `keep_stale`.

    `snapshot` gives the state of a lane to read from: all selectors of one query must see the same. `shared`: timelines that selectors
    of one query met already.
    """
    found = strips(blocks, plan, start_ms, end_ms, keep_stale=keep_stale, snapshot=snapshot)
    if len(found) == len(plan.parts) and all(
        strip.places is part.positions for strip, part in zip(found, plan.parts, strict=True)
    ):  # every lane as a whole
        key = (plan.lanes, start_ms, end_ms)
        timelines = shared.get(key) if shared is not None else None
        if timelines is None:
            timelines = Timelines([strip.times_ms for strip in found])
            if shared is not None:
                shared[key] = timelines
        return Selection(plan.labels, tuple(found), timelines, plan.seats)
    return _compact(plan.labels, found)


def strips(
    blocks: Blocks,
    plan: Plan,
    start_ms: int,
    end_ms: int,
    *,
    keep_stale: bool,
    snapshot: Callable[[Lane], Snapshot] = Lane.snapshot,
) -> list[Strip]:
    """The same as strips whose places are those of the plan's labels, all of which stay."""
    found: list[Strip] = []
    scattered: dict[int, list[tuple[Int64s, Floats]]] = {}
    tile = blocks.tiles.of(plan, start_ms, end_ms, snapshot)
    rows = tile.rows(start_ms, end_ms) if tile is not None else []
    for number, part in enumerate(plan.parts):
        now = snapshot(part.lane)
        held = tile.held[number] if tile is not None else None
        if held is not None and held.holds(now, end_ms):
            first, behind = rows[number]
            if first < behind:
                times_ms, values = held.times_ms[first:behind], held.values[:, first:behind]
                found.append(Strip(times_ms, values, part.positions, plain=True))
            continue
        piece = now.read(part.columns, start_ms, end_ms, blocks.cache)
        if piece is None:
            continue
        if plan.scattered or piece.dirty.any():
            found.extend(_with_gaps(part, piece, plan.scattered, scattered, keep_stale))
        else:
            found.append(Strip(piece.times_ms, piece.values, part.positions, plain=True))
    for position, pieces in scattered.items():
        times_ms, values = joined(pieces)
        found.append(Strip(times_ms, values[None, :], np.array([position])))
    return found


def _with_gaps(
    part: LanePart,
    piece: Piece,
    in_several_lanes: frozenset[int],
    scattered: dict[int, list[tuple[Int64s, Floats]]],
    keep_stale: bool,
) -> Iterator[Strip]:
    """Strips of the series that have their samples at the same rows; series of several lanes are set aside."""
    bits = bits_of(piece.values)
    there = bits != np.uint64(NO_SAMPLE_BITS)
    if not keep_stale:
        there &= bits != np.uint64(STALE_BITS)
    alike: dict[bytes, list[int]] = {}
    for row, position in enumerate(part.positions.tolist()):
        held = there[row]
        if not held.any():
            continue
        if position in in_several_lanes:
            scattered.setdefault(position, []).append((piece.times_ms[held], piece.values[row][held]))
        else:
            alike.setdefault(held.tobytes(), []).append(row)
    for rows in alike.values():
        held = there[rows[0]]
        if held.all():
            yield Strip(piece.times_ms, piece.values[rows], part.positions[rows])
        else:
            yield Strip(piece.times_ms[held], piece.values[rows][:, held], part.positions[rows])


def _compact(labels: tuple[LabelSet, ...], strips: list[Strip]) -> Selection:
    """Without the series that have no sample; all of them keep the very tuple of labels."""
    found = sum(len(strip.places) for strip in strips)
    if found == len(labels):
        return Selection(labels, tuple(strips))
    held = np.zeros(len(labels), dtype=bool)
    for strip in strips:
        held[strip.places] = True
    place = np.cumsum(held) - 1
    kept = tuple(labels[i] for i in np.flatnonzero(held))
    return Selection(kept, tuple(Strip(s.times_ms, s.values, place[s.places]) for s in strips))
