"""The scope a user chose - namespace, cluster, job, model - in every selector of every query.

Matchers are put into the text, so that comments, strings and spacing stay as written, and the result is checked on the parser's tree: each
selector must hold the scope and be otherwise unchanged, or the query is refused. Nothing unscoped ever leaves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from collectors.model import ApiAnswer, Frame, Labels, MetricMeta, Samples, SourceInfo, Vector, Window
from collectors.promql_text import Matcher, Selector, Token, quote_label_value, selectors_of, tokens
from collectors.settings import LABEL_NAME
from collectors.source import QueryRejected, Source
from collectors.strips import Strips, strips_of

_AGGREGATIONS = frozenset(
    ("sum", "avg", "count", "min", "max", "group", "stddev", "stdvar", "topk", "bottomk", "count_values", "quantile")
    + ("limitk", "limit_ratio")
)
_LABEL_LISTS = frozenset(("by", "without", "on", "ignoring", "group_left", "group_right"))
_OPERATORS = frozenset(("and", "or", "unless", "atan2", "bool", "offset"))
_NUMBERS = frozenset(("inf", "nan"))


def scope_matchers(scope: Mapping[str, str]) -> str:
    """The scope as PromQL matchers, such as `job="vllm",namespace="prod"`. Raises QueryRejected for a bad label name."""
    for label in scope:
        if not LABEL_NAME.fullmatch(label) or label == "__name__":
            raise QueryRejected(f"{label!r} is not a label name that a scope can hold")
    return ",".join(f"{label}={quote_label_value(scope[label])}" for label in sorted(scope))


def scoped(promql: str, scope: Mapping[str, str]) -> str:
    """The query with the scope in each of its selectors. Raises QueryRejected when that cannot be done for certain."""
    if not scope:
        return promql
    matchers = scope_matchers(scope)
    before = selectors_of(promql)
    text = _inserted(promql, matchers)
    after = selectors_of(text)
    wanted = {Matcher(label, "=", value) for label, value in scope.items()}
    if len(before) != len(after) or not all(map(_same_but_scoped, before, after, [wanted] * len(after))):
        raise QueryRejected("the scope cannot be put into this query for certain", "Write its selectors with {}")
    return text


def _same_but_scoped(before: Selector, after: Selector, wanted: set[Matcher]) -> bool:
    return (
        before.name == after.name
        and before.when == after.when
        and len(before.alternatives) == len(after.alternatives)
        and all(
            wanted <= set(scoped_branch) and set(branch) | wanted == set(scoped_branch)
            for branch, scoped_branch in zip(before.alternatives, after.alternatives, strict=True)
        )
    )


def _inserted(promql: str, matchers: str) -> str:
    """Put `matchers` behind every `{` and `or` of a selector, and behind every metric name without braces."""
    meaningful = [token for token in tokens(promql) if token.kind not in ("space", "comment")]
    places: list[tuple[int, str]] = []
    position = 0
    while position < len(meaningful):
        token = meaningful[position]
        following = meaningful[position + 1].text if position + 1 < len(meaningful) else ""
        if token.text == "{":
            position = _inside_braces(meaningful, position, matchers, places)
            continue
        if token.text == "[":  # durations only; a subquery's ":1m" looks like a name
            while position < len(meaningful) and meaningful[position].text != "]":
                position += 1
        if token.kind == "identifier":
            if token.text.lower() in _LABEL_LISTS and following == "(":
                while position < len(meaningful) and meaningful[position].text != ")":
                    position += 1
            elif following != "{" and _is_metric(meaningful, position, following):
                places.append((token.end, f"{{{matchers}}}"))
        position += 1
    pieces, last = [], 0
    for place, insertion in places:
        pieces += [promql[last:place], insertion]
        last = place
    return "".join([*pieces, promql[last:]])


def _inside_braces(meaningful: Sequence[Token], opening: int, matchers: str, places: list[tuple[int, str]]) -> int:
    """Note the insertions of one `{...}`; the position behind its `}`."""
    position = opening
    while position < len(meaningful) and meaningful[position].text != "}":
        token = meaningful[position]
        following = meaningful[position + 1].text if position + 1 < len(meaningful) else ""
        if position == opening:
            places.append((token.end, matchers if following == "}" else matchers + ","))
        elif (
            token.text.lower() == "or"
            and following not in ("=", "!", ",", "}")
            and meaningful[position - 1].text != ","
        ):
            places.append((token.end, f" {matchers},"))
        position += 1
    return position + 1


def _is_metric(meaningful: Sequence[Token], position: int, following: str) -> bool:
    """True when the identifier names a metric and is no function, aggregation, operator, modifier or number."""
    word = meaningful[position].text.lower()
    previous = meaningful[position - 1] if position else None
    if following == "(" or (previous is not None and previous.text == "@"):
        return False
    if word in _AGGREGATIONS and following.lower() in ("by", "without"):
        return False
    if word in _LABEL_LISTS and previous is not None and _ends_operand_or_matching(previous):
        return False  # group_left without a list
    if word in _OPERATORS:
        return previous is None or not (_ends_operand_or_matching(previous) or word == "bool")
    return word not in _NUMBERS


def _ends_operand_or_matching(token: Token) -> bool:
    return token.kind in ("identifier", "number", "string") or token.text in (")", "]", "}")


class ScopedSource:
    """A source that sees only what the scope selects. Implements Source; `inner` is the source it asks."""

    def __init__(self, inner: Source, scope: Mapping[str, str]) -> None:
        scope_matchers(scope)
        self.inner = inner
        self.scope = dict(scope)

    def info(self) -> SourceInfo:
        return self.inner.info()

    def now_ms(self) -> int:
        return self.inner.now_ms()

    def extent_ms(self) -> tuple[int, int] | None:
        return self.inner.extent_ms()

    def instant(self, promql: str, at_ms: int) -> Vector:
        return self.inner.instant(scoped(promql, self.scope), at_ms)

    def range(self, promql: str, window: Window) -> Frame:
        return self.inner.range(scoped(promql, self.scope), window)

    def samples(self, selector: str, start_ms: int, end_ms: int) -> list[Samples]:
        return self.inner.samples(scoped(selector, self.scope), start_ms, end_ms)

    def strips(self, selector: str, start_ms: int, end_ms: int) -> Strips:
        return strips_of(self.inner, scoped(selector, self.scope), start_ms, end_ms)

    def answer(self, promql: str, at: int | Window) -> ApiAnswer:
        return self.inner.answer(scoped(promql, self.scope), at)

    def series(self, matchers: Sequence[str], start_ms: int, end_ms: int) -> list[Labels]:
        return self.inner.series([scoped(matcher, self.scope) for matcher in matchers], start_ms, end_ms)

    def metadata(self) -> Mapping[str, MetricMeta]:
        return self.inner.metadata()
