"""The engine's own promises: limits, errors that name, notes, shared work that never goes stale, JSON as Prometheus writes it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable

import numpy as np
import pytest

from collectors.model import STALE, Samples, Window
from collectors.store.blocks import Blocks
from collectors.store.lanes import Lane
from collectors.store.promql import Engine, Limits, PromQLError
from collectors.store.promql.memo import Entry
from collectors.store.snapshots import Snapshot

MINUTE = 60_000


def counting(replicas: int = 2, minutes: int = 30) -> Blocks:
    blocks = Blocks()
    for t in range(0, minutes * MINUTE + 1, 15_000):
        for r in range(replicas):
            base = {"instance": f"r{r}"}
            series = [{**base, "__name__": "lat_bucket", "le": le} for le in ("0.1", "1", "+Inf")]
            series += [{**base, "__name__": "c_total"}, {**base, "__name__": "g"}]
            blocks.append(f"r{r}", t, series, [t / 1000, t / 500, t / 400, t / 100 * (r + 1), float(r)])
    return blocks


def values(engine: Engine, query: str, at_ms: int) -> dict[str, str]:
    return {one["metric"].get("instance", ""): one["value"][1] for one in engine.instant(query, at_ms).data()["result"]}


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("histogram_count(g)", "histogram_count"),
        ("histogram_avg(rate(g[5m]))", "native histograms"),
        ("limitk(2, g)", "limitk"),
        ("limit_ratio(0.5, g)", "limit_ratio"),
        ("info(g)", "info"),
        ("rate(g[5m] anchored)", "anchored"),
    ],
)
def test_what_is_not_supported_is_named_and_never_answered(query: str, names: str) -> None:
    with pytest.raises(PromQLError, match=names) as raised:
        Engine(counting()).instant(query, 0)
    assert raised.value.kind == "unsupported"


def test_limits() -> None:
    blocks = counting()
    window = Window(0, 30 * MINUTE, 1000)
    for limits, kind, word in (
        (Limits(max_points=100), "bad_data", "maximum resolution of 100 points"),
        (Limits(max_samples=50), "execution", "too many samples"),
        (Limits(max_series=1), "execution", "more than the limit of 1"),
    ):
        with pytest.raises(PromQLError, match=word) as raised:
            Engine(blocks, limits=limits).range("g", window)
        assert raised.value.kind == kind
    assert Engine(blocks).range("g", Window(0, 10_999_000, 1000)).times_ms.size == 11_000
    with pytest.raises(PromQLError, match="11,000 points"):
        Engine(blocks).range("g", Window(0, 11_000_000, 1000))


def test_time_runs_out_between_nodes_and_inside_long_loops() -> None:
    ticks = itertools.count()
    engine = Engine(counting(), limits=Limits(timeout_seconds=5), monotonic=lambda: float(next(ticks)))
    with pytest.raises(PromQLError) as raised:
        engine.range("sum(g) + sum(g) + sum(g) + sum(g)", Window(0, MINUTE, 1000))
    assert raised.value.kind == "timeout"


def test_range_vectors_and_strings_have_no_range_query() -> None:
    engine = Engine(counting())
    for query in ("g[5m]", "g[5m:1m]", '"text"'):
        with pytest.raises(PromQLError, match="must be Scalar or instant Vector"):
            engine.range(query, Window(0, MINUTE, 1000))


def test_a_range_selector_at_an_instant_gives_the_raw_samples() -> None:
    blocks = Blocks()
    blocks.load([Samples({"__name__": "x"}, np.array([0, 1000, 2500, 3000]), np.array([1.0, 2.0, STALE, np.nan]))])
    data = Engine(blocks).instant("x[3s]", 3000).data()
    assert data == {"resultType": "matrix", "result": [{"metric": {"__name__": "x"}, "values": [[1, "2"], [3, "NaN"]]}]}
    assert Engine(blocks, semantics="2.x").instant("x[3s]", 3000).data()["result"][0]["values"][0] == [0, "1"]


@pytest.mark.parametrize(
    ("query", "data"),
    [
        ("1.5", {"resultType": "scalar", "result": [1.234, "1.5"]}),
        ('"a\\"b"', {"resultType": "string", "result": [1.234, 'a"b']}),
        ("vector(1/0)", {"resultType": "vector", "result": [{"metric": {}, "value": [1.234, "+Inf"]}]}),
        ("nothing", {"resultType": "vector", "result": []}),
    ],
)
def test_instant_answers_in_the_api_form(query: str, data: object) -> None:
    assert Engine(Blocks()).instant(query, 1234).data() == data


def test_range_answers_in_the_api_form_leave_out_what_is_not_there() -> None:
    blocks = Blocks()
    blocks.load(
        [
            Samples({"__name__": "x", "a": 'q"\\'}, np.array([10_000, 20_000, 40_000]), np.array([1.0, STALE, 3e-7])),
            Samples({"__name__": "x"}, np.array([5_000]), np.array([float("nan")])),
        ]
    )
    result = Engine(blocks, lookback_ms=15_000).range("x", Window(0, 40_000, 10_000))
    assert json.loads(result.data_json()) == {
        "resultType": "matrix",
        "result": [
            {"metric": {"__name__": "x"}, "values": [[10, "NaN"]]},
            {"metric": {"__name__": "x", "a": 'q"\\'}, "values": [[10, "1"], [40, "3e-07"]]},
        ],
    }
    frame = result.frame(Window(0, 40_000, 10_000))
    assert np.isnan(frame.values[1]).tolist() == [True, False, True, True, False]
    scalar = Engine(blocks).range("1 + 1", Window(0, 2000, 1000)).data()
    assert scalar["result"] == [{"metric": {}, "values": [[0, "2"], [1, "2"], [2, "2"]]}]


def test_notes_are_those_of_prometheus() -> None:
    engine = Engine(counting())
    assert engine.instant("rate(g[5m])", 10 * MINUTE).infos == (
        'PromQL info: metric might not be a counter, name does not end in _total/_sum/_count/_bucket: "g"',
    )
    assert engine.instant("rate(c_total[5m])", 10 * MINUTE).notes == ()
    assert "quantile value should be between 0 and 1, got 1.5" in engine.instant("quantile(1.5, g)", MINUTE).warnings[0]
    assert 'bucket label "le" is missing' in engine.instant("histogram_quantile(0.5, g)", MINUTE).warnings[0]
    # what an inner expression noticed is said again when its remembered result is used
    for _ in range(2):
        assert len(engine.range("max(rate(g[5m]))", Window(10 * MINUTE, 12 * MINUTE, MINUTE)).infos) == 1


def test_queries_of_one_refresh_share_their_inner_expressions() -> None:
    engine = Engine(counting())
    window = Window(10 * MINUTE, 20 * MINUTE, MINUTE)
    for q in (0.5, 0.9, 0.99):
        engine.range(f"histogram_quantile({q}, sum by (le) (rate(lat_bucket[2m])))", window)
    assert (engine.memo.hits, engine.memo.misses) == (2, 2)


def test_what_was_remembered_is_given_up_when_its_span_gets_a_sample() -> None:
    blocks = counting()
    engine = Engine(blocks)
    end = 30 * MINUTE
    assert values(engine, "count_over_time(g[1m])", end + 15_000) == {"r0": "3", "r1": "3"}
    blocks.append("r0", end + 15_000, [{"__name__": "g", "instance": "r0"}], [7.0])
    assert values(engine, "count_over_time(g[1m])", end + 15_000) == {"r0": "4", "r1": "3"}
    blocks.append("r2", end + 15_000, [{"__name__": "g", "instance": "r2"}], [7.0])
    assert values(engine, "count_over_time(g[1m])", end + 15_000) == {"r0": "4", "r1": "3", "r2": "1"}
    before = engine.memo.hits
    blocks.append("r0", end + 99_000, [{"__name__": "g", "instance": "r0"}], [8.0])  # later than what was asked
    assert values(engine, "count_over_time(g[1m])", end + 15_000) == {"r0": "4", "r1": "3", "r2": "1"}
    assert engine.memo.hits == before + 1
    blocks.drop_before(end + 90_000)
    assert values(engine, "count_over_time(g[1m])", end + 15_000).get("r1") in (None, "3")


def test_the_lookback_of_a_query_is_its_own() -> None:
    engine = Engine(counting())
    at = 33 * MINUTE
    assert engine.instant("sum(g)", at).data()["result"][0]["value"][1] == "1"
    assert engine.instant("sum(g)", at, lookback_ms=MINUTE).data()["result"] == []


def test_an_answer_may_be_changed_without_harm_to_the_next() -> None:
    engine = Engine(counting())
    window = Window(10 * MINUTE, 12 * MINUTE, MINUTE)
    for _ in range(2):
        frame = engine.range("max(rate(c_total[1m]))", window).frame(window)
        assert frame.values == pytest.approx(20.0)
        frame.values[:] = -1
        vector = engine.instant("max(rate(c_total[1m]))", 10 * MINUTE).vector()
        assert vector.values == pytest.approx(20.0)
        vector.values[:] = -1


def test_pinned_selectors_follow_their_own_query() -> None:
    engine = Engine(counting())
    first = engine.range("max_over_time(c_total[1m] @ end())", Window(0, 10 * MINUTE, MINUTE)).data()
    second = engine.range("max_over_time(c_total[1m] @ end())", Window(0, 20 * MINUTE, 2 * MINUTE)).data()
    assert first["result"][0]["values"][0][1] == "6000"
    assert second["result"][0]["values"][0][1] == "12000"


def test_nothing_after_the_bound_is_used_whatever_the_query_says() -> None:
    engine = Engine(counting())
    bound = 10 * MINUTE
    for query in (
        "max(c_total offset -10m)",
        "max(c_total @ 1800)",
        "max(max_over_time(c_total[5m] offset -10m))",
        "max(c_total)",
    ):
        found = engine.instant(query, 12 * MINUTE, until_ms=bound).data()["result"]
        assert all(float(one["value"][1]) <= 2 * bound / 100 for one in found), query
    window = Window(0, 12 * MINUTE, MINUTE)
    pinned = engine.range("c_total @ end()", window, until_ms=bound)
    assert float(pinned.data()["result"][0]["values"][0][1]) <= bound / 100


def test_sorting_matters_at_an_instant_only() -> None:
    engine = Engine(counting(4))
    order = [one["metric"]["instance"] for one in engine.instant("sort_desc(g)", MINUTE).data()["result"]]
    assert order == ["r3", "r2", "r1", "r0"]
    order = [one["metric"]["instance"] for one in engine.instant("topk(2, g)", MINUTE).data()["result"]]
    assert order == ["r3", "r2"]
    order = [
        one["metric"]["instance"] for one in engine.range("sort_desc(g)", Window(0, MINUTE, MINUTE)).data()["result"]
    ]
    assert order == ["r0", "r1", "r2", "r3"]


def test_the_left_edge_of_a_window_belongs_to_it_in_2x_only() -> None:
    blocks = counting()
    assert values(Engine(blocks), "count_over_time(g[1m])", 10 * MINUTE)["r0"] == "4"
    assert values(Engine(blocks, semantics="2.x"), "count_over_time(g[1m])", 10 * MINUTE)["r0"] == "5"


def test_a_counter_born_inside_the_window_is_cut_at_zero_in_both_ways() -> None:
    blocks = Blocks()
    blocks.load([Samples({"__name__": "x_total"}, np.arange(10, 21) * MINUTE, np.arange(0.0, 11.0) * 60)])
    for semantics, per_second in (("3.x", 10 / 20), ("2.x", 10 / 20)):
        got = Engine(blocks, semantics=semantics).instant("rate(x_total[20m])", 20 * MINUTE).data()  # type: ignore[arg-type]
        assert float(got["result"][0]["value"][1]) == pytest.approx(per_second)


def test_values_that_count_values_makes_labels_of() -> None:
    blocks = Blocks()
    blocks.append("a", 0, [{"__name__": "x", "i": i, "v": "old"} for i in "abcd"], [1e21, 0.5, 0.5, float("nan")])
    found = {
        one["metric"].get("v", ""): one["value"][1]
        for one in Engine(blocks).instant('count_values("v", x)', 0).data()["result"]
    }
    assert found == {"1" + "0" * 21: "1", "0.5": "2", "NaN": "1"}
    assert Engine(blocks).instant('count_values without (v, i) ("v", x)', 0).data()["result"] == [
        {"metric": {}, "value": [0, "4"]}
    ]


def test_a_long_chain_is_evaluated() -> None:
    engine = Engine(counting(1, 1))
    assert engine.instant(" + ".join(["vector(1)"] * 300), 0).data()["result"][0]["value"][1] == "300"


def test_a_query_never_takes_what_a_later_one_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a query is between its two selectors a scrape comes in and another query reads it: both sides stay whole."""
    blocks = Blocks()
    series = [{"__name__": name, "instance": "a"} for name in ("x", "y")]
    for t_ms in range(0, 10_000, 1000):
        blocks.append("a", t_ms, series, [1.0, 1.0])
    engine = Engine(blocks)
    outer = "count_over_time(x[1m]) - ignoring() count_over_time(y[1m])"
    get, asked = engine.memo.get, 0

    def interrupted(key: object, generation: int, snapshot: Callable[[Lane], Snapshot]) -> Entry | None:
        nonlocal asked
        asked += 1
        if asked == 2:
            blocks.append("a", 10_000, series, [1.0, 1.0])
            assert values(engine, "count_over_time(y[1m])", 20_000) == {"a": "11"}
        return get(key, generation, snapshot)

    monkeypatch.setattr(engine.memo, "get", interrupted)
    assert values(engine, outer, 20_000) == {"a": "0"}
    assert asked > 2
    assert values(engine, "count_over_time(y[1m])", 20_000) == {"a": "11"}
