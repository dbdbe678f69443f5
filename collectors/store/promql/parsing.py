"""PromQL text to our own tree, on promql-parser's grammar and type check."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, cast

import promql_parser

from collectors.store.matchers import BadPattern, Matcher, MatchOp, compile_pattern
from collectors.store.promql.errors import bad, unsupported
from collectors.store.promql.lexing import NEGATIVE_AT_SECONDS, mended
from collectors.store.promql.nodes import (
    Aggregate,
    At,
    Binary,
    Call,
    Matching,
    MatrixSelector,
    Negate,
    Node,
    Number,
    Subquery,
    Text,
    VectorSelector,
)
from collectors.store.series import METRIC_NAME

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OPS: dict[str, MatchOp] = {"Equal": "=", "NotEqual": "!=", "Re": "=~", "NotRe": "!~"}
_CARDS = {
    "OneToOne": "one-to-one",
    "ManyToOne": "many-to-one",
    "OneToMany": "one-to-many",
    "ManyToMany": "many-to-many",
}
SET_OPERATORS = frozenset(("and", "or", "unless"))


def _register_old_names() -> None:
    """`holt_winters` is what 2.x calls double_exponential_smoothing; the registry is global to the process."""
    kinds = promql_parser.ValueType
    try:
        promql_parser.register_extra_functions(
            [promql_parser.Function("holt_winters", [kinds.Matrix, kinds.Scalar, kinds.Scalar], kinds.Vector)]
        )
    except ValueError:  # another part of the process has registered it already
        return


_register_old_names()


@lru_cache(maxsize=2048)
def parse(text: str) -> Node:
    """The tree of a query. Raises PromQLError("bad_data" or "unsupported")."""
    if not text.strip():
        raise bad("unknown position: parse error: no expression found in input")
    try:
        return _convert(promql_parser.parse(mended(text)))
    except ValueError as why:
        raise bad(f"parse error: {why}") from None
    except RecursionError:
        raise bad("parse error: the expression is nested too deeply") from None


def parse_selector(text: str) -> tuple[Matcher, ...]:
    """The matchers of a plain vector selector (`match[]`, Source.samples). Raises PromQLError."""
    node = parse(text)
    if not isinstance(node, VectorSelector) or node.offset_ms or node.at is not None:
        raise bad(f"parse error: {text!r} is not a plain series selector")
    return node.matchers


def _convert(tree: Any) -> Node:
    kind = type(tree).__name__
    if kind == "NumberLiteral":
        return Number(float(tree.val))
    if kind == "StringLiteral":
        return Text(str(tree.val))
    if kind == "ParenExpr":
        return _convert(tree.expr)
    if kind == "UnaryExpr":
        inner = _convert(tree.expr)
        return Number(-inner.value) if isinstance(inner, Number) else Negate(inner)
    if kind == "VectorSelector":
        return _vector(tree)
    if kind == "MatrixSelector":
        return MatrixSelector(_vector(tree.vector_selector), _positive_ms(tree.range))
    if kind == "SubqueryExpr":
        step = _positive_ms(tree.step) if tree.step is not None else None
        return Subquery(_convert(tree.expr), _positive_ms(tree.range), step, _ms(tree.offset), _at(tree.at))
    if kind == "Call":
        return Call(tree.func.name, tuple(_convert(arg) for arg in tree.args))
    if kind == "AggregateExpr":
        return _aggregate(tree)
    if kind == "BinaryExpr":
        return _binary(tree)
    raise unsupported(f"expression of type {kind} is not supported")


def _aggregate(tree: Any) -> Aggregate:
    modifier = tree.modifier
    without = modifier is not None and "Without" in str(modifier.type)
    labels = tuple(modifier.labels) if modifier is not None else ()
    param = _convert(tree.param) if tree.param is not None else None
    return Aggregate(str(tree.op), _convert(tree.expr), param, without, labels)


def _binary(tree: Any) -> Binary:
    spine = [tree]  # a chain of operators leans to the left and may be long: no recursion along it
    while type(spine[-1].lhs).__name__ == "BinaryExpr":
        spine.append(spine[-1].lhs)
    left = _convert(spine[-1].lhs)
    for link in reversed(spine):
        left = _link(link, left)
    assert isinstance(left, Binary)
    return left


def _link(tree: Any, left: Node) -> Binary:
    op = str(tree.op)
    modifier = tree.modifier
    matching = Matching("many-to-many" if op in SET_OPERATORS else "one-to-one", False, (), ())
    return_bool = False
    if modifier is not None:
        fill = modifier.fill_values
        if fill is not None and (fill.lhs is not None or fill.rhs is not None):
            raise unsupported("the modifier 'fill' is experimental and not supported")
        return_bool = bool(modifier.return_bool)
        card = cast(Any, _CARDS[str(modifier.card).rsplit(".", 1)[-1]])
        on = modifier.matching is not None and "Include" in str(modifier.matching.type)
        labels = tuple(modifier.matching.labels) if modifier.matching is not None else ()
        matching = Matching(card, on, labels, tuple(modifier.group_labels or ()))
    return Binary(op, left, _convert(tree.rhs), matching, return_bool)


def _vector(tree: Any) -> VectorSelector:
    if tree.matchers.or_matchers:
        raise unsupported("'or' between label matchers is not PromQL of Prometheus and not supported")
    found = [Matcher(METRIC_NAME, "=", tree.name)] if tree.name else []
    for one in tree.matchers.matchers:
        matcher = Matcher(one.name, _OPS[str(one.op).rsplit(".", 1)[-1]], one.value)
        if matcher.op in ("=~", "!~"):
            try:
                compile_pattern(matcher.value)
            except BadPattern as why:
                raise bad(f"parse error: {why}") from None
        found.append(matcher)
    return VectorSelector(tuple(found), _ms(tree.offset), _at(tree.at))


def _ms(delta: timedelta | None) -> int:
    return 0 if delta is None else round(delta / timedelta(milliseconds=1))


def _positive_ms(delta: timedelta) -> int:
    length = _ms(delta)
    if length <= 0:
        raise bad("parse error: duration must be at least 1ms")
    return length


def _at(modifier: Any) -> At:
    if modifier is None:
        return None
    kind = str(modifier.type).rsplit(".", 1)[-1]
    if kind == "Start":
        return "start"
    if kind == "End":
        return "end"
    at_ms: int = round((modifier.at - _EPOCH) / timedelta(milliseconds=1))
    negative = int(NEGATIVE_AT_SECONDS * 1000)
    return negative - at_ms if at_ms > negative // 2 else at_ms
