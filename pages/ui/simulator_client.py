"""The bundled simulator's control face, over HTTP as anybody would reach it."""

from __future__ import annotations

from typing import Any

import httpx

from collectors.source import SourceBroken, SourceError, SourceUnreachable
from pages.ui.console import console

TIMEOUT_SECONDS = 4.0


def _ask(method: str, path: str, body: Any = None) -> Any:
    """The JSON answer, None for 204. Raises SourceError naming what went wrong and what to try."""
    address = console().simulator_url.rstrip("/")
    try:
        answer = httpx.request(method, f"{address}{path}", json=body, timeout=TIMEOUT_SECONDS, trust_env=False)
    except httpx.HTTPError as error:
        raise SourceUnreachable(
            f"the simulator at {address} does not answer: {error}", "Start it with: pagewatch demo"
        ) from None
    if answer.status_code == 204:
        return None
    try:
        told = answer.json()
    except ValueError:
        raise SourceBroken(f"{address} is no simulator: it does not speak JSON", "Check PAGEWATCH_SIMULATOR") from None
    if answer.status_code >= 400:
        raise SourceError(
            str(told.get("error", f"HTTP {answer.status_code}"))
            if isinstance(told, dict)
            else f"HTTP {answer.status_code}"
        )
    return told


_orders = 0


def orders() -> int:
    """How often this console has changed something: what was asked before is old then."""
    return _orders


def _order(method: str, path: str, body: Any = None) -> None:
    global _orders
    _ask(method, path, body)
    _orders += 1


def state() -> dict[str, Any]:
    """What runs, what is wrong, what can be made wrong."""
    told: dict[str, Any] = _ask("GET", "/state")
    return told


def set_dial(dial: float) -> None:
    _order("POST", "/load", {"dial": dial})


def begin(kind: str, replicas: list[int] | None, seconds: float | None) -> None:
    order: dict[str, Any] = {"kind": kind, "replicas": replicas, "seconds": seconds}
    if kind == "crash":
        order["restart_after_seconds"] = 20.0
    _order("POST", "/faults", order)


def clear(number: int) -> None:
    _order("DELETE", f"/faults/{number}")


def blocks(replica: int, request: str = "") -> dict[str, Any]:
    """The block table of a running request (the longest by default)."""
    query = f"/blocks?replica={replica}" + (f"&request={request}" if request else "")
    told: dict[str, Any] = _ask("GET", query)
    return told


def paging(tokens: int, block_size: int, low: int, high: int, reservation: int) -> dict[str, Any]:
    """The arithmetic of paged memory for one request and for lengths uniform on low..high. Raises SourceError for figures that make no sense."""
    figures = {"tokens": tokens, "block_size": block_size, "low": low, "high": high, "reservation": reservation}
    told: dict[str, Any] = _ask("GET", "/paging?" + "&".join(f"{name}={value}" for name, value in figures.items()))
    return told
