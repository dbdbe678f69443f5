"""The closed set of named judgements a runbook step or detector may use. Three-valued: missing data is inconclusive.

A predicate is data (validated when the runbook is loaded) and a pure function of `Facts`. Nothing is ever evaluated
from text. Adding a judgement means adding a class here and naming it in `Predicate`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Answer = Literal["yes", "no", "inconclusive"]


@dataclass(frozen=True)
class Facts:
    """What a predicate may look at: the numbers of its own step and the judgement of the same instant and place."""

    numbers: Mapping[str, float | None]
    """Value by number name; None = the query returned no sample (or NaN)."""
    verdicts: Mapping[str, str] | None = None
    """Cause -> confidence of the diagnosis at this place; None when no diagnosis could be made."""
    states: tuple[str, ...] | None = None
    """State words of the replicas at this place; None when they could not be told."""
    laws: Mapping[str, str] | None = None
    """Law id -> kept, broken or unknown at this place (the worst of its replicas); None when not judged."""
    grave_laws: frozenset[str] = frozenset()
    """Laws whose break makes figures unfit to be read."""
    log_class: str | None = None
    """Class that a pasted log was read as; None when nothing was pasted."""
    labels: Mapping[str, str] = field(default_factory=dict)


def negated(answer: Answer) -> Answer:
    return {"yes": "no", "no": "yes"}.get(answer, "inconclusive")  # type: ignore[return-value]


def conjunction(answers: Iterable[Answer]) -> Answer:
    """Kleene's and: one no decides, else one unknown leaves it open."""
    seen = set(answers)
    return "no" if "no" in seen else "inconclusive" if "inconclusive" in seen else "yes"


def disjunction(answers: Iterable[Answer]) -> Answer:
    """Kleene's or: one yes decides, else one unknown leaves it open."""
    return negated(conjunction(negated(answer) for answer in answers))


class _Judgement(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    def judge(self, facts: Facts) -> Answer:
        raise NotImplementedError

    def number_names(self) -> tuple[str, ...]:
        """The step's numbers that this judgement reads."""
        return ()


class _Comparison(_Judgement):
    """`number` against `than * times + plus`, where `than` is a constant or another number of the step."""

    number: str
    than: float | str
    times: float = 1.0
    plus: float = 0.0

    def number_names(self) -> tuple[str, ...]:
        return (self.number, self.than) if isinstance(self.than, str) else (self.number,)

    def sides(self, facts: Facts) -> tuple[float, float] | None:
        left = facts.numbers.get(self.number)
        right = facts.numbers.get(self.than) if isinstance(self.than, str) else self.than
        if left is None or right is None or math.isnan(left) or math.isnan(right):
            return None
        return left, right * self.times + self.plus


class Above(_Comparison):
    """Yes when the number is greater."""

    name: Literal["above"]

    def judge(self, facts: Facts) -> Answer:
        sides = self.sides(facts)
        return "inconclusive" if sides is None else "yes" if sides[0] > sides[1] else "no"


class AtLeast(_Comparison):
    """Yes when the number is greater or equal."""

    name: Literal["at_least"]

    def judge(self, facts: Facts) -> Answer:
        sides = self.sides(facts)
        return "inconclusive" if sides is None else "yes" if sides[0] >= sides[1] else "no"


class Below(_Comparison):
    """Yes when the number is smaller."""

    name: Literal["below"]

    def judge(self, facts: Facts) -> Answer:
        sides = self.sides(facts)
        return "inconclusive" if sides is None else "yes" if sides[0] < sides[1] else "no"


class Present(_Judgement):
    """Yes when the query returned a sample at all; the only judgement for which missing data is an answer."""

    name: Literal["present"]
    number: str

    def number_names(self) -> tuple[str, ...]:
        return (self.number,)

    def judge(self, facts: Facts) -> Answer:
        return "no" if facts.numbers.get(self.number) is None else "yes"


class Verdict(_Judgement):
    """Yes when the diagnosis of this instant and place names one of the causes with at least this confidence."""

    name: Literal["verdict"]
    causes: tuple[str, ...] = Field(min_length=1)
    at_least: Literal["undetermined", "possible", "likely"] = "possible"

    def judge(self, facts: Facts) -> Answer:
        if facts.verdicts is None:
            return "inconclusive"
        order = ("undetermined", "possible", "likely")
        found = [facts.verdicts[cause] for cause in self.causes if cause in facts.verdicts]
        return "yes" if any(order.index(word) >= order.index(self.at_least) for word in found) else "no"


class State(_Judgement):
    """Yes when a replica at this place is in one of the states."""

    name: Literal["state"]
    any_of: tuple[Literal["serving", "prefill_only", "idle", "stalled", "stale", "down", "unknown"], ...]

    def judge(self, facts: Facts) -> Answer:
        if not facts.states:
            return "inconclusive"
        if set(facts.states) & set(self.any_of):
            return "yes"
        return "inconclusive" if set(facts.states) == {"unknown"} else "no"


class Law(_Judgement):
    """Yes when one of the laws is broken at this place: those named, else all, or only those whose break taints figures."""

    name: Literal["law"]
    broken: tuple[str, ...] = ()
    grave: bool = False

    def judge(self, facts: Facts) -> Answer:
        if facts.laws is None:
            return "inconclusive"
        looked_at = [
            status
            for law, status in facts.laws.items()
            if (not self.broken or law in self.broken) and (not self.grave or law in facts.grave_laws)
        ]
        if "broken" in looked_at:
            return "yes"
        return "no" if "kept" in looked_at else "inconclusive"


class LogClass(_Judgement):
    """Yes when the pasted log was read as one of the classes; inconclusive when it was read as nothing known."""

    name: Literal["log_class"]
    any_of: tuple[str, ...] = Field(min_length=1)

    def judge(self, facts: Facts) -> Answer:
        if facts.log_class is None or facts.log_class in ("", "undetermined", "unknown"):
            return "inconclusive"
        return "yes" if facts.log_class in self.any_of else "no"


class All(_Judgement):
    """Yes when every one holds."""

    name: Literal["all"]
    of: tuple[Predicate, ...] = Field(min_length=1)

    def number_names(self) -> tuple[str, ...]:
        return tuple(name for predicate in self.of for name in predicate.number_names())

    def judge(self, facts: Facts) -> Answer:
        return conjunction(predicate.judge(facts) for predicate in self.of)


class Any(_Judgement):
    """Yes when at least one holds."""

    name: Literal["any"]
    of: tuple[Predicate, ...] = Field(min_length=1)

    def number_names(self) -> tuple[str, ...]:
        return tuple(name for predicate in self.of for name in predicate.number_names())

    def judge(self, facts: Facts) -> Answer:
        return disjunction(predicate.judge(facts) for predicate in self.of)


class Not(_Judgement):
    """The opposite; unknown stays unknown."""

    name: Literal["not"]
    of: Predicate

    def number_names(self) -> tuple[str, ...]:
        return self.of.number_names()

    def judge(self, facts: Facts) -> Answer:
        return negated(self.of.judge(facts))


Predicate = Annotated[
    Above | AtLeast | Below | Present | Verdict | State | Law | LogClass | All | Any | Not, Field(discriminator="name")
]

for _model in (All, Any, Not):
    _model.model_rebuild()
