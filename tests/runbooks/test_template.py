"""Signal names become PromQL, and no label value can break out of its string."""

import promql_parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runbooks.naming import default_names, le_matcher, snapped
from runbooks.template import Binding, TemplateError, check_template, one_of, resolve

NAMES = default_names()


def bound(*place: str, rank: tuple[str, ...] = (), **parameters: str) -> Binding:
    return Binding(NAMES, {"w": "1m", "rank": "job, instance, engine", **parameters}, place, rank)


def selectors(promql: str) -> list[promql_parser.VectorSelector]:
    found = []

    def visit(node: object) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            found.append(node)
        for name in ("expr", "lhs", "rhs", "vector_selector"):
            child = getattr(node, name, None)
            if child is not None:
                visit(child)
        for child in getattr(node, "args", None) or ():
            visit(child)

    visit(promql_parser.parse(promql))
    return found


def test_a_signal_becomes_its_metric_with_the_place_in_it() -> None:
    promql = resolve("rate($time_to_first_token_count[$w])", bound('instance="a:8000"', rank=('engine="1"',)))
    assert promql == 'rate(vllm:time_to_first_token_seconds_count{instance="a:8000",engine="1"}[1m])'


def test_series_without_the_rank_label_get_no_rank_matcher() -> None:
    assert resolve("$up", bound('instance="a"', rank=('engine="1"',))) == 'up{instance="a"}'


def test_own_matchers_stand_before_the_place() -> None:
    promql = resolve('sum($http_requests{status="4xx"})', bound('instance="a"'))
    assert promql == 'sum(http_requests_total{status="4xx",instance="a"})'


def test_a_parameter_may_stand_among_the_matchers() -> None:
    promql = resolve(
        "$time_to_first_token_bucket{$first_token_slo}", bound('instance="a"', first_token_slo=le_matcher(2.5))
    )
    assert promql == 'vllm:time_to_first_token_seconds_bucket{le="2.5",instance="a"}'


def test_whole_bounds_match_however_they_are_spelled() -> None:
    assert le_matcher(1.0) == 'le=~"1|1\\\\.0"'
    promql_parser.parse(f"x_bucket{{{le_matcher(1.0)}}}")


def test_strings_are_left_alone() -> None:
    assert resolve('label_replace($up, "x", "$w", "y", "(.*)")', bound()) == 'label_replace(up, "x", "$w", "y", "(.*)")'


def test_lines_are_joined_without_touching_label_values() -> None:
    assert resolve("sum(\n  $up\n)", bound('instance="two  spaces"')) == 'sum( up{instance="two  spaces"} )'


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("rate($no_such_signal[$w])", "unknown signal $no_such_signal"),
        ("rate($time_to_first_token[$w])", "unknown signal $time_to_first_token"),  # a histogram needs its part
        ("rate($requests_running_count[$w])", "unknown signal $requests_running_count"),
        ("sum($)", "without a name"),
        ("vector(1)", "no signal"),
    ],
)
def test_wrong_templates_are_refused(template: str, says: str) -> None:
    with pytest.raises(TemplateError, match=says.replace("$", r"\$")):
        check_template(template, NAMES)


HOSTILE = st.text(max_size=60) | st.sampled_from(
    ['a"} or vector(1) #', "it's", "back`tick", "a\nb", "{}", "\\", '\\"', "$up", "${w}", "</script><b>", "x" * 10_000]
)


@settings(max_examples=150, deadline=None)
@given(HOSTILE.filter(lambda text: not any("\ud800" <= c <= "\udfff" for c in text)))
def test_whatever_a_label_value_holds_it_stays_one_value(value: str) -> None:
    promql = resolve(
        "sum(rate($time_to_first_token_count[$w])) / sum($requests_waiting)", bound(one_of("instance", (value,)))
    )
    found = selectors(promql)
    assert len(found) == 2
    for selector in found:
        matchers = selector.matchers.matchers
        assert [(m.name, m.value) for m in matchers] == [("instance", value)]


@settings(max_examples=100, deadline=None)
@given(st.lists(HOSTILE.filter(lambda t: not any("\ud800" <= c <= "\udfff" for c in t)), min_size=2, max_size=3))
def test_several_values_match_exactly_themselves(values: list[str]) -> None:
    import re

    promql = resolve("$up", bound(one_of("instance", tuple(values))))
    (selector,) = selectors(promql)
    (matcher,) = selector.matchers.matchers
    for value in values:
        assert re.fullmatch(matcher.value, value, re.DOTALL)
    assert not re.fullmatch(matcher.value, "".join(values) + "?", re.DOTALL) or "".join(values) + "?" in values


def test_thresholds_go_to_the_edge_below() -> None:
    edges = (0.1, 0.25, 0.5)
    assert [snapped(t, edges) for t in (0.25, 0.3, 9.0, 0.01)] == [0.25, 0.25, 0.5, 0.1]
