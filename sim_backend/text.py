"""A pretend tokenizer and a pretend model: deterministic, four characters a token, words instead of meaning."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

VOCABULARY = 128256
END_TOKEN = VOCABULARY - 1
_PIECE = re.compile(r"\s?\S{1,4}|\s")
_SAYING = """the queue grows when blocks are short and a seat is free only after one ends so wait then measure again before you
change any flag because memory holds what each request has said and the cache keeps what nobody owns until its place is needed by another"""
_WORDS = _SAYING.split()


def tokenize(text: str) -> list[int]:
    """Token ids of a text; equal prefixes up to a piece give equal tokens."""
    return [zlib.crc32(piece.encode("utf-8", "replace")) % (VOCABULARY - 64) for piece in _PIECE.findall(text)]


def chat_tokens(messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None = None) -> list[int]:
    """Token ids of a conversation through a chat template: markers around every message, tools in front."""
    tokens: list[int] = tokenize(repr(tools)) if tools else []
    for message in messages:
        role = str(message.get("role", "user"))
        tokens += [VOCABULARY - 2, *tokenize(role)[:2], VOCABULARY - 3]
        content = message.get("content")
        parts = content if isinstance(content, list) else [{"text": content}]
        for part in parts:
            text = part.get("text") if isinstance(part, dict) else part
            if text:
                tokens += tokenize(str(text))
        if message.get("tool_calls"):
            tokens += tokenize(repr(message["tool_calls"]))
        tokens.append(VOCABULARY - 4)
    return [*tokens, VOCABULARY - 2, VOCABULARY - 5, VOCABULARY - 3, VOCABULARY - 6]


def seed_of(tokens: Sequence[int], salt: int) -> int:
    """A number for an answer, from its prompt and a per-request salt."""
    return zlib.crc32(repr(tokens[-256:]).encode()) ^ (salt * 2654435761 & 0xFFFFFFFF)


def output_token(seed: int, index: int) -> int:
    """The `index`-th token of the answer with this seed."""
    return (seed * 48271 + index * 7919 + (index * index * 31)) % (VOCABULARY - 64)


def output_text(seed: int, index: int) -> str:
    """What that token reads as."""
    word = _WORDS[output_token(seed, index) % len(_WORDS)]
    return word.capitalize() if not index else f" {word}"
