"""The scheduler against a deliberately naive one that shares nothing with it, over random workloads; and the naive one against the real traces."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sim_backend.golden import Replay, compare, read_trace
from sim_backend.kv.identity import ExtraKeys, TokenChain
from sim_backend.request import Request
from sim_backend.trace import TraceRequest, parse_trace
from tests.shared_data import shared_files
from tests.sim_backend.naive_scheduler import NaiveScheduler
from tests.sim_backend.random_traces import random_trace

TRACES = shared_files("golden", "scheduler", pattern="*.json*")
WORKLOADS = int(os.environ.get("PAGEWATCH_WORKLOADS", "1000"))
"""How many random workloads. After a change to the scheduler, run more of them by hand."""
PARTS = 8


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name.split(".")[0])
def test_the_naive_scheduler_decides_as_the_real_one(path: Path) -> None:
    trace = read_trace(path)
    naive = NaiveScheduler(trace["config"])
    for expected in trace["steps"]:
        number = expected["step"]
        arrivals = [request for request in trace["requests"] if request["arrival_step"] == number]
        aborts = [request["id"] for request in trace["requests"] if request["abort_at_step"] == number]
        got = naive.step(number, arrivals, aborts)
        assert {name: got.get(name) for name in expected} == expected
        assert list(got["scheduled"]) == list(expected["scheduled"])


@pytest.mark.parametrize("part", range(PARTS))
def test_random_workloads_are_decided_as_the_rules_read(part: int) -> None:
    """Policies, chunking, thresholds, salts, next turns, aborts in every state, pools that are too small, blocks from one slot on."""
    for seed in range(part, WORKLOADS, PARTS):
        divergence = compare(random_trace(seed))
        assert divergence is None, f"workload {seed}: {divergence}"


class WithAdapters(Replay):
    """A replay whose requests have LoRA adapters, grammars to wait for and prompt log-probabilities."""

    def __init__(self, trace: dict[str, Any]) -> None:
        super().__init__(parse_trace(trace).config)
        self.more = {spec["id"]: spec for spec in trace["requests"]}

    def request(self, spec: TraceRequest) -> Request:
        plain, more = super().request(spec), self.more[spec.id]
        chain = plain.chain
        assert isinstance(chain, TokenChain)
        extra = ExtraKeys(lora_id=more["lora_id"], cache_salt=spec.cache_salt)
        return Request(
            plain.id,
            prompt_len=plain.prompt_len,
            finish=plain.finish,
            chain=TokenChain(chain.tokens(plain.prompt_len), chain._output, self.config.block_size, extra),
            arrival_time=plain.arrival_time,
            priority=plain.priority,
            lora_id=more["lora_id"],
            needs_grammar=more["grammar_step"] > spec.arrival_step,
            skip_prefix_lookup=more["prompt_logprobs"],
        )


@pytest.mark.parametrize("part", range(PARTS))
def test_adapters_grammars_and_prompt_logprobs_are_decided_as_the_rules_read(part: int) -> None:
    for seed in range(part, WORKLOADS // 2, PARTS):
        trace = random_trace(seed, adapters=True)
        replay, parsed = WithAdapters(trace), parse_trace(trace)
        for expected in trace["steps"]:
            number = expected["step"]
            for request in trace["requests"]:
                if request["grammar_step"] == number and request["id"] in replay.scheduler.requests:
                    replay.scheduler.requests[request["id"]].grammar_ready()
            arrivals = [request for request in parsed.requests if request.arrival_step == number]
            aborts = [request.id for request in parsed.requests if request.abort_at_step == number]
            got = replay.step(number, arrivals, aborts, with_ids=True)
            assert (seed, got) == (seed, expected)
            assert (seed, list(got["scheduled"])) == (seed, list(expected["scheduled"]))
            replay.scheduler.check()


def test_the_random_workloads_reach_what_they_are_for() -> None:
    """A generator that never preempts, hits or fills a block proves nothing."""
    seen: Counter[str] = Counter()
    for seed in range(200):
        trace = random_trace(seed)
        policy, chunked = trace["config"]["policy"], trace["config"]["enable_chunked_prefill"]
        states: dict[str, str] = {}
        for step in trace["steps"]:
            for name in step.get("aborted", ()):
                seen[f"aborted while {states.get(name, 'new')}"] += 1
            seen[f"preempted {policy}"] += len(step["preempted"])
            seen[f"preempted chunked {chunked}"] += len(step["preempted"])
            seen["two preempted in a step"] += len(step["preempted"]) > 1
            seen["victim stays scheduled"] += any(name in step["scheduled"] for name in step["preempted"])
            seen["resumed on a hit"] += any(step["num_cached_tokens"][name] for name in step["resumed"])
            seen["hit"] += any(step["num_cached_tokens"][name] for name in step["new"])
            seen["budget full"] += step["total_scheduled_tokens"] == trace["config"]["max_num_batched_tokens"]
            seen["pool full"] += step["free_blocks_after_schedule"] == 0
            seen["nothing fits"] += "idle" in step and bool(step["waiting"])
            states |= dict.fromkeys(step["running"], "running") | dict.fromkeys(step["preempted"], "preempted")
            states |= {name: "waiting" for name in step["waiting"] if name not in states}
    wanted = {
        *("aborted while new", "aborted while running", "aborted while waiting", "aborted while preempted"),
        *("preempted fcfs", "preempted priority", "preempted chunked True", "preempted chunked False"),
        *("two preempted in a step", "victim stays scheduled", "resumed on a hit", "hit"),
        *("budget full", "pool full", "nothing fits"),
    }
    assert {name for name in wanted if seen[name] < 5} == set()
