"""One set of queries for many viewers: a bounded cache that lets one caller ask while the others wait, and keeps the last good picture.

Time is quantised before it becomes a key, so that viewers of one page within one interval ask for the same picture.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from collectors.model import Window
from collectors.source import SourceError, SourceUnreachable

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


def quantised_ms(now_ms: int, interval_ms: int) -> int:
    """The last whole multiple of the interval: what 'now' means to everyone until the next one."""
    return now_ms // interval_ms * interval_ms


def quantised_window(now_ms: int, length_ms: int, step_ms: int, interval_ms: int) -> Window:
    """A window of this length that ends at the quantised now, on a grid that its successors share."""
    end = quantised_ms(now_ms, interval_ms)
    return Window(end - length_ms // step_ms * step_ms, end, step_ms)


@dataclass(frozen=True)
class Shown(Generic[T]):
    """A picture and how it stands: `failure` is set when it is the last good one because the source does not answer."""

    picture: T
    made_ms: int
    failure: SourceError | None = None
    failed_since_ms: int | None = None
    retry_ms: int | None = None
    """When the source is asked next."""


@dataclass(frozen=True)
class _Made(Generic[T]):
    picture: T
    made_ms: int


@dataclass(frozen=True)
class _Failed:
    failure: SourceError
    since_ms: int
    tried_ms: int


class PictureCache(Generic[T]):
    """Pictures by subject (which page of which source, scope, range) and version (its quantised time). Thread-safe.

    For one subject and version one caller asks the source; others wait for its answer. After a failure the last good picture of the
    subject is shown and the source is left alone for `retry_after_ms`. At most `size` pictures are kept, the longest unused dropped first.
    """

    def __init__(
        self, clock: Callable[[], int], *, size: int = 64, retry_after_ms: int = 5_000, patience_seconds: float = 60.0
    ) -> None:
        self._clock = clock
        self._size = size
        self._retry_after_ms = retry_after_ms
        self._patience_seconds = patience_seconds
        self._lock = threading.Lock()
        self._made: OrderedDict[tuple[Hashable, Hashable], _Made[T]] = OrderedDict()
        self._last_good: OrderedDict[Hashable, _Made[T]] = OrderedDict()
        self._failed: OrderedDict[Hashable, _Failed] = OrderedDict()
        self._asking: dict[tuple[Hashable, Hashable], threading.Event] = {}

    def get(self, subject: Hashable, version: Hashable, make: Callable[[], T]) -> Shown[T]:
        """The picture of a subject at a version, made by `make` unless it is there already.

        Raises SourceError only when there is no earlier picture of the subject to show. What else `make` raises reaches the caller that
        ran it; those who waited try for themselves.
        """
        key = (subject, version)
        while True:
            with self._lock:
                if shown := self._ready(key):
                    return shown
                busy = self._asking.get(key)
                if busy is None:
                    self._asking[key] = threading.Event()
                    break
            if not busy.wait(self._patience_seconds):
                raise SourceUnreachable(
                    f"no answer within {self._patience_seconds:g} s", "The source is slow; ask for a shorter range"
                )
        return self._ask(key, make)

    def _ready(self, key: tuple[Hashable, Hashable]) -> Shown[T] | None:
        """What can be shown without asking; None when the source must be asked. Raises a recent failure that has no picture."""
        made = self._made.get(key)
        if made is not None:
            self._made.move_to_end(key)
            return Shown(made.picture, made.made_ms)
        failed = self._failed.get(key[0])
        if failed is not None and self._clock() < failed.tried_ms + self._retry_after_ms:
            return self._show_last_good(key[0], failed)
        return None

    def _show_last_good(self, subject: Hashable, failed: _Failed) -> Shown[T]:
        good = self._last_good.get(subject)
        if good is None:
            raise failed.failure
        self._last_good.move_to_end(subject)
        return Shown(
            good.picture, good.made_ms, failed.failure, failed.since_ms, failed.tried_ms + self._retry_after_ms
        )

    def _ask(self, key: tuple[Hashable, Hashable], make: Callable[[], T]) -> Shown[T]:
        subject = key[0]
        try:
            picture = make()
        except SourceError as failure:
            with self._lock:
                now, before = self._clock(), self._failed.get(subject)
                failed = _Failed(failure, before.since_ms if before else now, now)
                _keep(self._failed, subject, failed, self._size)
                return self._show_last_good(subject, failed)
        else:
            with self._lock:
                made = _Made(picture, self._clock())
                _keep(self._made, key, made, self._size)
                _keep(self._last_good, subject, made, self._size)
                self._failed.pop(subject, None)
                return Shown(made.picture, made.made_ms)
        finally:
            with self._lock:
                self._asking.pop(key).set()


def _keep(kept: OrderedDict[K, V], key: K, value: V, size: int) -> None:
    kept[key] = value
    kept.move_to_end(key)
    while len(kept) > size:
        kept.popitem(last=False)
