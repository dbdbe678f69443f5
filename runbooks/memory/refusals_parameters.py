"""Refusals of request parameters: the client's values against fixed ranges and the server's limits."""

from __future__ import annotations

import re

from runbooks.memory.refusal import Context, Refusal, Rule, rule, said

_NAME = "sampling_parameter"


def _max_tokens_too_small(found: re.Match[str], context: Context) -> Refusal:
    least, value = int(found["least"]), int(found["value"])
    refusal = Refusal(_NAME, {"least": least, "value": value})
    refusal.fix(max_tokens_at_least=least)
    refusal.says.append(f"max_tokens is {value} and must be at least {least}: change it in the client, or leave it out")
    if value < 0:
        refusal.says.append(
            f"if the client sent none: older versions fill in window - prompt, so the prompt alone is {-value} over the window, and only a shorter prompt (or a longer window) helps"
        )
        refusal.missing.append("whether the request sent max_tokens at all, and max_model_len of the server")
    return refusal


PARAMETER_RULES: tuple[Rule, ...] = (
    rule(r"max_tokens must be at least (?P<least>[0-9]+), got (?P<value>-?[0-9]+)", _max_tokens_too_small),
    rule(
        r"[Rr]equested (?P<kind>sample|prompt) logprobs of (?P<value>[0-9]+)(?:.*?max allowed: (?P<limit>[0-9]+))?",
        said(
            _NAME,
            "{value} {kind} logprobs were asked for, above the server's limit (max_logprobs, {limit}): ask for no more than that",
            logprobs_at_most="limit",
        ),
    ),
    rule(
        r"Token id (?P<token>[0-9]+) is out of vocabulary",
        said(
            _NAME,
            "token id {token} is out of vocabulary: the client tokenized with another model's tokenizer, or biases a token that this model does not have",
        ),
    ),
    rule(
        r"truncate_prompt_tokens (?:value )?\(?(?P<value>[0-9]+)\)? ?(?:is|cannot be) greater than (?P<bound>max_model_len|max_length)(?: \(?(?P<limit>[0-9]+))?",
        said(
            _NAME,
            "truncate_prompt_tokens is {value}, more than {bound} ({limit}): ask for no more than that, or -1 for the whole window",
            truncate_prompt_tokens_at_most="limit",
        ),
    ),
    rule(r"truncate_prompt_tokens", said(_NAME, "truncate_prompt_tokens is out of range: change it in the client")),
    rule(
        r"\b(?P<parameter>temperature|top_p|top_k|min_p|n|best_of|presence_penalty|frequency_penalty|repetition_penalty|min_tokens|seed|logprobs|prompt_logprobs|length_penalty) must (?:be|not be) "
        r"(?P<rule>[^\"{}]{1,90}?)(?:, got (?P<value>-?[0-9.]*[0-9]))?(?:[.\"]|$)",
        said(_NAME, "{parameter} is out of range: it must be {rule} (got {value}); change it in the client"),
    ),
    rule(
        r"stop cannot contain an empty string",
        said(_NAME, "stop holds an empty string, which would end every answer at once: leave it out"),
    ),
)
