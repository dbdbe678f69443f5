"""The same random samples in these blocks and in a real Prometheus 2.42: a few hundred queries give the same answers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from collectors.model import Window
from collectors.store.blocks import Blocks
from collectors.store.promql import Engine, PromQLError
from tests.collectors.store.random_fleet import START_MS, as_series, scrapes
from tests.collectors.store.random_queries import Queries
from tests.collectors.store.real_prometheus import RealPrometheus, binary_or_skip
from tests.collectors.store.remote_write import send

SEED = 20
QUERIES = 400
RELATIVE = 1e-9


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Engine, RealPrometheus]]:
    binary = binary_or_skip("prometheus")
    blocks = Blocks()
    taken = []
    for target, t_ms, series, values in scrapes(SEED):
        result = blocks.append(target, t_ms, series, values)
        assert result.accepted == len(series), result
        taken.append((target, t_ms, series, values))
    with RealPrometheus(binary) as server:
        send(server.url, as_series(taken))
        yield Engine(blocks, semantics="2.x"), server


def window_of(number: int) -> Window:
    start = START_MS + (number % 7) * 61_000
    step = (15_000, 30_000, 20_000, 47_000)[number % 4]
    return Window(start, start + 30 * step, step)


def difference(ours: Any, theirs: Any, size: float) -> str | None:
    """None, or the first way in which two matrices differ. `size`: the largest number that went into them."""
    mine = {tuple(sorted(one["metric"].items())): one["values"] for one in ours["result"]}
    other = {tuple(sorted(one["metric"].items())): one["values"] for one in theirs["result"]}
    if len(mine) != len(ours["result"]):
        return "a label set occurs twice"
    if mine.keys() != other.keys():
        return f"series: only ours {sorted(mine.keys() - other.keys())[:2]}, only theirs {sorted(other.keys() - mine.keys())[:2]}"
    for key, points in mine.items():
        if [t for t, _ in points] != [t for t, _ in other[key]]:
            return f"{key}: steps differ: {len(points)} against {len(other[key])}"
        for (t, a), (_, b) in zip(points, other[key], strict=True):
            if not close(float(a), float(b), size):
                return f"{key} at {t}: {a} against {b}"
    return None


def close(a: float, b: float, size: float) -> bool:
    """Equal to 1e-9; where numbers of a certain size cancelled, to 1e-9 of what rounding makes of that size."""
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    return a == b or abs(a - b) <= RELATIVE * max(abs(a), abs(b)) or abs(a - b) <= 1e-14 * size


@pytest.mark.real
def test_random_queries_give_what_prometheus_gives(both: tuple[Engine, RealPrometheus]) -> None:
    engine, server = both
    wrong = []
    refused = empty = 0
    for number, query in enumerate(Queries(SEED).some(QUERIES)):
        window = window_of(number)
        status, answer = server.ask(
            "/api/v1/query_range",
            query=query,
            start=f"{window.start_ms / 1000:.3f}",
            end=f"{window.end_ms / 1000:.3f}",
            step=f"{window.step_ms / 1000:.3f}",
        )
        try:
            ours = engine.range(query, window).data()
        except PromQLError as why:
            refused += 1
            if status == 200:
                wrong.append(f"{query}: we refuse: {why}")
            continue
        if status != 200:
            wrong.append(f"{query}: Prometheus refuses: {answer.get('error')}")
            continue
        empty += not ours["result"]
        why_not = difference(ours, answer["data"], 1e6)
        if why_not:
            wrong.append(f"{query}  [{window}]: {why_not}")
    assert not wrong, f"{len(wrong)} of {QUERIES} differ:\n" + "\n".join(wrong[:40])
    # The comparison means something: most queries are answered with something.
    assert refused < QUERIES / 4
    assert empty < QUERIES / 3
