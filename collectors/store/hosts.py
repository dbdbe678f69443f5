"""Which Host headers a server on loopback answers: a web page must not reach it through a name that it points at 127.0.0.1."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send


def is_loopback(host: str) -> bool:
    """Whether an address or name means this machine only."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def host_of(header: str) -> str:
    """The host of a Host header without its port; brackets of IPv6 addresses removed."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()


class HostCheck:
    """ASGI middleware: 403 for a Host that is neither loopback nor in `allowed`; everything passes when bound to other addresses."""

    def __init__(self, app: ASGIApp, *, bound_to: str, allowed: Sequence[str] = ()) -> None:
        self._app = app
        self._open = not is_loopback(bound_to) and not allowed
        self._allowed = {name.lower() for name in (*allowed, bound_to)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._open:
            header = next((value for name, value in scope["headers"] if name == b"host"), b"").decode("latin-1")
            host = host_of(header)
            if not is_loopback(host) and host not in self._allowed:
                refused = PlainTextResponse(
                    f"Host {host!r} is not served here; ask by localhost, or name it in allowed hosts\n",
                    status_code=403,
                )
                await refused(scope, receive, send)
                return
        await self._app(scope, receive, send)
