"""Rules about names: metrics that do not exist (any more, yet, without a flag), labels and values that a metric does not have."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from collectors.dialect import Metric
from runbooks.lint.finding import Finding, Severity, Subject
from runbooks.lint.quantity import find_metric
from runbooks.lint.query import grouping, kind, matchers_of, metric_of, operator, selectors, visits
from runbooks.lint.variables import UNKNOWN_NAME

ROUTER_NAMES = frozenset(
    "vllm:" + name
    for name in (
        "current_qps", "avg_decoding_length", "num_prefill_requests", "num_decoding_requests", "num_incoming_requests_total", "avg_latency", "avg_itl", "avg_ttft",
        "healthy_pods_total", "router_queueing_delay_seconds",
    )
)  # fmt: skip
"""Names with the engine's prefix that a request router publishes."""
NATIVE = frozenset(
    {"histogram_avg", "histogram_count", "histogram_sum", "histogram_fraction", "histogram_stddev", "histogram_stdvar", "histogram_quantile", "histogram_quantiles"}
)  # fmt: skip
CONFUSED_LABELS = {
    "model": "model_name", "model_id": "model_name", "served_model_name": "model_name", "finish_reason": "finished_reason", "reason": "finished_reason",
    "status_code": "status", "code": "status", "path": "handler", "route": "handler", "engine_id": "engine", "engine_index": "engine",
}  # fmt: skip
"""Labels that people write for the engine's own; a scraper could add them, but then to every metric and not to one."""


def names(subject: Subject) -> Iterator[Finding]:
    """unknown_metric, removed_metric, hidden_metric, deprecated_metric, counter_missing_total."""
    for name in dict.fromkeys(metric_of(visit.node) for visit in selectors(subject.query.root)):
        if name and name not in subject.recorded and UNKNOWN_NAME not in name:
            for finding in _name(name, subject):
                yield _softened(finding, name, subject)


def _softened(finding: Finding, name: str, subject: Subject) -> Finding:
    """A warning where the query is right all the same: a fallback beside the present name, or histograms that the scraper converts."""
    if finding.rule in ("hidden_metric", "removed_metric", "deprecated_metric") and _is_fallback(name, subject):
        return replace(
            finding, severity="warning", message=f"{finding.message} (here only a fallback beside the present name)"
        )
    if finding.rule == "unknown_metric" and any(
        metric_of(visit.node) == name and visit.inside_call(NATIVE) for visit in selectors(subject.query.root)
    ):
        return replace(
            finding,
            severity="warning",
            message=f"{finding.message}; a native histogram of that name exists only where the scraper converts classic ones",
        )
    return finding


def _is_fallback(name: str, subject: Subject) -> bool:
    """True when another branch of an `or` holds an active name of the same signal."""
    found = subject.dialect.canonical(name)
    present = found and subject.dialect.replacement(found[0], subject.version)
    if not present:
        return False
    for visit in visits(subject.query.root):
        if operator(visit.node) != "or":
            continue
        for mine, other in ((visit.node.lhs, visit.node.rhs), (visit.node.rhs, visit.node.lhs)):
            families = [subject.dialect.canonical(metric_of(inner.node)) for inner in selectors(other)]
            if any(metric_of(inner.node) == name for inner in selectors(mine)) and any(
                family and family[0] == present for family in families
            ):
                return True
    return False


def _name(name: str, subject: Subject) -> Iterator[Finding]:
    dialect, version = subject.dialect, subject.version
    found = dialect.canonical(name)
    if found is None:
        if not _claims_dialect(name, subject) or ":" in name.removeprefix(dialect.prefix):
            return  # another exporter's, or a recording rule that stands in a file of its own
        total = dialect.canonical(name + "_total")
        if total is not None and dialect.metric(total[0], version):
            yield Finding(
                "counter_missing_total", "error", f"{name} is a counter and its series end in _total", f"{name}_total"
            )
            return
        if name in ROUTER_NAMES:
            yield Finding(
                "unknown_metric",
                "warning",
                f"{name} is exported by a router in front of the engines, not by {dialect.title} itself",
            )
            return
        severity: Severity = "error" if name.startswith(dialect.prefix) else "warning"
        yield Finding("unknown_metric", severity, f"no version of {dialect.title} exports {name}", _near(name, subject))
        return
    family, prefix = found
    if prefix == "vllm_":
        yield Finding(
            "unknown_metric",
            "error",
            f"{name}: the engine writes a colon after its prefix; underscores exist only behind a publisher that rewrites names",
            dialect.respell(name.replace("vllm_", dialect.prefix, 1), dialect.prefix),
        )
        return
    metric = dialect.metric(family, version)
    if metric is not None and metric.type in ("histogram", "summary") and name == dialect.respell(family, prefix):
        yield Finding(
            "unknown_metric",
            "error",
            f"{name} is a {metric.type}: its series are {name}_bucket, _sum and _count",
            f"{name}_bucket" if metric.type == "histogram" else f"{name}_sum",
        )
        return
    status = dialect.status(family, version)
    replacement = dialect.replacement(family, version) or ""
    if status == "removed":
        yield Finding(
            "removed_metric",
            "error",
            f"{name} is not in {dialect.title} {version}: removed{_until(family, subject)}",
            replacement,
        )
    elif status == "not_yet":
        yield Finding(
            "unknown_metric",
            "error",
            f"{name} is not in {dialect.title} {version} yet: it comes with a later version",
            replacement,
        )
    elif status == "hidden":
        yield Finding(
            "hidden_metric",
            "error",
            f"{name} is hidden in {dialect.title} {version}: exported only with --show-hidden-metrics-for-version",
            replacement,
        )
    elif status == "deprecated":
        yield Finding(
            "deprecated_metric",
            "warning",
            f"{name} is deprecated in {dialect.title} {version} and goes away",
            replacement,
        )


def _claims_dialect(name: str, subject: Subject) -> bool:
    return name.startswith((subject.dialect.prefix, *subject.dialect.other_prefixes))


def _until(family: str, subject: Subject) -> str:
    ends = [entry.until for entry in subject.dialect.entries if entry.name == family and entry.until]
    return " in " + ".".join(str(part) for part in max(ends)) if ends else ""


def _near(name: str, subject: Subject) -> str:
    known = subject.dialect.metrics(subject.version, hidden=False)
    near = difflib.get_close_matches(
        name, [sample for metric in known.values() for sample in metric.samples], n=1, cutoff=0.7
    )
    return near[0] if near else ""


def labels(subject: Subject) -> Iterator[Finding]:
    """label_not_on_metric: in matchers and in groupings; and values that a label never takes (a warning)."""
    engine_labels = {
        label
        for metric in subject.dialect.metrics(subject.version).values()
        for label in (*metric.labels, *metric.extra_labels)
    } | {"le"}
    for visit in selectors(subject.query.root):
        found = find_metric(metric_of(visit.node), subject.dialect, subject.version)
        if found is None:
            continue
        metric, suffix = found
        if metric.name == "up" or metric.name.startswith("scrape_"):
            continue  # these have only the labels that the scraper gives
        own = {*metric.labels, *metric.extra_labels} | ({"le"} if suffix == "_bucket" else set())
        for label, how, value in matchers_of(visit.node):
            if label not in own and (label in engine_labels or label in CONFUSED_LABELS) and value != "":
                yield _missing(label, metric, own)
            elif label in own:
                yield from _value(metric, label, how, value, suffix)
        aggregation = next((node for node in reversed(visit.above) if kind(node) == "AggregateExpr"), None)
        if aggregation is not None and not _labels_join(visit.above, aggregation) and grouping(aggregation)[0] == "by":
            for label in grouping(aggregation)[1]:
                if label not in own and (label in engine_labels - {"le"} or label in CONFUSED_LABELS):
                    yield _missing(label, metric, own)


def _labels_join(above: tuple[Any, ...], aggregation: Any) -> bool:
    """True when something between the selector and its aggregation brings labels in: a join or a label function."""
    inside = above[above.index(aggregation) + 1 :]
    return any(
        kind(node) == "BinaryExpr"
        and node.modifier is not None
        and str(node.modifier.card).endswith(("ManyToOne", "OneToMany"))
        or kind(node) == "Call"
        and node.func.name in ("label_replace", "label_join", "info")
        for node in inside
    )


def _missing(label: str, metric: Metric, own: set[str]) -> Finding:
    meant = CONFUSED_LABELS.get(label, "")
    return Finding("label_not_on_metric", "error", f"{metric.name} has no label {label}", meant if meant in own else "")


def _value(metric: Metric, label: str, operator: str, value: str, suffix: str) -> Iterator[Finding]:
    if "$" in value or operator.startswith("!"):
        return
    known = metric.values.get(label, ())
    if known and not any(value == one if operator == "=" else _matches(value, one) for one in known):
        yield Finding(
            "label_not_on_metric",
            "warning",
            f"{metric.name}: {label} is only ever {', '.join(known)}; {value} matches nothing",
        )
    if label == "le" and suffix == "_bucket" and operator == "=" and metric.buckets:
        edges = {_edge(bound) for bound in metric.buckets} | {"+Inf"}
        if value not in edges:
            yield Finding(
                "label_not_on_metric",
                "warning",
                f"{metric.name} has no bucket le={value!r} (it is written with a decimal point, and only at the histogram's own bounds)",
            )


def _edge(bound: float) -> str:
    return f"{bound:.1f}" if float(bound).is_integer() else repr(float(bound))


def _matches(pattern: str, value: str) -> bool:
    try:
        return re.fullmatch(pattern, value) is not None
    except re.error:
        return True  # RE2 and re differ in places; the backend decides


def has_matcher(subject: Subject, name: str) -> bool:
    """True when any call of a function of that name stands in the query."""
    return any(kind(visit.node) == "Call" and visit.node.func.name == name for visit in visits(subject.query.root))
