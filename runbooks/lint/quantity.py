"""What an expression measures: its unit and the constant factor on it, followed from the metric upwards."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from collectors.dialect import Dialect, Metric
from runbooks.lint.query import RATES, children, kind, matchers_of, metric_of, number_of, operator, unwrap

KEEPS_UNIT = frozenset({"max_over_time", "min_over_time", "avg_over_time", "last_over_time", "quantile_over_time", "sort", "sort_desc", "clamp", "clamp_max", "clamp_min", "round", "abs", "label_replace", "label_join", "ceil", "floor", "scalar", "vector", "sum_over_time", "delta", "deriv"})  # fmt: skip
KEEPS_UNIT_AGGREGATES = frozenset({"sum", "avg", "min", "max", "topk", "bottomk", "quantile", "stddev"})


@dataclass(frozen=True)
class Quantity:
    """`unit`: ratio, seconds, or another unit of the dialect; `factor`: constants multiplied onto it; `metric`: where it comes from."""

    unit: str
    factor: float
    metric: Metric
    is_quantile: bool = False
    summed: bool = False
    """Added up over replicas or time, or set against another moment or another aggregate of itself: a ratio may then exceed 1."""


def find_metric(name: str, dialect: Dialect, version: str) -> tuple[Metric, str] | None:
    """The dialect's metric of a series name and the series' suffix ('_bucket', '_sum', '_count' or '')."""
    found = dialect.canonical(name)
    if found is None:
        return None
    family, prefix = found
    metric = dialect.metric(family, version)
    if metric is None:
        return None
    spelled = dialect.respell(family, prefix)
    suffix = name.removeprefix(spelled) if name.startswith(spelled) else ""
    return metric, suffix


def quantity(node: Any, dialect: Dialect, version: str) -> Quantity | None:
    """None where the unit cannot be followed (counts, unknown metrics, sums of different things)."""
    node = unwrap(node)
    name = kind(node)
    if name == "VectorSelector":
        found = find_metric(metric_of(node), dialect, version)
        if found is None or found[0].type == "histogram" and found[1] != "_sum":
            return None
        return Quantity(_unit(found[0]), 1.0, found[0])
    if name == "AggregateExpr" and operator(node) in KEEPS_UNIT_AGGREGATES:
        inner = quantity(node.expr, dialect, version)
        return replace(inner, summed=True) if inner is not None and operator(node) == "sum" else inner
    if name == "SubqueryExpr":
        return quantity(node.expr, dialect, version)
    if name == "MatrixSelector":
        return quantity(node.vector_selector, dialect, version)
    if name == "Call":
        return _call(node, dialect, version)
    if name == "BinaryExpr":
        return _binary(node, dialect, version)
    return None


def _unit(metric: Metric) -> str:
    if metric.unit.startswith("ratio"):
        return "ratio"
    return "seconds" if metric.unit == "seconds" else metric.unit


def _call(node: Any, dialect: Dialect, version: str) -> Quantity | None:
    function = node.func.name
    if function == "histogram_quantile" and len(node.args) == 2:
        for selector in _vector_selectors(node.args[1]):
            found = find_metric(metric_of(selector), dialect, version)
            if found and found[1] == "_bucket":
                return Quantity(_unit(found[0]), 1.0, found[0], is_quantile=True)
        return None
    if function in RATES:
        inner = quantity(node.args[0], dialect, version)
        return None if inner is None else replace(inner, unit=f"{inner.unit} per second")
    if function in KEEPS_UNIT:
        position = 1 if function == "quantile_over_time" else 0
        inner = quantity(node.args[position], dialect, version)
        return replace(inner, summed=True) if inner is not None and function == "sum_over_time" else inner
    return None


def _binary(node: Any, dialect: Dialect, version: str) -> Quantity | None:
    op = operator(node)
    left, right = number_of(node.lhs), number_of(node.rhs)
    if op == "*" and (left is not None or right is not None):
        other = quantity(node.rhs if left is not None else node.lhs, dialect, version)
        constant = left if left is not None else right
        return None if other is None or constant is None else replace(other, factor=other.factor * constant)
    if op == "/" and right not in (None, 0.0):
        over = quantity(node.lhs, dialect, version)
        return None if over is None or right is None else replace(over, factor=over.factor / right)
    if op == "/":
        return _ratio(node, dialect, version)
    if (
        op in ("or", "and", "unless")
        or op in ("==", "!=", "<", ">", "<=", ">=")
        and not getattr(node.modifier, "return_bool", False)
    ):
        return quantity(node.lhs, dialect, version)
    if op in ("+", "-"):
        first, second = quantity(node.lhs, dialect, version), quantity(node.rhs, dialect, version)
        return first if first and second and first.unit == second.unit and first.factor == second.factor else None
    return None


def _ratio(node: Any, dialect: Dialect, version: str) -> Quantity | None:
    """rate(x_sum)/rate(x_count) is a mean in x's unit; hits/queries and parts of one counter are ratios."""
    above, below = _sole_series(node.lhs), _sole_series(node.rhs)
    if above is None or below is None:
        return None
    numerator, denominator = find_metric(above, dialect, version), find_metric(below, dialect, version)
    if numerator is None or denominator is None:
        return None
    constant = 1.0
    inner = quantity(node.lhs, dialect, version)
    if inner is not None:
        constant = inner.factor
    if operator(unwrap(node.rhs)) in ("count", "group"):
        return None if inner is None else replace(inner, summed=False)  # a mean by hand, in the metric's own unit
    if numerator[0] is denominator[0]:
        if (numerator[1], denominator[1]) == ("_sum", "_count"):
            return Quantity(_unit(numerator[0]), constant, numerator[0])
        if numerator[1] != denominator[1]:
            return None
        return Quantity("ratio", constant, numerator[0], summed=not _is_part(node.lhs, node.rhs))
    if (numerator[0].signal, denominator[0].signal) == ("prefix_cache_hits", "prefix_cache_queries"):
        return Quantity("ratio", constant, numerator[0])
    return None


def _is_part(part: Any, whole: Any) -> bool:
    """True when both sides add up one series over the same time and every series of the left stands on the right too."""
    sides = []
    for side in (part, whole):
        (selector,) = _vector_selectors(side)[:1]
        matched = {matcher for matcher in matchers_of(selector) if matcher[0] != "le"}
        sides.append((matched, str(selector.offset), str(selector.at), _ranges(side), _aggregation(side)))
    (some, *how), (every, *also) = sides
    return every <= some and how == also and how[-1] in ("", "sum")


def _ranges(node: Any) -> list[str]:
    found, stack = [], [node]
    while stack:
        current = stack.pop()
        if kind(current) in ("MatrixSelector", "SubqueryExpr"):
            found.append(str(current.range))
        stack += children(current)
    return found


def _aggregation(node: Any) -> str:
    node = unwrap(node)
    while kind(node) in ("BinaryExpr", "Call") and children(node):
        node = unwrap(next((child for child in children(node) if _vector_selectors(child)), children(node)[0]))
    return operator(node) if kind(node) == "AggregateExpr" else ""


def _vector_selectors(node: Any) -> list[Any]:
    found, stack = [], [node]
    while stack:
        current = stack.pop()
        if kind(current) == "VectorSelector":
            found.append(current)
        stack += children(current)
    return found


def _sole_series(node: Any) -> str | None:
    names = {metric_of(selector) for selector in _vector_selectors(node)}
    return names.pop() if len(names) == 1 else None
