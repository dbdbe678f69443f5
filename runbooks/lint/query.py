"""A parsed query, ready for the rules: Grafana's variables filled in, back-quotes mended, nodes walked with their ancestors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import promql_parser

from runbooks.lint.variables import fill, requote

RATES = frozenset({"rate", "irate", "increase"})
COUNTER_SAFE = RATES | {
    "resets",
    "changes",
    "absent",
    "absent_over_time",
    "present_over_time",
    "timestamp",
    "count_over_time",
}
COMPARISONS = frozenset({"==", "!=", "<", ">", "<=", ">="})
ARITHMETIC = frozenset({"+", "-", "*", "/", "%", "^"})


LONGEST_QUERY = 65_536
DEEPEST_QUERY = 100
MOST_OPERATIONS = 1_000
"""Beyond these the parser and the walks below would take minutes or more memory than there is; nobody writes such a query by hand."""
_STRINGS = re.compile(r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|`[^`]*`")
_OPERATIONS = re.compile(r"[-+*/%^<>!=]|\b(?:and|or|unless)\b")


@dataclass(frozen=True)
class Query:
    """`root` is promql-parser's tree; `short_window` is true when a rate rests on $__interval, which shrinks below a scrape."""

    root: Any
    short_window: bool


@dataclass(frozen=True)
class Visit:
    """A node and the nodes above it, nearest last."""

    node: Any
    above: tuple[Any, ...]

    def inside_call(self, names: frozenset[str]) -> Any | None:
        return next((node for node in reversed(self.above) if kind(node) == "Call" and node.func.name in names), None)


def parse_query(text: str) -> Query:
    """Raises ValueError with the parser's message, or for a query beyond all measure."""
    _measure(text)
    short = bool(re.search(r"\[\s*\$(?:\{)?__interval\b", text))
    try:
        return Query(promql_parser.parse(fill(requote(text))), short)
    except ValueError as error:
        raise ValueError(" ".join(str(error).split())) from None


def _measure(text: str) -> None:
    if len(text) > LONGEST_QUERY:
        raise ValueError(f"a query of {len(text):,} characters; it is not looked at beyond {LONGEST_QUERY:,}")
    bare = _STRINGS.sub("", text) if len(text) > DEEPEST_QUERY else ""
    depth = deepest = 0
    for found in re.finditer(r"[()]", bare):
        depth += 1 if found[0] == "(" else -1
        deepest = max(deepest, depth)
    if (
        deepest > DEEPEST_QUERY
        or sum(1 for _ in _OPERATIONS.finditer(re.sub(r"\{[^}]*\}", "", bare))) > MOST_OPERATIONS
    ):
        raise ValueError("nested too deeply, or of too many operations, to be looked at")


def kind(node: Any) -> str:
    return type(node).__name__


def unwrap(node: Any) -> Any:
    """The node inside parentheses."""
    while kind(node) == "ParenExpr":
        node = node.expr
    return node


def children(node: Any) -> tuple[Any, ...]:
    name = kind(node)
    if name in ("AggregateExpr", "ParenExpr", "UnaryExpr", "SubqueryExpr", "StepInvariantExpr"):
        return (node.expr,)
    if name == "BinaryExpr":
        return (node.lhs, node.rhs)
    if name == "Call":
        return tuple(node.args)
    if name == "MatrixSelector":
        return (node.vector_selector,)
    return ()


def visits(root: Any) -> Iterator[Visit]:
    """Every node, parents before children."""
    stack: list[Visit] = [Visit(root, ())]
    while stack:
        visit = stack.pop()
        yield visit
        stack += [Visit(child, (*visit.above, visit.node)) for child in reversed(children(visit.node))]


def operator(node: Any) -> str:
    """'sum', '+', 'and' ...; '' for other nodes."""
    return str(node.op) if kind(node) in ("AggregateExpr", "BinaryExpr") else ""


def grouping(node: Any) -> tuple[str, tuple[str, ...]]:
    """('by' | 'without', labels) of an aggregation; ('by', ()) when it has no clause."""
    modifier = node.modifier
    if modifier is None:
        return "by", ()
    return ("by" if str(modifier.type).endswith("By") else "without"), tuple(modifier.labels)


def metric_of(selector: Any) -> str:
    """The metric name of a vector selector, by name or by an equality matcher; '' when it is open."""
    if selector.name:
        return str(selector.name)
    return next(
        (
            matcher.value
            for matcher in selector.matchers.matchers
            if matcher.name == "__name__" and str(matcher.op) == "MatchOp.Equal"
        ),
        "",
    )


def matchers_of(selector: Any) -> list[tuple[str, str, str]]:
    """(label, '=' | '!=' | '=~' | '!~', value), the metric name left out."""
    symbols = {"Equal": "=", "NotEqual": "!=", "Re": "=~", "NotRe": "!~"}
    return [
        (matcher.name, symbols[str(matcher.op).rsplit(".", 1)[-1]], matcher.value)
        for matcher in selector.matchers.matchers
        if matcher.name != "__name__"
    ]


def number_of(node: Any) -> float | None:
    """The value of a number literal, signs and parentheses included."""
    node = unwrap(node)
    if kind(node) == "NumberLiteral":
        return float(node.val)
    if kind(node) == "UnaryExpr":
        inner = number_of(node.expr)
        return None if inner is None else -inner
    return None


def selectors(root: Any) -> list[Visit]:
    return [visit for visit in visits(root) if kind(visit.node) == "VectorSelector"]
