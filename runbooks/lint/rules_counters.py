"""Rules about counters and gauges: rates, windows, ratios, matchers on both sides."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from runbooks.lint.finding import Finding, Severity, Subject
from runbooks.lint.quantity import find_metric
from runbooks.lint.query import (
    ARITHMETIC,
    COUNTER_SAFE,
    RATES,
    Visit,
    children,
    kind,
    matchers_of,
    metric_of,
    operator,
    parse_query,
    selectors,
    unwrap,
    visits,
)

SHORTEST_WINDOW_SECONDS = 30.0
"""Two scrapes at the common 15 s; shorter windows hold fewer and rate() answers nothing."""
SHARE_LABELS = frozenset({"status", "finished_reason", "handler", "method", "le", "position", "quantile"})
"""The engine's own labels: one side may select a part of the other by them (a share), that is no mistake."""
_TOKENS = frozenset({"prompt_tokens", "generation_tokens"})
_PER_REQUEST = frozenset({"requests_finished", "http_requests"})


def raw_counters(subject: Subject) -> Iterator[Finding]:
    """raw_counter: a total since start shown or compared as if it were activity. quantile_without_rate: a quantile over such buckets."""
    seen: set[tuple[str, str]] = set()
    for visit in selectors(subject.query.root):
        name = metric_of(visit.node)
        found = find_metric(name, subject.dialect, subject.version)
        in_quantile = visit.inside_call(frozenset({"histogram_quantile", "histogram_fraction"})) is not None
        unknown_bucket = (
            found is None and in_quantile and name.endswith("_bucket") and ":" not in name.removeprefix("vllm:")
        )
        if not unknown_bucket and (found is None or found[0].type == "gauge" or name.endswith("_created")):
            continue
        if found is not None and found[0].type in ("histogram", "summary") and found[1] == "":
            continue  # no such series; said by the rules about names
        if visit.inside_call(COUNTER_SAFE) or _counted(visit) or _difference_of_itself(visit):
            continue
        if in_quantile:
            finding = Finding(
                "quantile_without_rate",
                "error",
                f"histogram_quantile over {name} as it stands covers everything since each process started, and jumps at restarts",
                f"rate({name}[5m])",
            )
        else:
            divided = any(kind(node) == "BinaryExpr" and operator(node) == "/" for node in visit.above)
            severe = divided or found is not None and found[1] == "_bucket"
            finding = Finding(
                "raw_counter",
                "error" if severe else "warning",
                f"{name} counts since the process started: its value says nothing about now, and falls at a restart",
                f"rate({name}[5m])",
            )
        if (finding.rule, name) not in seen:
            seen.add((finding.rule, name))
            yield finding


def _counted(visit: Visit) -> bool:
    """Only whether series exist matters: count(), group(), and the right side of unless and and."""
    for parent, child in pairwise((*visit.above, visit.node)):
        if kind(parent) == "AggregateExpr" and operator(parent) in ("count", "group"):
            return True
        if kind(parent) == "BinaryExpr" and operator(parent) in ("unless", "and") and parent.rhs is child:
            return True
    return False


def _difference_of_itself(visit: Visit) -> bool:
    """x - x offset 1h is an increase by hand."""
    for node in visit.above:
        if operator(node) == "-":
            sides = [selectors(node.lhs), selectors(node.rhs)]
            names = {metric_of(inner.node) for side in sides for inner in side}
            if len(names) == 1 and len({str(inner.node.offset) for side in sides for inner in side}) > 1:
                return True
    return False


def rates(subject: Subject) -> Iterator[Finding]:
    """rate_of_gauge, rate_of_sum, rate_window_too_short."""
    short = subject.query.short_window
    for visit in visits(subject.query.root):
        node = visit.node
        if kind(node) != "Call" or node.func.name not in RATES:
            continue
        argument = unwrap(node.args[0])
        if kind(argument) == "MatrixSelector":
            found = find_metric(metric_of(argument.vector_selector), subject.dialect, subject.version)
            if found is not None and found[0].type == "gauge" and found[0].signal != "process_start_time":
                yield Finding(
                    "rate_of_gauge",
                    "error",
                    f"{node.func.name}() of the gauge {found[0].name}: every fall is taken for a restart of a counter",
                    f"deriv({found[0].name}[5m]) or delta()",
                )
            yield from _recorded_aggregate(node.func.name, metric_of(argument.vector_selector), subject)
            seconds = argument.range.total_seconds()
            if seconds < SHORTEST_WINDOW_SECONDS and not short:
                yield Finding(
                    "rate_window_too_short",
                    "warning",
                    f"a window of {seconds:g} s holds fewer than two scrapes at common intervals: no answer, or one that comes and goes",
                    "[1m], or $__rate_interval in a dashboard",
                )
        elif kind(argument) == "SubqueryExpr" and _all_gauges(argument.expr, subject):
            yield Finding(
                "rate_of_gauge",
                "error",
                f"{node.func.name}() of a gauge's values: every fall is taken for a restart of a counter",
                "deriv() or delta() of the same",
            )
        elif kind(argument) == "SubqueryExpr" and any(
            kind(inner.node) == "AggregateExpr"
            and operator(inner.node) in ("sum", "avg", "max", "min")
            and _raw_below(inner.node)
            for inner in visits(argument.expr)
        ):
            yield Finding(
                "rate_of_sum",
                "error",
                f"{node.func.name}() of an aggregate: one replica's restart makes the sum fall and is taken for a reset of the whole",
                "sum(rate(...)): first the rate, then the sum",
            )
    if short:
        yield Finding(
            "rate_window_too_short",
            "warning",
            "$__interval shrinks with the panel to less than a scrape; the rate then has no data",
            "$__rate_interval",
        )


def _recorded_aggregate(function: str, name: str, subject: Subject) -> Iterator[Finding]:
    """A rate of what a rule of the same files records: of a sum of counters, or of gauges."""
    recorded = subject.recorded.get(name)
    if recorded is None:
        return
    try:
        root = parse_query(recorded).root
    except ValueError:
        return
    if _all_gauges(root, subject):
        yield Finding(
            "rate_of_gauge",
            "error",
            f"{function}() of {name}, which records a gauge: every fall is taken for a restart of a counter",
            "deriv() or delta() of the same",
        )
    elif any(kind(visit.node) == "AggregateExpr" and _raw_below(visit.node) for visit in visits(root)):
        yield Finding(
            "rate_of_sum",
            "error",
            f"{function}() of {name}, which records an aggregate: one replica's restart makes it fall and is taken for a reset of the whole",
            "record the rate: sum(rate(...)), first the rate, then the sum",
        )


def _all_gauges(node: Any, subject: Subject) -> bool:
    found = [find_metric(metric_of(visit.node), subject.dialect, subject.version) for visit in selectors(node)]
    return bool(found) and all(one is not None and one[0].type == "gauge" for one in found)


def _raw_below(aggregate: Any) -> bool:
    """True when the aggregate takes selectors directly, not rates."""
    stack = [aggregate.expr]
    while stack:
        node = unwrap(stack.pop())
        if kind(node) == "VectorSelector":
            return True
        if kind(node) != "Call" or node.func.name not in RATES:
            stack += children(node)
    return False


def unlike_ratios(subject: Subject) -> Iterator[Finding]:
    """ratio_of_unlike_counters: a 'mean' made of counters that move at different moments or count different things."""
    for visit in visits(subject.query.root):
        if operator(visit.node) != "/":
            continue
        above, below = (_counter(side, subject) for side in (visit.node.lhs, visit.node.rhs))
        if above is None or below is None:
            continue
        (top, top_suffix), (bottom, bottom_suffix) = above, below
        sum_over_other = (
            top_suffix == "_sum" and top is not bottom and (bottom_suffix == "_count" or bottom.type == "counter")
        )
        tokens_per_request = top.signal in _TOKENS and (bottom.signal in _PER_REQUEST or bottom.type == "histogram")
        if sum_over_other or tokens_per_request:
            suggestion = "rate(x_sum) / rate(x_count) of one histogram"
            if tokens_per_request:
                suggestion = f"the histogram vllm:request_{top.signal.removesuffix('_tokens')}_tokens, _sum over _count"
            yield Finding(
                "ratio_of_unlike_counters",
                "warning",
                f"{top.name} and {bottom.name} are booked at different moments (or per label), so their ratio is no mean per request",
                suggestion,
            )


def _counter(side: Any, subject: Subject) -> tuple[Any, str] | None:
    """The one counter that a side of a division is a rate of."""
    found = [(find_metric(metric_of(visit.node), subject.dialect, subject.version), visit) for visit in selectors(side)]
    if len(found) != 1 or found[0][0] is None or found[0][0][0].type == "gauge":
        return None
    return found[0][0]


def matchers(subject: Subject) -> Iterator[Finding]:
    """matcher_mismatch: the sides of one arithmetic expression look at different sets of targets."""
    for visit in visits(subject.query.root):
        node = visit.node
        if operator(node) not in ARITHMETIC or kind(node) != "BinaryExpr":
            continue
        left, right = _targets(node.lhs), _targets(node.rhs)
        if not left or not right:
            continue
        if not all(_about_engine(side, subject) for side in (node.lhs, node.rhs)):
            continue  # a join with another exporter's series has other labels by nature
        if strange := _disjoint(node.lhs, node.rhs):
            yield Finding(
                "matcher_mismatch",
                "warning",
                f"the sides select different values of {', '.join(sorted(strange))}: they are not the same targets",
                "the same matchers on both sides",
            )
            continue
        lacking = _differ(left, right)
        if lacking:
            inner = any(
                operator(below.node) in ARITHMETIC
                and kind(below.node) == "BinaryExpr"
                and _targets(below.node.lhs)
                and _targets(below.node.rhs)
                for below in visits(node)
                if below.node is not node
            )
            if inner and any(
                _differ(_targets(below.node.lhs), _targets(below.node.rhs))
                for below in visits(node)
                if below.node is not node and kind(below.node) == "BinaryExpr" and operator(below.node) in ARITHMETIC
            ):
                continue  # said of the inner one
            severity: Severity = "error" if operator(node) in ("+", "-") else "warning"
            yield Finding(
                "matcher_mismatch",
                severity,
                f"one side selects by {', '.join(sorted(lacking))} and the other does not: they are not the same targets",
                "the same matchers on both sides",
            )


def _about_engine(side: Any, subject: Subject) -> bool:
    return any(find_metric(metric_of(visit.node), subject.dialect, subject.version) for visit in selectors(side))


def _disjoint(lhs: Any, rhs: Any) -> set[str]:
    """Labels that both sides fix by equality, to values that never meet; a comparison of one metric with itself is deliberate."""
    sides = [selectors(lhs), selectors(rhs)]
    if len({metric_of(visit.node) for side in sides for visit in side}) < 2:
        return set()
    fixed: list[dict[str, set[str]]] = []
    for side in sides:
        values: dict[str, set[str]] = {}
        for visit in side:
            for label, how, value in matchers_of(visit.node):
                if how == "=" and label not in SHARE_LABELS and "$" not in value:
                    values.setdefault(label, set()).add(value)
        fixed.append(values)
    return {label for label in fixed[0].keys() & fixed[1].keys() if not fixed[0][label] & fixed[1][label]}


def _targets(side: Any) -> list[frozenset[tuple[str, str, str]]]:
    return [
        frozenset(matcher for matcher in matchers_of(visit.node) if matcher[0] not in SHARE_LABELS)
        for visit in selectors(side)
    ]


def _differ(left: list[frozenset[tuple[str, str, str]]], right: list[frozenset[tuple[str, str, str]]]) -> set[str]:
    """Labels that every selector of one side matches on and some of the other side does not match on at all."""

    def on_all(side: list[frozenset[tuple[str, str, str]]]) -> set[str]:
        return set.intersection(*[{label for label, _, _ in one} for one in side]) if side else set()

    def on_any(side: list[frozenset[tuple[str, str, str]]]) -> set[str]:
        return {label for one in side for label, _, _ in one}

    return (on_any(left) - on_all(right)) | (on_any(right) - on_all(left))
