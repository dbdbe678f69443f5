"""The samples in memory: lanes by scrape target, a label index over them, and Prometheus's rules for late samples.

One writer per target and any number of readers at the same time. A series usually lives in one lane; a sample that is
late for its lane but not for its series goes to a side lane of the target, as Prometheus would take it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from collectors.model import STALE_BITS, Floats, Int64s, Labels, MetricMeta, Samples
from collectors.store.chunks import DecodedCache
from collectors.store.index import SeriesIndex
from collectors.store.lanes import Lane
from collectors.store.loading import load_samples
from collectors.store.matchers import Matcher
from collectors.store.packing import NO_SAMPLE_BITS, bits_of
from collectors.store.plans import Plan, Planner, joined
from collectors.store.series import LabelSet
from collectors.store.target_lanes import TargetLanes
from collectors.store.tiles import Tiles

LAYOUTS_KEPT = 64
"""Layouts of a target whose columns are remembered."""


@dataclass(frozen=True)
class AppendResult:
    """What became of the samples of one append. A sample equal to the one already there counts as accepted."""

    accepted: int
    out_of_order: int
    duplicates: int


@dataclass(frozen=True)
class Layout:
    """A prepared list of series of one target: look the labels up once, append by position ever after."""

    target: str
    sids: tuple[int, ...]
    generation: int


class Blocks:
    """In-memory samples of many scrape targets."""

    def __init__(self, decoded_cache_bytes: int = 64 << 20) -> None:
        self.index = SeriesIndex()
        self.cache = DecodedCache(decoded_cache_bytes)
        self.tiles = Tiles()
        self._targets: dict[str, TargetLanes] = {}
        self._homes: dict[int, tuple[Lane, ...]] = {}
        self._loaded: tuple[Lane, ...] = ()
        self._metadata: dict[str, MetricMeta] = {}
        self._planner = Planner(self.index, self._homes)
        self._lock = threading.Lock()
        self._layout_generation = 0
        self.out_of_order = 0
        self.duplicates = 0

    # ---- writing

    def append(
        self, target: str, t_ms: int, series: Sequence[Labels], values: Sequence[float] | Floats
    ) -> AppendResult:
        """Add one scrape of a target. A series must not occur twice in it (its second sample is a duplicate)."""
        while True:
            result = self._append(self.layout(target, series), t_ms, np.array(values, dtype=np.float64))
            if result is not None:
                return result

    def layout(self, target: str, series: Sequence[Labels]) -> Layout:
        """Prepare a list of series for `append_layout`."""
        generation = self._layout_generation
        return Layout(target, tuple(self.index.intern(labels) for labels in series), generation)

    def append_layout(self, layout: Layout, t_ms: int, values: Sequence[float] | Floats) -> AppendResult:
        """Add one scrape whose series are those of a prepared layout. Raises ValueError when the layout has expired."""
        result = self._append(layout, t_ms, np.array(values, dtype=np.float64))
        if result is None:
            raise ValueError("this layout was prepared before series were dropped; ask Blocks.layout again")
        return result

    def extend(self, target: str, times_ms: Int64s, series: Sequence[Labels], values: Floats) -> None:
        """Bulk rows of one target: `values[i]` are the samples of series i at `times_ms`. Quick when all are newer than what it holds."""
        layout = self.layout(target, series)
        ordered = len(set(layout.sids)) == len(layout.sids) and bool((np.diff(times_ms) > 0).all())
        held = self._target(target)
        with held.lock:
            main = held.main
            newer = len(times_ms) > 0 and int(times_ms[0]) > main.last_ms
            fresh = layout.generation == self._layout_generation
            if fresh and ordered and newer and all(self._homes.get(sid, ()) in ((), (main,)) for sid in layout.sids):
                main.extend(np.array([self._home(sid, main) for sid in layout.sids], dtype=np.intp), times_ms, values)
                return
        for row, t_ms in enumerate(times_ms.tolist()):
            self.append(target, t_ms, series, np.ascontiguousarray(values[:, row]))

    def _target(self, name: str) -> TargetLanes:
        target = self._targets.get(name)
        if target is None:
            with self._lock:
                target = self._targets.setdefault(name, TargetLanes())
        return target

    def _append(self, layout: Layout, t_ms: int, values: Floats) -> AppendResult | None:
        """None when series have been forgotten since the layout was made."""
        if len(layout.sids) != len(values):
            raise ValueError(f"{len(layout.sids)} series but {len(values)} values in the scrape of {layout.target}")
        target = self._target(layout.target)
        with target.lock:
            if layout.generation != self._layout_generation:
                return None
            columns, known_until = target.plain.get(layout.sids, (None, 0))
            if columns is not None and t_ms > target.main.last_ms and t_ms > known_until:
                target.main.append(t_ms, columns, values, _has_marker(values))
                return AppendResult(len(layout.sids), 0, 0)
            result = self._append_carefully(target, t_ms, layout.sids, values)
        if result.out_of_order or result.duplicates:
            with self._lock:
                self.out_of_order += result.out_of_order
                self.duplicates += result.duplicates
        return result

    def _append_carefully(self, target: TargetLanes, t_ms: int, sids: tuple[int, ...], values: Floats) -> AppendResult:
        """The general path: new series, rows that exist already, samples that are late for their lane."""
        target.leave_crowded_main(len(sids))
        accepted = out_of_order = duplicates = 0
        rows: dict[Lane, list[int]] = {}
        seen: set[int] = set()
        for i, sid in enumerate(sids):
            if sid in seen:
                duplicates += 1
                continue
            seen.add(sid)
            last_ms, last_value = self._last_of(sid, t_ms)
            if last_ms is not None and t_ms < last_ms:
                out_of_order += 1
            elif last_ms is not None and t_ms == last_ms:
                same = bool(bits_of(np.array([last_value]))[0] == bits_of(values[i : i + 1])[0])
                accepted += same
                duplicates += not same
            else:
                rows.setdefault(self._lane_for(target, sid, t_ms), []).append(i)
                accepted += 1
        for lane, chosen in rows.items():
            columns = np.array([self._home(sids[i], lane) for i in chosen], dtype=np.intp)
            if lane.rows_open and lane.last_ms == t_ms:
                lane.amend_last(columns, values[chosen])
            else:
                lane.append(t_ms, columns, values[chosen], _has_marker(values[chosen]))
        if list(rows) == [target.main] and len(rows[target.main]) == len(sids):
            self._remember_plain(target, sids)
        return AppendResult(accepted, out_of_order, duplicates)

    def _remember_plain(self, target: TargetLanes, sids: tuple[int, ...]) -> None:
        """Let later scrapes of this layout go the short way, if its series grow nowhere but in the main lane."""
        main = target.main
        elsewhere = {lane for sid in sids for lane in self._homes[sid] if lane is not main}
        if all(lane.closed for lane in elsewhere):
            if len(target.plain) >= LAYOUTS_KEPT:
                target.plain.clear()
            columns = np.array([main.column_of[sid] for sid in sids], dtype=np.intp)
            target.plain[sids] = columns, max((lane.last_ms for lane in elsewhere), default=main.last_ms)

    def _lane_for(self, target: TargetLanes, sid: int, t_ms: int) -> Lane:
        """The first lane of the target that can still take a sample of that time; a new side lane when none can."""
        for lane in target.lanes:
            if lane.last_ms < t_ms or self._free_at(lane, sid, t_ms):
                return lane
        target.lanes.append(Lane())
        return target.lanes[-1]

    def _free_at(self, lane: Lane, sid: int, t_ms: int) -> bool:
        if lane.last_ms != t_ms or not lane.rows_open:
            return False
        column = lane.column_of.get(sid)
        return column is None or bits_of(lane.last_row(np.array([column])))[0] == np.uint64(NO_SAMPLE_BITS)

    def _last_of(self, sid: int, t_ms: int) -> tuple[int | None, float]:
        """Time and value of the newest sample of a series, if it is not older than `t_ms`."""
        best: int | None = None
        value = 0.0
        for lane in self._homes.get(sid, ()):
            if lane.last_ms < t_ms:
                continue
            found = lane.last_sample(lane.column_of[sid], t_ms, self.cache)
            if found is not None and (best is None or found[0] > best):
                best, value = found
        return best, value

    def _home(self, sid: int, lane: Lane) -> int:
        column = lane.column_of.get(sid)
        if column is None:
            column = lane.column(sid)
            with self._lock:
                homes = self._homes.get(sid, ())
                self._homes[sid] = (*homes, lane)
                self.index.generation += 1
                if any(not home.closed for home in homes):  # it grows in two lanes from now on
                    for target in self._targets.values():
                        target.plain = {k: v for k, v in target.plain.items() if sid not in k}
        return column

    def load(self, samples: Iterable[Samples]) -> int:
        """Bulk load of whole series (capsules, imports); the number of samples taken.

        Series of one target (job, instance) with a common timeline share a lane. Times of a series strictly increase.
        """
        count = 0
        lanes: list[Lane] = []
        for series, times_ms, matrix in load_samples(samples):
            sids = [self.index.intern(labels) for labels in series]
            lane = Lane(sids)
            lane.load(times_ms, matrix)
            lanes.append(lane)
            count += int((bits_of(matrix) != np.uint64(NO_SAMPLE_BITS)).sum())
        with self._lock:
            for lane in lanes:
                for sid in lane.sids:
                    self._homes[sid] = (*self._homes.get(sid, ()), lane)
            for target in self._targets.values():
                target.plain = {}
            self._loaded = (*self._loaded, *lanes)
            self.index.generation += 1
        return count

    def set_metadata(self, name: str, meta: MetricMeta) -> None:
        """Keep TYPE and HELP of a metric family."""
        self._metadata[name] = meta

    def drop_before(self, t_ms: int) -> None:
        """Drop what lies before `t_ms`, in whole sealed chunks; forget series that hold nothing any more."""
        with contextlib.ExitStack() as held:
            targets = list(self._targets.values())
            for target in targets:
                held.enter_context(target.lock)
            dropped: set[int] = set()
            for lane in self._lanes():
                for sid in lane.drop_before(t_ms):
                    lane.forget(sid)
                    dropped.add(sid)
                    self._homes[sid] = tuple(home for home in self._homes.get(sid, ()) if home is not lane)
            for target in targets:
                target.retired = [lane for lane in target.retired if lane.rows]
                if dropped:
                    target.plain = {}
            with self._lock:
                gone = [sid for sid in dropped if not self._homes.get(sid)]
                for sid in gone:
                    self._homes.pop(sid, None)
                self._loaded = tuple(lane for lane in self._loaded if lane.rows)
                self._layout_generation += bool(gone)
                self.index.remove(gone)

    # ---- reading

    def plan(self, matchers: tuple[Matcher, ...]) -> Plan:
        """Where the series that satisfy the matchers live; remembered until a series comes or goes."""
        return self._planner.plan(matchers)

    def samples(self, matchers: Sequence[Matcher], start_ms: int, end_ms: int) -> list[Samples]:
        """Raw samples with start_ms < t <= end_ms of the series that satisfy the matchers, sorted by labels, with markers."""
        plan = self.plan(tuple(matchers))
        found: dict[int, tuple[Int64s, Floats]] = {}
        for part in plan.parts:
            piece = part.lane.read(part.columns, start_ms + 1, end_ms, self.cache)
            if piece is None:
                continue
            times_ms, values = piece.times_ms.copy(), piece.values.copy()  # decoded chunks are shared; rows share these
            dirty = piece.dirty.tolist()
            for row, position in enumerate(part.positions.tolist()):
                mine = (times_ms, values[row])
                if dirty[row]:
                    there = bits_of(values[row]) != np.uint64(NO_SAMPLE_BITS)
                    if not there.any():
                        continue
                    mine = (times_ms[there], values[row][there])
                earlier = found.get(position)
                found[position] = mine if earlier is None else joined([earlier, mine])
        return [Samples(plan.labels[i].as_dict(), *found[i]) for i in plan.order if i in found]

    def series(self, matchers: Sequence[Matcher], start_ms: int, end_ms: int) -> list[LabelSet]:
        """Label sets that satisfy the matchers and have a sample with start_ms <= t <= end_ms, sorted."""
        plan = self.plan(tuple(matchers))
        found: set[int] = set()
        for part in plan.parts:
            held = part.lane.snapshot().held(part.columns, start_ms, end_ms)
            found.update(part.positions[held].tolist())
        return sorted(plan.labels[i] for i in found)

    def metadata(self) -> Mapping[str, MetricMeta]:
        """TYPE and HELP by family name."""
        return dict(self._metadata)

    def extent_ms(self) -> tuple[int, int] | None:
        """First and last sample time; None while empty."""
        extents = [e for lane in self._lanes() if (e := lane.extent_ms()) is not None]
        return (min(e[0] for e in extents), max(e[1] for e in extents)) if extents else None

    @property
    def nbytes(self) -> int:
        """Bytes of samples and times, what is kept decoded included."""
        return sum(lane.nbytes for lane in self._lanes()) + self.cache.nbytes + self.tiles.nbytes

    @property
    def sample_count(self) -> int:
        """Samples held (markers included)."""
        return sum(lane.sample_count for lane in self._lanes())

    def _lanes(self) -> list[Lane]:
        growing = [lane for target in list(self._targets.values()) for lane in (*target.retired, *target.lanes)]
        return [*growing, *self._loaded]


def _has_marker(values: Floats) -> bool:
    return bool((bits_of(values) == np.uint64(STALE_BITS)).any())
