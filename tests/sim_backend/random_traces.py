"""Random workloads in the form of a recorded trace, their decisions taken by the naive scheduler."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.sim_backend.naive_scheduler import NaiveScheduler

GIVE_UP_AT = 160
"""Whoever is still alive at this step is aborted: a request that never fits would go on for ever."""


def config(random: Random) -> dict[str, Any]:
    size = random.choice([1, 2, 3, 4, 4, 8, 16])
    longest = random.choice([2, 3, 5, 9, 16]) * size + random.choice([0, 0, 1, -1])
    longest = max(longest, 3)
    per_request = -(-longest // size)
    blocks = 1 + max(1, per_request + random.choice([-1, 0, 0, 1, 2, per_request, 3 * per_request]))
    seats = random.choice([1, 2, 3, 5, 8])
    chunked = random.random() < 0.7
    budget = random.choice([seats, seats + 1, size, 2 * size + 1, longest // 2, longest, longest + seats, 3 * longest])
    return {
        "num_gpu_blocks": blocks,
        "usable_blocks": blocks - 1,
        "block_size": size,
        "max_num_seqs": seats,
        "max_num_batched_tokens": max(budget, seats, 1 if chunked else longest),
        "max_model_len": longest,
        "long_prefill_token_threshold": random.choice([0, 0, 0, 1, size, size + 1, 2 * size]),
        "policy": random.choice(["fcfs", "priority"]),
        "enable_prefix_caching": random.random() < 0.8,
        "enable_chunked_prefill": chunked,
    }


def requests(random: Random, config: dict[str, Any], *, adapters: bool) -> list[dict[str, Any]]:
    size, longest = config["block_size"], config["max_model_len"]
    count = random.choice([2, 4, 8, 16, 24])
    times = random.sample(range(1000), count)
    spread = random.choice([0, 3, 12, 40])
    steps = sorted(random.randint(0, spread) for _ in range(count))
    made: list[dict[str, Any]] = []
    for number in range(count):
        if random.random() < 0.5:
            length = random.randint(1, longest - 1)
        else:  # around what fills blocks, the budget or the window exactly
            edge = random.choice(
                [size, 2 * size, config["max_num_batched_tokens"], longest, random.randint(1, 9) * size]
            )
            length = min(max(edge + random.choice([-1, 0, 1]), 1), longest - 1)
        segments: list[list[int]] = []
        if made and random.random() < 0.25:  # a next turn: an earlier prompt, some of its answer, a new question
            earlier = random.choice(made)
            segments = [*earlier["prompt_segments"], [earlier["output_seed"], random.randint(1, 2 * size)]]
        elif random.random() < 0.6:
            segments = [[random.randrange(3), random.choice([length, size, 2 * size, 3 * size])]]
        segments.append([100 + number, length])
        made.append(
            {
                "id": f"r{number}",
                "arrival_step": steps[number],
                "arrival_time": float(times[number]),
                "priority": random.randrange(3),
                "prompt_segments": cut(segments, length),
                "prompt_len": length,
                "cache_salt": random.choice([None, None, None, "a", "b"]),
                "max_tokens": random.choice([1, 2, size, size + 1, random.randint(1, 3 * size), longest]),
                "output_seed": 9000 + random.choice([number, number, 0]),
                "stop_at_output_index": random.choice([None, None, 0, random.randrange(2 * size)]),
                "abort_at_step": steps[number] + random.choice([-1, 0, 1, 5, 20]) if random.random() < 0.15 else None,
            }
        )
        if adapters:
            made[-1]["lora_id"] = random.choice([0, 1, 2, 3])
            made[-1]["prompt_logprobs"] = random.random() < 0.1
            made[-1]["grammar_step"] = steps[number] + random.randint(1, 9) if random.random() < 0.2 else 0
    return made


def cut(segments: list[list[int]], length: int) -> list[list[int]]:
    """The first `length` tokens of the segments."""
    kept = []
    for seed, tokens in segments:
        if length > 0:
            kept.append([seed, min(tokens, length)])
            length -= tokens
    return kept


def decided(config: dict[str, Any], requests: list[dict[str, Any]]) -> dict[str, Any]:
    """The trace of these requests as the naive scheduler decides it."""
    naive = NaiveScheduler(config)
    steps: list[dict[str, Any]] = []
    last_arrival = max(request["arrival_step"] for request in requests)
    while True:
        number = len(steps)
        if number == GIVE_UP_AT:
            for request in requests:
                if request["id"] in naive.alive:
                    request["abort_at_step"] = number
        arrivals = [request for request in requests if request["arrival_step"] == number]
        aborts = [request["id"] for request in requests if request["abort_at_step"] == number]
        steps.append(naive.step(number, arrivals, aborts))
        if number >= last_arrival and not (naive.running or naive.waiting or naive.unreported_finish):
            return {"format": 1, "config": config, "requests": requests, "steps": steps}


def random_trace(seed: int, *, adapters: bool = False) -> dict[str, Any]:
    """One random workload with its decisions; with `adapters` also LoRA, grammars and prompt log-probabilities, which no recorded trace has."""
    random = Random(seed)
    chosen = config(random)
    if adapters:
        chosen["max_loras"] = random.choice([0, 1, 2])
    return decided(chosen, requests(random, chosen, adapters=adapters))
