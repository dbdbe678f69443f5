"""Putting a page's questions to a source: together where that helps, each once, with what the source said beside the answers."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from collectors.fleet_picture import Asked
from collectors.model import Frame, Vector, Window
from collectors.source import QueryRejected, Source

AT_ONCE = 6
"""Queries in flight to a remote server; what a browser would keep open."""


@dataclass(frozen=True)
class Question:
    """One query of a picture: instant at `at_ms`, or over `window`. An optional one may be refused without failing the picture."""

    what: str
    promql: str
    at_ms: int = 0
    window: Window | None = None
    optional: bool = False


@dataclass
class Answers:
    """The answers of one picture, by the question's name. Not shared between pictures."""

    source: Source
    asked: list[Asked] = field(default_factory=list)
    _answers: dict[str, Vector | Frame] = field(default_factory=dict)
    _promql: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    """Optional questions that the backend would not answer, and why."""

    def ask(self, questions: Sequence[Question]) -> None:
        """Put all of them; those to a remote server at the same time. Empty queries are skipped. Raises SourceError."""
        wanted = [question for question in questions if question.promql]
        for question in wanted:
            self.asked.append(Asked(question.what, question.promql, "range" if question.window else "instant"))
            self._promql[question.what] = question.promql
        if len(wanted) > 1 and self.source.info().kind == "remote":
            with ThreadPoolExecutor(min(AT_ONCE, len(wanted)), thread_name_prefix="ask") as pool:
                for question, answer in zip(wanted, pool.map(self._one, wanted), strict=True):
                    self._keep(question, answer)
        else:
            for question in wanted:
                self._keep(question, self._one(question))

    def _one(self, question: Question) -> Vector | Frame | QueryRejected:
        try:
            if question.window is not None:
                return self.source.range(question.promql, question.window)
            return self.source.instant(question.promql, question.at_ms)
        except QueryRejected as refusal:
            if not question.optional:
                raise
            return refusal

    def _keep(self, question: Question, answer: Vector | Frame | QueryRejected) -> None:
        if isinstance(answer, QueryRejected):
            self.refused[question.what] = str(answer)
        else:
            self._answers[question.what] = answer

    def vector(self, what: str, at_ms: int = 0) -> Vector:
        """The answer of an instant question; empty when it was skipped or refused."""
        answer = self._answers.get(what)
        return answer if isinstance(answer, Vector) else Vector(at_ms, (), np.empty(0))

    def frame(self, what: str, window: Window) -> Frame:
        """The answer of a range question; empty when it was skipped or refused."""
        answer = self._answers.get(what)
        return answer if isinstance(answer, Frame) else Frame(window, (), np.empty((0, window.steps)))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._promql)

    def promql(self, *names: str) -> tuple[str, ...]:
        return tuple(self._promql[name] for name in names if name in self._promql)

    def warnings(self, *names: str) -> tuple[str, ...]:
        """What the source said beside these answers (all of them when none is named), without mere hints."""
        chosen = names or tuple(self._answers)
        told = [text for name in chosen if name in self._answers for text in self._answers[name].warnings]
        return tuple(dict.fromkeys(text for text in told if not text.startswith("PromQL info")))

    def taint(self, *names: str) -> tuple[str, ...]:
        """The warnings as reasons not to trust what rests on these answers."""
        return tuple(f"the source warned: {text}" for text in self.warnings(*names))
