"""What can go wrong with a query, in Prometheus's own classes."""

from __future__ import annotations

from typing import Literal

ErrorKind = Literal["bad_data", "execution", "timeout", "unsupported"]


class PromQLError(Exception):
    """A query that was not answered. `kind` says why: malformed, failed while running, out of time, or not supported."""

    def __init__(self, kind: ErrorKind, message: str) -> None:
        self.kind: ErrorKind = kind
        self.message = " ".join(message.split())
        super().__init__(self.message)


def bad(message: str) -> PromQLError:
    """The query text or its parameters are wrong."""
    return PromQLError("bad_data", message)


def failed(message: str) -> PromQLError:
    """The query is well-formed and cannot be evaluated on these data."""
    return PromQLError("execution", message)


def unsupported(message: str) -> PromQLError:
    """Prometheus knows this construct and we do not."""
    return PromQLError("unsupported", message)
