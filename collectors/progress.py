"""How far something long is: said by whoever reads, heard by whoever shows it, with nothing passed through the sources in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Progress = Callable[[float, str], None]
"""Told the share that is done, from 0 to 1, and what is being done; what it raises ends the work."""

_listening: ContextVar[Progress | None] = ContextVar("_listening", default=None)


@contextmanager
def telling_progress(progress: Progress) -> Iterator[None]:
    """While this lasts, whatever opens an incident file or reads samples of one in this thread tells `progress`."""
    token = _listening.set(progress)
    try:
        yield
    finally:
        _listening.reset(token)


def listener() -> Progress | None:
    """Whom to tell in this thread; None when nobody listens."""
    return _listening.get()
