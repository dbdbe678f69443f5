"""What can be said when a text holds no known refusal: by the status codes and routes of its access lines, and nothing more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_BODY = "the error text with its numbers (the whole body), and the route and status that it came with"
_ROUTES = (
    "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/models", "/v1/responses", "/v1/audio/transcriptions", "/v1/audio/translations",
    "/v1/score", "/v1/rerank", "/v1/messages", "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/pooling", "/classify", "/score", "/rerank", "/tokenize",
    "/detokenize", "/health", "/ping", "/version", "/metrics", "/load", "/invocations",
)  # fmt: skip
"""Paths that the server has."""


def unread(refused: Mapping[tuple[str, int], int], status: int | None) -> dict[str, Any]:
    """The answer without a refusal. `refused` counts (route, status) of refused access lines; `status` is the last one seen."""
    says = ["no known refusal was found in this text"]
    missing = [_BODY]
    for (route, code), count in list(refused.items())[:20]:
        says.append(f"{count} x status {code}" + (f" on {route}" if route else "") + f": {_meaning(route, code)}")
    if any(code >= 500 for _, code in refused):
        missing.append("the server's log around it: the first traceback")
    codes = {code for _, code in refused}
    shown = codes.pop() if len(codes) == 1 else status
    return {
        "schema": 1,
        "class": "undetermined",
        "numbers": {"status": shown} if shown and shown >= 400 else {},
        "fixes": [],
        "says": says,
        "missing": missing,
        "requests": [],
    }


def _meaning(route: str, code: int) -> str:
    if code == 404 and route.rstrip("/") not in _ROUTES:
        return "no such path on the server, by its name; check the path and its /v1 prefix"
    if code == 404:
        return "the path exists, so either the served name in the request is unknown or something in front rewrites the path; the body tells which"
    if code == 400:
        return "refused before it reached the engine; the body says why, the access line does not"
    if code == 405:
        return "that path takes another method: generation routes want POST"
    if code == 422:
        return "the body does not fit the schema"
    if code >= 500:
        return "the server or something in front of it failed; its log says why"
    return "refused; the body says why"
