"""What the grammar library reads wrongly is read rightly; what is not supported is named."""

from __future__ import annotations

import pytest

from collectors.store.matchers import Matcher
from collectors.store.promql import PromQLError, parse, parse_selector
from collectors.store.promql.nodes import Binary, Call, MatrixSelector, Negate, Number, Subquery, Text, VectorSelector


def selector(text: str) -> VectorSelector:
    node = parse(text)
    assert isinstance(node, VectorSelector)
    return node


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"x{a=~`b\d+`}", r"b\d+"),
        (r'x{a=~"b\\d+"}', r"b\d+"),
        ('x{a=~`"quoted".*`}', '"quoted".*'),
        ("x{a=~'it\\'s'}", "it's"),
        ("x{a=~`two\nlines`}", "two\nlines"),
        (r'x{a=~"\x41\u00e9\101"}', "AéA"),
        (r'x{a=~"\xc3\xa9"}', "é"),
    ],
)
def test_strings_in_all_quotes(text: str, value: str) -> None:
    assert selector(text).matchers[1] == Matcher("a", "=~", value)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("x @ -5", -5000),
        ("x @ - 1.234", -1234),
        ("x @ +7", 7000),
        ("x @ 0", 0),
        ("x @ 1m40s", 100_000),
        ("x @ 1700000000.5", 1_700_000_000_500),
        ("x @ start()", "start"),
        ("x @ end()", "end"),
        ("x @ -1m # a comment with @ -9 in it", -60_000),
    ],
)
def test_instants(text: str, at: int | str) -> None:
    assert selector(text).at == at


def test_an_instant_in_milliseconds_is_refused_with_the_unit_that_is_meant() -> None:
    with pytest.raises(PromQLError, match="seconds are expected"):
        parse("x @ 1700000000000")


def test_strings_that_look_like_syntax_are_left_alone() -> None:
    assert parse('"x @ -5 `smoothed`"') == Text("x @ -5 `smoothed`")


def test_offsets_ranges_and_subqueries_are_milliseconds() -> None:
    assert parse("x[1m500ms] offset -5m") == MatrixSelector(
        VectorSelector((Matcher("__name__", "=", "x"),), -300_000), 60_500
    )
    node = parse("x[300:] @ 10 offset 5")
    assert isinstance(node, Subquery)
    assert (node.range_ms, node.step_ms, node.at, node.offset_ms) == (300_000, None, 10_000, 5_000)


def test_minus_binds_weaker_than_power() -> None:
    node = parse("-x^2")
    assert isinstance(node, Negate)
    assert isinstance(node.expr, Binary)
    assert parse("-2") == Number(-2.0)


def test_series_and_labels_may_be_called_like_experimental_words() -> None:
    assert isinstance(parse("fill"), VectorSelector)
    assert isinstance(parse('fill_left{smoothed="1"}'), VectorSelector)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("rate(x[5m] smoothed)", "smoothed"),
        ("x[5m] anchored", "anchored"),
        ("a + on(b) fill(0) c", "fill"),
        ("a + fill_left(0) c", "fill_left"),
        ('x{a="1" or b="2"}', "or"),
    ],
)
def test_experimental_syntax_is_named(text: str, names: str) -> None:
    with pytest.raises(PromQLError, match=names) as raised:
        parse(text)
    assert raised.value.kind == "unsupported"


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "sum(",
            "x{",
            'x{a="b}',
            "x{a=~`(`}",
            "{}",
            '{a=""}',
            "rate(x)",
            "sum(x[5m])",
            "1 == 2",
            "x offset",
            "x[5m",
            "nothing(x)",
        ),
        *(
            "label_replace(x)",
            "x and 1",
            '"a" + 1',
            "x @ NaN",
            "rate(sum(x))",
            "x[0s]",
            "x[5m:0s]",
            "x[1e300]",
            "x[5m:1e300]",
            "x[0.0001]",
            "x[5m:0.0001]",
            "x[300y]",
        ),
    ],
)
def test_what_prometheus_refuses_is_bad_data(text: str) -> None:
    with pytest.raises(PromQLError) as raised:
        parse(text)
    assert raised.value.kind == "bad_data"
    assert "\n" not in raised.value.message


@pytest.mark.parametrize(
    "text", ["(" * 100_000 + "1" + ")" * 100_000, "-" * 100_000 + "x", "+".join(["x"] * 50_000), "sum(" * 5000]
)
def test_a_bomb_is_refused_and_the_process_lives(text: str) -> None:
    with pytest.raises(PromQLError, match="too big"):
        parse(text)


def test_long_chains_are_read() -> None:
    node = parse(" or ".join(f"x{i}" for i in range(400)))
    assert isinstance(node, Binary)


def test_a_selector_alone() -> None:
    assert parse_selector('{__name__=~"a.*",b!="c"}') == (Matcher("__name__", "=~", "a.*"), Matcher("b", "!=", "c"))
    for text in ("rate(x[5m])", "x[5m]", "x offset 5m", "x + y", "1"):
        with pytest.raises(PromQLError):
            parse_selector(text)


def test_old_names_are_known() -> None:
    node = parse("holt_winters(x[5m], 0.1, 0.2)")
    assert isinstance(node, Call)
    assert node.func == "holt_winters"
