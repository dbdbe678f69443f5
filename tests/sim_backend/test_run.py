"""Virtual time: what a scraper would have taken, scenarios that keep what they declare, faults that show as they should."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from sim_backend.faults import CAUSE_OF, SAYS
from sim_backend.resize import for_replicas
from sim_backend.run import SCRAPE_ROWS, Run, Scrape, run
from sim_backend.scenario import (
    Cause,
    Load,
    ScenarioError,
    load_scenario,
    parse_scenario,
    scenario_names,
    with_remedy,
)
from sim_backend.workload import Stream
from tests.sim_backend.hurry import hurried

EPOCH_MS = 1_790_000_000_000
EARLIER = 240
ROWS = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "kv": "vllm:kv_cache_usage_perc",
    "preemptions": "vllm:num_preemptions_total",
    "tokens": "vllm:generation_tokens_total",
    "first": "vllm:time_to_first_token_seconds_count",
    "finished": "vllm:e2e_request_latency_seconds_count",
    "gaps": "vllm:inter_token_latency_seconds_count",
    "gap_seconds": "vllm:inter_token_latency_seconds_sum",
    "queries": "vllm:prefix_cache_queries_total",
    "hits": "vllm:prefix_cache_hits_total",
    "prompt": "vllm:prompt_tokens_total",
}


def row(scrape: Scrape) -> dict[str, float]:
    """The figures of a scrape, summed over engines; only `up` when it failed."""
    found: dict[str, float] = {"up": float(scrape.values[scrape.layout.names.index("up")])}
    for key, name in ROWS.items():
        values = [value for known, value in zip(scrape.layout.names, scrape.values, strict=True) if known == name]
        if values:
            found[key] = float(sum(values))
    found["4xx"] = sum(
        float(value)
        for name, labels, value in zip(scrape.layout.names, scrape.layout.labels, scrape.values, strict=True)
        if name == "http_requests_total" and labels["status"] == "4xx"
    )
    return found


def at(scrapes: Iterable[Scrape], instance: str, seconds: float) -> dict[str, float]:
    """The last row of an instance at or before that instant."""
    return row([s for s in scrapes if s.instance == instance and s.t_ms <= EPOCH_MS + seconds * 1000][-1])


def between(scrapes: list[Scrape], index: int, start: float, end: float) -> dict[str, float]:
    """Rates and levels of replica `index` in a window: counters per second, gauges at its end, derived ratios."""
    instance = f"vllm-{index}:8000"
    one, two = at(scrapes, instance, start), at(scrapes, instance, end)
    seconds = end - start
    gauges = ("up", "running", "waiting", "kv")
    seen = {key: two[key] if key in gauges else (two[key] - one.get(key, 0)) / seconds for key in two}
    if seen.get("gaps"):
        seen["gap"] = seen["gap_seconds"] / seen["gaps"]
    if seen.get("queries"):
        seen["hit_ratio"] = seen["hits"] / seen["queries"]
    return seen


def simulate(name: str, seconds: float, replicas: int | None = None) -> tuple[Run, list[Scrape]]:
    simulated = run(hurried(name, EARLIER), seconds - EARLIER, 1, replicas, 5.0, EPOCH_MS)
    return simulated, list(simulated)


def test_a_scrape_has_what_a_scraper_writes() -> None:
    simulated, scrapes = simulate("replica_restarted", 340)
    times = [scrape.t_ms for scrape in scrapes]
    assert times == sorted(times)
    mine = [scrape for scrape in scrapes if scrape.instance == "vllm-1:8000"]
    assert {b.t_ms - a.t_ms for a, b in zip(mine, mine[1:], strict=False)} == {5000}
    first = mine[0]
    assert len(first.layout.names) == len(first.layout.labels) == len(first.values)
    assert len(
        {(n, tuple(sorted(ls.items()))) for n, ls in zip(first.layout.names, first.layout.labels, strict=True)}
    ) == len(first.values)
    assert all(labels["job"] == "vllm" and labels["instance"] == "vllm-1:8000" for labels in first.layout.labels)
    assert first.layout.names[-5:] == ("up", *SCRAPE_ROWS)
    assert first.values[first.layout.names.index("scrape_samples_scraped")] == len(first.values) - 5
    down = [scrape for scrape in mine if row(scrape)["up"] == 0]
    assert [scrape.t_ms for scrape in down] == [
        t for t in (s.t_ms for s in mine) if EPOCH_MS + 60_000 <= t < EPOCH_MS + 85_000
    ]
    assert down[0].layout.names == ("up", *SCRAPE_ROWS)
    layouts = [scrape.layout for scrape in mine]
    assert layouts[3] is layouts[10]  # one layout as long as the series stay the same
    start = [s.values[s.layout.names.index("process_start_time_seconds")] for s in mine if s not in down]
    assert len(set(start)) == 2
    truth = simulated.ground_truth
    assert [incident["cause"] for incident in truth["incidents"]] == ["replica_down", "replica_restarted"]
    assert truth["incidents"][0] == {
        "cause": "replica_down",
        "where": {"scope": "replica", "replicas": [{"instance": "vllm-1:8000", "engine": "0"}]},
        "from_ms": EPOCH_MS + 60_000,
        "to_ms": EPOCH_MS + 85_000,
    }


def test_every_law_of_honest_metrics_holds_in_a_healthy_run() -> None:
    _, scrapes = simulate("healthy", 340)
    for scrape in scrapes:
        seen = row(scrape)
        assert seen["first"] >= seen["finished"]
        assert seen["tokens"] == seen["gaps"] + seen["first"]
        assert seen["hits"] <= seen["queries"]
        assert 0 <= seen["kv"] <= 1
    for index in range(3):
        values = np.array([list(row(s).values()) for s in scrapes if s.instance == f"vllm-{index}:8000"])
        counters = [n for n, key in enumerate(row(scrapes[0])) if key not in ("up", "running", "waiting", "kv")]
        assert (np.diff(values[:, counters], axis=0) >= 0).all()


def test_there_is_a_scenario_for_every_cause_and_a_word_for_every_fault() -> None:
    scenarios = [load_scenario(name) for name in scenario_names()]
    wanted = set(Cause.__args__)  # type: ignore[attr-defined]
    assert {scenario.expect.cause for scenario in scenarios} == wanted
    assert set(SAYS) == set(CAUSE_OF)
    assert {fault.kind for scenario in scenarios for fault in scenario.fault} == set(SAYS) - {
        "reset_prefix_cache",
        "cold_start",
    }
    for scenario in scenarios:
        assert scenario.what.endswith(".")
        assert scenario.expect.cause in {
            "healthy",
            *(truth.cause for truth in scenario.truth),
            *(CAUSE_OF[f.kind] for f in scenario.fault),
        }


BEFORE, DURING = (20, 58), (180, 240)


def test_overload_fills_the_seats_and_widens_the_gap() -> None:
    _, scrapes = simulate("overload", 490, 1)
    before, during = (between(scrapes, 0, *window) for window in (BEFORE, DURING))
    assert (during["running"] > 250, during["waiting"] > 100, during["kv"] < 0.5) == (True, True, True)
    assert during["gap"] > 1.6 * before["gap"]


def test_full_seats_leave_the_gap_and_the_pool_alone() -> None:
    _, scrapes = simulate("seat_limited", 490)
    before, during = (between(scrapes, 0, *window) for window in (BEFORE, DURING))
    assert (during["running"] >= 15, during["waiting"] > 50, during["kv"] < 0.1) == (True, True, True)
    assert during["gap"] < 1.4 * before["gap"]


def test_a_small_pool_preempts_while_seats_are_free() -> None:
    _, scrapes = simulate("kv_limited", 490)
    during = between(scrapes, 0, *DURING)
    assert (during["running"] < 80, during["waiting"] > 50, during["kv"] > 0.85, during["preemptions"] > 1) == (
        True,
    ) * 4


def test_a_small_budget_leaves_seats_and_blocks_free() -> None:
    _, scrapes = simulate("prefill_limited", 490)
    during = between(scrapes, 0, *DURING)
    assert (during["running"] < 20, during["waiting"] > 20, during["kv"] < 0.2) == (True, True, True)
    assert during["prompt"] == pytest.approx(between(scrapes, 0, 160, 220)["prompt"], rel=0.15)  # it runs at its budget


def test_an_unadmittable_head_is_looked_up_for_ever() -> None:
    _, scrapes = simulate("unadmittable_head", 560)
    before, during = (between(scrapes, 0, *window) for window in (BEFORE, DURING))
    assert (during["running"], during["tokens"], during["first"]) == (0, 0, 0)
    assert during["waiting"] > 50
    assert during["queries"] > 1000 * before["queries"]
    assert between(scrapes, 1, *DURING)["tokens"] > 100
    after = between(scrapes, 0, 305, 319)
    assert after["tokens"] > 0


def test_hogs_keep_everybody_else_out() -> None:
    _, scrapes = simulate("sequence_hog", 480)
    during = between(scrapes, 0, 85, 145)
    assert (during["running"], during["first"], during["waiting"] > 5, during["kv"] > 0.9) == (3, 0, True, True)


def test_a_throttled_device_triples_the_gap() -> None:
    _, scrapes = simulate("engine_slow", 490)
    before, during, other = between(scrapes, 1, *BEFORE), between(scrapes, 1, *DURING), between(scrapes, 0, *DURING)
    assert 2.8 < during["gap"] / before["gap"] < 5
    assert other["gap"] < 1.2 * before["gap"]


def test_a_cold_start_gets_faster() -> None:
    _, scrapes = simulate("cold_start", 560)
    gaps = [between(scrapes, 1, *window)["gap"] for window in ((90, 120), (180, 210), (280, 315))]
    assert gaps[0] > 1.5 * gaps[1] > 1.5 * 1.5 * gaps[2]


def test_a_stalled_engine_answers_scrapes_and_nothing_else() -> None:
    _, scrapes = simulate("engine_stalled", 560)
    during = between(scrapes, 1, 70, 230)
    assert (during["up"], during["tokens"], during["finished"]) == (1, 0, 0)
    assert during["running"] > 0
    assert between(scrapes, 1, 250, 315)["tokens"] > 0


def test_stale_gauges_show_work_where_there_is_none() -> None:
    _, scrapes = simulate("stale_gauges", 490)
    during = between(scrapes, 1, 70, 240)
    assert (during["running"] > 0, during["tokens"], during["first"]) == (True, 0, 0)


def test_imbalance_shows_in_one_place_only() -> None:
    _, scrapes = simulate("replica_imbalance", 490)
    waits = [between(scrapes, index, *DURING)["waiting"] for index in range(3)]
    assert waits[0] > 100
    assert waits[1:] == [0, 0]
    _, scrapes = simulate("rank_imbalance", 490)
    last = [s for s in scrapes if s.instance == "vllm-0:8000"][-1]
    by_rank = {
        labels["engine"]: value
        for name, labels, value in zip(last.layout.names, last.layout.labels, last.values, strict=True)
        if name == "vllm:num_requests_waiting"
    }
    assert by_rank["2"] > 20
    assert sum(by_rank.values()) == by_rank["2"]


def test_a_cold_cache_a_burst_of_rejects_and_impatient_clients() -> None:
    _, scrapes = simulate("cold_prefix_cache", 490)
    before, during = (between(scrapes, 0, *window) for window in (BEFORE, DURING))
    assert (before["hit_ratio"] > 0.85, during["hit_ratio"] < 0.6 * before["hit_ratio"]) == (True, True)
    _, scrapes = simulate("admission_rejects", 490)
    assert between(scrapes, 0, *BEFORE)["4xx"] == 0
    assert between(scrapes, 0, *DURING)["4xx"] > 1
    _, scrapes = simulate("client_aborts", 490)
    before, during = (between(scrapes, 0, *window) for window in (BEFORE, DURING))
    assert before["finished"] == pytest.approx(before["first"], rel=0.1)
    assert during["finished"] < 0.75 * during["first"]


def test_auth_rejects_change_nothing_at_all() -> None:
    _, scrapes = simulate("auth_rejects", 490)
    before, during = (between(scrapes, 0, *window) for window in (BEFORE, DURING))
    assert set(before) == set(during)
    assert during["4xx"] == 0
    assert during["first"] == pytest.approx(before["first"], rel=0.25)


def test_faults_of_metrics_break_what_they_say() -> None:
    _, scrapes = simulate("hits_above_queries", 340)
    assert at(scrapes, "vllm-1:8000", 95)["hits"] > at(scrapes, "vllm-1:8000", 95)["queries"]
    _, scrapes = simulate("removed_metric", 340)
    assert "waiting" not in at(scrapes, "vllm-1:8000", 95)
    assert "waiting" in at(scrapes, "vllm-0:8000", 95)
    _, scrapes = simulate("frozen_gauge", 340)
    shown = {at(scrapes, "vllm-1:8000", t)["running"] for t in range(65, 100, 5)}
    assert len(shown) == 1
    _, scrapes = simulate("interleaved_servers", 400)
    tokens = [row(s)["tokens"] for s in scrapes if s.instance == "vllm-1:8000"][-18:]
    assert sum(b < a for a, b in zip(tokens, tokens[1:], strict=False)) >= 7
    _, scrapes = simulate("missing_scrape", 540)
    up = [row(s)["up"] for s in scrapes if s.instance == "vllm-1:8000" and s.t_ms > EPOCH_MS + 60_000]
    assert 0.3 < sum(up) / len(up) < 0.55
    _, scrapes = simulate("flat_buckets", 340)
    last = [s for s in scrapes if s.instance == "vllm-1:8000"][-1]
    name = "vllm:time_to_first_token_seconds_bucket"
    assert len({value for known, value in zip(last.layout.names, last.values, strict=True) if known == name}) == 1
    _, scrapes = simulate("missing_rank", 340)
    last = [s for s in scrapes if s.instance == "vllm-1:8000"][-1]
    assert {labels["engine"] for labels in last.layout.labels if "engine" in labels} == {"0"}


def test_a_cache_reset_by_order_makes_the_next_prompts_miss() -> None:
    load = {"arrivals": {"rate": 4}, "shared_prefix": {"families": 40, "tokens": 800}, "prompt": {"mean": 20}}
    fault = {"kind": "reset_prefix_cache", "start_seconds": 60, "stop_seconds": 61}
    parts = {"what": "x", "expect": {"outcome": "fires", "cause": "cold_prefix_cache"}, "fleet": {"replicas": 1}}
    scrapes = list(
        run(parse_scenario("reset", {**parts, "load": [load], "fault": [fault]}), 90, 1, None, 1.0, EPOCH_MS)
    )
    assert between(scrapes, 0, 50, 60)["hit_ratio"] > 0.9
    assert between(scrapes, 0, 61, 65)["hit_ratio"] < 0.6
    assert between(scrapes, 0, 80, 89)["hit_ratio"] > 0.8


def test_routing_by_least_waiting_evens_out_what_round_robin_does_not() -> None:
    def spread(routing: str) -> float:
        fleet = {"replicas": 2, "routing": routing, "engine": {"max_num_seqs": 8}}
        fault = {"kind": "slow", "factor": 3, "start_seconds": 0, "replicas": [0]}
        parts = {"what": "x", "expect": {"outcome": "fires", "cause": "engine_slow"}, "fleet": fleet, "fault": [fault]}
        scrapes = list(
            run(parse_scenario("r", {**parts, "load": [{"arrivals": {"rate": 9}}]}), 60, 1, None, 5.0, EPOCH_MS)
        )
        return abs(between(scrapes, 0, 30, 59)["waiting"] - between(scrapes, 1, 30, 59)["waiting"])

    assert spread("least_waiting") <= 4
    assert spread("round_robin") > 15


def relief(name: str) -> tuple[dict[str, float], dict[str, float]]:
    """Replica 0 (or the touched one) late in the incident, without and with the remedy."""
    chosen = hurried(name, EARLIER)
    touched = next((part.replicas for part in (*chosen.truth, *chosen.fault)), None)
    index = (touched or [0])[0]
    seen = []
    for scenario in (chosen, with_remedy(chosen)):
        scrapes = list(run(scenario, 200, 1, None, 5.0, EPOCH_MS))
        seen.append(between(scrapes, index, 120, 155))
    return seen[0], seen[1]


@pytest.mark.parametrize(
    "name",
    [
        "seat_limited",
        "kv_limited",
        "prefill_limited",
        "unadmittable_head",
        "sequence_hog",
        "rank_imbalance",
        "replica_imbalance",
    ],
)
def test_the_remedy_takes_the_queue_away(name: str) -> None:
    ill, mended = relief(name)
    assert ill["waiting"] >= 10
    assert mended["waiting"] <= 2
    assert mended["first"] > 0


def test_the_remedy_of_a_fault_is_its_end() -> None:
    ill, mended = relief("engine_stalled")
    assert ill["tokens"] == 0
    assert mended["tokens"] > 0
    ill, mended = relief("cold_prefix_cache")
    assert mended["hit_ratio"] > 1.2 * ill["hit_ratio"]
    with pytest.raises(ScenarioError, match="no remedy"):
        with_remedy(load_scenario("auth_rejects"))


def test_a_replica_that_does_not_start_leaves_its_log_in_the_truth() -> None:
    simulated = run("oom_at_start", 20, 1, None, 5.0, EPOCH_MS)
    assert {row(scrape)["up"] for scrape in simulated if scrape.instance == "vllm-2:8000"} == {0}
    (lines,) = simulated.ground_truth["failed_starts"].values()
    message = r"Free memory on device \((\d+\.\d+)/(\d+\.\d+) GiB\) on startup is less than desired GPU memory utilization \(0\.9, (\d+\.\d+) GiB\)"
    found = next(match for line in lines if (match := re.search(message, line)))
    free, total, wanted = map(float, found.groups())
    assert free < wanted < total
    good = "\n".join(simulated.cluster.startup_log(0))
    for expected in (
        "Model loading took",
        "Available KV cache memory",
        "GPU KV cache size: ",
        "Maximum concurrency for",
    ):
        assert expected in good


@pytest.mark.parametrize("name", scenario_names())
def test_on_twice_the_replicas_twice_as_much_is_asked(name: str) -> None:
    """Streams through the balancer grow with the fleet; a stream that is pinned to a place stays what it is there."""
    stated = load_scenario(name)
    replicas = stated.fleet.replicas
    doubled = for_replicas(stated, 2 * replicas)
    for index, (load, grown) in enumerate(zip(stated.load, doubled.load, strict=True)):
        apart = len(load.not_replicas)
        ratio = 1 if load.replicas else (2 * replicas - apart) / (replicas - apart)
        assert asked(index, grown) / asked(index, load) == pytest.approx(ratio, rel=0.25)


def asked(index: int, load: Load) -> int:
    """How many new clients the first ten minutes of a stream bring."""
    stream = Stream(index, load, 1)
    return sum(1 for at in itertools.takewhile(lambda at: at < load.start_seconds + 600, stream._openings()))


@pytest.mark.parametrize(
    ("arrivals", "field", "value"),
    [
        ({"rate": 6}, "rate", 18),
        ({"kind": "gamma", "rate": 6}, "rate", 18),
        ({"kind": "ramp", "rate": 2, "rate_to": 8}, "rate_to", 24),
        ({"kind": "steps", "steps": [[10, 4], [20, 8]]}, "steps", [(10, 12), (20, 24)]),
        ({"kind": "closed", "clients": 5}, "clients", 15),
        ({"kind": "burst", "count": 7}, "count", 21),
        ({"kind": "trace", "file": "x.csv", "rescale_rate": 2}, "rescale_rate", 6),
        ({"kind": "trace", "file": "x.csv"}, "rescale_rate", 0),
    ],
)
def test_every_kind_of_arrivals_grows_with_the_fleet(arrivals: dict, field: str, value: object) -> None:
    parts = {"what": "x", "expect": {"outcome": "silent", "cause": "healthy"}, "fleet": {"replicas": 2}}
    stated = parse_scenario(
        "r", {**parts, "load": [{"arrivals": arrivals}, {"arrivals": arrivals, "grows_with_fleet": False}]}
    )
    grown, kept = for_replicas(stated, 6).load
    assert getattr(grown.arrivals, field) == value
    assert kept == stated.load[1]
    assert for_replicas(stated, 2) is stated


def test_a_remedy_that_adds_replicas_adds_them_in_proportion_and_brings_no_load_with_it() -> None:
    stated = load_scenario("overload")
    assert stated.expect.remedy is not None
    four = for_replicas(stated, 4)
    assert four.expect.remedy is not None
    assert (stated.expect.remedy.replicas, four.expect.remedy.replicas) == (5, 10)
    assert with_remedy(four).load == four.load
    assert with_remedy(four).fleet.replicas == 10


def test_a_scenario_about_a_replica_that_would_not_exist_is_refused() -> None:
    with pytest.raises(ScenarioError, match="replica_down is about replica 2: give it at least 3 replicas"):
        run("replica_down", 1, replicas=2)
    with pytest.raises(ScenarioError, match="stale_gauges is about replica 1"):
        run("stale_gauges", 1, replicas=1)


def test_repeated_truths_are_listed_one_by_one() -> None:
    truth = load_scenario("demo").truth[0].model_dump()
    parts = {"what": "x", "expect": {"outcome": "fires", "cause": "seat_limited"}, "truth": [truth]}
    simulated = run(parse_scenario("again", parts), 700, 1, 1, 60.0, EPOCH_MS)
    assert list(simulated)
    starts = [(incident["from_ms"] - EPOCH_MS) / 1000 for incident in simulated.ground_truth["incidents"]]
    assert starts == [60, 540]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("what = 3", "what"),
        ("what = 'x'", "expect"),
        ("what = 'x'\nnonsense = 1\n[expect]\noutcome = 'fires'\ncause = 'healthy'", "nonsense"),
        ("what = 'x'\n[expect]\noutcome = 'fires'\ncause = 'bad luck'", r"expect\.cause"),
        (
            "what = 'x'\n[expect]\noutcome='fires'\ncause='healthy'\n[[load]]\narrivals={rate=-1}",
            r"load\.0\.arrivals\.rate",
        ),
        (
            "what = 'x'\n[expect]\noutcome='fires'\ncause='healthy'\n[[fault]]\nkind='halt'\nstart_seconds=1\nreplicas=[9]",
            "no replica 9",
        ),
        ("what = 'x'\n[expect]\noutcome='fires'\ncause='healthy'\n[fleet]\nprofile='ghost'", "no profile"),
        (
            "what = 'x'\n[expect]\noutcome='fires'\ncause='healthy'\n[fleet.engine]\nmax_num_batched_tokens=8",
            "at least max_num_seqs",
        ),
        (
            "what = 'x'\n[expect]\noutcome='fires'\ncause='healthy'\n[fleet.engine]\nmax_num_sequences=8",
            "max_num_sequences",
        ),
        ("what = ", "scenario"),
    ],
)
def test_a_mistake_in_a_scenario_is_named_with_its_place(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ScenarioError, match=complaint):
        run(str(path), 1)


def test_unknown_scenarios_are_answered_with_the_known_ones() -> None:
    with pytest.raises(ScenarioError, match="Choose one of: .*demo"):
        load_scenario("ghost")
    with pytest.raises(ScenarioError, match="ghost.toml"):
        load_scenario("ghost.toml")


@pytest.mark.parametrize("kind", sorted(SAYS))
def test_a_fault_that_is_only_named_changes_what_is_seen(kind: str) -> None:
    """Every button of the Simulator page does something within a minute."""
    fleet = {"replicas": 1, "ranks": 2}
    load = {"arrivals": {"rate": 12}, "shared_prefix": {"families": 30, "tokens": 400}}
    parts = {"what": "x", "expect": {"outcome": "fires", "cause": "healthy"}, "fleet": fleet, "load": [load]}
    fault = {"kind": kind, "start_seconds": 30, "replicas": [0]}
    seen = []
    for faults in ([], [fault]):
        scrapes = list(run(parse_scenario("one", {**parts, "fault": faults}), 60, 1, None, 2.0, EPOCH_MS))
        seen.append([(len(scrape.values), scrape.values.tobytes()) for scrape in scrapes])
    quiet, broken = seen
    assert quiet[:14] == broken[:14]
    assert quiet[16:] != broken[16:]
