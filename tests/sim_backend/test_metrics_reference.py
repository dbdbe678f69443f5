"""Our page against one that prometheus_client's own metric classes make from the table of facts, for random inputs of the recorded kinds."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from tests.shared_data import shared, shared_files
from tests.sim_backend.test_golden_metrics import (
    iteration_stats,
    play_lifecycle,
    replica,
    scheduler_stats,
    text_of,
    without_help,
)

CASES = shared_files("golden", "metrics", pattern="*.json")
REASONS = ("stop", "length", "abort")
OF_FINISHED = {
    "vllm:e2e_request_latency_seconds": "e2e_latency",
    "vllm:request_queue_time_seconds": "queued_time",
    "vllm:request_prefill_time_seconds": "prefill_time",
    "vllm:request_inference_time_seconds": "inference_time",
    "vllm:request_decode_time_seconds": "decode_time",
    "vllm:request_prompt_tokens": "num_prompt_tokens",
    "vllm:request_generation_tokens": "num_generation_tokens",
    "vllm:request_time_per_output_token_seconds": "mean_time_per_output_token",
}
CLASSES = {"gauge": Gauge, "counter": Counter, "histogram": Histogram}


class Reference:
    """Metric objects of prometheus_client, one observation at a time."""

    def __init__(self, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("time.time", lambda: 1.7e9)
        self.registry = CollectorRegistry()
        self.metrics: dict[str, Any] = {}
        self.model = config["model_name"]
        with shared("facts", "vllm-0.11.0-metrics.csv").open(newline="") as lines:
            rows = [row for row in csv.DictReader(lines) if row["name"].startswith("vllm:")]
        for row in rows:
            name = row["name"]
            if row["status"] in ("hidden", "removed") or row["note"].startswith("Only with"):
                continue
            if name == "vllm:cache_config_info":
                continue  # made last, by log_engine_initialized
            labels = row["labels"].split(";")
            edges = [float(edge) for edge in row["buckets"].split(";") if edge]
            if "max_model_len" in row["note"] and edges:
                edges = [edge for edge in edges if edge <= config["max_model_len"]]
            more = {"buckets": edges} if edges else {}
            self.metrics[name] = CLASSES[row["type"]](name, "help", labels, registry=self.registry, **more)
            values = [(reason,) for reason in REASONS] if "finished_reason" in labels else [()]
            for rest in values:
                for engine in config["engines"]:
                    self.metrics[name].labels(self.model, str(engine), *rest)
        info = replica(config).families[-1]
        cache = Gauge(
            "vllm:cache_config_info", "help", [name for name, _ in info.samples[0][1]], registry=self.registry
        )
        for _, labels in info.samples:
            cache.labels(**dict(labels)).set(1)

    def of(self, name: str, engine: int, *rest: str) -> Any:
        return self.metrics[name].labels(self.model, str(engine), *rest)

    def record(self, engine: int, scheduler: dict[str, Any] | None, iteration: dict[str, Any] | None) -> None:
        if scheduler is not None:
            self.of("vllm:num_requests_running", engine).set(scheduler["num_running_reqs"])
            self.of("vllm:num_requests_waiting", engine).set(scheduler["num_waiting_reqs"])
            self.of("vllm:kv_cache_usage_perc", engine).set(scheduler["kv_cache_usage"])
            self.of("vllm:prefix_cache_queries_total", engine).inc(scheduler["prefix_cache_stats"]["queries"])
            self.of("vllm:prefix_cache_hits_total", engine).inc(scheduler["prefix_cache_stats"]["hits"])
        if iteration is None:
            return
        self.of("vllm:num_preemptions_total", engine).inc(iteration["num_preempted_reqs"])
        self.of("vllm:prompt_tokens_total", engine).inc(iteration["num_prompt_tokens"])
        self.of("vllm:generation_tokens_total", engine).inc(iteration["num_generation_tokens"])
        together = iteration["num_prompt_tokens"] + iteration["num_generation_tokens"]
        self.of("vllm:iteration_tokens_total", engine).observe(together)
        for tokens in iteration["max_num_generation_tokens_iter"]:
            self.of("vllm:request_max_num_generation_tokens", engine).observe(tokens)
        for n in iteration["n_params_iter"]:
            self.of("vllm:request_params_n", engine).observe(n)
        for seconds in iteration["time_to_first_tokens_iter"]:
            self.of("vllm:time_to_first_token_seconds", engine).observe(seconds)
        for seconds in iteration["inter_token_latencies_iter"]:
            self.of("vllm:inter_token_latency_seconds", engine).observe(seconds)
            self.of("vllm:time_per_output_token_seconds", engine).observe(seconds)
        for finished in iteration["finished_requests"]:
            self.of("vllm:request_success_total", engine, finished["finish_reason"]).inc()
            for name, field in OF_FINISHED.items():
                self.of(name, engine).observe(finished[field])
            if finished["max_tokens_param"]:
                self.of("vllm:request_params_max_tokens", engine).observe(finished["max_tokens_param"])

    def text(self) -> list[str]:
        return without_help(generate_latest(self.registry).decode())


def config(random: Random) -> dict[str, Any]:
    return {
        "model_name": random.choice(["demo-model", 'a "quoted"\\path\nname', "org/Modèle"]),
        "max_model_len": random.choice([1, 7, 100, 2048, 4999, 8192, 131072, 1_000_000]),
        "engines": random.choice([[0], [0, 1], [0, 1, 2, 3], [1, 10]]),
        "num_gpu_blocks": random.choice([2, 256, 27985]),
        "block_size": random.choice([8, 16, 32]),
        "enable_prefix_caching": random.random() < 0.7,
        "gpu_memory_utilization": random.choice([0.9, 0.95, 1.0]),
    }


def seconds(random: Random) -> float:
    edge = random.choice([0.001, 0.01, 0.025, 0.05, 0.3, 0.5, 0.8, 2.5, 80.0, 2560.0, 7680.0])
    return random.choice(
        [0.0, edge, edge * (1 + 1e-12), edge * (1 - 1e-12), random.expovariate(5), 1e5 * random.random()]
    )


def record(random: Random, engine: int) -> dict[str, Any]:
    def some(kind: Any, most: int = 6) -> list[Any]:
        return [kind() for _ in range(random.randint(0, most))]

    def tokens() -> int:
        return random.choice([0, 1, 2, 5, 10, 100, 2048, 8192, random.randint(1, 200_000)])

    gap = seconds(random)
    scheduler = {
        "num_running_reqs": random.randint(0, 300),
        "num_waiting_reqs": random.randint(0, 5000),
        "kv_cache_usage": 1.0 - random.randint(0, 255) / 255,
        "prefix_cache_stats": {"requests": random.randint(0, 9), "queries": tokens(), "hits": tokens()},
    }
    iteration = {
        "num_prompt_tokens": tokens(),
        "num_generation_tokens": tokens(),
        "num_preempted_reqs": random.randint(0, 3),
        "time_to_first_tokens_iter": some(lambda: seconds(random)),
        "inter_token_latencies_iter": some(lambda: random.choice([gap, gap, gap, seconds(random)]), 40),
        "finished_requests": some(
            lambda: {
                "finish_reason": random.choice(REASONS),
                "max_tokens_param": random.choice([None, 0, 1, tokens()]),
                **{field: tokens() if "num_" in field else seconds(random) for field in OF_FINISHED.values()},
            }
        ),
        "max_num_generation_tokens_iter": some(tokens),
        "n_params_iter": some(lambda: random.randint(1, 25)),
    }
    return {
        "engine": engine,
        "scheduler_stats": None if random.random() < 0.2 else scheduler,
        "iteration_stats": None if random.random() < 0.2 else iteration,
    }


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_the_reference_says_what_the_real_logger_said(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = json.loads(path.read_text())
    reference = Reference(case["config"], monkeypatch)
    assert reference.text() == without_help(path.with_suffix(".initial.prom").read_text())
    if case["kind"] == "records":
        for each in case["records"]:
            reference.record(each["engine"], each["scheduler_stats"], each["iteration_stats"])
    else:
        for message, derived in zip(case["iterations"], case["derived_iteration_stats"], strict=True):
            reference.record(message["engine"], message["scheduler_stats"], derived)
    assert reference.text() == without_help(path.with_suffix(".final.prom").read_text())


@pytest.mark.parametrize("seed", range(24))
def test_random_records_give_the_same_page(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several engines, lengths of context, odd names, values on bucket edges and beside them, every finish reason, parts left out."""
    random = Random(seed)
    chosen = config(random)
    reference, ours = Reference(chosen, monkeypatch), replica(chosen)
    assert without_help(text_of(ours)) == reference.text()
    for _ in range(random.randint(0, 60)):
        each = record(random, random.choice(chosen["engines"]))
        reference.record(each["engine"], each["scheduler_stats"], each["iteration_stats"])
        ours.engines[each["engine"]].record(
            scheduler_stats(each["scheduler_stats"]), iteration_stats(each["iteration_stats"])
        )
    assert without_help(text_of(ours)) == reference.text()


def lifecycle(random: Random) -> dict[str, Any]:
    """Requests of several engines, their outputs with preemptions, stops, several tokens at once, and clients that go away."""
    chosen = config(random)
    requests, iterations = [], []
    waiting = {engine: [] for engine in chosen["engines"]}
    for number in range(random.randint(1, 14)):
        engine = random.choice(chosen["engines"])
        request = {
            "id": f"r{number}",
            "engine": engine,
            "prompt_len": random.randint(1, 900),
            "max_tokens": random.choice([None, 1, 30]),
            "arrival_time": 1000 + random.random(),
        }
        requests.append(request)
        waiting[engine].append({"id": request["id"], "left": random.randint(1, 12), "begun": False})
    clocks = {engine: 50.0 + 40 * engine for engine in chosen["engines"]}
    wall = 1002.0
    while any(waiting.values()):
        engine = random.choice([engine for engine, live in waiting.items() if live])
        wall += random.choice([0.025, random.random() / 8])
        clocks[engine] += random.choice([0.025, random.random() / 8])
        outputs = []
        for live in [each for each in waiting[engine] if random.random() < 0.8]:
            events = [["PREEMPTED", clocks[engine] - 0.02], ["SCHEDULED", clocks[engine] - 0.01]]
            events = events if live["begun"] and random.random() < 0.1 else []
            if not live["begun"]:
                events = [["QUEUED", clocks[engine] - 0.3], ["SCHEDULED", clocks[engine] - random.random() / 4]]
            live["begun"] = True
            live["left"] -= 1
            reason = None if live["left"] else random.choice(REASONS)
            tokens = random.choice([1, 1, 1, 3])
            outputs.append(
                {"request_id": live["id"], "num_new_tokens": tokens, "events": events, "finish_reason": reason}
            )
        gone = [live["id"] for live in waiting[engine] if random.random() < 0.03]
        waiting[engine] = [live for live in waiting[engine] if live["left"] and live["id"] not in gone]
        message = {
            "engine": engine,
            "iteration_timestamp": wall,
            "engine_core_timestamp": clocks[engine],
            "scheduler_stats": record(random, engine)["scheduler_stats"],
            "outputs": outputs,
        }
        iterations.append({**message, "client_aborts": gone} if gone else message)
    return {"config": chosen, "requests": requests, "iterations": iterations}


def derived(case: dict[str, Any]) -> list[dict[str, Any] | None]:
    """The statistics of every message as the rules I3 to I15 read, one clause at a time."""
    books = {request["id"]: {**request, "outputs": [], "stamps": {}} for request in case["requests"]}
    told: list[dict[str, Any] | None] = []
    for message in case["iterations"]:
        for name in message.get("client_aborts", ()):
            books.pop(name, None)
        if not message["outputs"]:
            told.append(None)
            continue
        seen: dict[str, Any] = {
            name: 0 for name in ("num_prompt_tokens", "num_generation_tokens", "num_preempted_reqs")
        }
        seen |= {"time_to_first_tokens_iter": [], "inter_token_latencies_iter": [], "finished_requests": []}
        seen |= {"max_num_generation_tokens_iter": [], "n_params_iter": []}
        wall, engine = message["iteration_timestamp"], message["engine_core_timestamp"]
        for output in message["outputs"]:
            book = books.get(output["request_id"])
            if book is None:
                continue
            if not book["outputs"]:
                seen["num_prompt_tokens"] += book["prompt_len"]
                seen["time_to_first_tokens_iter"].append(wall - book["arrival_time"])
            else:
                seen["inter_token_latencies_iter"].append(engine - book["outputs"][-1][0])
            seen["num_generation_tokens"] += output["num_new_tokens"]
            for kind, stamp in output["events"]:
                seen["num_preempted_reqs"] += kind == "PREEMPTED"
                book["stamps"].setdefault(kind, stamp)
            book["outputs"].append((engine, output["num_new_tokens"]))
            if output["finish_reason"] is None:
                continue
            stamps, first, last = book["stamps"], book["outputs"][0][0], book["outputs"][-1][0]
            tokens = sum(count for _, count in book["outputs"])
            seen["finished_requests"].append(
                {
                    "finish_reason": output["finish_reason"],
                    "e2e_latency": wall - book["arrival_time"],
                    "num_prompt_tokens": book["prompt_len"],
                    "num_generation_tokens": tokens,
                    "max_tokens_param": book["max_tokens"],
                    "queued_time": stamps["SCHEDULED"] - stamps["QUEUED"],
                    "prefill_time": first - stamps["SCHEDULED"],
                    "inference_time": last - stamps["SCHEDULED"],
                    "decode_time": last - first,
                    "mean_time_per_output_token": (last - first) / (tokens - 1) if tokens > 1 else 0,
                }
            )
            seen["max_num_generation_tokens_iter"].append(tokens)
            seen["n_params_iter"].append(1)
            del books[output["request_id"]]
        told.append(seen)
    return told


@pytest.mark.parametrize("seed", range(24))
def test_random_lifecycles_give_the_same_statistics_and_the_same_page(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = lifecycle(Random(seed))
    reference, ours = Reference(case["config"], monkeypatch), replica(case["config"])
    wanted = derived(case)
    assert play_lifecycle(case, ours) == wanted
    for message, stats in zip(case["iterations"], wanted, strict=True):
        reference.record(message["engine"], message["scheduler_stats"], stats)
    assert without_help(text_of(ours)) == reference.text()
