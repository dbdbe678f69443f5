"""PromQL as text: tokens, quoting, and the selectors in a query as the parser sees them.

promql-parser 0.12 processes escapes inside back-quotes, which PromQL does not; `plain_strings` rewrites such strings before parsing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import promql_parser

from collectors.source import QueryRejected

Kind = Literal["string", "comment", "space", "identifier", "number", "mark"]

_TOKEN = re.compile(
    r"""(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|`[^`]*`)"""
    r"""|(?P<comment>\#[^\n]*)"""
    r"""|(?P<space>\s+)"""
    r"""|(?P<identifier>[a-zA-Z_:][a-zA-Z0-9_:]*)"""
    r"""|(?P<number>0[xX][0-9a-fA-F]+|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[a-zA-Z0-9]*)"""
    r"""|(?P<mark>[^"'`])""",
    re.DOTALL,
)


@dataclass(frozen=True)
class Token:
    """A piece of a query: its kind, text and place."""

    kind: Kind
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


@dataclass(frozen=True)
class Matcher:
    """One label matcher; `op` is =, !=, =~ or !~."""

    label: str
    op: str
    value: str

    def matches(self, value: str) -> bool:
        """True when a label of this value passes (regular expressions are anchored). Raises QueryRejected for a bad one."""
        if self.op in ("=", "!="):
            return (value == self.value) is (self.op == "=")
        return (_compiled(self.value).fullmatch(value) is not None) is (self.op == "=~")


@dataclass(frozen=True)
class Selector:
    """One vector selector. `alternatives` has one list of matchers, or one per branch of `{a="b" or c="d"}`."""

    name: str
    alternatives: tuple[tuple[Matcher, ...], ...]
    when: str = ""
    """Offset and @ modifier, as the parser shows them."""

    def may_select(self, metric_name: str) -> bool:
        """True unless the name alone rules the metric out."""
        if self.name:
            return metric_name == self.name
        return any(
            all(matcher.matches(metric_name) for matcher in branch if matcher.label == "__name__")
            for branch in self.alternatives
        )


@lru_cache(maxsize=512)
def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern, re.DOTALL)
    except re.error as error:
        raise QueryRejected(f"regular expression {pattern!r}: {error}") from None


def tokens(promql: str) -> Iterator[Token]:
    """The tokens of a query, spaces and comments included. Raises QueryRejected for a string that does not end."""
    position = 0
    while position < len(promql):
        found = _TOKEN.match(promql, position)
        if found is None or found.lastgroup is None:
            raise QueryRejected(f"the string that begins at character {position + 1} of the query does not end")
        yield Token(found.lastgroup, found.group(), position)  # type: ignore[arg-type]
        position = found.end()


def quote_label_value(value: str) -> str:
    """A PromQL string that means exactly `value`, whatever it holds. Raises QueryRejected for text that UTF-8 cannot hold."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise QueryRejected(f"label value {value!r} is not valid Unicode text") from None
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    escaped = re.sub(r"[\x00-\x09\x0b-\x1f\x7f]", lambda found: f"\\x{ord(found[0]):02x}", escaped)
    return f'"{escaped}"'


def plain_strings(promql: str) -> str:
    """The query with every back-quoted string written with double quotes."""
    if "`" not in promql:
        return promql
    return "".join(
        quote_label_value(token.text[1:-1]) if token.kind == "string" and token.text[0] == "`" else token.text
        for token in tokens(promql)
    )


@lru_cache(maxsize=1024)
def selectors_of(promql: str) -> tuple[Selector, ...]:
    """The vector selectors of a query in the parser's order. Raises QueryRejected with the parser's words."""
    try:
        tree = promql_parser.parse(plain_strings(promql))
    except ValueError as error:
        raise QueryRejected(f"PromQL: {error}", "Check the query") from None
    found: list[Selector] = []

    def visit(node: promql_parser.Expr) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            found.append(_selector(node))

    promql_parser.walk(tree, visit)
    return tuple(found)


def promql_shape(promql: str) -> Literal["selector", "other"]:
    """Whether a query is a bare vector selector. Raises QueryRejected with the parser's words."""
    selectors_of(promql)
    return (
        "selector" if isinstance(promql_parser.parse(plain_strings(promql)), promql_parser.VectorSelector) else "other"
    )


_OPS = {"Equal": "=", "NotEqual": "!=", "Re": "=~", "NotRe": "!~"}


def _selector(node: promql_parser.VectorSelector) -> Selector:
    branches = [*([node.matchers.matchers] if node.matchers.matchers else []), *node.matchers.or_matchers] or [[]]
    return Selector(
        node.name or "",
        tuple(
            tuple(Matcher(each.name, _OPS[str(each.op).rsplit(".", 1)[-1]], each.value) for each in branch)
            for branch in branches
        ),
        f"{node.offset} {node.at}" if node.offset is not None or node.at is not None else "",
    )
