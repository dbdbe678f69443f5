"""The engine's face: a query text and a time, or a window, to a Result."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from collectors.model import Window
from collectors.store.blocks import Blocks
from collectors.store.promql.errors import bad
from collectors.store.promql.evaluator import Evaluator, Semantics, Steps
from collectors.store.promql.grids import Grid, ScalarRow, TextValue, Value, unique
from collectors.store.promql.limits import Budget, Limits
from collectors.store.promql.memo import Memo
from collectors.store.promql.nodes import MatrixSelector, Node, Subquery, Text
from collectors.store.promql.notes import Notes
from collectors.store.promql.parsing import parse
from collectors.store.promql.results import RawSeries, Result
from collectors.store.promql.windows import Windows
from collectors.store.series import EMPTY

DEFAULT_LOOKBACK_MS = 300_000


class Engine:
    """PromQL over Blocks. Thread-safe. `until_ms` of a query: no sample after it is used, whatever the query says."""

    def __init__(
        self,
        blocks: Blocks,
        *,
        semantics: Semantics = "3.x",
        lookback_ms: int = DEFAULT_LOOKBACK_MS,
        limits: Limits | None = None,
        memo_bytes: int = 64 << 20,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.blocks = blocks
        self.semantics: Semantics = semantics
        self.lookback_ms = lookback_ms
        self.limits = limits or Limits()
        self.memo = Memo(memo_bytes)
        self._monotonic = monotonic

    def instant(
        self,
        promql: str,
        at_ms: int,
        *,
        until_ms: int | None = None,
        limits: Limits | None = None,
        lookback_ms: int | None = None,
    ) -> Result:
        """Evaluate at one instant. A range selector gives its raw samples (type matrix). Raises PromQLError."""
        node = parse(promql)
        steps = Steps(at_ms, 1, 1)
        notes = Notes()
        evaluator = self._evaluator(steps, until_ms, limits, lookback_ms, notes)
        if isinstance(node, MatrixSelector | Subquery):
            raw = _raw(evaluator.windows(node, steps))
            return _noted(Result("matrix", steps.times_ms(), raw=raw), notes)
        value = self._evaluated(evaluator, node, steps)
        match value:
            case TextValue():
                result = Result("string", steps.times_ms(), text=value.value)
            case ScalarRow():
                result = Result("scalar", steps.times_ms(), scalar=float(value.values[0]))
            case Grid():
                result = Result("vector", steps.times_ms(), grid=value)
        return _noted(result, notes)

    def range(
        self,
        promql: str,
        window: Window,
        *,
        until_ms: int | None = None,
        limits: Limits | None = None,
        lookback_ms: int | None = None,
    ) -> Result:
        """Evaluate at every step of a window. Raises PromQLError."""
        node = parse(promql)
        _refuse_for_range(node)
        steps = Steps(window.start_ms, window.step_ms, window.steps)
        notes = Notes()
        evaluator = self._evaluator(steps, until_ms, limits, lookback_ms, notes)
        evaluator.budget.check_points(window.steps)
        value = self._evaluated(evaluator, node, steps)
        if isinstance(value, ScalarRow):
            value = Grid((EMPTY,), value.values[None, :])
        if not isinstance(value, Grid):
            raise bad('invalid expression type "string" for range query, must be Scalar or instant Vector')
        labels = value.labels
        order = sorted(range(len(labels)), key=lambda i: labels[i].pairs)
        if order != list(range(len(order))):
            value = value.at(order)
        return _noted(Result("matrix", steps.times_ms(), grid=value), notes)

    def _evaluator(
        self, steps: Steps, until_ms: int | None, limits: Limits | None, lookback_ms: int | None, notes: Notes
    ) -> Evaluator:
        return Evaluator(
            self.blocks,
            semantics=self.semantics,
            lookback_ms=self.lookback_ms if lookback_ms is None else lookback_ms,
            query=steps,
            until_ms=until_ms,
            budget=Budget(limits or self.limits, self._monotonic),
            memo=self.memo,
            notes=notes,
        )

    @staticmethod
    def _evaluated(evaluator: Evaluator, node: Node, steps: Steps) -> Value:
        try:
            value = evaluator.evaluate(node, steps)
        except RecursionError:
            raise bad("the expression is nested too deeply") from None
        return (
            unique(value, "query result contains metrics with the same labelset") if isinstance(value, Grid) else value
        )


def _refuse_for_range(node: Node) -> None:
    kind = "range vector" if isinstance(node, MatrixSelector | Subquery) else "string" if isinstance(node, Text) else ""
    if kind:
        raise bad(f'invalid expression type "{kind}" for range query, must be Scalar or instant Vector')


def _raw(windows: Windows) -> list[RawSeries]:
    found = windows.selection
    out: list[RawSeries] = []
    for s, labels in enumerate(found.labels):
        line = int(found.line_of[s])
        low, high = int(windows.line_low[line, 0]), int(windows.line_high[line, 0])
        if high > low:
            times = found.times_ms[int(found.line_from[line]) + low : int(found.line_from[line]) + high]
            start = int(found.value_from[s])
            out.append((labels, np.array(times), found.values[start + low : start + high]))
    return out


def _noted(result: Result, notes: Notes) -> Result:
    return replace(result, warnings=tuple(notes.warnings), infos=tuple(notes.infos))
