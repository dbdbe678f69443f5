"""Our exposition says what the real logger said for the same inputs: names, labels, order, values; help texts aside."""

import json
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from sim_backend.cost import load_profile
from sim_backend.exposition import Page, PageSource, registry_of
from sim_backend.frontend import RequestClock
from sim_backend.metrics import CacheConfig, FinishedRequest, IterationStats, ReplicaMetrics
from sim_backend.replica import Replica
from sim_backend.scheduler import PrefixStats, SchedulerStats
from sim_backend.workload import Call
from tests.shared_data import shared, shared_files

CASES = shared_files("golden", "metrics", pattern="*.json")


class Shown(PageSource):
    def __init__(self, metrics: ReplicaMetrics) -> None:
        self.metrics = metrics

    def pages(self) -> list[Page]:
        return [self.metrics.page()]


def text_of(metrics: ReplicaMetrics) -> str:
    return generate_latest(registry_of(Shown(metrics))).decode()


def without_help(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("# HELP")]


def replica(config: dict[str, Any]) -> ReplicaMetrics:
    cache = CacheConfig(
        config["num_gpu_blocks"],
        config["block_size"],
        config["enable_prefix_caching"],
        config["gpu_memory_utilization"],
        others={"num_cpu_blocks": "0"},
    )
    return ReplicaMetrics(config["model_name"], config["max_model_len"], config["engines"], cache, 1.7e9)


def scheduler_stats(given: dict[str, Any] | None) -> SchedulerStats | None:
    if given is None:
        return None
    return SchedulerStats(
        given["num_running_reqs"],
        given["num_waiting_reqs"],
        given["kv_cache_usage"],
        PrefixStats(**given["prefix_cache_stats"]),
    )


def iteration_stats(given: dict[str, Any] | None) -> IterationStats | None:
    if given is None:
        return None
    return IterationStats(
        given["num_prompt_tokens"],
        given["num_generation_tokens"],
        given["num_preempted_reqs"],
        given["time_to_first_tokens_iter"],
        [(value, 1) for value in given["inter_token_latencies_iter"]],
        [FinishedRequest(**finished) for finished in given["finished_requests"]],
        given["max_num_generation_tokens_iter"],
        given["n_params_iter"],
    )


def derived(stats: IterationStats | None) -> dict[str, Any] | None:
    if stats is None:
        return None
    names = FinishedRequest.__dataclass_fields__
    return {
        "num_prompt_tokens": stats.num_prompt_tokens,
        "num_generation_tokens": stats.num_generation_tokens,
        "num_preempted_reqs": stats.num_preempted,
        "time_to_first_tokens_iter": stats.times_to_first_token,
        "inter_token_latencies_iter": [value for value, count in stats.inter_token_latencies for _ in range(count)],
        "finished_requests": [{name: getattr(done, name) for name in names} for done in stats.finished],
        "max_num_generation_tokens_iter": stats.max_num_generation_tokens,
        "n_params_iter": stats.n_params,
    }


def play_lifecycle(case: dict[str, Any], metrics: ReplicaMetrics) -> list[dict[str, Any] | None]:
    clocks = {
        request["id"]: RequestClock(request["arrival_time"], request["prompt_len"], request["max_tokens"])
        for request in case["requests"]
    }
    seen = []
    for message in case["iterations"]:
        for request_id in message.get("client_aborts", ()):
            clocks.pop(request_id, None)
        stats = IterationStats() if message["outputs"] else None
        for output in message["outputs"]:
            clock = clocks.get(output["request_id"])
            if clock is None or stats is None:
                continue
            wall = message["iteration_timestamp"]
            events = [(kind, stamped) for kind, stamped in output["events"]]
            clock.output(stats, output["num_new_tokens"], events, message["engine_core_timestamp"], wall)
            if output["finish_reason"] is not None:
                clock.finish(stats, output["finish_reason"], wall)
                del clocks[output["request_id"]]
        metrics.engines[message["engine"]].record(scheduler_stats(message["scheduler_stats"]), stats)
        seen.append(derived(stats))
    return seen


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_the_exposition_is_the_real_one(path: Path) -> None:
    case = json.loads(path.read_text())
    metrics = replica(case["config"])
    assert without_help(text_of(metrics)) == without_help(path.with_suffix(".initial.prom").read_text())
    if case["kind"] == "records":
        for record in case["records"]:
            metrics.engines[record["engine"]].record(
                scheduler_stats(record["scheduler_stats"]), iteration_stats(record["iteration_stats"])
            )
    else:
        assert play_lifecycle(case, metrics) == case["derived_iteration_stats"]
    assert without_help(text_of(metrics)) == without_help(path.with_suffix(".final.prom").read_text())


def test_there_are_cases() -> None:
    assert len(CASES) >= 1


def surface_of(text: str) -> tuple[list[str], dict[str, set[tuple[str, ...]]], dict[str, list[str]]]:
    """(TYPE lines in order, label names of each sample name, `le` edges of each histogram in order)."""
    types = [line for line in text.splitlines() if line.startswith("# TYPE")]
    labels: dict[str, set[tuple[str, ...]]] = {}
    edges: dict[str, list[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).add(tuple(sorted(sample.labels)))
            if sample.name.endswith("_bucket") and sample.labels.get("method", "POST") == "POST":
                known = edges.setdefault(sample.name, [])
                if sample.labels["le"] not in known:
                    known.append(sample.labels["le"])
    return types, labels, edges


@pytest.mark.parametrize("name", ["vllm-0.11.0-idle-fresh.txt", "vllm-0.11.0-loaded.txt"])
def test_a_replica_shows_the_surface_of_a_real_server(name: str) -> None:
    """Families, types, order, label names and bucket edges of the whole page, process and HTTP families included."""
    real = shared("expositions", name).read_text()
    ours = Replica(
        "test:8000", load_profile("tiny-llama-cpu"), {"max_model_len": 2048, "max_num_seqs": 16}, epoch_seconds=1.79e9
    )
    if "loaded" in name:
        for number, endpoint in enumerate(("/v1/completions", "/v1/chat/completions")):
            ours.submit(Call(str(number), 0.0, ((number, 20),), 3, 3, -number - 1, endpoint=endpoint), 0.0)
        ours.advance(5.0)
    else:
        ours.http.record(0.0, "/v1/models", "2xx", 0.001, method="GET")
    text = generate_latest(registry_of(ours)).decode()
    wanted, shown = surface_of(real), surface_of(text)
    assert shown[0] == wanted[0]
    assert shown[1] == wanted[1]
    assert shown[2] == wanted[2]
