"""Blocks take samples as Prometheus would and give them back as they came."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.model import STALE, MetricMeta, Samples, Window, is_stale
from collectors.store.blocks import Blocks
from collectors.store.lanes import SEAL_ROWS
from collectors.store.matchers import Matcher
from collectors.store.promql import Engine

UP = {"__name__": "up", "instance": "a"}
X = {"__name__": "x", "instance": "a"}
Y = {"__name__": "y", "instance": "a"}


def held(blocks: Blocks, name: str) -> list[tuple[int, float]]:
    found = blocks.samples([Matcher("__name__", "=", name)], -(2**60), 2**60)
    return [(int(t), float(v)) for one in found for t, v in zip(one.times_ms, one.values, strict=True)]


def test_late_and_double_samples_are_refused_and_counted() -> None:
    blocks = Blocks()
    assert blocks.append("a", 1000, [X], [1.0]).accepted == 1
    assert blocks.append("a", 2000, [X], [2.0]).accepted == 1
    late = blocks.append("a", 1500, [X], [9.0])
    assert (late.accepted, late.out_of_order, late.duplicates) == (0, 1, 0)
    double = blocks.append("a", 2000, [X], [3.0])
    assert (double.accepted, double.out_of_order, double.duplicates) == (0, 0, 1)
    same = blocks.append("a", 2000, [X], [2.0])
    assert (same.accepted, same.out_of_order, same.duplicates) == (1, 0, 0)
    assert held(blocks, "x") == [(1000, 1.0), (2000, 2.0)]
    assert (blocks.out_of_order, blocks.duplicates) == (1, 1)


def test_a_series_named_twice_in_a_scrape_counts_once() -> None:
    blocks = Blocks()
    result = blocks.append("a", 1000, [X, X], [1.0, 2.0])
    assert (result.accepted, result.duplicates) == (1, 1)
    assert held(blocks, "x") == [(1000, 1.0)]


def test_a_sample_late_for_its_target_but_not_for_its_series_is_taken() -> None:
    blocks = Blocks()
    blocks.append("a", 1000, [X], [1.0])
    blocks.append("a", 3000, [X], [3.0])
    assert blocks.append("a", 2000, [Y], [7.0]).accepted == 1
    assert blocks.append("a", 4000, [X, Y], [4.0, 8.0]).accepted == 2
    assert held(blocks, "y") == [(2000, 7.0), (4000, 8.0)]
    assert blocks.append("a", 3500, [Y], [0.0]).out_of_order == 1
    found = Engine(blocks).instant("y", 4000)
    assert found.data()["result"][0]["value"] == [4, "8"]


def test_samples_of_one_scrape_may_come_in_two_appends() -> None:
    blocks = Blocks()
    for t in range(1000, 9000, 1000):
        assert blocks.append("a", t, [X], [t / 1000]).accepted == 1
        assert blocks.append("a", t, [UP], [1.0]).accepted == 1
    assert [t for t, _ in held(blocks, "up")] == list(range(1000, 9000, 1000))
    assert len(blocks._targets["a"].lanes) == 1


def test_the_layout_may_change_from_scrape_to_scrape_and_gaps_stay_gaps() -> None:
    blocks = Blocks()
    blocks.append("a", 1000, [X], [1.0])
    blocks.append("a", 2000, [Y], [2.0])
    blocks.append("a", 3000, [X, Y], [3.0, STALE])
    assert held(blocks, "x") == [(1000, 1.0), (3000, 3.0)]
    [y] = blocks.samples([Matcher("__name__", "=", "y")], 0, 9999)
    assert y.times_ms.tolist() == [2000, 3000]
    assert is_stale(y.values).tolist() == [False, True]


def test_a_prepared_layout_appends_the_same() -> None:
    blocks = Blocks()
    layout = blocks.layout("a", [X, Y])
    for i in range(2 * SEAL_ROWS + 3):
        assert blocks.append_layout(layout, 1000 * i, [i, 2.0 * i]).accepted == 2
    assert held(blocks, "y")[::SEAL_ROWS] == [(1000 * i, 2.0 * i) for i in range(0, 2 * SEAL_ROWS + 3, SEAL_ROWS)]


SCRAPES = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.integers(0, 30),
        st.dictionaries(
            st.sampled_from("xyzw"), st.sampled_from([0.0, 1.0, 2.5, float("nan"), STALE, -0.0]), max_size=4
        ),
    ),
    max_size=60,
)


@settings(deadline=None, max_examples=200)
@given(SCRAPES)
def test_what_is_taken_is_what_prometheus_would_take(scrapes: list[tuple[str, int, dict[str, float]]]) -> None:
    """Against a dictionary per series with Prometheus's rule: later, or equal in time and bits."""
    blocks = Blocks()
    model: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for target, t, values in scrapes:
        labels = [{"__name__": name, "instance": target} for name in values]
        expected = [0, 0, 0]
        for name, value in values.items():
            bits = int(np.array([value]).view(np.uint64)[0])
            series = model.setdefault((name, target), [])
            if not series or series[-1][0] < t:
                series.append((t, bits))
                expected[0] += 1
            elif series[-1][0] > t:
                expected[1] += 1
            else:
                expected[0 if series[-1][1] == bits else 2] += 1
        result = blocks.append(target, t, labels, list(values.values()))
        assert [result.accepted, result.out_of_order, result.duplicates] == expected
    found = {
        (one.labels["__name__"], one.labels["instance"]): list(
            zip(one.times_ms.tolist(), one.values.view(np.uint64).tolist(), strict=True)
        )
        for one in blocks.samples([Matcher("instance", "=~", ".+")], -1, 100)
    }
    assert found == {key: series for key, series in model.items() if series}


def test_loading_whole_series_keeps_each_timeline() -> None:
    blocks = Blocks()
    common = np.arange(0, 60_000, 5_000)
    own = np.array([3, 77, 1_000])
    loaded = blocks.load(
        [
            Samples({**X, "job": "j"}, common, np.arange(12.0)),
            Samples({**Y, "job": "j"}, common[4:], np.arange(8.0)),
            Samples({"__name__": "z"}, own, np.array([1.0, STALE, 3.0])),
        ]
    )
    assert loaded == 12 + 8 + 3
    assert [t for t, _ in held(blocks, "y")] == common[4:].tolist()
    assert [t for t, _ in held(blocks, "z")] == own.tolist()
    assert blocks.extent_ms() == (0, 55_000)
    with pytest.raises(ValueError, match="do not strictly increase"):
        blocks.load([Samples(X, np.array([5, 5]), np.array([1.0, 2.0]))])


def test_a_loaded_series_can_go_on_by_scrapes() -> None:
    blocks = Blocks()
    blocks.load([Samples(X, np.array([1000, 2000]), np.array([1.0, 2.0]))])
    assert blocks.append("a", 2000, [X], [5.0]).duplicates == 1
    assert blocks.append("a", 3000, [X], [3.0]).accepted == 1
    assert held(blocks, "x") == [(1000, 1.0), (2000, 2.0), (3000, 3.0)]
    assert Engine(blocks).instant("sum_over_time(x[5s])", 3000).data()["result"][0]["value"] == [3, "6"]


def test_dropping_old_samples_forgets_series_that_hold_nothing_any_more() -> None:
    blocks = Blocks()
    layout = blocks.layout("a", [X])
    for i in range(SEAL_ROWS + 10):
        blocks.append_layout(layout, i * 1000, [float(i)])
    blocks.append("gone", 500, [{"__name__": "old"}], [1.0])
    before = blocks.nbytes
    blocks.drop_before((SEAL_ROWS + 5) * 1000)
    assert blocks.nbytes < before
    assert held(blocks, "old") == []
    assert blocks.index.label_values("__name__") == ["x"]
    assert [t for t, _ in held(blocks, "x")][-1] == (SEAL_ROWS + 9) * 1000
    with pytest.raises(ValueError, match="ask Blocks.layout again"):
        blocks.append_layout(layout, 10**9, [1.0])
    assert blocks.append("a", 10**9, [X], [1.0]).accepted == 1
    assert blocks.append("gone", 10**9, [{"__name__": "old"}], [2.0]).accepted == 1
    assert held(blocks, "old") == [(10**9, 2.0)]


def test_memory_over_six_hours_of_a_fleet_stays_under_four_bytes_a_sample() -> None:
    rng = np.random.default_rng(3)
    blocks = Blocks()
    names = [{"__name__": f"m{i}", "instance": "a"} for i in range(400)]
    layout = blocks.layout("a", names)
    values = rng.integers(0, 1000, 400).astype(float)
    rates = np.where(rng.random(400) < 0.6, 0, rng.integers(1, 200, 400))
    count = 4320
    for i in range(count):
        values = values + rng.poisson(rates)
        values[:20] = rng.random(20)  # gauges and sums without a short form
        blocks.append_layout(layout, i * 5000, values)
    assert blocks.sample_count == count * 400
    assert blocks.nbytes / (count * 400) < 4.0


def test_churn_of_series_costs_what_is_alive_not_what_was() -> None:
    blocks = Blocks()
    for i in range(400):
        born = [{"__name__": "x", "instance": "a", "request": f"{i}-{j}"} for j in range(50)]
        steady = [{"__name__": "steady", "instance": "a", "n": str(j)} for j in range(5)]
        result = blocks.append("a", i * 1000, steady + born, [1.0] * 5 + [float(i)] * 50)
        assert result.accepted == 55
    assert blocks.sample_count == 400 * 55
    assert blocks.nbytes < 400 * 55 * 200
    assert len(held(blocks, "steady")) == 400 * 5
    count = Engine(blocks).instant("sum(count_over_time(steady[400s]))", 399_000).data()["result"][0]["value"][1]
    assert count == "2000"
    one = [{"__name__": "steady", "instance": "a", "n": "0"}]
    assert blocks.append("a", 300_000, one, [1.0]).out_of_order == 1
    assert blocks.append("a", 399_000, one, [2.0]).duplicates == 1
    blocks.drop_before(390_000)
    assert len(blocks.index) < 2500


def test_what_is_handed_out_may_be_changed_without_harm() -> None:
    blocks = Blocks()
    blocks.load([Samples(X, np.arange(SEAL_ROWS), np.arange(float(SEAL_ROWS)))])
    for _ in range(2):
        [one] = blocks.samples([Matcher("__name__", "=", "x")], -1, 2**40)
        assert one.values.tolist() == list(range(SEAL_ROWS))
        one.values[:] = -1
        one.times_ms[:] = 0


def test_metadata_is_kept_beside() -> None:
    blocks = Blocks()
    blocks.set_metadata("x", MetricMeta("gauge", "an x"))
    assert blocks.metadata() == {"x": MetricMeta("gauge", "an x")}


def test_readers_see_whole_scrapes_while_a_writer_appends() -> None:
    """Two series that are always equal are never seen different, through growth and sealing."""
    blocks = Blocks()
    engine = Engine(blocks)
    layout = blocks.layout("a", [X, Y])
    stop = threading.Event()
    wrong: list[str] = []

    def read() -> None:
        while not stop.is_set():
            window = Window(0, 3_000_000, 300_000)
            data = engine.range("count_over_time(x[50m]) - ignoring() count_over_time(y[50m])", window).data()["result"]
            wrong.extend(v for one in data for _, v in one["values"] if v != "0")
            for one in blocks.samples([Matcher("instance", "=", "a")], -1, 2**40):
                if (np.diff(one.times_ms) <= 0).any() or (one.values != one.times_ms).any():
                    wrong.append("torn")

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for i in range(3 * SEAL_ROWS):
            blocks.append_layout(layout, i * 1000, [i * 1000.0, i * 1000.0])
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not wrong, wrong[:5]


def test_empty_label_values_are_no_labels_and_matchers_see_them_so() -> None:
    blocks = Blocks()
    blocks.append("a", 1000, [{**X, "zone": ""}, {**Y, "zone": "b"}], [1.0, 2.0])
    zoneless = blocks.series([Matcher("zone", "=", ""), Matcher("__name__", "=~", ".+")], 0, 2000)
    assert [dict(one) for one in zoneless] == [X]
    assert [one["__name__"] for one in blocks.series([Matcher("zone", "!=", "")], 0, 2000)] == ["y"]
    assert blocks.series([Matcher("zone", "!=", "")], 2000, 3000) == []
