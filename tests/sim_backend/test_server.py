"""The HTTP face, driven by real clients over loopback: the OpenAI SDK, raw HTTP, a scraper."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from operator import sub
from pathlib import Path
from typing import Any, ClassVar

import httpx
import openai
import pytest
from fastapi import FastAPI, Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_fastapi_instrumentator import Instrumentator
from starlette.testclient import TestClient

from sim_backend.exposition import Page, PageSource, registry_of
from sim_backend.fleet import listening_socket
from sim_backend.following import Answer, Following
from sim_backend.http_metrics import HttpMetrics
from sim_backend.live import LiveFleet
from sim_backend.openai_protocol import Prepared
from sim_backend.reporting import Sink
from sim_backend.request import Request
from sim_backend.scenario import ScenarioError
from sim_backend.workload import Call
from tests.shared_data import ROOT
from tests.sim_backend.live_fleet import Fleet, Samples, quiet, until

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
KEY = "sk-test"


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    engine = {"max_model_len": 2048}
    running = Fleet(quiet(fleet={"replicas": 2, "engine": engine}), 2, {KEY: "alpha", "sk-other": "beta"})
    yield running
    running.close()


@pytest.fixture
def client(fleet: Fleet) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{fleet.url()}/v1", api_key=KEY, max_retries=0) as made:
        yield made


def ask(fleet: Fleet, path: str, body: Any, key: str | None = KEY, **more: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return httpx.post(f"{fleet.url()}{path}", json=body, headers=headers, **more)


def test_the_sdk_asks_for_models_a_completion_and_a_chat(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    completion = client.completions.create(model=MODEL, prompt="once upon a time", max_tokens=7)
    assert completion.choices[0].finish_reason == "length"
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 7
    chat = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hello"}], max_tokens=5)
    assert chat.choices[0].message.role == "assistant"
    assert len((chat.choices[0].message.content or "").split()) == 5


def test_a_stream_has_a_role_first_one_delta_a_token_a_reason_and_usage_last(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "hello"}],
        max_tokens=6,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    chunks = list(stream)
    first = chunks[0].choices[0].delta
    assert (first.role, first.content) == ("assistant", "")
    assert sum(1 for chunk in chunks if chunk.choices and chunk.choices[0].delta.content) == 6
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * 6 + ["length"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 6


def test_streamed_and_whole_answers_say_the_same(client: openai.OpenAI) -> None:
    whole = client.completions.create(model=MODEL, prompt="same", max_tokens=30, seed=7)
    parts = client.completions.create(model=MODEL, prompt="same", max_tokens=30, seed=7, stream=True)
    assert "".join(part.choices[0].text for part in parts if part.choices) == whole.choices[0].text


def test_n_sequences_several_prompts_and_token_ids(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=["a", "b"], n=2, max_tokens=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12
    ids = client.completions.create(model=MODEL, prompt=[5, 6, 7], max_tokens=2)
    assert ids.usage is not None
    assert ids.usage.prompt_tokens == 3


def test_a_stop_string_cuts_the_text_and_counts_as_stop(fleet: Fleet, client: openai.OpenAI) -> None:
    long = client.completions.create(
        model=MODEL, prompt="cut me", max_tokens=40, seed=3, extra_body={"ignore_eos": True}
    )
    words = long.choices[0].text.split(" ")
    before = fleet.value("vllm:request_success_total", finished_reason="stop")
    cut = client.completions.create(
        model=MODEL, prompt="cut me", max_tokens=40, seed=3, stop=f" {words[10]}", extra_body={"ignore_eos": True}
    )
    place = long.choices[0].text.index(f" {words[10]}")
    assert (cut.choices[0].finish_reason, cut.choices[0].text) == ("stop", long.choices[0].text[:place])
    assert fleet.value("vllm:request_success_total", finished_reason="stop") == before + 1
    until(lambda: fleet.value("vllm:num_requests_running") == 0)


TOOL = {
    "type": "function",
    "function": {
        "name": "get_queue",
        "parameters": {"type": "object", "properties": {"replica": {"type": "string"}, "depth": {"type": "integer"}}},
    },
}


def test_tool_calls_come_whole_and_in_fragments(client: openai.OpenAI) -> None:
    ask_for: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "call get_queue"}],
        "tools": [TOOL],
        "seed": 2,
        "extra_body": {"min_tokens": 12},
    }
    whole = client.chat.completions.create(**ask_for, max_tokens=400)
    calls = whole.choices[0].message.tool_calls
    assert calls is not None
    assert set(json.loads(calls[0].function.arguments)) == {"replica", "depth"}
    fragments = [
        chunk.choices[0].delta.tool_calls[0]
        for chunk in client.chat.completions.create(**ask_for, max_tokens=400, stream=True)
        if chunk.choices and chunk.choices[0].delta.tool_calls
    ]
    assert fragments[0].function.name == "get_queue"
    assert len(fragments) > 2
    assert "".join(part.function.arguments or "" for part in fragments) == calls[0].function.arguments


CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize(
    ("path", "body", "status", "kind", "message"),
    [
        (CHAT, {"model": "ghost", "messages": HELLO}, 404, "NotFoundError", r"The model `ghost` does not exist\."),
        (CHAT, {"messages": HELLO, "max_tokens": 0}, 400, "BadRequestError", r"max_tokens must be at least 1, got 0\."),
        (CHAT, {"messages": HELLO, "temperature": -1}, 400, "BadRequestError", "temperature must be non-negative, got"),
        (CHAT, {"messages": HELLO, "top_p": 0}, 400, "BadRequestError", r"top_p must be in \(0, 1\], got"),
        (CHAT, {"messages": HELLO, "n": 0}, 400, "BadRequestError", "n must be at least 1, got"),
        (CHAT, {"messages": HELLO, "n": 2, "temperature": 0}, 400, "BadRequestError", "n must be 1 when using greedy"),
        (CHAT, {"messages": HELLO, "stop": ""}, 400, "BadRequestError", "stop cannot contain an empty string"),
        (
            CHAT,
            {"messages": HELLO, "logprobs": True, "top_logprobs": 99},
            400,
            "BadRequestError",
            "Requested sample logprobs of 99",
        ),
        (CHAT, {}, 400, "Bad Request", "messages"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": "word " * 3000}]},
            400,
            "BadRequestError",
            r"maximum context length is 2048 tokens\. However, your request has \d+ input tokens\. .* None$",
        ),
        (
            CHAT,
            {"messages": HELLO, "max_tokens": 2048},
            400,
            "BadRequestError",
            r"'max_tokens' or 'max_completion_tokens' is too large: 2048\. This model's maximum context length is 2048 tokens and your request has \d+ input",
        ),
        ("/v1/completions", {"prompt": [1] * 2040}, 400, "BadRequestError", "maximum context length is 2032 tokens"),
        ("/v1/completions", {}, 400, "Bad Request", "Either prompt or prompt_embeds must be provided and non-empty"),
        ("/v1/completions", {"prompt": []}, 400, "BadRequestError", "please provide at least one prompt"),
        ("/v1/completions", {"prompt": [10**9]}, 400, "BadRequestError", "Token id 1000000000 is out of vocabulary"),
    ],
)
def test_refusals_have_the_real_shape(
    fleet: Fleet, path: str, body: dict[str, Any], status: int, kind: str, message: str
) -> None:
    before = fleet.samples()
    answer = ask(fleet, path, body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["type"], error["param"]) == (status, status, kind, None)
    assert re.search(message, error["message"])
    after = fleet.samples()
    moved = {key for key in after if after[key] != before.get(key) and key[0].startswith("vllm:")}
    assert not moved  # a refused request touches no vllm metric
    labels = (("handler", path), ("method", "POST"), ("status", "4xx"))
    assert after["http_requests_total", labels] == before.get(("http_requests_total", labels), 0) + 1


def test_bad_json_and_bad_content_type(fleet: Fleet) -> None:
    headers = {"authorization": f"Bearer {KEY}"}
    wrong = httpx.post(f"{fleet.url()}{CHAT}", content="{", headers={**headers, "content-type": "application/json"})
    assert (wrong.status_code, wrong.json()["error"]["type"]) == (400, "Bad Request")
    text = httpx.post(f"{fleet.url()}{CHAT}", content="{}", headers={**headers, "content-type": "text/plain"})
    assert text.json()["error"]["message"] == "Unsupported Media Type: Only 'application/json' is allowed"


def test_a_bad_key_is_401_and_reaches_no_metric(fleet: Fleet) -> None:
    before = fleet.samples()
    for key in (None, "sk-wrong"):
        answer = ask(fleet, CHAT, {"messages": HELLO}, key)
        assert (answer.status_code, answer.json()) == (401, {"error": "Unauthorized"})
    after = fleet.samples()
    same = [key for key in after if key[0].startswith(("vllm:", "http_"))]
    assert {key: after[key] for key in same} == {key: before.get(key) for key in same}
    assert fleet.value("http_requests_total", status="4xx") == sum(
        value
        for (name, labels), value in before.items()
        if name == "http_requests_total" and ("status", "4xx") in labels
    )


def test_operator_routes_need_no_key_and_are_not_counted(fleet: Fleet) -> None:
    before = {key: value for key, value in fleet.samples().items() if key[0] == "http_requests_total"}
    for path in ("/health", "/ping", "/version", "/load", "/metrics", "/simulator"):
        assert httpx.get(f"{fleet.url()}{path}").status_code == 200
    assert httpx.get(f"{fleet.url()}/version").json() == {"version": "0.11.0"}
    assert httpx.get(f"{fleet.url()}/simulator").json()["control"] == fleet.control
    assert {key: value for key, value in fleet.samples().items() if key[0] == "http_requests_total"} == before
    assert httpx.get(f"{fleet.url()}/nothing").json() == {"detail": "Not Found"}
    assert fleet.value("http_requests_total", handler="none", status="4xx") == 1


def test_a_client_that_closes_its_stream_frees_its_seat(fleet: Fleet) -> None:
    finished = fleet.value("vllm:request_success_total")
    body = {"messages": HELLO, "max_tokens": 1900, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{fleet.url()}{CHAT}", json=body, headers={"authorization": f"Bearer {KEY}"}) as stream:
        lines = (line for line in stream.iter_lines() if line)
        for _ in range(5):
            next(lines)
        assert fleet.value("vllm:num_requests_running") == 1
    until(lambda: fleet.value("vllm:num_requests_running") == 0)
    assert fleet.value("vllm:request_success_total") == finished
    assert fleet.value("vllm:kv_cache_usage_perc") == 0


def test_a_client_that_gives_up_on_a_whole_answer_frees_its_seat(fleet: Fleet) -> None:
    with pytest.raises(httpx.ReadTimeout):
        ask(fleet, CHAT, {"messages": HELLO, "max_tokens": 1900, "ignore_eos": True}, timeout=0.3)
    until(lambda: fleet.value("vllm:num_requests_running") == 0)


def test_the_key_decides_what_is_shared_never_the_client(fleet: Fleet) -> None:
    body = {"prompt": [7] * 320, "max_tokens": 1}

    def hits(key: str, **more: object) -> float:
        before = fleet.value("vllm:prefix_cache_hits_total")
        assert ask(fleet, "/v1/completions", {**body, **more}, key).status_code == 200
        return fleet.value("vllm:prefix_cache_hits_total") - before

    assert hits(KEY) == 0
    assert hits(KEY, cache_salt="mine") == 304
    assert hits("sk-other") == 0


def test_who_asks_for_prompt_logprobs_is_not_looked_up(fleet: Fleet) -> None:
    body = {"prompt": [8] * 320, "max_tokens": 1}

    def queries(**more: object) -> float:
        before = fleet.value("vllm:prefix_cache_queries_total")
        assert ask(fleet, "/v1/completions", {**body, **more}).status_code == 200
        return fleet.value("vllm:prefix_cache_queries_total") - before

    assert queries() == 320
    assert queries(prompt_logprobs=1) == 0
    assert queries(echo=True, logprobs=1) == 0
    assert queries(echo=True) == queries(logprobs=1) == 320


class Recorded(Following):
    """Notes at which instants the front end saw each output of a call: (arrival, output) on the fleet's clock, by the first prompt token."""

    events: ClassVar[dict[int, list[tuple[float, float]]]] = {}

    def __init__(self, live: LiveFleet, index: int, call: Call, prepared: Prepared, answers: list[Answer]) -> None:
        self._seen = self.events[prepared.tokens[0]] = []
        super().__init__(live, index, call, prepared, answers)

    def _sink(self, sequence: int) -> Sink:
        told = super()._sink(sequence)

        def output(request: Request, at: float) -> None:
            self._seen.append((request.arrival_time, at))
            told(request, at)

        return output


def test_percentiles_of_clients_lie_in_the_exported_intervals_but_for_the_delivery(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """p50, p90 and p99 of TTFT and ITL. Exact for what the front end saw; for clients within what delivery took, measured record by record: when
    no value differs by more than L, no quantile does, however busy the machine is."""
    monkeypatch.setattr("sim_backend.openai_routes.Following", Recorded)
    monkeypatch.setattr(Recorded, "events", {})
    assert fleet.live is not None
    began, early = fleet.live._began, fleet.live.cluster.replicas[1].profile.frontend.output_seconds
    sent: dict[int, float] = {}
    received: dict[int, list[float]] = {}

    async def one(client: openai.AsyncOpenAI, number: int) -> None:
        sent[number] = time.monotonic() - began
        stream = await client.completions.create(
            model=MODEL,
            prompt=[number] * (100 + 25 * number),
            max_tokens=20,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        received[number] = [time.monotonic() - began async for chunk in stream if chunk.choices]

    async def all_() -> None:
        async with openai.AsyncOpenAI(base_url=f"{fleet.url(1)}/v1", api_key=KEY, max_retries=0) as client:
            for group in range(10):
                await asyncio.gather(*(one(client, 1 + 4 * group + member) for member in range(4)))

    names = ("vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds")
    before = [buckets_of(fleet.samples(1), name) for name in names]
    asyncio.run(all_())
    after = [buckets_of(fleet.samples(1), name) for name in names]

    events = Recorded.events
    assert events.keys() == received.keys()
    lags: list[float] = []  # from the front end to the client
    firsts, gaps = [], []  # (client's value, front end's value)
    for number, times in received.items():
        outputs = [at for _, at in events[number]]
        assert len(times) == len(outputs) == 20
        lags += [mine - theirs for mine, theirs in zip(times, outputs, strict=True)]
        firsts.append((times[0] - sent[number], outputs[0] - events[number][0][0]))
        gaps += zip(itertools.starmap(sub, pairs(times)), itertools.starmap(sub, pairs(outputs)), strict=True)
    assert min(lags) >= -early - 1e-3  # nobody hears of a token before it is there
    for name, was, now, values in zip(names, before, after, (firsts, gaps), strict=True):
        counts = {edge: now[edge] - was[edge] for edge in now}
        assert counts[math.inf] == len(values)
        delivery = max(abs(mine - theirs) for mine, theirs in values)
        for quantile in (0.5, 0.9, 0.99):
            rank = math.ceil(quantile * len(values))
            upper = min(edge for edge, count in counts.items() if count >= rank)
            lower = max([0.0, *(edge for edge, count in counts.items() if count < rank)])
            mine, theirs = (sorted(side)[rank - 1] for side in zip(*values, strict=True))
            assert lower - 1e-9 <= theirs <= upper + 1e-9, (name, quantile)
            assert lower - delivery <= mine <= upper + delivery, (name, quantile)


def buckets_of(samples: Samples, name: str) -> dict[float, float]:
    """Cumulative counts by upper edge."""
    return {float(dict(labels)["le"]): value for (known, labels), value in samples.items() if known == f"{name}_bucket"}


def pairs(values: list[float]) -> Iterator[tuple[float, float]]:
    """(later, earlier) neighbours."""
    return zip(values[1:], values, strict=False)


@pytest.mark.parametrize(
    "accept",
    [
        "*/*",
        "application/openmetrics-text; version=1.0.0",
        "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;q=0.5",
        "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=1.0.0;q=0.5",
    ],
    ids=["any", "openmetrics", "prometheus-2", "prometheus-3"],
)
def test_metrics_keep_the_names_of_the_engine_whatever_the_scraper_would_take(fleet: Fleet, accept: str) -> None:
    answer = httpx.get(f"{fleet.url()}/metrics", headers={"accept": accept})
    assert answer.headers["content-type"].startswith("text/plain")
    assert "\nvllm:num_requests_running{" in answer.text
    assert "\nvllm_" not in answer.text


def test_the_control_face_shows_injects_and_clears(fleet: Fleet) -> None:
    state = httpx.get(f"{fleet.control}/state").json()
    assert (state["schema"], len(state["replicas"]), state["dial"]) == (1, 2, 1.0)
    assert {fault["kind"] for fault in state["available_faults"]} >= {"halt", "crash", "frozen_gauges"}
    made = httpx.post(f"{fleet.control}/faults", json={"kind": "halt", "replicas": [1]})
    assert made.status_code == 201
    assert httpx.get(f"{fleet.control}/state").json()["replicas"][1]["engines"][0]["halted"]
    incidents = httpx.get(f"{fleet.control}/ground_truth").json()["incidents"]
    assert incidents[-1]["cause"] == "engine_stalled"
    assert incidents[-1]["to_ms"] is None
    assert incidents[-1]["where"] == {
        "scope": "replica",
        "replicas": [{"instance": fleet.where.replicas[1], "engine": "0"}],
    }
    assert httpx.delete(f"{fleet.control}/faults/{made.json()['id']}").status_code == 204
    assert httpx.delete(f"{fleet.control}/faults/{made.json()['id']}").status_code == 404
    assert httpx.get(f"{fleet.control}/ground_truth").json()["incidents"][-1]["to_ms"] is not None
    assert httpx.post(f"{fleet.control}/load", json={"dial": 2}).json() == {"dial": 2.0}
    httpx.post(f"{fleet.control}/load", json={"dial": 1})


@pytest.mark.parametrize(
    ("order", "slowdown"),
    [
        ({"kind": "slow", "replicas": [1], "factor": 2.0}, 2.0),
        ({"kind": "removed_metric", "replicas": [1]}, 1.0),
    ],
)
def test_a_fault_that_is_on_already_is_not_begun_on_top_of_itself(
    fleet: Fleet, order: dict[str, Any], slowdown: float
) -> None:
    made = [httpx.post(f"{fleet.control}/faults", json={**order, "seconds": 60 + n}) for n in range(3)]
    assert [answer.status_code for answer in made] == [201, 200, 200]
    state = httpx.get(f"{fleet.control}/state").json()
    assert [fault["kind"] for fault in state["faults"]] == [order["kind"]]
    assert state["replicas"][1]["engines"][0]["slowdown"] == slowdown
    elsewhere = httpx.post(f"{fleet.control}/faults", json={**order, "replicas": [0]})
    assert elsewhere.status_code == 201
    for number in (state["faults"][0]["id"], elsewhere.json()["id"]):
        assert httpx.delete(f"{fleet.control}/faults/{number}").status_code == 204
    state = httpx.get(f"{fleet.control}/state").json()
    assert state["faults"] == []
    assert state["replicas"][1]["engines"][0]["slowdown"] == 1.0


def test_what_happens_in_a_moment_is_over_in_a_moment_and_may_happen_again(fleet: Fleet) -> None:
    order = {"kind": "mass_abort", "replicas": [1], "seconds": 180}
    for _ in range(2):
        assert httpx.post(f"{fleet.control}/faults", json=order).status_code == 201
        until(lambda: not httpx.get(f"{fleet.control}/state").json()["faults"])
    incidents = httpx.get(f"{fleet.control}/ground_truth").json()["incidents"][-2:]
    assert [incident["cause"] for incident in incidents] == ["client_aborts"] * 2
    assert all(incident["to_ms"] == incident["from_ms"] for incident in incidents)


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/load", {"dial": -1}, "dial"),
        ("/load", {"dial": "fast"}, "dial"),
        ("/faults", {"kind": "earthquake"}, "kind"),
        ("/faults", {"kind": "halt", "replicas": [7]}, "there is no replica 7 of 2"),
    ],
)
def test_wrong_orders_are_named(fleet: Fleet, path: str, body: dict[str, Any], message: str) -> None:
    answer = httpx.post(f"{fleet.control}{path}", json=body)
    assert answer.status_code == 400
    assert message in answer.json()["error"]
    simple = httpx.post(f"{fleet.control}{path}", content=json.dumps(body), headers={"content-type": "text/plain"})
    assert "application/json" in simple.json()["error"]


def test_the_block_table_of_a_live_request(fleet: Fleet) -> None:
    assert httpx.get(f"{fleet.control}/blocks?replica=9").status_code == 404
    body = {"prompt": [3] * 100, "max_tokens": 1900, "ignore_eos": True, "stream": True}
    headers = {"authorization": f"Bearer {KEY}"}
    with httpx.stream("POST", f"{fleet.url()}/v1/completions", json=body, headers=headers) as stream:
        lines = stream.iter_lines()  # kept: a dropped iterator closes the stream
        next(lines)
        table = httpx.get(f"{fleet.control}/blocks").json()
        assert len(table["blocks"]) * table["block_size"] - table["computed_tokens"] == table["wasted_slots"]
        assert sum(block["used_slots"] for block in table["blocks"]) == table["computed_tokens"]
        assert table["paging"]["blocks"] == len(table["blocks"])
    until(lambda: httpx.get(f"{fleet.control}/blocks").status_code == 404)


def test_learning_checking_and_the_startup_log(fleet: Fleet) -> None:
    facts = httpx.get(f"{fleet.control}/paging").json()
    assert facts["request"]["blocks"] == 4
    assert facts["reserved"]["aggregate"] == pytest.approx(0.2686, abs=1e-4)
    assert facts["fork"]["copied_by_the_write"] == 1
    assert httpx.get(f"{fleet.control}/paging?low=9&high=3").status_code == 400
    assert httpx.get(f"{fleet.control}/check").json() == {"kept": True}
    assert "GPU KV cache size" in httpx.get(f"{fleet.control}/startup_log?replica=1").text
    assert httpx.get(f"{fleet.control}/startup_log?replica=5").status_code == 404


def test_the_request_shape_of_the_serving_benchmark(fleet: Fleet) -> None:
    """What `vllm bench serve` sends, and what it reads: data lines, a choice per token, usage in a last chunk without choices."""
    body = {
        "model": MODEL,
        "prompt": "bench " * 50,
        "temperature": 0.0,
        "repetition_penalty": 1.0,
        "max_tokens": 20,
        "logprobs": None,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }
    text, tokens, usage = "", 0, None
    with httpx.stream(
        "POST", f"{fleet.url()}/v1/completions", json=body, headers={"authorization": f"Bearer {KEY}"}
    ) as stream:
        for line in stream.iter_lines():
            chunk = line.removeprefix("data: ")
            if not chunk or chunk == "[DONE]":
                continue
            data = json.loads(chunk)
            if data["choices"]:
                text += data["choices"][0]["text"]
                tokens += 1
            else:
                usage = data["usage"]
    assert tokens == 20
    assert len(text.split()) == 20
    assert usage is not None
    assert usage["completion_tokens"] == 20


def test_a_crashed_replica_refuses_connections_and_comes_back_from_zero(fleet: Fleet) -> None:
    start = fleet.value("process_start_time_seconds", 1)
    order = {"kind": "crash", "replicas": [1], "restart_after_seconds": 1.0}
    made = httpx.post(f"{fleet.control}/faults", json=order).json()

    def refused() -> bool:
        try:
            httpx.get(f"{fleet.url(1)}/health", timeout=1)
        except httpx.ConnectError:
            return True
        return False

    until(refused)
    until(lambda: httpx.get(f"{fleet.url(1)}/health").status_code == 200)
    assert fleet.value("process_start_time_seconds", 1) > start
    assert fleet.value("vllm:generation_tokens_total", 1) == 0
    httpx.delete(f"{fleet.control}/faults/{made['id']}")


def test_a_dead_engine_answers_503_and_500(fleet: Fleet) -> None:
    made = httpx.post(f"{fleet.control}/faults", json={"kind": "engine_dead", "replicas": [1]}).json()
    assert httpx.get(f"{fleet.url(1)}/health").status_code == 503
    answer = httpx.post(f"{fleet.url(1)}{CHAT}", json={"messages": HELLO}, headers={"authorization": f"Bearer {KEY}"})
    assert answer.status_code == 500
    assert "EngineCore encountered an issue" in answer.json()["error"]["message"]
    httpx.delete(f"{fleet.control}/faults/{made['id']}")
    until(lambda: httpx.get(f"{fleet.url(1)}/health").status_code == 200)


def test_load_inside_moves_the_same_counters_and_the_queue() -> None:
    load = {"arrivals": {"rate": 300}, "prompt": {"mean": 200}, "output": {"mean": 60}}
    running = Fleet(quiet(fleet={"replicas": 1, "engine": {"max_num_seqs": 4}}, load=[load]), 1, {})
    try:
        until(lambda: running.value("vllm:num_requests_waiting") > 3)
        until(lambda: running.value("http_requests_total", status="2xx") > 3)
        assert running.value("vllm:num_requests_running") <= 4
    finally:
        running.close()


def test_http_families_are_those_of_the_instrumentator() -> None:
    """The same requests through the library's own defaults and through our books give the same text, help and creation times aside."""
    registry = CollectorRegistry()
    books = HttpMetrics(0.0)

    class Shown(PageSource):
        def pages(self) -> list[Page]:
            return [books.page()]

    app = FastAPI()

    @app.post("/v1/completions")
    async def completions() -> dict[str, str]:
        return {"a": "b"}

    @app.get("/v1/models")
    async def models() -> Response:
        return Response(status_code=400, content=b"x")

    def record(info: Any) -> None:
        books.record(
            0.0,
            info.modified_handler,
            info.modified_status,
            info.modified_duration,
            method=info.method,
            request_bytes=int(info.request.headers.get("content-length", 0)),
            response_bytes=int(info.response.headers.get("content-length", 0)),
        )

    from prometheus_fastapi_instrumentator import metrics as library

    default = library.default(registry=registry)
    assert default is not None
    Instrumentator().add(default).add(record).instrument(app)
    with TestClient(app) as client:
        client.post("/v1/completions", json={"x": 1})
        client.get("/v1/models")
        client.get("/nowhere")
        client.post("/v1/completions", json={"x": 22})

    def lines(text: str) -> list[str]:
        wanted = (line for line in text.splitlines() if not line.startswith("# HELP"))
        return [re.sub(r" \S+$", "", line) if "_created" in line and line[0] != "#" else line for line in wanted]

    ours = generate_latest(registry_of(Shown())).decode()
    assert lines(ours) == lines(generate_latest(registry).decode())


def test_served_as_a_process_it_tells_where_it_listens_and_stops_cleanly(tmp_path: Path) -> None:
    """The ports asked for are taken by somebody else: others are chosen and told. SIGTERM ends it while a stream is open, without a traceback."""
    targets, log = tmp_path / "targets.json", tmp_path / "log"
    taken = listening_socket(0)
    port = taken.getsockname()[1]
    code = (
        "import sys, pathlib; from sim_backend.fleet import serve; "
        f"serve('healthy', 2, {port}, targets_file=pathlib.Path(sys.argv[1]))"
    )
    with log.open("wb") as output:
        process = subprocess.Popen([sys.executable, "-c", code, str(targets)], stderr=output, cwd=ROOT)
    try:
        until(targets.exists, 60)
        listed = json.loads(targets.read_text())[0]["targets"]
        assert len(listed) == 2
        assert f"127.0.0.1:{port}" not in listed
        body = {"messages": HELLO, "max_tokens": 5000, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"http://{listed[0]}{CHAT}", json=body) as stream:
            lines = stream.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            last = [line for line in lines if line]
        assert last[-1] == "data: [DONE]"
        assert process.wait(20) == 0
    finally:
        taken.close()
        if process.poll() is None:
            process.kill()
            process.wait()
    text = log.read_text()
    assert "stopped" in text
    assert f"({port} is taken)" in text
    assert "Traceback" not in text


def test_no_free_port_is_one_line() -> None:
    with pytest.raises(ScenarioError, match="Choose another with --port"):
        listening_socket(65536)
