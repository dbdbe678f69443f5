"""The scope stands in every selector, whatever the query and whatever the value."""

from __future__ import annotations

import gzip
import json

import promql_parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.promql_text import Matcher, quote_label_value, selectors_of
from collectors.scope import scope_matchers, scoped
from collectors.source import QueryRejected
from tests.shared_data import shared

HOSTILE = [
    'a"b',
    "a\\",
    "a{b}",
    "a\nb",
    "a`b",
    "a'b",
    "x" * 10_000,
    "}) or vector(1) #",
    "ü\u2028",
    "\x00\x7f\r\t",
    "",
    '"} or {a="',
]


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("up", 'up{s="1"}'),
        ("up{}", 'up{s="1"}'),
        ('up{a="b",}', 'up{s="1",a="b",}'),
        ('{__name__=~"a|b"}', '{s="1",__name__=~"a|b"}'),
        ("sum by (le) (rate(vllm:x_bucket[5m]))", 'sum by (le) (rate(vllm:x_bucket{s="1"}[5m]))'),
        ("sum(x) by (le)", 'sum(x{s="1"}) by (le)'),
        ("x * on(a) group_left(b) y", 'x{s="1"} * on(a) group_left(b) y{s="1"}'),
        ("x > bool on (a) y", 'x{s="1"} > bool on (a) y{s="1"}'),
        ("max_over_time(rate(x[5m])[1h:1m] offset -1h)", 'max_over_time(rate(x{s="1"}[5m])[1h:1m] offset -1h)'),
        ("x @ end() + y @ 1.5", 'x{s="1"} @ end() + y{s="1"} @ 1.5'),
        (r"x{a=~`b\d{3}`}", r'x{s="1",a=~`b\d{3}`}'),
        ("x # y{z}\n + y", 'x{s="1"} # y{z}\n + y{s="1"}'),
        ("sum", 'sum{s="1"}'),
        ("offset offset 5m", 'offset{s="1"} offset 5m'),
        ('x{a="b" or c="d"}', 'x{s="1",a="b" or s="1", c="d"}'),
        ("x and y unless z", 'x{s="1"} and y{s="1"} unless z{s="1"}'),
        ("1 + time() + inf", "1 + time() + inf"),
        ('label_replace(x, "a", "$1", "b", "(.*)")', 'label_replace(x{s="1"}, "a", "$1", "b", "(.*)")'),
    ],
)
def test_the_scope_is_put_into_every_selector(query: str, wanted: str) -> None:
    assert scoped(query, {"s": "1"}) == wanted


@pytest.mark.parametrize("value", HOSTILE)
def test_hostile_values_stay_values(value: str) -> None:
    text = scoped('sum(rate(up{a="b"}[5m])) / other', {"job": value})
    for selector in selectors_of(text):
        assert Matcher("job", "=", value) in selector.alternatives[0]
    assert len(selectors_of(text)) == 2


@settings(deadline=None, max_examples=150)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_quoted_value_reads_back_as_itself(value: str) -> None:
    tree = promql_parser.parse(f"up{{a={quote_label_value(value)}}}")
    assert tree.matchers.matchers[0].value == value  # type: ignore[attr-defined]


def test_text_that_utf8_cannot_hold_is_refused() -> None:
    with pytest.raises(QueryRejected, match="not valid Unicode"):
        quote_label_value("\ud800")


@pytest.mark.parametrize("label", ["__name__", "a-b", "", '"', "a b"])
def test_a_scope_label_that_is_none_is_refused(label: str) -> None:
    with pytest.raises(QueryRejected, match="label name"):
        scope_matchers({label: "x"})


@pytest.mark.parametrize("query", ["sum(", 'up{a="b}', "up{", "a b", "rate(sum(x))"])
def test_a_query_that_cannot_be_read_is_refused_rather_than_sent_unscoped(query: str) -> None:
    with pytest.raises(QueryRejected):
        scoped(query, {"s": "1"})


def test_every_conformance_query_is_scoped_or_refused_by_the_parser() -> None:
    with gzip.open(shared("promql", "cases.jsonl.gz"), "rt", encoding="utf-8") as lines:
        cases = [json.loads(line) for line in lines]
    queries = sorted({case["query"] for case in cases if case.get("kind") == "case"})
    assert len(queries) > 200
    unsure = []
    for query in queries:
        try:
            before = selectors_of(query)
        except QueryRejected:
            continue
        try:
            after = selectors_of(scoped(query, {"scope_": 'v"'}))
        except QueryRejected:
            unsure.append(query)
            continue
        wanted = Matcher("scope_", "=", 'v"')
        assert len(after) == len(before)
        assert all(wanted in branch for selector in after for branch in selector.alternatives)
    assert unsure == []
