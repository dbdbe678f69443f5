"""The samples in memory: lanes by scrape target, a label index over them, and Prometheus's rules for late samples.

One writer per target and any number of readers at the same time. A series usually lives in one lane; a sample that is
late for its lane but not for its series goes to a side lane of the target, as Prometheus would take it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from collectors.model import STALE_BITS, Floats, Int64s, Labels, MetricMeta, Samples
from collectors.store.chunks import DecodedCache
from collectors.store.index import SeriesIndex
from collectors.store.lanes import Lane
from collectors.store.loading import load_samples
from collectors.store.matchers import Matcher
from collectors.store.packing import NO_SAMPLE_BITS, Columns, bits_of
from collectors.store.series import LabelSet

PLANS_KEPT = 512


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


@dataclass(frozen=True)
class LanePart:
    """Columns of a lane that a selection reads, and the positions of their series in the selection."""

    lane: Lane
    columns: Columns
    positions: Columns


@dataclass(frozen=True)
class Plan:
    """Where the series of a selection live. Series that live in several lanes are listed in `scattered`."""

    labels: tuple[LabelSet, ...]
    parts: tuple[LanePart, ...]
    scattered: frozenset[int]


class _Target:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lanes: list[Lane] = [Lane()]
        self.plain: dict[tuple[int, ...], Columns] = {}
        """Column numbers in the main lane of layouts whose series live nowhere else."""


class Blocks:
    """In-memory samples of many scrape targets."""

    def __init__(self, decoded_cache_bytes: int = 64 << 20) -> None:
        self.index = SeriesIndex()
        self.cache = DecodedCache(decoded_cache_bytes)
        self._targets: dict[str, _Target] = {}
        self._homes: dict[int, tuple[Lane, ...]] = {}
        self._loaded: tuple[Lane, ...] = ()
        self._metadata: dict[str, MetricMeta] = {}
        self._plans: OrderedDict[tuple[tuple[Matcher, ...], int], Plan] = OrderedDict()
        self._lock = threading.Lock()
        self._layout_generation = 0
        self.out_of_order = 0
        self.duplicates = 0

    # ---- writing

    def append(
        self, target: str, t_ms: int, series: Sequence[Labels], values: Sequence[float] | Floats
    ) -> AppendResult:
        """Add one scrape of a target. A series must not occur twice in it (its second sample is a duplicate)."""
        sids = [self.index.intern(labels) for labels in series]
        return self._append(target, t_ms, tuple(sids), np.array(values, dtype=np.float64))

    def layout(self, target: str, series: Sequence[Labels]) -> Layout:
        """Prepare a list of series for `append_layout`."""
        return Layout(target, tuple(self.index.intern(labels) for labels in series), self._layout_generation)

    def append_layout(self, layout: Layout, t_ms: int, values: Sequence[float] | Floats) -> AppendResult:
        """Add one scrape whose series are those of a prepared layout. Raises ValueError when the layout has expired."""
        if layout.generation != self._layout_generation:
            raise ValueError("this layout was prepared before series were dropped; ask Blocks.layout again")
        return self._append(layout.target, t_ms, layout.sids, np.array(values, dtype=np.float64))

    def extend(self, target: str, times_ms: Int64s, series: Sequence[Labels], values: Floats) -> None:
        """Bulk rows of one target: `values[i]` are the samples of series i at `times_ms`. Quick when all are newer than what it holds."""
        sids = tuple(self.index.intern(labels) for labels in series)
        ordered = len(set(sids)) == len(sids) and bool((np.diff(times_ms) > 0).all())
        held = self._target(target)
        with held.lock:
            lane = held.lanes[0]
            newer = len(times_ms) > 0 and int(times_ms[0]) > lane.last_ms
            if ordered and newer and all(self._homes.get(sid, ()) in ((), (lane,)) for sid in sids):
                lane.extend(np.array([self._home(sid, lane) for sid in sids], dtype=np.intp), times_ms, values)
                return
        for row, t_ms in enumerate(times_ms.tolist()):
            self._append(target, t_ms, sids, np.ascontiguousarray(values[:, row]))

    def _target(self, name: str) -> _Target:
        target = self._targets.get(name)
        if target is None:
            with self._lock:
                target = self._targets.setdefault(name, _Target())
        return target

    def _append(self, name: str, t_ms: int, sids: tuple[int, ...], values: Floats) -> AppendResult:
        if len(sids) != len(values):
            raise ValueError(f"{len(sids)} series but {len(values)} values in the scrape of {name}")
        target = self._target(name)
        special = bool((bits_of(values) == np.uint64(STALE_BITS)).any())
        with target.lock:
            lane = target.lanes[0]
            columns = target.plain.get(sids)
            if columns is not None and t_ms > lane.last_ms:
                lane.append(t_ms, columns, values, special)
                return AppendResult(len(sids), 0, 0)
            result = self._append_carefully(target, t_ms, sids, values)
        if result.out_of_order or result.duplicates:
            with self._lock:
                self.out_of_order += result.out_of_order
                self.duplicates += result.duplicates
        return result

    def _append_carefully(self, target: _Target, t_ms: int, sids: tuple[int, ...], values: Floats) -> AppendResult:
        """The general path: new series, rows that exist already, samples that are late for their lane."""
        main = target.lanes[0]
        accepted = out_of_order = duplicates = 0
        rows: dict[Lane, list[int]] = {}
        seen: set[int] = set()
        simple = True
        for i, sid in enumerate(sids):
            if sid in seen:
                duplicates += 1
                simple = False
                continue
            seen.add(sid)
            homes = self._homes.get(sid, ())
            if homes != (main,) and homes:
                simple = False
            last_ms, last_value = self._last_of(sid, homes, t_ms)
            if last_ms is not None and t_ms <= last_ms:
                simple = False
                if t_ms < last_ms:
                    out_of_order += 1
                elif bits_of(np.array([last_value]))[0] == bits_of(values[i : i + 1])[0]:
                    accepted += 1
                else:
                    duplicates += 1
                continue
            lane = next((lane for lane in target.lanes if lane.last_ms < t_ms or self._free_at(lane, sid, t_ms)), None)
            if lane is None:
                lane = Lane()
                target.lanes.append(lane)
            simple = simple and lane is main
            rows.setdefault(lane, []).append(i)
            accepted += 1
        for lane, chosen in rows.items():
            columns = np.array([self._home(sids[i], lane) for i in chosen], dtype=np.intp)
            if lane.last_ms == t_ms:
                lane.amend_last(columns, values[chosen])
            else:
                lane.append(
                    t_ms, columns, values[chosen], bool((bits_of(values[chosen]) == np.uint64(STALE_BITS)).any())
                )
        if simple and len(sids):
            if len(target.plain) > 64:
                target.plain.clear()
            target.plain[sids] = np.array([main.column_of[sid] for sid in sids], dtype=np.intp)
        return AppendResult(accepted, out_of_order, duplicates)

    def _free_at(self, lane: Lane, sid: int, t_ms: int) -> bool:
        if lane.last_ms != t_ms or not lane.rows_open:
            return False
        column = lane.column_of.get(sid)
        return column is None or bits_of(lane.last_row(np.array([column])))[0] == np.uint64(NO_SAMPLE_BITS)

    def _last_of(self, sid: int, homes: tuple[Lane, ...], t_ms: int) -> tuple[int | None, float]:
        """Time and value of the newest sample of a series, if it is not older than `t_ms`."""
        best: int | None = None
        value = 0.0
        for lane in homes:
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
                if homes:  # it no longer lives in one lane only
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
        dropped: set[int] = set()
        for lane, lock in self._lanes_with_locks():
            with lock:
                for sid in lane.drop_before(t_ms):
                    lane.forget(sid)
                    dropped.add(sid)
                    with self._lock:
                        self._homes[sid] = tuple(home for home in self._homes.get(sid, ()) if home is not lane)
        gone = [sid for sid in dropped if not self._homes.get(sid)]
        with self._lock:
            for sid in gone:
                self._homes.pop(sid, None)
            if dropped:
                for target in self._targets.values():
                    target.plain = {}
            self._loaded = tuple(lane for lane in self._loaded if lane.rows)
            if gone:
                self._layout_generation += 1
        self.index.remove(gone)

    # ---- reading

    def plan(self, matchers: tuple[Matcher, ...]) -> Plan:
        """Where the series that satisfy the matchers live; remembered until a series comes or goes."""
        key = (matchers, self.index.generation)
        with self._lock:
            known = self._plans.get(key)
            if known is not None:
                self._plans.move_to_end(key)
                return known
        plan = self._make_plan(self.index.select(matchers))
        with self._lock:
            self._plans[key] = plan
            while len(self._plans) > PLANS_KEPT:
                self._plans.popitem(last=False)
        return plan

    def _make_plan(self, sids: Sequence[int]) -> Plan:
        by_lane: dict[Lane, tuple[list[int], list[int]]] = {}
        scattered: set[int] = set()
        labels: list[LabelSet] = []
        for sid in sids:
            homes = self._homes.get(sid, ())
            if not homes:
                continue
            position = len(labels)
            labels.append(self.index.labels(sid))
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

    def samples(self, matchers: Sequence[Matcher], start_ms: int, end_ms: int) -> list[Samples]:
        """Raw samples with start_ms < t <= end_ms of the series that satisfy the matchers, sorted by labels, with markers."""
        plan = self.plan(tuple(matchers))
        found: dict[int, list[tuple[Int64s, Floats]]] = {}
        for part in plan.parts:
            piece = part.lane.read(part.columns, start_ms + 1, end_ms, self.cache)
            if piece is None:
                continue
            for row, position in enumerate(part.positions):
                values = piece.values[row]
                there = bits_of(values) != np.uint64(NO_SAMPLE_BITS) if piece.dirty[row] else slice(None)
                if len(values[there]):
                    found.setdefault(int(position), []).append((piece.times_ms[there], values[there]))
        ordered = sorted(found, key=lambda i: plan.labels[i].pairs)
        return [Samples(plan.labels[i].as_dict(), *joined(found[i])) for i in ordered]

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
        extents = [e for lane, _ in self._lanes_with_locks() if (e := lane.extent_ms()) is not None]
        return (min(e[0] for e in extents), max(e[1] for e in extents)) if extents else None

    @property
    def nbytes(self) -> int:
        """Bytes of samples and times, the decoded cache included."""
        return sum(lane.nbytes for lane, _ in self._lanes_with_locks()) + self.cache.nbytes

    @property
    def sample_count(self) -> int:
        """Samples held (markers included)."""
        return sum(lane.sample_count for lane, _ in self._lanes_with_locks())

    def _lanes_with_locks(self) -> list[tuple[Lane, threading.Lock]]:
        own = threading.Lock()
        targets = list(self._targets.values())
        return [(lane, t.lock) for t in targets for lane in list(t.lanes)] + [(lane, own) for lane in self._loaded]


def joined(parts: list[tuple[Int64s, Floats]]) -> tuple[Int64s, Floats]:
    """One series from its pieces: sorted by time, the first of equal times kept."""
    if len(parts) == 1:
        return parts[0]
    times = np.concatenate([p[0] for p in parts])
    values = np.concatenate([p[1] for p in parts])
    times, first = np.unique(times, return_index=True)
    return times, values[first]
