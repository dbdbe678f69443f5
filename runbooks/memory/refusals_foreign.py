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


FOREIGN_RULES: tuple[Rule, ...] = (
    rule(
        rf"{WINDOW}However, you requested [0-9]+ tokens \((?P<prompt>[0-9]+) in (?:the |your )?(?:messages|prompt)[,;] (?P<completion>[0-9]+) (?:in|for) the completion\).*?(?:context_length_exceeded|invalid_request_error)",
        _foreign,
    ),
    rule(
        rf"{WINDOW}However, (?:you requested|your messages resulted in) (?P<requested>[0-9]+) tokens.*?(?:context_length_exceeded|invalid_request_error)",
        _foreign,
    ),
    rule(
        r"`inputs` tokens \+ `max_new_tokens` must be <= (?P<limit>[0-9]+)\. Given: (?P<prompt>[0-9]+) `inputs` tokens and (?P<completion>[0-9]+) `max_new_tokens`",
        _foreign,
    ),
    rule(r"`inputs` must have less than (?P<limit>[0-9]+) tokens\. Given: (?P<prompt>[0-9]+)", _foreign),
    rule(r"prompt is too long: (?P<prompt>[0-9]+) tokens > (?P<limit>[0-9]+) maximum", _foreign),
    rule(
        r"input token count \((?P<prompt>[0-9]+)\) exceeds the maximum number of tokens allowed \((?P<limit>[0-9]+)\)",
        _foreign,
    ),
    rule(
        r"[Rr]equested token count exceeds the model's maximum context length of (?P<limit>[0-9]+) tokens\. You requested a total of (?P<requested>[0-9]+) tokens",
        _foreign,
    ),
    rule(
        r"request \((?P<prompt>[0-9]+) tokens\) exceeds the available context size \((?P<limit>[0-9]+) tokens\)",
        _foreign,
    ),
    rule(r"exceed_context_size_error|context_length_exceeded|error_type\"?: ?\"(?:validation|overloaded)", _foreign),
    rule(r"<html|<!DOCTYPE html|(?i:<center>nginx)", _proxy),
    rule(
        r"HTTP/[0-9.]+ (?P<status>413|429|502|504)\b|\b(?P<status2>413) (?:Request Entity|Payload|Content) Too Large",
        _proxy,
    ),
)
