"""The seam of the house: one method per question that can be put to anything that answers the Prometheus query API.

Implementations: `collectors.prometheus.RemoteSource`, `collectors.store.embedded.EmbeddedSource`,
`collectors.capsule.CapsuleSource`. Every failure is a `SourceError`; nothing else may leave an implementation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from collectors.model import ApiAnswer, Frame, Labels, MetricMeta, Samples, SourceInfo, Vector, Window


class SourceError(Exception):
    """A source could not answer. One line: `cause`; what to try next: `next_step`."""

    def __init__(self, cause: str, next_step: str = "") -> None:
        self.cause = " ".join(cause.split())
        self.next_step = " ".join(next_step.split())
        super().__init__(f"{self.cause}. {self.next_step}" if next_step else self.cause)


class SourceUnreachable(SourceError):
    """No connection, name not found, or no answer in time."""


class SourceRefused(SourceError):
    """401, 403 or a login page: credentials are missing or wrong."""


class QueryRejected(SourceError):
    """The backend understood the request and refuses the query (400, 422): syntax, limits, too many points or samples."""


class SourceBroken(SourceError):
    """Something answered that is not a Prometheus API, or a file that is not what it says."""


class Source(Protocol):
    """Anything that answers the Prometheus query API. Thread-safe. Times are epoch milliseconds."""

    def info(self) -> SourceInfo:
        """What answers. Never raises; an unreachable backend has an empty version."""
        ...

    def now_ms(self) -> int:
        """The source's own clock: wall time for a live source, the cursor of a replay."""
        ...

    def extent_ms(self) -> tuple[int, int] | None:
        """First and last instant that the data covers, where that is known (capsule, store); None for a remote."""
        ...

    def instant(self, promql: str, at_ms: int) -> Vector:
        """An instant query. Raises SourceError; a matrix result is a QueryRejected (ask `samples`)."""
        ...

    def range(self, promql: str, window: Window) -> Frame:
        """A range query. Raises SourceError."""
        ...

    def samples(self, selector: str, start_ms: int, end_ms: int) -> list[Samples]:
        """Raw samples of a vector selector with start_ms < t <= end_ms, as scraped. Raises SourceError.

        Staleness markers are kept where the source has them (store, capsule), absent where it does not tell (remote).
        """
        ...

    def answer(self, promql: str, at: int | Window) -> ApiAnswer:
        """An instant query (at an instant) or a range query (over a window) of any result type, in the API's own form. Raises SourceError."""
        ...

    def series(self, matchers: Sequence[str], start_ms: int, end_ms: int) -> list[Labels]:
        """Label sets that have samples in the window and match any of the selectors."""
        ...

    def metadata(self) -> Mapping[str, MetricMeta]:
        """TYPE and HELP by family name; empty where the backend does not keep them."""
        ...
