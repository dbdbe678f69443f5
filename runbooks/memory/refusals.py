"""Every refusal of vLLM's front end. Rules are tried in order; the first whose pattern is found writes the answer.

Sources: the facts of 0.11.0's request checks, and the same checks of neighbouring versions.
"""

from __future__ import annotations

import re
from typing import Any

from runbooks.memory.refusal import WINDOW, Context, Refusal, Rule, Writer, budget, rule
from runbooks.memory.refusals_foreign import FOREIGN_RULES


def _requested_form(found: re.Match[str], context: Context) -> Refusal:
    return budget(int(found["limit"]), int(found["prompt"]), int(found["completion"]))


def _max_tokens_form(found: re.Match[str], context: Context) -> Refusal:
    return budget(int(found["limit"]), int(found["prompt"]), int(found["max_tokens"]))


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


RULES: tuple[Rule, ...] = (
    *FOREIGN_RULES,
    rule(
        r"User-specified max_model_len \((?P<asked_len>[0-9]+)\) is greater than the derived max_model_len \([^=]+=(?P<derived_len>[0-9]+)",
        _said(
            "model_config",
            "a start-up refusal, not a request: max_model_len {asked_len} is longer than the {derived_len} that the model was made for. Set it to at most {derived_len}, or configure rope scaling if the model supports it",
            side="server",
            max_model_len_at_most="derived_len",
        ),
    ),
    rule(
        rf"{WINDOW}However, you requested [0-9]+ tokens \((?P<prompt>[0-9]+) in the (?:messages|prompt), (?P<completion>[0-9]+) in the completion\)",
        _requested_form,
    ),
    rule(
        r"'max_tokens' or 'max_completion_tokens' is too large: (?P<max_tokens>[0-9]+)\. This model's maximum context length is (?P<limit>[0-9]+) tokens and your request has (?P<prompt>[0-9]+) input tokens",
        _max_tokens_form,
    ),
    rule(
        rf"{WINDOW}However, you requested (?P<prompt>[0-9]+) tokens in the input for (?P<operation>[a-z ]+)\.",
        _pooling,
    ),
    rule(rf"{WINDOW}However, your request has (?:at least )?(?P<prompt>[0-9]+) input tokens", _input_form),
    rule(
        r"[Tt]he (?P<which>decoder|encoder) prompt \(length (?P<prompt>[0-9]+)\) is longer than the maximum (?:model|encoder|decoder) length of (?P<limit>[0-9]+)",
        _expanded,
    ),
    rule(
        r"(?:The (?:decoder|encoder) )?[Pp]rompt cannot be empty|Either prompt or prompt_embeds must be provided and non-empty|please provide at least one prompt",
        _said(
            "empty_prompt", "the prompt was empty after the template and tokenizer: the client sent nothing to answer"
        ),
    ),
    rule(
        r"[Tt]he model `(?P<model>[^`]*)` does not exist",
        _said(
            "model_not_found",
            "the server does not serve a model or adapter named {model}: use one of the names that GET /v1/models lists, or start it with --served-model-name",
        ),
    ),
    rule(
        r"[\"']error[\"']: ?[\"']Unauthorized[\"']|\b401 Unauthorized|HTTP/[0-9.]+\"? 401",
        _said(
            "auth",
            "the API key is missing or wrong. In 0.11.0 the key check runs outside the instrumentation: such a 401 is not in the metrics, only in the access log or a gateway's",
        ),
    ),
    rule(
        r"max_tokens must be at least (?P<least>[0-9]+), got (?P<value>-?[0-9]+)",
        _said(
            "sampling_parameter",
            "max_tokens is {value} and must be at least {least}: change it in the client, or leave it out",
            max_tokens_at_least="least",
        ),
    ),
    rule(
        r"(?P<parameter>temperature|top_p|top_k|min_p|n|presence_penalty|frequency_penalty|repetition_penalty|min_tokens|seed|logprobs|prompt_logprobs) must (?:be|not be) (?P<rule>[^\"{}]{1,90}?)(?:, got (?P<value>-?[0-9.]*[0-9]))?(?:[.\"]|$)",
        _said(
            "sampling_parameter",
            "{parameter} is out of range: it must be {rule} (got {value}); change it in the client",
        ),
    ),
    rule(
        r"stop cannot contain an empty string|min_tokens must be less than or equal to max_tokens|[Rr]equested (?:sample|prompt) logprobs of (?P<value>[0-9]+)|Token id (?P<token>[0-9]+) is out of vocabulary|truncate_prompt_tokens",
        _said(
            "sampling_parameter", "a request parameter is out of range; the message names it. Change it in the client"
        ),
    ),
    rule(
        r"\"auto\\?\" tool choice requires (?P<options>--enable-auto-tool-choice and --tool-call-parser)",
        _said(
            "server_option",
            "the client asked for automatic tool choice, which this server was started without: start it with --enable-auto-tool-choice and a --tool-call-parser for this model, or send tool_choice none",
            side="server",
        ),
    ),
    rule(
        r"Refused request with untrusted chat template",
        _said(
            "server_option",
            "the request brought its own chat template and the server was not started with --trust-request-chat-template: leave the template out, or trust it knowingly",
            side="server",
        ),
    ),
    rule(
        r"does not support (?P<what>Embeddings|Completions|Chat Completions|Transcriptions|[A-Z][a-z]+) API",
        _said("server_option", "this model or start does not offer that API ({what})", side="server"),
    ),
    rule(
        r"currently busy and cannot accept new requests|prefill token backlog limit",
        _said(
            "queue_limit",
            "a queue limit refused it (status 503): max_num_queued_reqs or max_num_queued_tokens of newer releases. 0.11.0 has no such limit, so this is not 0.11.0. Retry later, or add capacity; see vllm:admission_rejections_total",
            side="server",
        ),
    ),
    rule(
        r"EngineCore encountered an issue|EngineDeadError|engine (?:is|has) (?:dead|died)",
        _said(
            "engine_dead",
            "the engine core has died and every request fails with 500 until the server is restarted: read the log above for the first traceback (a memory error is one possible reason; paste it into the ledger)",
            side="server",
            missing="the log lines above the first 500",
        ),
    ),
    rule(
        r"currently scaling",
        _said(
            "undetermined",
            "the server is changing its number of engines and refuses until that is done: retry; these 503 are not in the metrics",
            side="nobody",
        ),
    ),
    rule(
        r"Maximum file size exceeded",
        _said(
            "sampling_parameter",
            "the audio file is larger than the server takes (25 MB unless VLLM_MAX_AUDIO_CLIP_FILESIZE_MB says otherwise): send less, or raise that variable",
        ),
    ),
    rule(
        r"Unsupported Media Type|Expected 'file' to be a file-like object|validation errors? for|JSON decode error|Field required|extra_forbidden",
        _said(
            "undetermined",
            "the body does not fit the API's schema (wrong content type, field or JSON): compare it with the route's description; nothing reached the engine",
        ),
    ),
    rule(
        r"[\"']detail[\"']: ?[\"']Not Found[\"']",
        _said(
            "undetermined",
            "no such path on this server: check the path and its /v1 prefix (and a proxy that rewrites it); the served names play no part yet",
        ),
    ),
    rule(
        r"[\"']detail[\"']: ?[\"']Method Not Allowed[\"']",
        _said("undetermined", "that path takes another method: generation routes want POST"),
    ),
)
