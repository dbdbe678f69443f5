"""Refusals of other servers and of what stands in front: their shape, not their words, tells them."""

from __future__ import annotations

import re

from runbooks.memory.refusal import WINDOW, Context, Refusal, Rule, budget, rule


def _foreign(found: re.Match[str], context: Context) -> Refusal:
    groups = found.groupdict()
    if groups.get("limit") and groups.get("prompt") and groups.get("completion"):
        refusal = budget(int(groups["limit"]), int(groups["prompt"]), int(groups["completion"]), foreign=True)
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
    printed = next((value for name, value in found.groupdict().items() if name.startswith("status") and value), None)
    status = int(printed) if printed else 413 if "too large body" in found[0] else context.status
    refusal = Refusal("not_vllm", {"status": status} if status else {}, side="proxy")
    refusal.says.append(
        "this answer comes from a proxy, gateway or load balancer in front, not from the engine: vLLM has no limit on the size of a body and never answers with an HTML page"
    )
    if status == 413:
        refusal.says.append(
            "raise the proxy's body limit (for example client_max_body_size), or send less: images by reference instead of base64"
        )
    elif status in (502, 503, 504) or status is not None and 520 <= status <= 529:
        refusal.says.append(
            "it could not reach a server behind it, or waited too long: look whether the replica is up, and at the proxy's read timeout against the time of a long answer"
        )
    elif status == 429:
        refusal.says.append("0.11.0 has no rate or queue limit and never answers 429: the limit is the gateway's")
    elif status == 403:
        refusal.says.append("vLLM itself never answers 403: a rule or a key of the gateway forbids it")
    elif status == 499:
        refusal.says.append(
            "the client closed the connection before the answer (status 499 is the proxy's own): its timeout is shorter than the answer takes"
        )
    return refusal


_Q = "[\"']"
_CHAT_FORM = r"However, you requested [0-9]+ tokens \((?P<prompt>[0-9]+) in (?:the |your )?(?:messages|prompt)[,;] (?P<completion>[0-9]+) (?:in|for) the completion\)"
_NOT_OURS = r".*?(?:context_length_exceeded|invalid_request_error)"

FOREIGN_RULES: tuple[Rule, ...] = (
    rule(rf"{WINDOW}{_CHAT_FORM}{_NOT_OURS}", _foreign),
    rule(rf"{WINDOW}However, your messages resulted in (?P<prompt>[0-9]+) tokens", _foreign),
    rule(rf"{WINDOW}However, you requested (?P<requested>[0-9]+) tokens.*?context_length_exceeded", _foreign),
    rule(
        r"`inputs` tokens \+ `max_new_tokens` must be <= (?P<limit>[0-9]+)\. Given: (?P<prompt>[0-9]+) `inputs` tokens and (?P<completion>[0-9]+) `max_new_tokens`",
        _foreign,
    ),
    rule(r"`inputs` must have less than (?P<limit>[0-9]+) tokens\. Given: (?P<prompt>[0-9]+)", _foreign),
    rule(
        r"prompt is too long: (?P<prompt>[0-9]+)(?: tokens >|, model maximum context length:) (?P<limit>[0-9]+)",
        _foreign,
    ),
    rule(
        r"input length and `?max_tokens`? exceed context limit: (?P<prompt>[0-9]+) \+ (?P<completion>[0-9]+) > (?P<limit>[0-9]+)",
        _foreign,
    ),
    rule(
        r"input token count(?: \(|: ?)(?P<prompt>[0-9]+)\)? exceeds the maximum number of tokens allowed(?: \(|: ?)(?P<limit>[0-9]+)",
        _foreign,
    ),
    rule(
        r"[Rr]equested token count exceeds the model.{1,2}s maximum context length of (?P<limit>[0-9]+) tokens\. You requested a total of [0-9]+ tokens: (?P<prompt>[0-9]+) tokens from the input messages and (?P<completion>[0-9]+)",
        _foreign,
    ),
    rule(
        r"[Rr]equested token count exceeds the model.{1,2}s maximum context length of (?P<limit>[0-9]+) tokens\. You requested a total of (?P<requested>[0-9]+) tokens",
        _foreign,
    ),
    rule(
        r"[Tt]he input \((?P<prompt>[0-9]+) tokens\) is longer than the model.{1,2}s context length \((?P<limit>[0-9]+) tokens\)",
        _foreign,
    ),
    rule(r"Prompt length \((?P<prompt>[0-9]+)\) exceeds maximum input length \((?P<limit>[0-9]+)\)", _foreign),
    rule(
        r"[Ss]um of prompt length \((?P<prompt>[0-9]+)(?:\.0)?\)(?:,|) and max_(?:new_)?tokens \((?P<completion>[0-9]+)\) should not exceed max_num_tokens \((?P<limit>[0-9]+)\)",
        _foreign,
    ),
    rule(
        r"Prompt contains (?P<prompt>[0-9]+) tokens.*?too large for model with (?P<limit>[0-9]+) maximum context length",
        _foreign,
    ),
    rule(
        rf"exceed_context_size_error.*?{_Q}n_prompt_tokens{_Q}: ?(?P<prompt>[0-9]+), ?{_Q}n_ctx{_Q}: ?(?P<limit>[0-9]+)",
        _foreign,
    ),
    rule(
        r"request \((?P<prompt>[0-9]+) tokens\) exceeds the available context size \((?P<limit>[0-9]+) tokens\)",
        _foreign,
    ),
    rule(
        rf"exceed_context_size_error|context_length_exceeded|error_type{_Q}?: ?{_Q}(?:validation|overloaded|generation)|not found, try pulling it first|"
        rf"does not exist or you do not have access to it|Azure OpenAI|{_Q}type{_Q}: ?{_Q}error{_Q}, ?{_Q}error{_Q}: ?\{{",
        _foreign,
    ),
    # vLLM's code is a number that follows message, type and param; its only bare-string errors are two.
    rule(rf"{_Q}error{_Q}: ?\{{.*{_Q}code{_Q}: ?{_Q}[A-Za-z_]\w*{_Q}", _foreign),
    rule(rf"{_Q}error{_Q}: ?\{{ ?{_Q}code{_Q}: ?[0-9]+, ?{_Q}message{_Q}(?!.*{_Q}param{_Q})", _foreign),
    rule(r"\{ ?\"error\": ?\"(?!Unauthorized\"|The model is currently scaling)[^\"]", _foreign),
    rule(r"<title>[^<]*?\b(?P<status>[45][0-9]{2})\b", _proxy),
    rule(r"(?i)^(?:data: ?)?\s*<(?:html|!doctype html)\b|<center>nginx|Error code: [0-9]{3} - <html", _proxy),
    rule(
        r"upstream connect error|no healthy upstream|upstream request timeout|no live upstreams|upstream timed out|upstream prematurely closed|while connecting to upstream|"
        r"client intended to send too large body",
        _proxy,
    ),
    rule(r"^\s*error code: (?P<status>[45][0-9]{2})\s*$", _proxy),
    rule(
        r"HTTP/[0-9.]+\"? (?P<status>403|413|429|499|502|504|52[0-9])\b|\b(?P<status2>413) (?:Request Entity|Payload|Content) Too Large",
        _proxy,
    ),
)
