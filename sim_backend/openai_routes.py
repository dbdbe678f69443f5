"""`/v1/models`, `/v1/completions` and `/v1/chat/completions` of one replica, streamed and not."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncIterator
from random import Random
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from sim_backend.following import Answer, EventStream, Following, next_number, plan_answer, unless_disconnected
from sim_backend.live import LiveFleet
from sim_backend.openai_protocol import (
    ChatBody,
    CompletionBody,
    Prepared,
    Refused,
    SamplingFields,
    chat_limit,
    check_logprobs,
    check_sampling,
    completion_limit,
    parse_body,
    prompts_of,
    usage,
)
from sim_backend.text import chat_tokens, seed_of, tokenize
from sim_backend.workload import Call

ARGUMENT_CHARACTERS = 12
"""How much of a tool call's arguments one streamed fragment carries."""


def openai_router(live: LiveFleet, index: int) -> APIRouter:
    """The routes of replica `index`."""
    router = APIRouter()
    replica = live.cluster.replicas[index]
    model = replica.profile.served_model_name

    @router.get("/v1/models")
    async def models() -> JSONResponse:
        entry = {
            "id": model,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "vllm",
            "root": model,
            "parent": None,
            "max_model_len": replica.config.max_model_len,
            "permission": [],
        }
        return JSONResponse({"object": "list", "data": [entry]})

    @router.post("/v1/completions")
    async def completions(request: Request) -> Response:
        body: CompletionBody = parse_body(CompletionBody, await _json(request))
        _check_model(body, model)
        prompts = prompts_of(body, tokenize)
        check_logprobs(body.logprobs)
        check_sampling(body)
        prepared = [
            Prepared(tokens, completion_limit(tokens, body.max_tokens, replica.config.max_model_len))
            for tokens in prompts
        ]
        shape = CompletionShape(model, body, body.prompt if body.echo and isinstance(body.prompt, str) else "")
        return await _answer(live, index, request, body, prepared, shape)

    @router.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        body: ChatBody = parse_body(ChatBody, await _json(request))
        _check_model(body, model)
        tokens = chat_tokens(body.messages, body.tools)
        check_logprobs(body.top_logprobs if body.logprobs else None)
        if body.max_completion_tokens is not None:
            body = body.model_copy(update={"max_tokens": body.max_completion_tokens})
        check_sampling(body)
        limit = chat_limit(tokens, body.max_tokens, replica.config.max_model_len)
        prepared = Prepared(tokens, limit, tool=_tool_call(body, tokens))
        return await _answer(live, index, request, body, [prepared], ChatShape(model, body, prepared.tool))

    return router


async def _json(request: Request) -> Any:
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused("Unsupported Media Type: Only 'application/json' is allowed", "Bad Request")
    try:
        return json.loads(await request.body())
    except ValueError as error:
        detail = [
            {"type": "json_invalid", "loc": ("body", 0), "msg": "JSON decode error", "ctx": {"error": str(error)}}
        ]
        raise Refused(str(detail), "Bad Request") from error


def _check_model(body: SamplingFields, model: str) -> None:
    if body.model and body.model != model:
        raise Refused(f"The model `{body.model}` does not exist.", "NotFoundError", 404)


def _tool_call(body: ChatBody, tokens: list[int]) -> tuple[str, str] | None:
    """The tool this answer calls: a named or required one always, with "auto" when the last message names it."""
    if not body.tools or body.tool_choice == "none":
        return None
    functions = [tool.get("function", {}) for tool in body.tools]
    names = [str(function.get("name", "")) for function in functions]
    if isinstance(body.tool_choice, dict):
        name = str(body.tool_choice.get("function", {}).get("name", ""))
        if name not in names:
            raise Refused(f"The tool {name!r} of tool_choice is not among the tools.")
    elif body.tool_choice == "required":
        name = names[seed_of(tokens, 0) % len(names)]
    else:
        last = str(body.messages[-1].get("content", "")) if body.messages else ""
        found = [name for name in names if name and name in last]
        if not found:
            return None
        name = found[0]
    properties = functions[names.index(name)].get("parameters", {}).get("properties", {})
    arguments = {key: _example(value, tokens) for key, value in properties.items()}
    return name, json.dumps(arguments)


def _example(schema: Any, tokens: list[int]) -> Any:
    kind = schema.get("type") if isinstance(schema, dict) else None
    number = seed_of(tokens, 1) % 100
    return {"integer": number, "number": float(number), "boolean": number % 2 == 0}.get(str(kind), "queue")


async def _answer(
    live: LiveFleet, index: int, request: Request, body: SamplingFields, prepared: list[Prepared], shape: Shape
) -> Response:
    salt = body.seed if body.seed is not None else Random().randrange(1 << 30)
    tenant = str(request.scope.get("tenant", ""))
    follows = []
    try:
        for number, prompt in enumerate(prepared):
            answers = [
                plan_answer(
                    prompt,
                    sequence + number * body.sequences,
                    salt,
                    ignore_eos=body.ignore_eos,
                    min_tokens=body.min_tokens,
                    stops=body.stop_strings,
                )
                for sequence in range(body.sequences)
            ]
            follows.append(_follow(live, index, request, body, prompt, answers, tenant))
    except Refused:
        for following in follows:
            following.hang_up()
        raise

    def close() -> None:
        for following in follows:
            following.hang_up()

    prompt_tokens = sum(len(prompt.tokens) for prompt in prepared)
    if body.stream:
        return EventStream(_events(follows, body, shape, prompt_tokens), close)
    try:
        whole = await unless_disconnected(_collect(follows, body, shape, prompt_tokens), request.receive)
    finally:
        close()
    return JSONResponse(whole) if whole is not None else Response(status_code=200)


def _follow(
    live: LiveFleet,
    index: int,
    request: Request,
    body: SamplingFields,
    prompt: Prepared,
    answers: list[Answer],
    tenant: str,
) -> Following:
    number = next_number()
    call = Call(
        id=f"http-{number}",
        at=live.now(),
        prompt=((-number, len(prompt.tokens)),),
        output_len=max(answer.limit for answer in answers),
        max_tokens=prompt.max_tokens,
        output_seed=number,
        endpoint=request.url.path,
        n=len(answers),
        priority=body.priority,
        tenant=tenant,
        replicas=(index,),
        stream=-1,
        prompt_logprobs=body.wants_prompt_logprobs,
    )
    return Following(live, index, call, prompt, answers)


async def _collect(follows: list[Following], body: SamplingFields, shape: Shape, prompt_tokens: int) -> dict[str, Any]:
    choices = []
    completion_tokens = 0
    for number, following in enumerate(follows):
        async for output in following.outputs():
            if output.finish_reason is None:
                continue
            completion_tokens += output.tokens
            text = following.answers[output.sequence].text(0, output.tokens)
            place = number * body.sequences + output.sequence
            choices.append((place, shape.choice(place, text, output.finish_reason, output.stop_string)))
    choices.sort(key=lambda choice: choice[0])
    return {
        **shape.head(whole=True),
        "choices": [choice for _, choice in choices],
        "usage": usage(prompt_tokens, completion_tokens),
        "kv_transfer_params": None,
    }


async def _events(
    follows: list[Following], body: SamplingFields, shape: Shape, prompt_tokens: int
) -> AsyncIterator[str]:
    options = body.stream_options
    counts: dict[int, int] = {}
    for number, following in enumerate(follows):
        try:
            async for output in following.outputs():
                place = number * body.sequences + output.sequence
                before = counts.get(place, 0)
                counts[place] = output.tokens
                text = following.answers[output.sequence].text(before, output.tokens)
                first = not before
                for choice in shape.deltas(place, text, output.tokens, output.finish_reason, output.stop_string, first):
                    chunk = {**shape.head(whole=False), "choices": [choice]}
                    if options is not None and options.continuous_usage_stats:
                        chunk["usage"] = usage(prompt_tokens, counts[place])
                    yield f"data: {json.dumps(chunk)}\n\n"
        except Refused as error:
            yield f"data: {json.dumps(error.body())}\n\n"
    if options is not None and options.include_usage:
        tail = {**shape.head(whole=False), "choices": [], "usage": usage(prompt_tokens, sum(counts.values()))}
        yield f"data: {json.dumps(tail)}\n\n"
    yield "data: [DONE]\n\n"


class Shape:
    """How answers of one route look."""

    prefix = ""
    whole_object = ""
    chunk_object = ""

    def __init__(self, model: str) -> None:
        self._id = f"{self.prefix}-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._model = model

    def head(self, *, whole: bool) -> dict[str, Any]:
        kind = self.whole_object if whole else self.chunk_object
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}

    def choice(self, place: int, text: str, reason: str, stop: str | None) -> dict[str, Any]:
        raise NotImplementedError

    def deltas(
        self, place: int, text: str, tokens: int, reason: str | None, stop: str | None, first: bool
    ) -> list[dict[str, Any]]:
        raise NotImplementedError


class CompletionShape(Shape):
    prefix, whole_object, chunk_object = "cmpl", "text_completion", "text_completion"

    def __init__(self, model: str, body: CompletionBody, echo: str) -> None:
        super().__init__(model)
        self._echo = echo

    def choice(self, place: int, text: str, reason: str | None, stop: str | None) -> dict[str, Any]:
        return {
            "index": place,
            "text": self._echo + text,
            "logprobs": None,
            "finish_reason": reason,
            "stop_reason": stop,
            "prompt_logprobs": None,
        }

    def deltas(
        self, place: int, text: str, tokens: int, reason: str | None, stop: str | None, first: bool
    ) -> list[dict[str, Any]]:
        shown = self._echo + text if first else text
        return [{"index": place, "text": shown, "logprobs": None, "finish_reason": reason, "stop_reason": stop}]


class ChatShape(Shape):
    prefix, whole_object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, model: str, body: ChatBody, tool: tuple[str, str] | None) -> None:
        super().__init__(model)
        self._tool = tool
        self._tool_id = f"chatcmpl-tool-{uuid.uuid4().hex}"

    def choice(self, place: int, text: str, reason: str, stop: str | None) -> dict[str, Any]:
        calls = []
        if self._tool is not None:
            name, arguments = self._tool
            function = {"name": name, "arguments": arguments}
            calls = [{"id": self._tool_id, "type": "function", "function": function}]
        message = {
            "role": "assistant",
            "content": None if calls else text,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "tool_calls": calls,
            "reasoning_content": None,
        }
        return {
            "index": place,
            "message": message,
            "logprobs": None,
            "finish_reason": self._reason(reason),
            "stop_reason": stop,
            "token_ids": None,
        }

    def deltas(
        self, place: int, text: str, tokens: int, reason: str | None, stop: str | None, first: bool
    ) -> list[dict[str, Any]]:
        deltas = [_delta(place, {"role": "assistant", "content": ""}, None, None)] if first else []
        content: dict[str, Any] = {"content": text} if self._tool is None else self._fragment(tokens, reason)
        if content or reason is not None:
            deltas.append(_delta(place, content, self._reason(reason), stop))
        return deltas

    def _fragment(self, tokens: int, reason: str | None) -> dict[str, Any]:
        """The part of the tool call that token number `tokens` carries; the last token carries what is left."""
        assert self._tool is not None
        name, arguments = self._tool
        entry: dict[str, Any] = {"index": 0}
        start, end = (tokens - 2) * ARGUMENT_CHARACTERS, (tokens - 1) * ARGUMENT_CHARACTERS
        if tokens == 1:
            entry |= {"id": self._tool_id, "type": "function", "function": {"name": name, "arguments": ""}}
            if reason is not None:
                entry["function"]["arguments"] = arguments
            return {"tool_calls": [entry]}
        piece = arguments[start:] if reason is not None else arguments[start:end]
        if not piece:
            return {}
        return {"tool_calls": [{**entry, "function": {"arguments": piece}}]}

    def _reason(self, reason: str | None) -> str | None:
        return "tool_calls" if reason == "stop" and self._tool is not None else reason


def _delta(place: int, delta: dict[str, Any], reason: str | None, stop: str | None) -> dict[str, Any]:
    choice = {"index": place, "delta": delta, "logprobs": None, "finish_reason": reason, "token_ids": None}
    if reason is not None:
        choice["stop_reason"] = stop
    return choice
