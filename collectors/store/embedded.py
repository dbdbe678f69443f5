"""The embedded source: the store in this process, asked through the same seam as any remote Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from collectors.model import ApiAnswer, Frame, Labels, MetricMeta, Samples, SourceInfo, Vector, Window
from collectors.source import QueryRejected, SourceError
from collectors.store.blocks import Blocks
from collectors.store.matchers import Matcher
from collectors.store.promql import Engine, Limits, PromQLError, Result, parse_selector
from collectors.store.promql.evaluator import Semantics
from collectors.store.selection import strips
from collectors.strips import Strips

BACKEND = "pagewatch store"


class EmbeddedSource:
    """Implements `Source` over Blocks. `until` caps every read: no sample after it is used, whatever the query says."""

    def __init__(
        self,
        blocks: Blocks,
        *,
        name: str,
        clock: Callable[[], int],
        kind: Literal["store", "capsule"] = "store",
        until: Callable[[], int] | None = None,
        semantics: Semantics = "3.x",
        limits: Limits | None = None,
        engine: Engine | None = None,
        version: str = "",
    ) -> None:
        self.blocks = blocks
        self.engine = engine or Engine(blocks, semantics=semantics, limits=limits)
        self._info = SourceInfo(
            name=name, kind=kind, backend=BACKEND, version=version or f"semantics {self.engine.semantics}"
        )
        self._clock = clock
        self._until = until

    def info(self) -> SourceInfo:
        """What answers."""
        return self._info

    def now_ms(self) -> int:
        """The clock that was passed in: wall time, or the cursor of a replay."""
        return self._clock()

    def extent_ms(self) -> tuple[int, int] | None:
        """First and last instant with a sample, the last one capped."""
        extent = self.blocks.extent_ms()
        cap = self._cap()
        if extent is None or cap is None:
            return extent
        return (extent[0], min(extent[1], cap)) if extent[0] <= cap else None

    def instant(self, promql: str, at_ms: int) -> Vector:
        """An instant query. Raises QueryRejected; a matrix or a string is one too."""
        result = self.query(promql, at_ms)
        try:
            return result.vector()
        except TypeError as why:
            raise QueryRejected(
                f"{promql!r} is no instant vector: {why}", "use samples() for a range selector"
            ) from None

    def range(self, promql: str, window: Window) -> Frame:
        """A range query. Raises QueryRejected."""
        return self.query_range(promql, window).frame(window)

    def query(self, promql: str, at_ms: int) -> Result:
        """An instant query of any type, as a Result. Raises QueryRejected."""
        try:
            return self.engine.instant(promql, at_ms, until_ms=self._cap())
        except PromQLError as why:
            raise rejected(why) from None

    def query_range(self, promql: str, window: Window) -> Result:
        """A range query as a Result. Raises QueryRejected."""
        try:
            return self.engine.range(promql, window, until_ms=self._cap())
        except PromQLError as why:
            raise rejected(why) from None

    def answer(self, promql: str, at: int | Window) -> ApiAnswer:
        """An answer in the API's own form. Raises QueryRejected."""
        result = self.query_range(promql, at) if isinstance(at, Window) else self.query(promql, at)
        return ApiAnswer(result.data(), result.notes)

    def samples(self, selector: str, start_ms: int, end_ms: int) -> list[Samples]:
        """Raw samples with start_ms < t <= end_ms, staleness markers included. Raises QueryRejected."""
        cap = self._cap()
        return self.blocks.samples(_matchers(selector), start_ms, end_ms if cap is None else min(end_ms, cap))

    def strips(self, selector: str, start_ms: int, end_ms: int) -> Strips:
        """What `samples` gives, timeline by timeline, without a Python object for each series. Raises QueryRejected."""
        cap = self._cap()
        plan = self.blocks.plan(_matchers(selector))
        found = strips(self.blocks, plan, start_ms + 1, end_ms if cap is None else min(end_ms, cap), keep_stale=True)
        return Strips(plan.labels, tuple(found), lasting=True)

    def series(self, matchers: Sequence[str], start_ms: int, end_ms: int) -> list[Labels]:
        """Label sets with samples in the window that match any of the selectors, sorted. Raises QueryRejected."""
        cap = self._cap()
        end = end_ms if cap is None else min(end_ms, cap)
        found = {one for text in matchers for one in self.blocks.series(_matchers(text), start_ms, end)}
        return [one.as_dict() for one in sorted(found)]

    def metadata(self) -> Mapping[str, MetricMeta]:
        """TYPE and HELP by family name."""
        return self.blocks.metadata()

    def _cap(self) -> int | None:
        return self._until() if self._until is not None else None


def rejected(why: PromQLError) -> SourceError:
    """A query error as the seam's own error."""
    next_step = {
        "unsupported": "rewrite the query without it",
        "timeout": "ask a shorter range or a longer step",
        "bad_data": "",
        "execution": "",
    }[why.kind]
    return QueryRejected(why.message, next_step)


def _matchers(selector: str) -> tuple[Matcher, ...]:
    try:
        return parse_selector(selector)
    except PromQLError as why:
        raise rejected(why) from None
