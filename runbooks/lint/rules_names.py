"""Rules about names: metrics that do not exist (any more, yet, without a flag), labels and values that a metric does not have."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from collectors.dialect import Metric
from runbooks.lint.finding import Finding, Subject
from runbooks.lint.quantity import find_metric
from runbooks.lint.query import grouping, kind, matchers_of, metric_of, selectors, visits

CONFUSED_LABELS = {
    "model": "model_name", "model_id": "model_name", "served_model_name": "model_name", "finish_reason": "finished_reason", "reason": "finished_reason",
    "status_code": "status", "code": "status", "path": "handler", "route": "handler", "engine_id": "engine", "engine_index": "engine",
}  # fmt: skip
"""Labels that people write for the engine's own; a scraper could add them, but then to every metric and not to one."""


def names(subject: Subject) -> Iterator[Finding]:
    """unknown_metric, removed_metric, hidden_metric, deprecated_metric, counter_missing_total."""
    for name in dict.fromkeys(metric_of(visit.node) for visit in selectors(subject.query.root)):
        if name and name not in subject.recorded:
            yield from _name(name, subject)


def _name(name: str, subject: Subject) -> Iterator[Finding]:
    dialect, version = subject.dialect, subject.version
    found = dialect.canonical(name)
    if found is None:
        if not _claims_dialect(name, subject):
            return
        total = dialect.canonical(name + "_total")
        if total is not None and dialect.metric(total[0], version):
            yield Finding(
                "counter_missing_total", "error", f"{name} is a counter and its series end in _total", f"{name}_total"
            )
            return
        yield Finding("unknown_metric", "error", f"no version of {dialect.title} exports {name}", _near(name, subject))
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
        own = {*metric.labels, *metric.extra_labels} | ({"le"} if suffix == "_bucket" else set())
        for label, operator, value in matchers_of(visit.node):
            if label not in own and (label in engine_labels or label in CONFUSED_LABELS) and value != "":
                yield _missing(label, metric, own)
            elif label in own:
                yield from _value(metric, label, operator, value, suffix)
        aggregation = next((node for node in reversed(visit.above) if kind(node) == "AggregateExpr"), None)
        if aggregation is not None and grouping(aggregation)[0] == "by":
            for label in grouping(aggregation)[1]:
                if label not in own and (label in engine_labels - {"le"} or label in CONFUSED_LABELS):
                    yield _missing(label, metric, own)


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
