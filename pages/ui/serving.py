"""What the console adds to every HTTP answer: a Content-Security-Policy, and one script at the head of the page."""

from __future__ import annotations

import base64
import hashlib
import re
from html import escape
from pathlib import Path

import streamlit as st
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pages.ui import assets


def content_security_policy() -> str:
    """Own scripts only; Streamlit's one inline script by its hash; components arrive as blobs; styles are made at run time."""
    page = (Path(st.__file__).parent / "static" / "index.html").read_text(encoding="utf-8")
    inline = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in inline)
    return (
        f"default-src 'self'; script-src 'self' blob: {hashes}; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
        "font-src 'self' data:; connect-src 'self' ws: wss:; worker-src 'self' blob:; object-src 'none'; base-uri 'self'; "
        "form-action 'self'; frame-ancestors 'none'"
    )


class Hardened:
    """ASGI middleware: security headers on everything, `boot.js` first in the page."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.headers = [
            (b"content-security-policy", content_security_policy().encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"same-origin"),
            (b"x-frame-options", b"DENY"),
        ]
        base = escape(assets.base_path() + "/")
        self.boot = f'<head><script src="{assets.module_url("boot")}" data-base="{base}"></script>'.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if _is_page(scope):  # read as it is, or the page would arrive compressed
            kept = [(name, value) for name, value in scope["headers"] if name != b"accept-encoding"]
            await self.app({**scope, "headers": kept}, receive, _Page(self, send))
            return

        async def sending(message: Message) -> None:
            await send(self.hardened(message) if message["type"] == "http.response.start" else message)

        await self.app(scope, receive, sending)

    def hardened(self, message: Message) -> Message:
        names = {name.lower() for name, _ in message.get("headers", [])}
        return {**message, "headers": [*message.get("headers", []), *(h for h in self.headers if h[0] not in names)]}


class _Page:
    """Holds the page back until it is whole, then sends it with the script in its head."""

    def __init__(self, hardened: Hardened, send: Send) -> None:
        self._hardened = hardened
        self._send = send
        self._start: Message | None = None
        self._body = b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        if message["type"] != "http.response.body" or self._start is None:
            await self._send(message)
            return
        self._body += message.get("body", b"")
        if message.get("more_body"):
            return
        start = self._hardened.hardened(self._start)
        headers = dict(start["headers"])
        body = self._body
        if headers.get(b"content-type", b"").startswith(b"text/html"):
            body = body.replace(b"<head>", self._hardened.boot, 1)
            start["headers"] = [(n, str(len(body)).encode() if n == b"content-length" else v) for n, v in start["headers"] if n != b"etag"]  # fmt: skip
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body})


def _is_page(scope: Scope) -> bool:
    path = scope["path"]
    return scope["method"] == "GET" and "." not in path.rsplit("/", 1)[-1] and "/_stcore/" not in path
