"""Rules about silence: zeros in the place of no data, comparisons that filter, alerts that fall silent with their target, dead links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from runbooks.lint.finding import Finding, Severity, Subject
from runbooks.lint.quantity import find_metric
from runbooks.lint.query import COMPARISONS, Visit, kind, metric_of, number_of, operator, selectors, unwrap, visits
from runbooks.lint.rules_quantiles import is_state

_LINES = re.compile(r"L\d+(?:C\d+)?(?:-L\d+(?:C\d+)?)?")
_NOT_A_SLUG = re.compile(r"[A-Z\s.,:;()/?!&+'\"]|%20")
"""What the anchor of a heading never holds."""


def zero_for_nothing(subject: Subject) -> Iterator[Finding]:
    """or_vector_zero_hides_no_data."""
    for visit in visits(subject.query.root):
        node = visit.node
        if operator(node) == "or" and operator(node.rhs) in COMPARISONS and _is_zero_vector(node.rhs.lhs):
            yield Finding(
                "or_vector_zero_hides_no_data",
                "error",
                "the comparison binds tighter than or: it is made with the 0 alone, and every value of the left side passes",
                "(...) > threshold, without the zero; alert on absent() apart",
            )
            continue
        if operator(node) != "or" or not _is_zero_vector(node.rhs):
            continue
        if any(kind(inner.node) == "Call" and inner.node.func.name.startswith("absent") for inner in visits(node.lhs)):
            continue
        if is_state(node.lhs, subject) and not _counts_what_passed(node.lhs) and not _zero_is_noticed(visit):
            yield Finding(
                "or_vector_zero_hides_no_data",
                "error",
                "a service that is gone shows as 0, which reads as perfect",
                "leave the gap; alert on absent() apart",
            )
        else:
            yield Finding(
                "or_vector_zero_hides_no_data",
                "warning",
                "no data shows as 0; right only where the series is born with its first event",
                "leave the gap, or be sure that the target is up",
            )


def _counts_what_passed(node: Any) -> bool:
    """count(x > 5) has no result when nothing passes; zero is then the right answer."""
    node = unwrap(node)
    return operator(node) == "count" and any(
        kind(inner.node) == "BinaryExpr" and operator(inner.node) in COMPARISONS for inner in visits(node.expr)
    )


def _zero_is_noticed(visit: Visit) -> bool:
    """(x or vector(0)) < 1 fires on the filled zero: nothing is hidden."""
    for node in reversed(visit.above):
        if kind(node) == "BinaryExpr" and operator(node) in ("==", "<", "<="):
            bound = number_of(node.rhs)
            return bound is not None and (
                bound > 0 if operator(node) == "<" else bound >= 0 if operator(node) == "<=" else bound == 0
            )
    return False


def _is_zero_vector(node: Any) -> bool:
    node = unwrap(node)
    return kind(node) == "Call" and node.func.name == "vector" and number_of(node.args[0]) == 0


def filters_that_should_count(subject: Subject) -> Iterator[Finding]:
    """comparison_without_bool: an average or sum over what a comparison let through."""
    for visit in visits(subject.query.root):
        node = visit.node
        inner = None
        if kind(node) == "AggregateExpr" and operator(node) in ("avg", "sum"):
            inner, name = unwrap(node.expr), operator(node)
        elif (
            kind(node) == "Call"
            and node.func.name in ("avg_over_time", "sum_over_time")
            and kind(unwrap(node.args[0])) == "SubqueryExpr"
        ):
            inner, name = unwrap(unwrap(node.args[0]).expr), node.func.name
        if (
            inner is None
            or kind(inner) != "BinaryExpr"
            or operator(inner) not in COMPARISONS
            or number_of(inner.rhs) is None
            and number_of(inner.lhs) is None
        ):
            continue
        bound = number_of(inner.rhs) if number_of(inner.rhs) is not None else number_of(inner.lhs)
        if inner.modifier is not None and inner.modifier.return_bool:
            continue
        severity: Severity = "error" if name.startswith("avg") else "warning"
        yield Finding(
            "comparison_without_bool",
            severity,
            f"without bool the comparison lets values through instead of 0 or 1: {name} is taken over the values of those that pass",
            f"{operator(inner)} bool {bound:g}",
        )


def silent_when_gone(subject: Subject) -> Iterator[Finding]:
    """absent_not_covered: an alert on `up` that needs a series to be there."""
    if subject.expression.kind == "record" or any(
        kind(visit.node) == "Call" and visit.node.func.name.startswith("absent") for visit in visits(subject.query.root)
    ):
        return
    for visit in visits(subject.query.root):
        node = visit.node
        if kind(node) != "BinaryExpr" or operator(node) not in COMPARISONS:
            continue
        measured, bound, how = node.lhs, number_of(node.rhs), operator(node)
        if bound is None:
            measured, bound, how = node.rhs, number_of(node.lhs), _TURNED.get(operator(node), operator(node))
        if bound is None or how not in ("==", "!=", "<", "<="):
            continue
        name = next(
            (
                metric_of(inner.node)
                for inner in selectors(measured)
                if metric_of(inner.node) == "up" or how in ("<", "<=") and _counted_directly(inner, subject)
            ),
            "",
        )
        if (
            name
            and name not in subject.watched_absent
            and not (how == "==" and bound > 0 and name == "up" and not _aggregated(measured))
        ):
            matchers = f"{name}{{...}}"
            yield Finding(
                "absent_not_covered",
                "warning",
                "when the targets themselves are gone (scaled to none, discovery broken) there is no series and nothing fires",
                f"... or absent({matchers})",
            )
            return


_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def _aggregated(node: Any) -> bool:
    return any(kind(visit.node) == "AggregateExpr" for visit in visits(node))


def _counted_directly(visit: Visit, subject: Subject) -> bool:
    """count(series of the engine): an alert on too few replicas."""
    parent = next((node for node in reversed(visit.above) if kind(node) != "ParenExpr"), None)
    found = find_metric(metric_of(visit.node), subject.dialect, subject.version)
    return found is not None and parent is not None and operator(parent) == "count"


def dead_links(subject: Subject) -> Iterator[Finding]:
    """dead_runbook_link: a link that cannot lead anywhere, as far as its text shows. Nothing is fetched."""
    link = subject.expression.runbook_url
    if link is None:
        return
    if not link.strip():
        yield Finding("dead_runbook_link", "warning", "the runbook link is empty")
        return
    try:
        parts = urlsplit(re.sub(r"\{\{.*?\}\}", "x", link))
    except ValueError:
        yield Finding("dead_runbook_link", "warning", f"the runbook link is no address: {link[:120]}")
        return
    if parts.scheme not in ("http", "https") or not parts.netloc:
        yield Finding(
            "dead_runbook_link", "warning", f"the runbook link has no host: {link[:120]}", "an absolute https address"
        )
    elif parts.hostname in ("localhost", "127.0.0.1", "0.0.0.0", "::1"):
        yield Finding(
            "dead_runbook_link", "warning", f"the runbook link leads to the reader's own machine: {link[:120]}"
        )
    elif any(word in link for word in ("TODO", "FIXME", "<", ">", "example.com", "CHANGEME")):
        yield Finding("dead_runbook_link", "warning", f"the runbook link is a placeholder: {link[:120]}")
    elif parts.fragment and not _LINES.fullmatch(parts.fragment) and _NOT_A_SLUG.search(parts.fragment):
        yield Finding(
            "dead_runbook_link",
            "warning",
            f"anchors of headings are lower case with hyphens; #{parts.fragment} leads to the top of the page",
            "#" + re.sub(r"[^\w-]", "", re.sub(r"\s+|%20", "-", parts.fragment.lower())),
        )
