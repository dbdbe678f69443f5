"""One engine on a clock: gliding equals stepping to the last byte, and the metrics move when the real ones do."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from sim_backend.cluster import Cluster
from sim_backend.replica import Replica
from sim_backend.run import run
from sim_backend.scenario import Scenario, parse_scenario, scenario_names
from sim_backend.workload import Call
from tests.sim_backend.hurry import hurried

BASE = {"what": "a test", "expect": {"outcome": "silent", "cause": "healthy"}}


def scenario(**parts: object) -> Scenario:
    return parse_scenario("test", {**BASE, **parts})


def digest(chosen: Scenario | str, seconds: float, *, glide: bool, seed: int = 1) -> tuple[str, int, list[object]]:
    """(hash over every sample of every scrape, engine steps, what the pools look like at the end)."""
    simulated = run(chosen, seconds, seed, None, 2.0, 1_790_000_000_000, glide=glide)
    seen = hashlib.sha256()
    for scrape in simulated:
        seen.update(f"{scrape.t_ms} {scrape.instance} {len(scrape.layout.names)}".encode())
        seen.update(scrape.values.tobytes())
    engines = [engine for replica in simulated.cluster.replicas for engine in replica.engines]
    state: list[object] = [
        (engine.scheduler.pool.free_order(), list(engine.scheduler.pool.cached.items()), engine.clock)
        for engine in engines
    ]
    for engine in engines:
        engine.scheduler.check()
    return seen.hexdigest(), simulated.engine_steps, state


LOADS: dict[str, dict[str, object]] = {
    "light": {"arrivals": {"rate": 3}},
    "busy": {"arrivals": {"rate": 40}, "shared_prefix": {"families": 2, "tokens": 100}},
    "long": {"arrivals": {"rate": 4}, "prompt": {"mean": 3000}, "output": {"kind": "uniform", "low": 1, "high": 400}},
    "aborts": {"arrivals": {"rate": 20}, "aborts": {"ratio": 0.5, "mean_seconds": 0.7}},
    "chats": {"arrivals": {"rate": 2}, "chat": {"turns": 4, "think_seconds": 0.5}, "tenants": 2},
    "closed": {"arrivals": {"kind": "closed", "clients": 30, "think_seconds": 0.2}, "n": 2},
    "ranked": {"arrivals": {"rate": 25}, "priorities": [0, 1, 2], "prompt": {"kind": "lognormal", "mean": 400}},
    "burst": {"arrivals": {"kind": "burst", "count": 120}, "output": {"kind": "lognormal", "mean": 90}},
}
ENGINES: dict[str, dict[str, object]] = {
    "roomy": {},
    "few seats": {"max_num_seqs": 6},
    "few blocks": {"num_gpu_blocks_override": 260, "max_num_seqs": 64},
    "priority": {"policy": "priority", "num_gpu_blocks_override": 320, "max_num_seqs": 48},
    "wide blocks": {"block_size": 32, "long_prefill_token_threshold": 96, "max_num_batched_tokens": 320},
    "unchunked": {"enable_chunked_prefill": False, "max_num_batched_tokens": 4096, "max_model_len": 4096},
    "no cache": {"enable_prefix_caching": False, "num_gpu_blocks_override": 400, "max_num_batched_tokens": 512},
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("load", LOADS)
def test_gliding_gives_the_same_bytes_as_stepping(load: str, engine: str) -> None:
    chosen = scenario(fleet={"replicas": 1, "engine": ENGINES[engine]}, load=[LOADS[load]])
    glided, stepped = (digest(chosen, 15, glide=glide) for glide in (True, False))
    assert glided == stepped
    assert stepped[1] > 50


@pytest.mark.parametrize("name", scenario_names())
def test_every_bundled_scenario_glides_to_the_same_bytes(name: str) -> None:
    """Through its incident: faults, restarts and hang-ups meet steps in flight."""
    chosen = hurried(name, 288)
    assert digest(chosen, 34, glide=True) == digest(chosen, 34, glide=False)


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others() -> None:
    chosen = scenario(load=[LOADS["chats"]])
    assert digest(chosen, 20, glide=True) == digest(chosen, 20, glide=True)
    assert digest(chosen, 20, glide=True)[0] != digest(chosen, 20, glide=True, seed=2)[0]


def replica(answered: Callable[[Call, float], None] | None = None, **engine: object) -> Replica:
    from sim_backend.cost import load_profile

    return Replica("test:8000", load_profile("llama-3.1-8b-h100"), engine, answered=answered)


def call(name: str, prompt: int = 100, output: int = 10, **more: object) -> Call:
    number = hash(name) & 0xFFFF
    fields: dict[str, object] = {"at": 0.0, "output_len": output, "max_tokens": output, "output_seed": -number}
    return Call(id=name, prompt=((number, prompt),), **{**fields, **more})  # type: ignore[arg-type]


def test_counts_agree_with_each_other_once_all_is_over() -> None:
    target = replica(max_num_seqs=4)
    for number in range(9):
        target.submit(call(f"c{number}", output=number + 1), 0.1 * number)
    target.advance(60.0)
    metrics = target.metrics.engines[0]
    assert metrics.success == {"stop": 0, "length": 9, "abort": 0}
    assert metrics.time_to_first_token.count == 9
    assert metrics.generation_tokens == 45
    assert metrics.inter_token_latency.count == 36
    assert metrics.prompt_tokens == 900
    phases = (metrics.request_queue_time, metrics.request_prefill_time, metrics.request_decode_time)
    inference = metrics.request_queue_time.sum + metrics.request_inference_time.sum
    assert sum(phase.sum for phase in phases) == pytest.approx(inference)
    assert metrics.e2e_request_latency.sum > inference
    assert (metrics.num_running, metrics.num_waiting, metrics.kv_cache_usage_ratio) == (0, 0, 0)


def test_a_hang_up_leaves_its_tokens_counted_and_no_finish() -> None:
    told: list[str] = []
    target = replica(lambda over, at: told.append(over.id))
    target.submit(call("a", output=500), 0.0)
    target.advance(1.0)
    assert target.hang_up("a", 1.0)
    assert not target.hang_up("a", 1.0)
    target.advance(2.0)
    metrics = target.metrics.engines[0]
    assert metrics.generation_tokens > 10
    assert metrics.success == {"stop": 0, "length": 0, "abort": 0}
    assert (metrics.num_running, metrics.kv_cache_usage_ratio) == (0, 0)
    assert told == ["a"]


def test_what_is_refused_reaches_no_vllm_metric_and_a_bad_key_no_metric_at_all() -> None:
    target = replica()
    before = list(target.pages()[1].values)
    target.submit(call("a", kind="bad_key"), 0.0)
    target.submit(call("b", kind="oversized"), 0.0)
    target.submit(call("c", prompt=20_000), 0.0)
    target.advance(1.0)
    assert list(target.pages()[1].values) == before
    rows = {(name, labels): value for name, labels, value in target.pages()[2].rows() if name == "http_requests_total"}
    assert list(rows.values()) == [2.0]
    assert dict(next(iter(rows))[1])["status"] == "4xx"


def test_a_preemption_shows_with_the_victims_next_token() -> None:
    target = replica(num_gpu_blocks_override=20, max_num_seqs=4, enable_prefix_caching=False)
    target.submit(call("a", prompt=150, output=80), 0.0)
    target.submit(call("b", prompt=140, output=80), 0.0)
    engine, metrics = target.engines[0], target.metrics.engines[0]
    seen: list[tuple[int, int]] = []
    for tick in range(2000):
        target.advance(tick * 0.005)
        preempted = sum(1 for r in engine.scheduler.requests.values() if ("PREEMPTED" in [e for e, _ in r.events]))
        seen.append((preempted, metrics.preemptions))
    assert (1, 0) in seen
    assert seen[-1] == (0, metrics.preemptions)
    assert metrics.preemptions >= 1


def test_a_halt_freezes_everything_and_the_step_in_flight_lasts_longer() -> None:
    target = replica()
    target.submit(call("a", output=100), 0.0)
    target.advance(0.5)
    target.engines[0].halt(0.5)
    frozen = list(target.pages()[1].values)
    target.submit(call("b"), 0.6)
    target.advance(9.0)
    assert list(target.pages()[1].values) == frozen
    target.engines[0].resume(9.0)
    target.advance(20.0)
    metrics = target.metrics.engines[0]
    assert metrics.success["length"] == 2
    slow = metrics.inter_token_latency
    assert sum(slow.counts[slow.bounds.index(10.0) :]) == 1


def test_a_restart_begins_at_zero_with_a_new_start_time() -> None:
    target = replica()
    target.submit(call("a"), 0.0)
    target.advance(5.0)
    start = dict((name, value) for name, _, value in target.pages()[0].rows())["process_start_time_seconds"]
    target.crash(6.0)
    assert target.submit(call("b"), 6.5) is None
    target.boot(30.0)
    rows = dict((name, value) for name, _, value in target.pages()[0].rows())
    assert rows["process_start_time_seconds"] == start + 42.0
    assert target.metrics.engines[0].generation_tokens == 0
    target.submit(call("c"), 31.0)
    target.advance(40.0)
    assert target.metrics.engines[0].success["length"] == 1


def test_dead_engines_answer_500_and_the_server_exits() -> None:
    target = replica()
    target.submit(call("a", output=1000), 0.0)
    target.advance(1.0)
    target.kill_engine(1.0)
    target.submit(call("b"), 2.0)
    target.advance(3.0)
    statuses = {
        dict(labels)["status"]: value
        for name, labels, value in target.pages()[2].rows()
        if name == "http_requests_total"
    }
    assert statuses == {"5xx": 2.0}
    target.advance(7.0)
    assert target.state == "down"


def test_tenants_do_not_share_what_they_said() -> None:
    target = replica()
    for name, tenant in (("a", "x"), ("b", "y"), ("c", "x")):
        target.submit(
            call(name, prompt=320, tenant=tenant) if name != "c" else call("a", prompt=320, tenant=tenant),
            0.0 if name == "a" else 5.0,
        )
        target.advance(4.0 if name == "a" else 9.0)
    metrics = target.metrics.engines[0]
    assert metrics.prefix_hits == 304  # the same tenant's second time only, the last block recomputed
    assert target.salt_of("x") != target.salt_of("y") != ""


def test_n_sequences_count_one_by_one_but_for_two_histograms() -> None:
    target = replica()
    target.submit(call("a", n=3), 0.0)
    target.advance(10.0)
    metrics = target.metrics.engines[0]
    assert metrics.success["length"] == 3
    assert (metrics.request_params_n.count, metrics.request_params_n.sum) == (1, 3)
    assert metrics.request_max_num_generation_tokens.count == 1
    assert metrics.request_prompt_tokens.count == 3


def test_a_trace_replays_at_the_rate_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        "arrived_at_s,prompt_tokens,output_tokens\n" + "".join(f"{n * 7},{50 + n},{5 + n}\n" for n in range(11))
    )
    load = {"arrivals": {"kind": "trace", "file": str(path), "rescale_rate": 2.0, "limit": 10}}
    cluster = Cluster(scenario(fleet={"replicas": 1}, load=[load]))
    cluster.advance(4.4)
    assert cluster.calls == 9
    cluster.advance(60.0)
    metrics = cluster.replicas[0].metrics.engines[0]
    assert metrics.prompt_tokens == sum(50 + n for n in range(10))
    assert metrics.generation_tokens == sum(5 + n for n in range(10))


def test_ranks_have_pools_of_their_own_and_the_cache_info_shows_the_sum() -> None:
    from sim_backend.cost import load_profile

    target = Replica("test:8000", load_profile("llama-3.1-8b-h100"), {"num_gpu_blocks_override": 100}, ranks=3)
    for number in range(6):
        target.submit(call(f"c{number}", output=50), 0.01 * number)
        target.advance(0.01 * number + 0.005)
    assert [len(engine.scheduler.running) for engine in target.engines] == [2, 2, 2]
    rows = [(name, dict(labels)) for name, labels, _ in target.pages()[1].rows()]
    infos = [labels for name, labels in rows if name == "vllm:cache_config_info"]
    assert [(labels["engine"], labels["num_gpu_blocks"]) for labels in infos] == [
        ("0", "300"),
        ("1", "300"),
        ("2", "300"),
    ]
    assert {labels["engine"] for name, labels in rows if name == "vllm:num_requests_running"} == {"0", "1", "2"}
    pinned = call("p", rank=2, output=50)
    target.submit(pinned, 0.1)
    target.advance(0.2)
    assert len(target.engines[2].scheduler.running) == 3
