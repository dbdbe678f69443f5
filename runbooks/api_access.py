"""Who may use the JSON API: programs on this machine, and bearers of the configured token.

A browser on this machine is not a program: a page from elsewhere can make it send requests to loopback. So a loopback
client must name loopback as host, may not come through a proxy, and may not carry the origin of another site.
"""

from __future__ import annotations

import hmac
import ipaddress
from urllib.parse import urlsplit

from starlette.requests import Request

_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip", "via")


def is_loopback(host: str) -> bool:
    """Whether a host name or address means this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def refusal(request: Request, token: str | None) -> str:
    """Why a request is not answered; '' when it may be."""
    given = request.headers.get("authorization", "")
    scheme, _, bearer = given.partition(" ")
    if token and scheme.lower() == "bearer" and hmac.compare_digest(bearer.strip().encode(), token.encode()):
        return ""
    if given:
        return "the bearer token is wrong"
    client = request.client.host if request.client else ""
    if not is_loopback(client) or any(name in request.headers for name in _FORWARDED):
        return "a bearer token is required from other machines" + (
            "" if token else "; none is configured on this server"
        )
    if not is_loopback(urlsplit("//" + request.headers.get("host", "")).hostname or ""):
        return "the Host header does not name this machine"
    origin = request.headers.get("origin")
    if origin is not None and not is_loopback(urlsplit(origin).hostname or ""):
        return "requests from pages of other sites are not answered"
    return ""
