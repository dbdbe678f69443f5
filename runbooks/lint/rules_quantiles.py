"""Rules about histograms, quantiles and units."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from runbooks.lint.finding import Finding, Subject
from runbooks.lint.quantity import Quantity, find_metric, quantity
from runbooks.lint.query import (
    COMPARISONS,
    Visit,
    children,
    grouping,
    kind,
    metric_of,
    number_of,
    operator,
    parse_query,
    selectors,
    unwrap,
    visits,
)
from runbooks.lint.variables import UNKNOWN_NAME

_COUNTS = frozenset({"requests", "tokens", "tokens/s", "preemptions", "blocks", "steps", "drafts"})
_QUANTILES = frozenset({"histogram_quantile", "histogram_fraction"})
_PERCENT_LIKE = 50
"""A threshold on a sum of ratios that only makes sense in percent."""
_MINUTES = 100.0
"""A threshold of so many seconds on a request's latency is more often one of milliseconds."""
_SECONDS_UNITS = {"ms": 1e3, "µs": 1e6, "us": 1e6, "ns": 1e9, "m": 1 / 60, "h": 1 / 3600, "dtdurationms": 1e3}
"""Grafana units of time that are not seconds, and the factor that would make seconds fit them."""


def lost_le(subject: Subject) -> Iterator[Finding]:
    """quantile_without_le; max_over_buckets."""
    for visit in visits(subject.query.root):
        if kind(visit.node) != "Call" or visit.node.func.name not in ("histogram_quantile", "histogram_fraction"):
            continue
        share = number_of(visit.node.args[0])
        if visit.node.func.name == "histogram_quantile" and share is not None and not 0 <= share <= 1:
            yield Finding(
                "wrong_unit",
                "warning",
                f"the quantile is given as a share 0..1: {share:g} answers infinity",
                f"{share / 100:g}",
            )
        for inner in selectors(visit.node.args[-1]):
            found = find_metric(metric_of(inner.node), subject.dialect, subject.version)
            if found is not None and found[1] in ("_count", "_sum"):
                yield Finding(
                    "quantile_without_le",
                    "error",
                    f"{metric_of(inner.node)} has no label le: a quantile needs the buckets",
                    f"{found[0].name}_bucket",
                )
        for aggregate in _aggregates(visit.node.args[-1]):
            how, labels = grouping(aggregate)
            open_labels = any(UNKNOWN_NAME in label for label in labels)
            keeps = "le" in labels or open_labels if how == "by" else "le" not in labels
            if not keeps and not _native_only(aggregate, subject):
                yield Finding(
                    "quantile_without_le",
                    "error",
                    "the aggregation drops the label le, so no buckets are left to take a quantile from",
                    "sum by (le) (...)",
                )
                break
            if operator(aggregate) in ("max", "min"):
                yield Finding(
                    "max_over_buckets",
                    "error",
                    f"{operator(aggregate)} over buckets mixes the buckets of different replicas into a distribution that nobody has",
                    "sum by (le) (...), or max() over per-replica quantiles",
                )
            elif operator(aggregate) == "avg":
                yield Finding(
                    "max_over_buckets",
                    "warning",
                    "avg over buckets gives the quantile of the sum only while every replica has every bucket",
                    "sum by (le) (...)",
                )


def _native_only(aggregate: Any, subject: Subject) -> bool:
    """Histograms named without _bucket: native ones, where a scraper converts, carry their buckets without a label."""
    found = [
        find_metric(metric_of(visit.node), subject.dialect, subject.version) for visit in selectors(aggregate.expr)
    ]
    return bool(found) and all(one is not None and one[0].type == "histogram" and one[1] == "" for one in found)


def mixed_buckets(subject: Subject) -> Iterator[Finding]:
    """max_over_buckets without a quantile around it: a heat map of the largest replica's buckets."""
    for visit in visits(subject.query.root):
        node = visit.node
        if operator(node) not in ("max", "min") or kind(node) != "AggregateExpr" or visit.inside_call(_QUANTILES):
            continue
        how, labels = grouping(node)
        buckets = [metric_of(inner.node).endswith("_bucket") for inner in selectors(node.expr)]
        if how == "by" and "le" in labels and buckets and all(buckets):
            yield Finding(
                "max_over_buckets",
                "warning",
                f"{operator(node)} over buckets mixes the buckets of different replicas into a distribution that nobody has",
                "sum by (le) (...)",
            )


def _aggregates(node: Any) -> Iterator[Any]:
    stack = [node]
    while stack:
        current = unwrap(stack.pop())
        if kind(current) == "AggregateExpr":
            yield current
        stack += children(current)


def _is_quantile(node: Any, subject: Subject, depth: int = 0) -> bool:
    """A quantile, taken here or recorded by a rule of the same files."""
    node = unwrap(node)
    if kind(node) == "Call" and node.func.name == "histogram_quantile":
        return True
    if kind(node) == "VectorSelector":
        recorded = subject.recorded.get(metric_of(node))
        if recorded is not None and depth < 5:
            try:
                return _is_quantile(parse_query(recorded).root, subject, depth + 1)
            except ValueError:
                return False
        return False
    if kind(node) == "BinaryExpr" and operator(node) in ("*", "/", *COMPARISONS, "and", "unless", "or"):
        return (
            _is_quantile(node.lhs, subject, depth) or operator(node) == "*" and _is_quantile(node.rhs, subject, depth)
        )
    if kind(node) == "AggregateExpr" and operator(node) in ("max", "min", "topk", "bottomk"):
        return _is_quantile(node.expr, subject, depth)
    if kind(node) == "Call" and node.func.name in (
        "label_replace",
        "label_join",
        "clamp_max",
        "clamp_min",
        "clamp",
        "round",
        "sort",
        "sort_desc",
    ):
        return _is_quantile(node.args[0], subject, depth)
    return False


def _is_mean(node: Any, subject: Subject) -> bool:
    """rate(x_sum)/rate(x_count) of one histogram, per series."""
    node = unwrap(node)
    if operator(node) != "/":
        return False
    sides = [{metric_of(visit.node) for visit in selectors(side)} for side in (node.lhs, node.rhs)]
    return (
        all(len(side) == 1 for side in sides) and sides[0].pop().endswith("_sum") and sides[1].pop().endswith("_count")
    )


def combined_quantiles(subject: Subject) -> Iterator[Finding]:
    """mean_of_quantiles, sum_of_quantiles."""
    merged = "histogram_quantile over sum by (le) of all replicas' rates"
    for visit in visits(subject.query.root):
        node = visit.node
        name = kind(node)
        if name == "AggregateExpr" and operator(node) in ("avg", "sum"):
            if _is_quantile(node.expr, subject):
                if operator(node) == "sum" and _divided_by_count(visit):
                    yield Finding(
                        "mean_of_quantiles", "error", "a mean of quantiles is no quantile of anything", merged
                    )
                rule = "mean_of_quantiles" if operator(node) == "avg" else "sum_of_quantiles"
                yield Finding(rule, "error", f"{operator(node)} of quantiles is no quantile of anything", merged)
            elif operator(node) == "avg" and _is_mean(node.expr, subject):
                yield Finding(
                    "mean_of_quantiles",
                    "warning",
                    "a mean of per-replica means gives a replica with one request the weight of one with thousands",
                    "sum(rate(x_sum)) / sum(rate(x_count))",
                )
        elif name == "AggregateExpr" and operator(node) == "quantile" and _is_quantile(node.expr, subject):
            yield Finding(
                "mean_of_quantiles",
                "warning",
                "a quantile of per-replica quantiles is no quantile of the whole",
                merged,
            )
        elif (
            name == "Call"
            and node.func.name in ("avg_over_time", "sum_over_time")
            and kind(unwrap(node.args[0])) == "SubqueryExpr"
        ):
            if _is_quantile(unwrap(node.args[0]).expr, subject):
                rule = "mean_of_quantiles" if node.func.name == "avg_over_time" else "sum_of_quantiles"
                yield Finding(
                    rule,
                    "warning",
                    "quantiles of moments averaged over time are no quantile of the time",
                    "one rate over the whole range: rate(..._bucket[30m])",
                )
        elif (
            name == "Call"
            and node.func.name == "avg_over_time"
            and kind(unwrap(node.args[0])) == "MatrixSelector"
            and _is_quantile(unwrap(node.args[0]).vector_selector, subject)
        ):
            yield Finding(
                "mean_of_quantiles",
                "warning",
                "a recorded quantile averaged over time is no quantile of the time",
                merged,
            )
        elif (
            name == "BinaryExpr"
            and operator(node) in ("+", "-")
            and _is_quantile(node.lhs, subject)
            and _is_quantile(node.rhs, subject)
            and operator(node) == "+"
        ):
            yield Finding(
                "sum_of_quantiles",
                "error",
                "the quantiles of two parts do not add up to the quantile of the whole",
                "the quantile of one histogram that covers both (for example e2e_request_latency)",
            )


def _divided_by_count(visit: Visit) -> bool:
    parent = next((node for node in reversed(visit.above) if kind(node) != "ParenExpr"), None)
    return parent is not None and operator(parent) == "/" and operator(unwrap(parent.rhs)) == "count"


def units(subject: Subject) -> Iterator[Finding]:
    """wrong_unit: in comparisons and on panels. seconds_threshold_below_first_bucket: thresholds outside what the buckets resolve."""
    for visit in visits(subject.query.root):
        node = visit.node
        if kind(node) != "BinaryExpr" or operator(node) not in COMPARISONS:
            continue
        for side, other in ((node.lhs, node.rhs), (node.rhs, node.lhs)):
            threshold = number_of(other)
            measured = quantity(side, subject.dialect, subject.version)
            if threshold is not None and measured is not None:
                yield from _threshold(measured, threshold)
    scaled_at = subject.expression.threshold
    if scaled_at is not None:
        measured = quantity(subject.query.root, subject.dialect, subject.version)
        if measured is not None:
            yield from _threshold(measured, scaled_at)
    if subject.expression.unit:
        measured = quantity(subject.query.root, subject.dialect, subject.version)
        if measured is not None:
            yield from _panel(measured, subject.expression.unit)
            yield from _counts(measured, subject.expression.unit)


def _threshold(measured: Quantity, threshold: float) -> Iterator[Finding]:
    value = threshold / measured.factor if measured.factor else threshold
    name = measured.metric.name
    if measured.unit == "ratio" and value > (_PERCENT_LIKE if measured.summed else 1):
        yield Finding(
            "wrong_unit",
            "error",
            f"{name} is a ratio 0..1: it is never above {threshold:g}"
            + (f" (after the factor {measured.factor:g})" if measured.factor != 1 else ""),
            f"compare with {threshold / 100:g}",
        )
    elif measured.unit == "ratio" and measured.factor == 100 and 0 < threshold < 1:
        yield Finding(
            "wrong_unit",
            "warning",
            f"the expression is in percent and {threshold:g} is below one percent",
            f"compare with {threshold * 100:g}",
        )
    elif measured.unit == "seconds" and value >= _MINUTES and not measured.metric.signal.startswith("http"):
        yield Finding(
            "wrong_unit",
            "warning",
            f"{name} is in seconds: {value:g} would be {value / 60:.0f} minutes",
            f"{value / 1000:g}, if milliseconds were meant",
        )
    if measured.unit == "seconds" and measured.is_quantile and measured.metric.buckets and value > 0:
        first, last = measured.metric.buckets[0], measured.metric.buckets[-1]
        if value < first:
            yield Finding(
                "seconds_threshold_below_first_bucket",
                "warning",
                f"the first bound of {name} is {first:g} s: {value:g} s cannot be told from it, a quantile down there is interpolation",
                f"a threshold at a bound: {first:g} or above",
            )
        elif value >= last:
            yield Finding(
                "seconds_threshold_below_first_bucket",
                "warning",
                f"the last finite bound of {name} is {last:g} s: no quantile is ever above it"
                + (" (a threshold in milliseconds?)" if value >= 100 else ""),
                "a threshold below the last bound",
            )


def _panel(measured: Quantity, unit: str) -> Iterator[Finding]:
    name = measured.metric.name
    if measured.unit == "ratio":
        if unit == "percent" and measured.factor == 1:
            yield Finding(
                "wrong_unit",
                "error",
                f"{name} is a ratio 0..1 and the panel's unit is percent (0-100): a full cache shows as 1 %",
                "unit percentunit (0.0-1.0), or 100 * ...",
            )
        elif unit == "percentunit" and measured.factor == 100:
            yield Finding(
                "wrong_unit",
                "error",
                "the expression is in percent and the panel's unit is percentunit (0.0-1.0): it shows a hundredfold",
                "unit percent, or without the factor 100",
            )
        elif unit in ("s", *_SECONDS_UNITS, "bytes", "decbytes"):
            yield Finding("wrong_unit", "error", f"{name} is a ratio, the panel's unit is {unit}", "unit percentunit")
    elif measured.unit == "seconds":
        if unit in _SECONDS_UNITS and abs(measured.factor / _SECONDS_UNITS[unit] - 1) > 1e-9:
            yield Finding(
                "wrong_unit",
                "error",
                f"{name} is in seconds, the panel's unit is {unit}",
                "unit s" if measured.factor == 1 else "",
            )
        elif unit == "s" and measured.factor in (1e3, 1e6):
            yield Finding(
                "wrong_unit",
                "error",
                f"{name} times {measured.factor:g} is no longer in seconds, the panel's unit is s",
                "unit ms" if measured.factor == 1e3 else "unit µs",
            )
        elif unit in ("percent", "percentunit", "bytes"):
            yield Finding("wrong_unit", "error", f"{name} is in seconds, the panel's unit is {unit}", "unit s")


def _counts(measured: Quantity, unit: str) -> Iterator[Finding]:
    """Requests or tokens, or a rate of them, shown as time or as a share."""
    if measured.factor != 1 or measured.unit.removesuffix(" per second") not in _COUNTS:
        return
    wrong = ("s", *_SECONDS_UNITS, "bytes", "decbytes", "percent", "percentunit")
    if unit in wrong:
        yield Finding(
            "wrong_unit",
            "warning",
            f"{measured.metric.name} is in {measured.unit}, the panel's unit is {unit}",
            "unit short",
        )


def is_state(node: Any, subject: Subject) -> bool:
    """A latency, a quantile or a gauge: what reads as good when it is filled with zero."""
    for visit in selectors(node):
        found = find_metric(metric_of(visit.node), subject.dialect, subject.version)
        if found is not None and (found[0].type in ("gauge", "histogram") or found[0].type == "summary"):
            return True
    return _is_quantile(node, subject)
