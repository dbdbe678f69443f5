"""Named judgements are three-valued; missing data is inconclusive, never no and never yes."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from runbooks.predicates import Facts, Predicate, conjunction, disjunction, negated

PREDICATE: TypeAdapter[Predicate] = TypeAdapter(Predicate)
ANSWERS = ("yes", "no", "inconclusive")


def judge(table: dict[str, object], **facts: object) -> str:
    return PREDICATE.validate_python(table).judge(Facts(**{"numbers": {}, **facts}))  # type: ignore[arg-type]


def test_comparisons_scale_and_shift_the_other_side() -> None:
    table = {"name": "above", "number": "a", "than": "b", "times": 2, "plus": 1}
    assert judge(table, numbers={"a": 21.1, "b": 10.0}) == "yes"
    assert judge(table, numbers={"a": 21.0, "b": 10.0}) == "no"
    assert judge({**table, "name": "at_least"}, numbers={"a": 21.0, "b": 10.0}) == "yes"
    assert judge({**table, "name": "below"}, numbers={"a": 20.9, "b": 10.0}) == "yes"


@pytest.mark.parametrize("name", ["above", "below", "at_least"])
@pytest.mark.parametrize("numbers", [{}, {"a": None, "b": 1.0}, {"a": 1.0, "b": None}, {"a": math.nan, "b": 1.0}])
def test_missing_numbers_are_inconclusive(name: str, numbers: dict[str, float | None]) -> None:
    assert judge({"name": name, "number": "a", "than": "b"}, numbers=numbers) == "inconclusive"


def test_only_presence_answers_about_missing_data() -> None:
    assert judge({"name": "present", "number": "a"}, numbers={"a": None}) == "no"
    assert judge({"name": "present", "number": "a"}, numbers={"a": 0.0}) == "yes"


def test_verdicts_states_laws_and_logs() -> None:
    verdict = {"name": "verdict", "causes": ["overload"]}
    assert judge(verdict, verdicts={"overload": "likely"}) == "yes"
    assert judge(verdict, verdicts={"overload": "undetermined"}) == "no"
    assert judge({**verdict, "at_least": "undetermined"}, verdicts={"overload": "undetermined"}) == "yes"
    assert judge(verdict, verdicts={}) == "no"
    assert judge(verdict) == "inconclusive"
    state = {"name": "state", "any_of": ["stalled"]}
    assert judge(state, states=("serving", "stalled")) == "yes"
    assert judge(state, states=("serving", "unknown")) == "no"
    assert judge(state, states=("unknown",)) == judge(state, states=()) == judge(state) == "inconclusive"
    assert judge({"name": "law"}, laws={"a": "kept", "b": "broken"}) == "yes"
    assert judge({"name": "law", "broken": ["a"]}, laws={"a": "kept", "b": "broken"}) == "no"
    assert judge({"name": "law"}, laws={"a": "unknown"}) == "inconclusive"
    grave = {"laws": {"a": "kept", "b": "broken"}, "grave_laws": frozenset("a")}
    assert judge({"name": "law", "grave": True}, **grave) == "no"
    log = {"name": "log_class", "any_of": ["no_kv_blocks"]}
    assert judge(log, log_class="no_kv_blocks") == "yes"
    assert judge(log, log_class="not_memory") == "no"
    assert judge(log, log_class="undetermined") == judge(log) == "inconclusive"


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from(ANSWERS), min_size=1, max_size=4))
def test_kleene_logic(answers: list[str]) -> None:
    both = conjunction(answers)  # type: ignore[arg-type]
    either = disjunction(answers)  # type: ignore[arg-type]
    order = {"no": 0, "inconclusive": 1, "yes": 2}
    assert order[both] == min(order[a] for a in answers)
    assert order[either] == max(order[a] for a in answers)
    assert negated(negated(both)) == both


def test_one_decided_part_settles_a_whole() -> None:
    known, unknown = {"name": "above", "number": "a", "than": 0}, {"name": "above", "number": "b", "than": 0}
    assert judge({"name": "any", "of": [known, unknown]}, numbers={"a": 1.0}) == "yes"
    assert judge({"name": "all", "of": [known, unknown]}, numbers={"a": -1.0}) == "no"
    assert judge({"name": "all", "of": [known, unknown]}, numbers={"a": 1.0}) == "inconclusive"
    assert judge({"name": "not", "of": unknown}, numbers={}) == "inconclusive"


@pytest.mark.parametrize("table", [{"name": "eval", "of": "1"}, {"name": "above", "number": "a"}, {"than": 1}])
def test_unknown_judgements_are_refused(table: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        PREDICATE.validate_python(table)
