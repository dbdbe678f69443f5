"""`factory(dataset_series)` in the form of the shared conformance runner: an engine over freshly loaded blocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from collectors.model import STALE, Samples, Window
from collectors.store.blocks import Blocks
from collectors.store.promql import Engine


class Adapter:
    """What the runner calls: `instant` and `range`, giving the Prometheus API's `data` object."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def instant(self, query: str, time_ms: int) -> dict[str, Any]:
        return self._engine.instant(query, time_ms).data()

    def range(self, query: str, start_ms: int, end_ms: int, step_ms: int) -> dict[str, Any]:
        return self._engine.range(query, Window(start_ms, end_ms, step_ms)).data()


def factory(dataset_series: list[tuple[dict[str, str], list[tuple[int, float | str]]]]) -> Adapter:
    """dataset_series = [(labels, [(t_ms, float or "stale"), ...]), ...]."""
    blocks = Blocks()
    blocks.load(
        Samples(
            labels,
            np.array([t for t, _ in points], dtype=np.int64),
            np.array([STALE if v == "stale" else v for _, v in points], dtype=np.float64),
        )
        for labels, points in dataset_series
    )
    return Adapter(Engine(blocks))
