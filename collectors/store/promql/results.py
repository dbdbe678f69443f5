"""An answer: as arrays for us, as the Prometheus API's JSON for others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from collectors.model import Floats, Frame, Int64s, ResultType, Vector, Window
from collectors.store.promql.grids import Grid
from collectors.store.promql.numbers import api_number, api_numbers, api_time, api_times
from collectors.store.series import LabelSet

RawSeries = tuple[LabelSet, Int64s, Floats]


@dataclass(frozen=True)
class Result:
    """What a query gave. `type` tells which field holds it: `grid` (vector, matrix on steps), `raw` (matrix of samples),
    `scalar`, `text`. A range query over a scalar is a matrix of one series without labels."""

    type: ResultType
    times_ms: Int64s
    grid: Grid | None = None
    raw: Sequence[RawSeries] | None = None
    scalar: float = 0.0
    text: str = ""
    warnings: tuple[str, ...] = ()
    infos: tuple[str, ...] = field(default=())

    def __len__(self) -> int:
        """Number of series; 1 for a scalar or a string."""
        if self.grid is not None:
            return len(self.grid.labels)
        return len(self.raw) if self.raw is not None else 1

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings, then infos."""
        return self.warnings + self.infos

    def vector(self) -> Vector:
        """An instant answer as arrays; a scalar is one value without labels. Raises TypeError for other types."""
        at = int(self.times_ms[0])
        if self.type == "scalar":
            return Vector(at, ({},), np.array([self.scalar]), self.notes)
        if self.type != "vector" or self.grid is None:
            raise TypeError(f"the result is a {self.type}, not a vector")
        return Vector(at, tuple(one.as_dict() for one in self.grid.labels), self.grid.values[:, 0].copy(), self.notes)

    def frame(self, window: Window) -> Frame:
        """A range answer as arrays, NaN where there is no sample. Raises TypeError for other types."""
        if self.type != "matrix" or self.grid is None:
            raise TypeError(f"the result is a {self.type}, not a matrix on steps")
        full = self.grid.present is None
        values = self.grid.values.copy() if full else np.where(self.grid.mask(), self.grid.values, np.nan)
        return Frame(window, tuple(one.as_dict() for one in self.grid.labels), values, self.notes)

    def data(self) -> dict[str, Any]:
        """The API's `data` object: {"resultType", "result"}."""
        return dict(orjson.loads(self.data_json()))

    def data_json(self) -> bytes:
        """`data` as JSON text, values as Prometheus writes them."""
        if self.type == "string":
            result = f"[{api_time(int(self.times_ms[0]))},{_json(self.text)}]"
        elif self.type == "scalar":
            result = f'[{api_time(int(self.times_ms[0]))},"{api_number(self.scalar)}"]'
        elif self.raw is not None:
            result = (
                "[" + ",".join(_matrix_entry(one, api_times(times), values) for one, times, values in self.raw) + "]"
            )
        elif self.grid is not None and self.type == "vector":
            result = _vector_json(self.grid, int(self.times_ms[0]))
        elif self.grid is not None:
            result = _grid_json(self.grid, self.times_ms)
        else:
            result = "[]"
        return f'{{"resultType":"{self.type}","result":{result}}}'.encode("utf-8", "replace")


def _json(value: Any) -> str:
    try:
        return orjson.dumps(value).decode()
    except (TypeError, orjson.JSONEncodeError):  # lone surrogates: what was not UTF-8 is shown as such
        return orjson.dumps(str(value).encode("utf-8", "replace").decode()).decode()


def _metric_json(labels: LabelSet) -> str:
    try:
        return orjson.dumps(labels.as_dict()).decode()
    except TypeError:
        clean = {k.encode("utf-8", "replace").decode(): v.encode("utf-8", "replace").decode() for k, v in labels.pairs}
        return orjson.dumps(clean).decode()


def _vector_json(grid: Grid, at_ms: int) -> str:
    at = api_time(at_ms)
    numbers = api_numbers(grid.values[:, 0])
    entries = (
        f'{{"metric":{_metric_json(one)},"value":[{at},"{number}"]}}'
        for one, number in zip(grid.labels, numbers, strict=True)
    )
    return "[" + ",".join(entries) + "]"


def _grid_json(grid: Grid, times_ms: Int64s) -> str:
    """All points of all series in one join: what stands between two numbers depends on the step alone."""
    if not grid.labels:
        return "[]"
    times = api_times(times_ms.tolist())
    first = [f'[{t},"' for t in times]
    later = [f'"],[{t},"' for t in times]
    between: list[str] = []
    ending = "["
    for i, one in enumerate(grid.labels):
        held = None if grid.present is None else np.flatnonzero(grid.present[i]).tolist()
        start = 0 if held is None else held[0]
        between.append(f'{ending}{{"metric":{_metric_json(one)},"values":[{first[start]}')
        between.extend(later[1:] if held is None else [later[j] for j in held[1:]])
        ending = '"]]},'
    numbers = api_numbers(grid.values.ravel() if grid.present is None else grid.values[grid.present])
    pieces = [""] * (2 * len(numbers))
    pieces[0::2] = between
    pieces[1::2] = numbers
    return "".join(pieces) + '"]]}]'


def _matrix_entry(labels: LabelSet, times: list[str], values: Floats) -> str:
    points = ",".join([f'[{t},"{v}"]' for t, v in zip(times, api_numbers(values), strict=True)])
    return f'{{"metric":{_metric_json(labels)},"values":[{points}]}}'
