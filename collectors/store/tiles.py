"""Stretches of a selection, decoded once: a cursor that is moved to and fro has its samples cut out of them without a copy.

Only sealed rows without gaps lie in a tile. What is open, has gaps or is asked for once is read the ordinary way.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from collectors.model import Floats, Int64s
from collectors.store.chunks import Chunk
from collectors.store.lanes import SEAL_ROWS, Lane
from collectors.store.packing import Columns
from collectors.store.plans import Plan
from collectors.store.snapshots import Snapshot

TILE_ROWS = 32
"""A short look into many series is widened to so many rows; others to whole chunks."""
FEW_ROWS = 8
"""Up to this part of a chunk is a short look."""
SMALL_BYTES = 2 << 20
"""What whole chunks of a selection may take so that even a short look decodes them."""
GLANCE_MS = 300_000
GLANCES_KEPT = 4096
TILES_PER_PLAN = 32
NEVER_MS = 2**62
NO_TIMES = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Held:
    """Rows of one lane that a tile holds; `chunks` are all that the lane had sealed then."""

    chunks: tuple[Chunk, ...]
    times_ms: Int64s
    values: Floats

    def holds(self, now: Snapshot, end_ms: int) -> bool:
        """Whether the lane, as it is now, has no other rows up to `end_ms` around here."""
        return now.chunks is self.chunks and not (now.rows and now.head.times_ms[0] <= end_ms)


@dataclass(frozen=True, eq=False)
class Tile:
    """What the lanes of a plan hold between two instants (both outside); None for a lane that is to be read the ordinary way."""

    plan: Plan
    after_ms: int
    before_ms: int
    held: tuple[Held | None, ...]
    nbytes: int

    def covers(self, start_ms: int, end_ms: int) -> bool:
        return self.after_ms < start_ms and end_ms < self.before_ms

    def rows(self, start_ms: int, end_ms: int) -> list[tuple[int, int]]:
        """For each lane the rows start_ms <= t <= end_ms of what it holds: all looked up at once."""
        first_ms, span_ms, starts, lined_up = self._lined_up
        lanes = np.arange(len(starts)) * span_ms
        begin, end = max(start_ms - first_ms, 0), min(max(end_ms - first_ms, -1), span_ms - 2)
        first = lined_up.searchsorted(lanes + min(begin, span_ms - 1)) - starts
        behind = lined_up.searchsorted(lanes + end, side="right") - starts
        return list(zip(first.tolist(), behind.tolist(), strict=True))

    @cached_property
    def _lined_up(self) -> tuple[int, int, Int64s, Int64s]:
        """(earliest time, room for a lane, where each lane begins, the times of all lanes one behind the other in their rooms)."""
        times = [held.times_ms if held is not None else NO_TIMES for held in self.held]
        filled = [each for each in times if len(each)]
        if not filled:
            return 0, 3, np.zeros(len(times), dtype=np.int64), NO_TIMES
        first_ms = int(min(each[0] for each in filled))
        span_ms = int(max(each[-1] for each in filled)) - first_ms + 3
        starts = np.concatenate(([0], np.cumsum([len(each) for each in times])[:-1])).astype(np.int64)
        lined_up = np.concatenate([each - first_ms + lane * span_ms for lane, each in enumerate(times)])
        return first_ms, span_ms, starts, lined_up


class Tiles:
    """The most recently used tiles, bounded in bytes. Thread-safe."""

    def __init__(self, limit_bytes: int = 128 << 20) -> None:
        self._limit = limit_bytes
        self._held: OrderedDict[int, Tile] = OrderedDict()
        self._of_plan: dict[int, list[Tile]] = {}
        self._glanced: OrderedDict[tuple[int, int], None] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        return self._bytes

    def of(self, plan: Plan, start_ms: int, end_ms: int, snapshot: Callable[[Lane], Snapshot]) -> Tile | None:
        """A tile that covers start_ms <= t <= end_ms, made if that is worth while; each of its parts is to be asked whether it `holds`."""
        if plan.scattered or not plan.parts or end_ms < start_ms:
            return None
        first = snapshot(plan.parts[0].lane)
        if first.rows and first.head.times_ms[0] <= end_ms:  # a live fleet's newest rows
            return None
        with self._lock:
            for tile in self._of_plan.get(id(plan), ()):
                if tile.plan is plan and tile.covers(start_ms, end_ms):
                    if tile.held[0] is not None and tile.held[0].chunks is not first.chunks:
                        self._drop(tile)
                        break
                    self._held.move_to_end(id(tile))
                    return tile
        block = self._block_rows(plan, first, start_ms, end_ms)
        if block is None:
            return None
        tile = _made(plan, [snapshot(part.lane) for part in plan.parts], start_ms, end_ms, block, self._limit // 4)
        with self._lock:
            mine = list(self._of_plan.get(id(plan), ()))
            for older in [t for t in mine if tile.after_ms <= t.after_ms and t.before_ms <= tile.before_ms]:
                self._drop(older)
            if len(mine) >= TILES_PER_PLAN:
                self._drop(mine[0])
            self._of_plan.setdefault(id(plan), []).append(tile)
            self._held[id(tile)] = tile
            self._bytes += tile.nbytes
            while self._bytes > self._limit:
                self._drop(next(iter(self._held.values())))
        return tile

    def _block_rows(self, plan: Plan, first: Snapshot, start_ms: int, end_ms: int) -> int | None:
        """Whole chunks, TILE_ROWS of them for a short look, or None when nobody looked around there before."""
        for chunk in first.chunks:
            if chunk.end_ms < start_ms or chunk.start_ms > end_ms:
                continue
            rows = len(chunk.times_ms)
            a, b = _span(chunk.times_ms, start_ms, end_ms)
            if (b - a) * FEW_ROWS > rows or len(plan.labels) * rows * 8 <= SMALL_BYTES:
                return SEAL_ROWS
            key = id(plan), end_ms // GLANCE_MS
            with self._lock:
                known = key in self._glanced
                self._glanced[key] = None
                self._glanced.move_to_end(key)
                if len(self._glanced) > GLANCES_KEPT:
                    self._glanced.popitem(last=False)
            return TILE_ROWS if known else None
        return None

    def _drop(self, tile: Tile) -> None:
        if self._held.pop(id(tile), None) is None:
            return
        self._bytes -= tile.nbytes
        mine = self._of_plan[id(tile.plan)]
        mine.remove(tile)
        if not mine:
            del self._of_plan[id(tile.plan)]


def _made(plan: Plan, lanes: list[Snapshot], start_ms: int, end_ms: int, block_rows: int, limit_bytes: int) -> Tile:
    """The tile around a stretch, widened to blocks of rows. One beyond the limit holds nothing, so that it is not tried again."""
    cuts = [_around(now.chunks, start_ms, end_ms, block_rows) for now in lanes]
    clean = [
        not (now.rows and now.head.times_ms[0] <= end_ms)
        and all(chunk.clean(part.columns).all() for chunk, _, _ in cut.pieces)
        for part, now, cut in zip(plan.parts, lanes, cuts, strict=True)
    ]
    sizes = [
        8 * (len(part.columns) + 1) * sum(stop - start for _, start, stop in cut.pieces) if plain else 0
        for part, cut, plain in zip(plan.parts, cuts, clean, strict=True)
    ]
    fits = sum(sizes) <= limit_bytes
    held = tuple(
        _held(now.chunks, part.columns, cut) if plain and fits else None
        for part, now, cut, plain in zip(plan.parts, lanes, cuts, clean, strict=True)
    )
    after_ms, before_ms = max(cut.after_ms for cut in cuts), min(cut.before_ms for cut in cuts)
    return Tile(plan, after_ms, before_ms, held, sum(sizes) if fits else 0)


@dataclass(frozen=True)
class _Cut:
    """Rows of sealed chunks that hold a stretch, and the times of the nearest rows outside."""

    pieces: tuple[tuple[Chunk, int, int], ...]
    after_ms: int
    before_ms: int


def _around(chunks: tuple[Chunk, ...], start_ms: int, end_ms: int, block_rows: int) -> _Cut:
    after_ms, before_ms = -NEVER_MS, NEVER_MS
    pieces: list[tuple[Chunk, int, int]] = []
    for chunk in chunks:
        if chunk.end_ms < start_ms:
            after_ms = chunk.end_ms
            continue
        if chunk.start_ms > end_ms:
            before_ms = chunk.start_ms
            break
        times_ms = chunk.times_ms
        a, b = _span(times_ms, start_ms, end_ms)
        a, b = a // block_rows * block_rows, min(-(-b // block_rows) * block_rows, len(times_ms))
        if a > 0:
            after_ms = int(times_ms[a - 1])
        if b < len(times_ms):
            before_ms = int(times_ms[b])
        if a < b:
            pieces.append((chunk, a, b))
        if b < len(times_ms):
            break
    return _Cut(tuple(pieces), after_ms, before_ms)


def _held(chunks: tuple[Chunk, ...], columns: Columns, cut: _Cut) -> Held:
    if not cut.pieces:
        return Held(chunks, NO_TIMES, np.empty((len(columns), 0)))
    times = [chunk.times_ms[start:stop] for chunk, start, stop in cut.pieces]
    values = [chunk.decode(columns, start, stop) for chunk, start, stop in cut.pieces]
    joined_times = times[0] if len(times) == 1 else np.concatenate(times)
    joined_values = values[0] if len(values) == 1 else np.concatenate(values, axis=1)
    joined_times.setflags(write=False)  # what is handed out is shared
    joined_values.setflags(write=False)
    return Held(chunks, joined_times, joined_values)


def _span(times_ms: Int64s, start_ms: int, end_ms: int) -> tuple[int, int]:
    return int(times_ms.searchsorted(start_ms)), int(times_ms.searchsorted(end_ms, side="right"))
