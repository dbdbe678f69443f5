"""Every refusal of vLLM's front end. Rules are tried in order; the first whose pattern is found writes the answer.

Sources: the facts of 0.11.0's request checks, and the same checks of neighbouring versions.
"""

from __future__ import annotations

import re

from runbooks.memory.refusal import WINDOW, Context, Refusal, Rule, budget, rule, said
from runbooks.memory.refusals_foreign import FOREIGN_RULES
from runbooks.memory.refusals_parameters import PARAMETER_RULES


def _requested_form(found: re.Match[str], context: Context) -> Refusal:
    return budget(int(found["limit"]), int(found["prompt"]), int(found["completion"]))


def _max_tokens_form(found: re.Match[str], context: Context) -> Refusal:
    return budget(int(found["limit"]), int(found["prompt"]), int(found["max_tokens"]))


def _input_form(found: re.Match[str], context: Context) -> Refusal:
    limit, prompt = int(found["limit"]), int(found["prompt"])
    window = context.window
    completions = context.route.rstrip("/").endswith("/completions") and "chat" not in context.route
    if completions and window is None and context.max_tokens is not None:
        window = limit + context.max_tokens
    if (window is not None and limit < window) or limit <= 0 or completions or limit < 16:
        return _printed_difference(limit, prompt, window, completions)
    return _prompt_alone(limit, prompt, context)


def _prompt_alone(limit: int, prompt: int, context: Context) -> Refusal:
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
    needed = prompt + (context.max_tokens or 1)
    if context.max_tokens is not None:
        refusal.numbers["max_tokens"] = context.max_tokens
        if context.max_tokens >= limit:
            refusal.says.append(
                f"max_tokens {context.max_tokens} exceeds the window too: a window of {needed} would be needed for both"
            )
    refusal.fix(max_model_len_at_least=needed)
    return refusal


def _counted_form(found: re.Match[str], context: Context) -> Refusal:
    """Newer versions count no further than the window, so the prompt's figure may be a lower bound."""
    limit, prompt, completion = int(found["limit"]), int(found["prompt"]), int(found["completion"])
    refusal = budget(limit, prompt, completion)
    if found.groupdict().get("least") or prompt + completion == limit + 1:
        refusal.says.append(
            f"the count of the prompt stops where it is too much: at least {prompt} tokens, so the excess is at least {prompt + completion - limit} and the real one may be larger"
        )
    return refusal


def _characters_form(found: re.Match[str], context: Context) -> Refusal:
    refusal = Refusal(
        "prompt_too_long",
        {
            "limit": int(found["limit"]),
            "input_characters": int(found["characters"]),
            "max_tokens": int(found["completion"]),
        },
    )
    refusal.says.append(
        f"the input of {found['characters']} characters is refused before it is tokenized: no tokenizer makes it fit {found['limit']} tokens"
    )
    return refusal


def _messages_form(found: re.Match[str], context: Context) -> Refusal:
    return _prompt_alone(int(found["limit"]), int(found["prompt"]), context)


def _scheduler_form(found: re.Match[str], context: Context) -> Refusal:
    refusal = _prompt_alone(int(found["limit"]), int(found["prompt"]), context)
    refusal.says.append(
        "a scheduler of V0 refused it after admission: the client gets status 200, no text and finish_reason length"
    )
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
        f"the printed limit {limit} is not the window: {window} - {max_tokens} = {limit}, that is max_model_len - max_tokens. "
        + (
            f"The prompt of {prompt} tokens fits the window and needs no change"
            if prompt < window
            else f"The prompt of {prompt} tokens alone is {prompt - window} over the window of {window}: no max_tokens makes it fit"
        )
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


RULES: tuple[Rule, ...] = (
    *FOREIGN_RULES,
    rule(
        r"User-specified max_model_len \((?P<asked_len>[0-9]+)\) is greater than the derived max_model_len \([^=]+=(?P<derived_len>[0-9]+)",
        said(
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
        r"'max_tokens' or 'max_completion_tokens' is too large: (?P<max_tokens>[0-9]+)\. This model.{1,2}s maximum context length is (?P<limit>[0-9]+) tokens and your request has (?P<prompt>[0-9]+) input tokens",
        _max_tokens_form,
    ),
    rule(
        rf"{WINDOW}However, you requested (?P<completion>[0-9]+) output tokens and your prompt contains (?P<least>at least )?(?P<prompt>[0-9]+) input tokens",
        _counted_form,
    ),
    rule(
        r"You passed (?P<prompt>[0-9]+) input tokens and requested (?P<completion>[0-9]+) output tokens\. However, the model.{1,2}s context length is only (?P<limit>[0-9]+)",
        _counted_form,
    ),
    rule(
        r"You passed (?P<characters>[0-9]+) input characters and requested (?P<completion>[0-9]+) output tokens\. However, the model.{1,2}s context length is only (?P<limit>[0-9]+)",
        _characters_form,
    ),
    rule(rf"{WINDOW}However, you requested (?P<prompt>[0-9]+) tokens in the messages", _messages_form),
    rule(
        r"Input prompt \((?P<prompt>[0-9]+) tokens\) is too long and exceeds (?:the )?limit of (?P<limit>[0-9]+)",
        _scheduler_form,
    ),
    rule(
        r"[Tt]he (?P<which>)prompt \(total length (?P<prompt>[0-9]+)\) is too long to fit into the model \(context length (?P<limit>[0-9]+)\)",
        _expanded,
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
        said(
            "empty_prompt", "the prompt was empty after the template and tokenizer: the client sent nothing to answer"
        ),
    ),
    rule(
        r"[Tt]he model `(?P<model>[^`]*)` does not exist",
        said(
            "model_not_found",
            "the server does not serve a model or adapter named {model}: use one of the names that GET /v1/models lists, or start it with --served-model-name",
        ),
    ),
    rule(
        r"[Ll]o[Rr][Aa] adapter '(?P<model>[^']*)' cannot be found",
        said(
            "model_not_found",
            "no adapter named {model} is loaded on this server: GET /v1/models lists the adapters that are",
        ),
    ),
    rule(
        r"[Ll]o[Rr][Aa] adapter '(?P<model>[^']*)' has already been loaded",
        said("undetermined", "the adapter {model} is loaded already: nothing to do, or unload it first"),
    ),
    rule(
        r"[\"']error[\"']: ?[\"']Unauthorized[\"']|\b401 Unauthorized|HTTP/[0-9.]+\"? 401|\b401 Client Error: Unauthorized for url",
        said(
            "auth",
            "the API key is missing or wrong. In 0.11.0 the key check runs outside the instrumentation: such a 401 is not in the metrics, only in the access log or a gateway's",
        ),
    ),
    *PARAMETER_RULES,
    rule(
        r"\"auto\\?\" tool choice requires (?P<options>--enable-auto-tool-choice and --tool-call-parser)",
        said(
            "server_option",
            "the client asked for automatic tool choice, which this server was started without: start it with --enable-auto-tool-choice and a --tool-call-parser for this model, or send tool_choice none",
            side="server",
        ),
    ),
    rule(
        r"At most (?P<limit>[0-9]+) (?P<kind>image|video|audio)(?:\(s\)|s)? may be provided",
        said(
            "server_option",
            "more than {limit} {kind} in one request: send fewer, or start the server with a higher --limit-mm-per-prompt",
            side="server",
        ),
    ),
    rule(
        r"default chat template is no longer allowed|no chat template",
        said(
            "server_option",
            "the tokenizer brings no chat template: start the server with --chat-template, or use the completions route",
            side="server",
        ),
    ),
    rule(
        r"Refused request with untrusted chat template",
        said(
            "server_option",
            "the request brought its own chat template and the server was not started with --trust-request-chat-template: leave the template out, or trust it knowingly",
            side="server",
        ),
    ),
    rule(
        r"does not support (?P<what>Embeddings|Completions|Chat Completions|Transcriptions|[A-Z][a-z]+) API",
        said("server_option", "this model or start does not offer that API ({what})", side="server"),
    ),
    rule(
        r"currently busy and cannot accept new requests|prefill token backlog limit",
        said(
            "queue_limit",
            "a queue limit refused it (status 503): max_num_queued_reqs or max_num_queued_tokens of newer releases. 0.11.0 has no such limit, so this is not 0.11.0. Retry later, or add capacity; see vllm:admission_rejections_total",
            side="server",
        ),
    ),
    rule(
        r"\"GET /(?P<probe>health|ping) HTTP/[0-9.]+\" 503",
        said(
            "engine_dead",
            "/{probe} answers 503 when the engine core has died: every request fails until a restart. Read the log above for the first traceback; this path is left out of the metrics",
            side="server",
            missing="the engine's log lines above the first 503, with their stack trace",
        ),
    ),
    rule(
        r"EngineCore encountered an issue|EngineDeadError|Background loop (?:has errored|is stopped)|engine (?:is|has) (?:dead|died)",
        said(
            "engine_dead",
            "the engine core has died and every request fails with 500 until the server is restarted: read the log above for the first traceback (a memory error is one possible reason; paste it into the ledger)",
            side="server",
            missing="the engine's log lines above the first 500, with their stack trace",
        ),
    ),
    rule(
        r"currently scaling",
        said(
            "undetermined",
            "the server is changing its number of engines and refuses until that is done: retry; these 503 are not in the metrics",
            side="nobody",
        ),
    ),
    rule(
        r"Maximum file size exceeded",
        said(
            "undetermined",
            "the audio file is larger than the server takes (25 MB unless VLLM_MAX_AUDIO_CLIP_FILESIZE_MB says otherwise): send less, or raise that variable",
        ),
    ),
    rule(
        r"Unsupported Media Type|Expected 'file' to be a file-like object|validation errors? for|JSON decode error|Field required|extra_forbidden",
        said(
            "undetermined",
            "the body does not fit the API's schema (wrong content type, a field or file of the wrong kind, or no JSON): compare it with the route's description; nothing reached the engine",
        ),
    ),
    rule(
        r"[\"']detail[\"']: ?[\"']Not Found[\"']",
        said(
            "undetermined",
            "no such path on this server: check the path and its /v1 prefix (and a proxy that rewrites it); the served names play no part yet",
        ),
    ),
    rule(
        r"[\"']detail[\"']: ?[\"']Method Not Allowed[\"']",
        said("undetermined", "that path takes another method: generation routes want POST"),
    ),
    rule(
        r"(?:[Ii]nvalid|[Ff]ailed|[Uu]nsupported|not supported|[Ee]rror)[^\"]{0,80}(?:grammar|json_schema|JSON schema|guided_|structured output|xgrammar)|(?:[Gg]rammar|JSON schema)[^\"]{0,60}(?:invalid|error|not supported|unsupported)",
        said(
            "sampling_parameter",
            "the schema or grammar for structured output cannot be used: simplify it in the client, or choose another structured-output backend; the message names the part",
        ),
    ),
    rule(
        r"Invalid HTTP request received",
        said(
            "undetermined",
            "the HTTP parser refused the request before any route: headers above the parser's limit (4 MiB or 256 headers), or something that is not HTTP (TLS sent to a plain port)",
        ),
    ),
    rule(
        r"APIConnectionError|Connection error|Connection refused|ConnectError|ConnectionResetError|Server disconnected|curl: \((?:7|28|52|56)\)|APITimeoutError|Request timed out|ReadTimeout|Read timed out",
        said(
            "undetermined",
            "the client got no answer at all, so nothing refused the request: the server was not reachable or too slow for the client's own timeout; its access log shows whether the request arrived",
            missing="the server's log of that time (is it up, was the request accepted)",
            side="nobody",
        ),
    ),
    rule(
        r"[\"']message[\"']: ?[\"'](?P<message>[^\"]{1,300}?)[\"'],.*?(?:BadRequestError|NotFoundError|Bad Request)",
        said(
            "undetermined",
            "refused with a message that is not one of the known limits; it names its own reason: {message}",
        ),
    ),
    rule(
        r"[\"']message[\"']: ?[\"'](?P<message>[^\"]{1,300}?)[\"'],.*?(?:InternalServerError|Internal Server Error)",
        said(
            "undetermined",
            "the server failed on this request: {message}",
            side="server",
            missing="the server's log around it: the first traceback",
        ),
    ),
)
