"""Which of equal series topk keeps, and what grouping makes of names."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.store.blocks import Blocks
from collectors.store.promql import Engine
from collectors.store.promql.aggregation import heap_choice


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(0, 5).map(float), min_size=1, max_size=12), st.integers(1, 6))
def test_the_heap_holds_the_smallest(keys: list[float], k: int) -> None:
    chosen = heap_choice(keys, k)
    assert len(set(chosen)) == min(k, len(keys))
    assert sorted(keys[i] for i in chosen) == sorted(keys)[:k]


def engine_of(values: dict[str, float]) -> Engine:
    blocks = Blocks()
    blocks.append("t", 0, [{"__name__": "x", "i": name} for name in values], list(values.values()))
    return Engine(blocks)


def names(engine: Engine, query: str) -> list[str]:
    return [one["metric"].get("i", "") for one in engine.instant(query, 0).data()["result"]]


@pytest.mark.parametrize(
    ("values", "query", "kept"),
    [
        ({"a": 1, "b": 1, "c": 1}, "topk(2, x)", {"a", "b"}),
        ({"a": 1, "b": 1, "c": 2}, "topk(2, x)", {"b", "c"}),
        ({"a": 2, "b": 2, "c": 1}, "bottomk(2, x)", {"b", "c"}),
        ({"a": float("nan"), "b": 1, "c": float("nan")}, "topk(2, x)", {"a", "b"}),
        ({"a": float("nan"), "b": float("inf")}, "bottomk(1, x)", {"b"}),
        ({"a": float("nan"), "b": 1}, "bottomk(1, x)", {"b"}),
        ({"a": float("inf"), "b": 1, "c": float("-inf")}, "topk(1, x)", {"a"}),
    ],
)
def test_ties_fall_as_in_prometheus(values: dict[str, float], query: str, kept: set[str]) -> None:
    assert set(names(engine_of(values), query)) == kept


def test_series_come_in_the_order_in_which_they_were_made() -> None:
    engine = engine_of({"z": 1, "a": 1, "m": 1})
    assert names(engine, "x") == ["z", "a", "m"]


@pytest.mark.parametrize(
    ("query", "labels"),
    [
        ("sum(x)", {}),
        ("sum by (__name__) (x)", {"__name__": "x"}),
        ("sum without (i) (x)", {}),
        ("sum by (nothing) (x)", {}),
        ("group without () (x)", {"i": "a"}),
    ],
)
def test_labels_of_groups(query: str, labels: dict[str, str]) -> None:
    assert engine_of({"a": 1.0}).instant(query, 0).data()["result"][0]["metric"] == labels
