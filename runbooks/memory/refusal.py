"""One refused request: its class, its figures, who should change what; and the arithmetic of prompt, completion and window."""

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


def budget(limit: int, prompt: int, max_tokens: int, *, foreign: bool = False) -> Refusal:
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


def rule(regex: str, write: Writer) -> Rule:
    return Rule(re.compile(regex), write)


def said(name: str, text: str, *, side: str = "client", missing: str = "", **change: Any) -> Writer:
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


WINDOW = r"maximum context length is (?P<limit>-?[0-9]+) tokens\.? "
"""How vLLM and its look-alikes begin."""
