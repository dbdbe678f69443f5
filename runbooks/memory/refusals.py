"""One refused request: which message it was, and what its figures say. Every message of vLLM's front end, and those of others that look alike.

Rules are tried in order; the first whose pattern is found writes the answer. Sources: the facts of 0.11.0's request checks, and the same checks
of neighbouring versions.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Context:
    """What the text around a message tells: route and status of the access line, the server's window, a max_tokens that the client reports."""

    route: str = ""
    status: int | None = None
    window: int | None = None
    max_tokens: int | None = None
    streamed: bool = False


@dataclass
class Refusal:
    """`name` is the class; `side` who should change: client, server, operator of something in front, or nobody yet."""

    name: str
    numbers: dict[str, int | float] = field(default_factory=dict)
    fixes: list[dict[str, Any]] = field(default_factory=list)
    says: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    side: str = "client"

    def fix(self, **change: Any) -> None:
        self.fixes.append({"change": change})


Writer = Callable[[re.Match[str], Context], Refusal]


@dataclass(frozen=True)
class Rule:
    regex: re.Pattern[str]
    write: Writer


def _budget(limit: int, prompt: int, max_tokens: int, *, foreign: bool = False) -> Refusal:
    """Prompt and completion against a window: the prompt alone, the completion alone, or the two together."""
    requested = prompt + max_tokens
    over = requested - limit
    numbers: dict[str, int | float] = {
        "limit": limit,
        "prompt_tokens": prompt,
        "max_tokens": max_tokens,
        "requested": requested,
        "over_by": over,
    }
    if prompt >= limit:
        refusal = Refusal("prompt_too_long", {**numbers, "prompt_over_by": prompt - limit})
        refusal.says.append(
            f"the prompt alone ({prompt} tokens) is {prompt - limit} over the window of {limit}: no max_tokens makes it fit; prompt and max_tokens together are over by {over}"
        )
        refusal.fix(prompt_tokens_at_most=limit - 1)
        if not foreign:
            refusal.fix(max_model_len_at_least=requested)
            refusal.says.append(
                f"a window that holds this request is {requested} tokens; only if the model was made for it and the KV cache holds it"
            )
        if max_tokens >= limit:
            refusal.says.append(f"max_tokens {max_tokens} exceeds the window too")
        return refusal
    name = "max_tokens_alone" if max_tokens >= limit else "prompt_plus_max_tokens"
    refusal = Refusal(name, numbers)
    refusal.fix(max_tokens_at_most=limit - prompt)
    refusal.says.append(
        f"prompt {prompt} + max_tokens {max_tokens} = {requested}, over by {over} against the window of {limit}: set max_tokens to at most {limit - prompt}, or leave it out"
    )
    if max_tokens >= limit:
        refusal.says.append(
            f"max_tokens asks for the whole window: a client setting or default. Change it there to at most {limit - prompt}; the server is right to refuse and needs no change"
        )
    return refusal


def _requested_form(found: re.Match[str], context: Context) -> Refusal:
    return _budget(int(found["limit"]), int(found["prompt"]), int(found["completion"]))


def _max_tokens_form(found: re.Match[str], context: Context) -> Refusal:
    return _budget(int(found["limit"]), int(found["prompt"]), int(found["max_tokens"]))


def _input_form(found: re.Match[str], context: Context) -> Refusal:
    limit, prompt = int(found["limit"]), int(found["prompt"])
    window = context.window
    completions = context.route.rstrip("/").endswith("/completions") and "chat" not in context.route
    if (window is not None and limit < window) or limit <= 0 or completions or limit < 16:
        return _printed_difference(limit, prompt, window, completions)
    refusal = Refusal("prompt_too_long", {"limit": limit, "prompt_tokens": prompt, "over_by": prompt - limit})
    if prompt == limit:
        refusal.says.append(
            f"the prompt fills the window of {limit} exactly (over by 0) and is still refused, because no token of an answer would fit: at most {limit - 1} pass"
        )
    else:
        refusal.says.append(
            f"the prompt alone is over by {prompt - limit} ({prompt} tokens, window {limit}); no max_tokens makes it fit"
        )
    refusal.fix(prompt_tokens_at_most=limit - 1)
    refusal.fix(max_model_len_at_least=prompt + 1)
    return refusal


def _printed_difference(limit: int, prompt: int, window: int | None, completions: bool) -> Refusal:
    """The message prints max_model_len - max_tokens as if it were the window."""
    refusal = Refusal("misleading_message", {"stated_limit": limit, "prompt_tokens": prompt, "over_by": prompt - limit})
    if window is None:
        refusal.says.append(
            f"the printed limit {limit} is not the window: {'the completions route prints' if completions else 'it is'} max_model_len - max_tokens (max_tokens is 16 when left out). "
            f"Prompt and max_tokens together are over by {prompt - limit}: lower max_tokens by that much"
        )
        refusal.missing.append("max_model_len of the server and max_tokens of the request")
        refusal.fix(max_tokens_lower_by=prompt - limit)
        return refusal
    max_tokens = window - limit
    refusal.numbers |= {"max_model_len": window, "max_tokens": max_tokens}
    refusal.says.append(
        f"the printed limit {limit} is not the window: {window} - {max_tokens} = {limit}, that is max_model_len - max_tokens. The prompt of {prompt} tokens needs no change unless it alone reaches {window}"
    )
    if prompt < window:
        refusal.fix(max_tokens_at_most=window - prompt)
        refusal.says.append(f"set max_tokens to at most {window - prompt} ({window} - {prompt})")
    else:
        refusal.name = "prompt_too_long"
        refusal.numbers |= {"limit": window, "over_by": prompt - window}
        refusal.fix(prompt_tokens_at_most=window - 1)
    return refusal


def _expanded(found: re.Match[str], context: Context) -> Refusal:
    limit, prompt = int(found["limit"]), int(found["prompt"])
    refusal = Refusal("prompt_too_long", {"limit": limit, "prompt_tokens": prompt, "over_by": prompt - limit})
    refusal.says.append(
        f"the {found['which']} prompt after expansion is over by {prompt - limit} ({prompt} tokens, window {limit})"
    )
    refusal.says.append(
        "if it holds an image or a video: the number of its tokens depends on size and count. Send fewer or smaller images (or crop tiles), fewer frames or pixels of a video (lower fps, max_pixels)"
    )
    refusal.says.append(f"this check refuses only what is longer than the window, so {limit} itself passes it")
    refusal.fix(prompt_tokens_at_most=limit)
    needed = prompt + 1
    if context.max_tokens is not None:
        refusal.numbers["max_tokens"] = context.max_tokens
        needed = prompt + context.max_tokens
        if context.max_tokens >= limit:
            refusal.says.append(
                f"max_tokens {context.max_tokens} exceeds the window too: a window of {needed} would be needed for both"
            )
    refusal.fix(max_model_len_at_least=needed)
    return refusal


def _pooling(found: re.Match[str], context: Context) -> Refusal:
    limit, prompt = int(found["limit"]), int(found["prompt"])
    refusal = Refusal("prompt_too_long", {"limit": limit, "prompt_tokens": prompt, "over_by": prompt - limit})
    refusal.says.append(
        f"the input for {found['operation'].strip()} is over by {prompt - limit} ({prompt} tokens, window {limit}); a pooling request has no output, so only a shorter input helps: split or truncate it"
    )
    refusal.fix(prompt_tokens_at_most=limit)
    return refusal


def _foreign(found: re.Match[str], context: Context) -> Refusal:
    groups = found.groupdict()
    if groups.get("limit") and groups.get("prompt") and groups.get("completion"):
        refusal = _budget(int(groups["limit"]), int(groups["prompt"]), int(groups["completion"]), foreign=True)
        refusal.name = "not_vllm"
    else:
        refusal = Refusal(
            "not_vllm",
            {
                name: int(value.replace(",", ""))
                for name, value in groups.items()
                if value and name in ("limit", "requested", "prompt")
            },
        )
        if "prompt" in refusal.numbers:
            refusal.numbers["prompt_tokens"] = refusal.numbers.pop("prompt")
        asked = refusal.numbers.get("requested", refusal.numbers.get("prompt_tokens"))
        if asked is not None and "limit" in refusal.numbers:
            refusal.numbers["over_by"] = asked - refusal.numbers["limit"]
            refusal.says.append(
                f"over by {refusal.numbers['over_by']} against that server's limit of {refusal.numbers['limit']}"
            )
    refusal.says.append("the shape of this error is another server's, not this engine's: its limits are set there")
    refusal.side = "other server"
    return refusal


def _proxy(found: re.Match[str], context: Context) -> Refusal:
    status = int(found["status"]) if found.groupdict().get("status") else context.status
    refusal = Refusal("not_vllm", {"status": status} if status else {}, side="proxy")
    refusal.says.append(
        "this answer comes from a proxy, gateway or load balancer in front, not from the engine: vLLM has no limit on the size of a body and never answers with an HTML page"
    )
    if status == 413:
        refusal.says.append(
            "raise the proxy's body limit (for example client_max_body_size), or send less: images by reference instead of base64"
        )
    elif status in (502, 503, 504):
        refusal.says.append(
            "it could not reach a server behind it, or waited too long: look whether the replica is up, and at the proxy's read timeout against the time of a long answer"
        )
    elif status == 429:
        refusal.says.append("0.11.0 has no rate or queue limit and never answers 429: the limit is the gateway's")
    return refusal


def _said(name: str, text: str, *, side: str = "client", missing: str = "", **change: Any) -> Writer:
    """A rule without arithmetic: {groups} of the pattern may stand in `text`."""

    def write(found: re.Match[str], context: Context) -> Refusal:
        groups = {key: value or "" for key, value in found.groupdict().items()}
        refusal = Refusal(name, side=side)
        for key, value in groups.items():
            if re.fullmatch(r"-?\d+(?:\.\d+)?", value):
                refusal.numbers[key] = float(value) if "." in value else int(value)
        filled = text
        for key, value in groups.items():
            filled = filled.replace("{" + key + "}", value)
        refusal.says.append(filled)
        if change:
            refusal.fix(
                **{
                    key: int(groups[value]) if isinstance(value, str) and groups.get(value, "").isdigit() else value
                    for key, value in change.items()
                }
            )
        if missing:
            refusal.missing.append(missing)
        return refusal

    return write


def _rule(regex: str, write: Writer) -> Rule:
    return Rule(re.compile(regex), write)


_WINDOW = r"maximum context length is (?P<limit>-?[0-9]+) tokens\.? "
RULES: tuple[Rule, ...] = (
    # Other servers first: their shape, not their words, tells them.
    _rule(
        rf"{_WINDOW}However, you requested [0-9]+ tokens \((?P<prompt>[0-9]+) in (?:the |your )?(?:messages|prompt)[,;] (?P<completion>[0-9]+) (?:in|for) the completion\).*?(?:context_length_exceeded|invalid_request_error)",
        _foreign,
    ),
    _rule(
        rf"{_WINDOW}However, (?:you requested|your messages resulted in) (?P<requested>[0-9]+) tokens.*?(?:context_length_exceeded|invalid_request_error)",
        _foreign,
    ),
    _rule(
        r"`inputs` tokens \+ `max_new_tokens` must be <= (?P<limit>[0-9]+)\. Given: (?P<prompt>[0-9]+) `inputs` tokens and (?P<completion>[0-9]+) `max_new_tokens`",
        _foreign,
    ),
    _rule(r"`inputs` must have less than (?P<limit>[0-9]+) tokens\. Given: (?P<prompt>[0-9]+)", _foreign),
    _rule(r"prompt is too long: (?P<prompt>[0-9]+) tokens > (?P<limit>[0-9]+) maximum", _foreign),
    _rule(
        r"input token count \((?P<prompt>[0-9]+)\) exceeds the maximum number of tokens allowed \((?P<limit>[0-9]+)\)",
        _foreign,
    ),
    _rule(
        r"[Rr]equested token count exceeds the model's maximum context length of (?P<limit>[0-9]+) tokens\. You requested a total of (?P<requested>[0-9]+) tokens",
        _foreign,
    ),
    _rule(
        r"request \((?P<prompt>[0-9]+) tokens\) exceeds the available context size \((?P<limit>[0-9]+) tokens\)",
        _foreign,
    ),
    _rule(r"exceed_context_size_error|context_length_exceeded|error_type\"?: ?\"(?:validation|overloaded)", _foreign),
    _rule(r"<html|<!DOCTYPE html|(?i:<center>nginx)", _proxy),
    _rule(
        r"HTTP/[0-9.]+ (?P<status>413|429|502|504)\b|\b(?P<status2>413) (?:Request Entity|Payload|Content) Too Large",
        _proxy,
    ),
    # vLLM's own.
    _rule(
        r"User-specified max_model_len \((?P<asked_len>[0-9]+)\) is greater than the derived max_model_len \([^=]+=(?P<derived_len>[0-9]+)",
        _said(
            "model_config",
            "a start-up refusal, not a request: max_model_len {asked_len} is longer than the {derived_len} that the model was made for. Set it to at most {derived_len}, or configure rope scaling if the model supports it",
            side="server",
            max_model_len_at_most="derived_len",
        ),
    ),
    _rule(
        rf"{_WINDOW}However, you requested [0-9]+ tokens \((?P<prompt>[0-9]+) in the (?:messages|prompt), (?P<completion>[0-9]+) in the completion\)",
        _requested_form,
    ),
    _rule(
        r"'max_tokens' or 'max_completion_tokens' is too large: (?P<max_tokens>[0-9]+)\. This model's maximum context length is (?P<limit>[0-9]+) tokens and your request has (?P<prompt>[0-9]+) input tokens",
        _max_tokens_form,
    ),
    _rule(
        rf"{_WINDOW}However, you requested (?P<prompt>[0-9]+) tokens in the input for (?P<operation>[a-z ]+)\.",
        _pooling,
    ),
    _rule(rf"{_WINDOW}However, your request has (?:at least )?(?P<prompt>[0-9]+) input tokens", _input_form),
    _rule(
        r"[Tt]he (?P<which>decoder|encoder) prompt \(length (?P<prompt>[0-9]+)\) is longer than the maximum (?:model|encoder|decoder) length of (?P<limit>[0-9]+)",
        _expanded,
    ),
    _rule(
        r"(?:The (?:decoder|encoder) )?[Pp]rompt cannot be empty|Either prompt or prompt_embeds must be provided and non-empty|please provide at least one prompt",
        _said(
            "empty_prompt", "the prompt was empty after the template and tokenizer: the client sent nothing to answer"
        ),
    ),
    _rule(
        r"[Tt]he model `(?P<model>[^`]*)` does not exist",
        _said(
            "model_not_found",
            "the server does not serve a model or adapter named {model}: use one of the names that GET /v1/models lists, or start it with --served-model-name",
        ),
    ),
    _rule(
        r"[\"']error[\"']: ?[\"']Unauthorized[\"']|\b401 Unauthorized|HTTP/[0-9.]+\"? 401",
        _said(
            "auth",
            "the API key is missing or wrong. In 0.11.0 the key check runs outside the instrumentation: such a 401 is not in the metrics, only in the access log or a gateway's",
        ),
    ),
    _rule(
        r"max_tokens must be at least (?P<least>[0-9]+), got (?P<value>-?[0-9]+)",
        _said(
            "sampling_parameter",
            "max_tokens is {value} and must be at least {least}: change it in the client, or leave it out",
            max_tokens_at_least="least",
        ),
    ),
    _rule(
        r"(?P<parameter>temperature|top_p|top_k|min_p|n|presence_penalty|frequency_penalty|repetition_penalty|min_tokens|seed|logprobs|prompt_logprobs) must (?:be|not be) (?P<rule>[^\"{}]{1,90}?)(?:, got (?P<value>-?[0-9.]*[0-9]))?(?:[.\"]|$)",
        _said(
            "sampling_parameter",
            "{parameter} is out of range: it must be {rule} (got {value}); change it in the client",
        ),
    ),
    _rule(
        r"stop cannot contain an empty string|min_tokens must be less than or equal to max_tokens|[Rr]equested (?:sample|prompt) logprobs of (?P<value>[0-9]+)|Token id (?P<token>[0-9]+) is out of vocabulary|truncate_prompt_tokens",
        _said(
            "sampling_parameter", "a request parameter is out of range; the message names it. Change it in the client"
        ),
    ),
    _rule(
        r"\"auto\\?\" tool choice requires (?P<options>--enable-auto-tool-choice and --tool-call-parser)",
        _said(
            "server_option",
            "the client asked for automatic tool choice, which this server was started without: start it with --enable-auto-tool-choice and a --tool-call-parser for this model, or send tool_choice none",
            side="server",
        ),
    ),
    _rule(
        r"Refused request with untrusted chat template",
        _said(
            "server_option",
            "the request brought its own chat template and the server was not started with --trust-request-chat-template: leave the template out, or trust it knowingly",
            side="server",
        ),
    ),
    _rule(
        r"does not support (?P<what>Embeddings|Completions|Chat Completions|Transcriptions|[A-Z][a-z]+) API",
        _said("server_option", "this model or start does not offer that API ({what})", side="server"),
    ),
    _rule(
        r"currently busy and cannot accept new requests|prefill token backlog limit",
        _said(
            "queue_limit",
            "a queue limit refused it (status 503): max_num_queued_reqs or max_num_queued_tokens of newer releases. 0.11.0 has no such limit, so this is not 0.11.0. Retry later, or add capacity; see vllm:admission_rejections_total",
            side="server",
        ),
    ),
    _rule(
        r"EngineCore encountered an issue|EngineDeadError|engine (?:is|has) (?:dead|died)",
        _said(
            "engine_dead",
            "the engine core has died and every request fails with 500 until the server is restarted: read the log above for the first traceback (a memory error is one possible reason; paste it into the ledger)",
            side="server",
            missing="the log lines above the first 500",
        ),
    ),
    _rule(
        r"currently scaling",
        _said(
            "undetermined",
            "the server is changing its number of engines and refuses until that is done: retry; these 503 are not in the metrics",
            side="nobody",
        ),
    ),
    _rule(
        r"Maximum file size exceeded",
        _said(
            "sampling_parameter",
            "the audio file is larger than the server takes (25 MB unless VLLM_MAX_AUDIO_CLIP_FILESIZE_MB says otherwise): send less, or raise that variable",
        ),
    ),
    _rule(
        r"Unsupported Media Type|Expected 'file' to be a file-like object|validation errors? for|JSON decode error|Field required|extra_forbidden",
        _said(
            "undetermined",
            "the body does not fit the API's schema (wrong content type, field or JSON): compare it with the route's description; nothing reached the engine",
        ),
    ),
    _rule(
        r"[\"']detail[\"']: ?[\"']Not Found[\"']",
        _said(
            "undetermined",
            "no such path on this server: check the path and its /v1 prefix (and a proxy that rewrites it); the served names play no part yet",
        ),
    ),
    _rule(
        r"[\"']detail[\"']: ?[\"']Method Not Allowed[\"']",
        _said("undetermined", "that path takes another method: generation routes want POST"),
    ),
)
