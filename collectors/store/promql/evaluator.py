"""One query on one store: every node of the tree evaluated at all steps at once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np

from collectors.model import STALE_BITS, Floats, Int64s
from collectors.store.blocks import Blocks
from collectors.store.lanes import Lane
from collectors.store.packing import bits_of
from collectors.store.promql import aggregation, arithmetic, matching
from collectors.store.promql.errors import bad, failed, unsupported
from collectors.store.promql.functions import FUNCTIONS, MATRIX_FUNCTIONS, UNSUPPORTED
from collectors.store.promql.grids import Grid, ScalarRow, TextValue, Value, grid, nameless, spread
from collectors.store.promql.limits import Budget
from collectors.store.promql.memo import Entry, Memo, Touch
from collectors.store.promql.nodes import (
    Aggregate,
    At,
    Binary,
    Call,
    MatrixSelector,
    Negate,
    Node,
    Number,
    Subquery,
    Text,
    VectorSelector,
)
from collectors.store.promql.notes import Notes
from collectors.store.promql.parsing import SET_OPERATORS
from collectors.store.promql.relabelling import valid_label_name
from collectors.store.promql.windows import Windows
from collectors.store.selection import Selection, Timelines, empty_selection, from_series, select
from collectors.store.series import EMPTY
from collectors.store.snapshots import Snapshot
from collectors.strips import Strip

N = TypeVar("N", Call, Aggregate)
Semantics = Literal["3.x", "2.x"]
DEFAULT_SUBQUERY_STEP_MS = 60_000
"""Prometheus's default evaluation interval, the step of a subquery that names none."""


@dataclass(frozen=True)
class Steps:
    """The instants of an evaluation, evenly spaced."""

    start_ms: int
    step_ms: int
    count: int

    def times_ms(self) -> Int64s:
        return self.start_ms + self.step_ms * np.arange(self.count, dtype=np.int64)

    @property
    def end_ms(self) -> int:
        return self.start_ms + self.step_ms * (self.count - 1)


class Evaluator:
    """Evaluates nodes for one query; not shared between threads. Raises PromQLError."""

    def __init__(
        self,
        blocks: Blocks,
        *,
        semantics: Semantics,
        lookback_ms: int,
        query: Steps,
        until_ms: int | None,
        budget: Budget,
        memo: Memo,
        notes: Notes,
    ) -> None:
        self.blocks = blocks
        self.legacy = semantics == "2.x"
        self.lookback_ms = lookback_ms
        self.query = query
        self.until_ms = until_ms
        self.budget = budget
        self.memo = memo
        self.notes = notes
        self._touched: list[list[Touch]] = []
        self._snapshots: dict[Lane, Snapshot] = {}
        self._timelines: dict[Hashable, Timelines] = {}

    def snapshot(self, lane: Lane) -> Snapshot:
        """The lane as this query sees it from its first look on: all its selectors read the same samples."""
        seen = self._snapshots.get(lane)
        if seen is None:
            seen = self._snapshots[lane] = lane.snapshot()
        return seen

    # ---- nodes

    def evaluate(self, node: Node, steps: Steps) -> Value:
        """The value of a node at every step."""
        self.budget.check_time()
        match node:
            case Number():
                return ScalarRow(np.full(steps.count, node.value))
            case Text():
                return TextValue(node.value)
            case VectorSelector():
                return self._vector(node, steps)
            case Call():
                return self._remembered(node, steps, self._call) if _has_range(node) else self._call(node, steps)
            case Aggregate():
                return self._remembered(node, steps, self._aggregate)
            case Negate():
                return self._negate(node, steps)
            case Binary():
                return self._binary(node, steps)
            case MatrixSelector() | Subquery():
                raise bad("a range vector stands where an instant vector or a scalar is expected")

    def vector(self, node: Node, steps: Steps) -> Grid:
        """The value of a node that is an instant vector."""
        value = self.evaluate(node, steps)
        if not isinstance(value, Grid):
            raise bad("expected an instant vector")
        return value

    def scalar(self, node: Node, steps: Steps) -> Floats:
        """The value of a node that is a scalar: (steps,)."""
        value = self.evaluate(node, steps)
        if not isinstance(value, ScalarRow):
            raise bad("expected a scalar")
        return value.values

    def text(self, node: Node) -> str:
        """The value of a string literal."""
        if not isinstance(node, Text):
            raise bad("expected a string literal")
        return node.value

    def _remembered(self, node: N, steps: Steps, compute: Callable[[N, Steps], Value]) -> Value:
        key = (node, steps, self.query if _is_pinned(node) else None, self.until_ms, self.lookback_ms)
        generation = self.blocks.index.generation
        entry = self.memo.get(key, generation, self.snapshot)
        if entry is not None:
            self.notes.merge(entry.notes)
            for recording in self._touched:
                recording.extend(entry.touched)
            return entry.value
        outer, self.notes = self.notes, Notes()
        with self._recording() as touched:
            try:
                value = compute(node, steps)
            finally:
                noticed, self.notes = self.notes, outer
                outer.merge(noticed)
        if isinstance(value, Grid):
            self.memo.put(key, Entry(value, noticed, tuple(dict.fromkeys(touched)), generation))
        return value

    @contextmanager
    def _recording(self) -> Iterator[list[Touch]]:
        touched: list[Touch] = []
        self._touched.append(touched)
        try:
            yield touched
        finally:
            self._touched.pop()

    def _negate(self, node: Negate, steps: Steps) -> Value:
        value = self.evaluate(node.expr, steps)
        if isinstance(value, ScalarRow):
            return ScalarRow(-value.values)
        if not isinstance(value, Grid):
            raise bad("unary minus needs a scalar or an instant vector")
        return nameless(value.with_values(-value.values), per_step=False)

    def _binary(self, node: Binary, steps: Steps) -> Value:
        spine = [node]  # as long as the chain of operators is, without recursion along it
        while isinstance(spine[-1].lhs, Binary):
            spine.append(spine[-1].lhs)
        left = self.evaluate(spine[-1].lhs, steps)
        for link in reversed(spine):
            left = self._operate(link, left, self.evaluate(link.rhs, steps))
        return left

    def _operate(self, node: Binary, left: Value, right: Value) -> Value:
        self.budget.check_time()
        if isinstance(left, ScalarRow) and isinstance(right, ScalarRow):
            return arithmetic.scalars(node.op, left, right)
        if isinstance(left, Grid) and isinstance(right, Grid):
            if node.op in SET_OPERATORS:
                return matching.set_operator(node.op, left, right, node.matching)
            self.budget.take_samples(left.values.size + right.values.size)
            return matching.vectors(
                node.op, left, right, node.matching, return_bool=node.return_bool, legacy=self.legacy
            )
        if isinstance(left, Grid) and isinstance(right, ScalarRow):
            return arithmetic.vector_scalar(
                node.op, left, right, scalar_left=False, return_bool=node.return_bool, atan2_keeps_name=self.legacy
            )
        if isinstance(left, ScalarRow) and isinstance(right, Grid):
            return arithmetic.vector_scalar(
                node.op, right, left, scalar_left=True, return_bool=node.return_bool, atan2_keeps_name=self.legacy
            )
        raise bad(f"operator {node.op} does not take a string")

    def _aggregate(self, node: Aggregate, steps: Steps) -> Value:
        by = {"without": node.without, "names": node.labels}
        op = node.op
        if op in ("limitk", "limit_ratio"):
            raise unsupported(f"the aggregation {op} is experimental and not supported")
        if op == "count_values":
            label = self.text(node.param) if node.param is not None else ""
            if not valid_label_name(label, utf8=not self.legacy):
                raise failed(f"invalid label name {label!r}")
            return aggregation.count_values(self.vector(node.expr, steps), label, **by)  # type: ignore[arg-type]
        if op in ("topk", "bottomk"):
            param = self.scalar(node.param, steps) if node.param is not None else np.zeros(steps.count)
            source = self.vector(node.expr, steps)
            k = aggregation.whole_param(param, op)
            return aggregation.top(source, k, largest=op == "topk", **by)  # type: ignore[arg-type]
        if op == "quantile":
            param = self.scalar(node.param, steps) if node.param is not None else np.zeros(steps.count)
            return aggregation.quantile(self.vector(node.expr, steps), param, self.notes, **by)  # type: ignore[arg-type]
        source = self.vector(node.expr, steps)
        return aggregation.aggregate(
            op,
            source,
            kahan=not self.legacy,
            spread_of_odd_is_nan=not self.legacy,
            without=node.without,
            names=node.labels,
        )

    def _call(self, node: Call, steps: Steps) -> Value:
        name = node.func
        if name in UNSUPPORTED:
            raise unsupported(UNSUPPORTED[name])
        matrix = MATRIX_FUNCTIONS.get(name)
        if matrix is not None:
            return matrix(self, node, steps)
        function = FUNCTIONS.get(name)
        if function is None:
            raise unsupported(f"the function {name}() is not supported")
        return function(self, node, steps)

    # ---- selectors

    def pinned(self, at: At) -> int | None:
        """The instant of an @ modifier."""
        if at == "start":
            return self.query.start_ms
        if at == "end":
            return self.query.end_ms
        return at

    def reference_ms(self, at: At, offset_ms: int, steps: Steps, *, spread: bool) -> Int64s:
        """The instants a selector looks at: (steps,), or one of them for a pinned one unless `spread`."""
        pinned = self.pinned(at)
        if pinned is None:
            return steps.times_ms() - offset_ms
        return np.full(steps.count if spread else 1, pinned - offset_ms, dtype=np.int64)

    def read(self, selector: VectorSelector, start_ms: int, end_ms: int, *, keep_stale: bool) -> Selection:
        """Samples of a selector with start_ms <= t <= end_ms, nothing after the query's own bound."""
        if self.until_ms is not None:
            end_ms = min(end_ms, self.until_ms)
        plan = self.blocks.plan(selector.matchers)
        self.budget.check_series(len(plan.labels))
        if self._touched:
            seen = [
                Touch(part.lane, lane.rows_seen, lane.amended, end_ms)
                for part in plan.parts
                for lane in (self.snapshot(part.lane),)
            ]
            for recording in self._touched:
                recording.extend(seen)
        if end_ms < start_ms or not plan.labels:
            return empty_selection()
        selection = select(
            self.blocks, plan, start_ms, end_ms, keep_stale=keep_stale, snapshot=self.snapshot, shared=self._timelines
        )
        self.budget.take_samples(selection.sample_count)
        return selection

    def newest(self, selector: VectorSelector, steps: Steps) -> tuple[Windows, Grid]:
        """The newest sample within the lookback at each step, and the windows it was found in."""
        ends = self.reference_ms(selector.at, selector.offset_ms, steps, spread=False)
        found = self.read(selector, int(ends[0]) - self.lookback_ms, int(ends[-1]), keep_stale=True)
        self.budget.take_samples(len(found.labels) * len(ends))
        windows = Windows(found, ends, self.lookback_ms, closed_left=self.legacy)
        values = windows.value_at(windows.last) if len(found.labels) else np.zeros(windows.shape)
        present = (windows.count > 0) & (bits_of(values) != np.uint64(STALE_BITS))
        return windows, Grid(found.labels, values, present)

    def _vector(self, node: VectorSelector, steps: Steps) -> Grid:
        _, found = self.newest(node, steps)
        return spread(grid(found.labels, found.values, found.present), steps.count)

    def windows(self, node: Node, steps: Steps, *, spread: bool = False) -> Windows:
        """The windows of a range vector; a pinned one has a single step unless `spread`."""
        if isinstance(node, MatrixSelector):
            ends = self.reference_ms(node.vector.at, node.vector.offset_ms, steps, spread=spread)
            start = int(ends[0]) - node.range_ms
            found = self.read(node.vector, start if self.legacy else start + 1, int(ends[-1]), keep_stale=False)
            return self._windows_of(found, ends, node.range_ms)
        if isinstance(node, Subquery):
            ends = self.reference_ms(node.at, node.offset_ms, steps, spread=spread)
            found = self._subquery(node, int(ends[0]) - node.range_ms, int(ends[-1]))
            return self._windows_of(found, ends, node.range_ms)
        raise bad("expected a range vector")

    def _windows_of(self, found: Selection, ends_ms: Int64s, range_ms: int) -> Windows:
        self.budget.take_samples(len(found.labels) * len(ends_ms))
        return Windows(found, ends_ms, range_ms, closed_left=self.legacy, check_time=self.budget.check_time)

    def _subquery(self, node: Subquery, after_ms: int, until_ms: int) -> Selection:
        step = node.step_ms or DEFAULT_SUBQUERY_STEP_MS
        first = -(-after_ms // step) * step if self.legacy else (after_ms // step + 1) * step
        if first > until_ms:
            return empty_selection()
        inner = Steps(first, step, (until_ms - first) // step + 1)
        self.budget.take_samples(inner.count)
        value = self.evaluate(node.expr, inner)
        times = inner.times_ms()
        if isinstance(value, ScalarRow):
            value = Grid((EMPTY,), value.values[None, :])
        if not isinstance(value, Grid):
            raise bad("a subquery needs an instant vector")
        self.budget.take_samples(value.values.size)
        if not value.labels:
            return empty_selection()
        if value.present is None:
            return Selection(value.labels, (Strip(times, value.values, np.arange(len(value.labels))),))
        return from_series(
            [
                (one, times[held], values[held])
                for one, values, held in zip(value.labels, value.values, value.present, strict=True)
            ]
        )


def _has_range(node: Call) -> bool:
    return any(isinstance(arg, MatrixSelector | Subquery) for arg in node.args)


def _is_pinned(node: Node) -> bool:
    """Whether the value depends on the query's own start or end (@ start(), @ end())."""
    match node:
        case VectorSelector():
            return node.at in ("start", "end")
        case MatrixSelector():
            return _is_pinned(node.vector)
        case Subquery():
            return node.at in ("start", "end") or _is_pinned(node.expr)
        case Call():
            return any(_is_pinned(arg) for arg in node.args)
        case Aggregate():
            return _is_pinned(node.expr) or (node.param is not None and _is_pinned(node.param))
        case Negate():
            return _is_pinned(node.expr)
        case Binary():
            return _is_pinned(node.lhs) or _is_pinned(node.rhs)
        case _:
            return False
