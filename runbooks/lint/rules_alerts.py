"""Rules about silence: zeros in the place of no data, comparisons that filter, alerts that fall silent with their target, dead links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from runbooks.lint.finding import Finding, Severity, Subject
from runbooks.lint.query import COMPARISONS, kind, metric_of, number_of, operator, selectors, unwrap, visits
from runbooks.lint.rules_quantiles import is_state


def zero_for_nothing(subject: Subject) -> Iterator[Finding]:
    """or_vector_zero_hides_no_data."""
    for visit in visits(subject.query.root):
        node = visit.node
        if operator(node) != "or" or not _is_zero_vector(node.rhs):
            continue
        if is_state(node.lhs, subject):
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
        ):
            continue
        if inner.modifier is not None and inner.modifier.return_bool:
            continue
        severity: Severity = "error" if name.startswith("avg") else "warning"
        yield Finding(
            "comparison_without_bool",
            severity,
            f"without bool the comparison lets values through instead of 0 or 1: {name} is taken over the values of those that pass",
            f"{operator(inner)} bool {number_of(inner.rhs):g}",
        )


def silent_when_gone(subject: Subject) -> Iterator[Finding]:
    """absent_not_covered: an alert on `up` that needs a series to be there."""
    if subject.expression.kind == "record" or any(
        kind(visit.node) == "Call" and visit.node.func.name.startswith("absent") for visit in visits(subject.query.root)
    ):
        return
    for visit in visits(subject.query.root):
        node = visit.node
        if kind(node) != "BinaryExpr" or operator(node) not in ("==", "<", "<="):
            continue
        if number_of(node.rhs) is not None and any(metric_of(inner.node) == "up" for inner in selectors(node.lhs)):
            matchers = "up{...}"
            yield Finding(
                "absent_not_covered",
                "warning",
                "when the targets themselves are gone (scaled to none, discovery broken) there is no series and nothing fires",
                f"... or absent({matchers})",
            )
            return


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
    elif any(word in link for word in ("TODO", "FIXME", "<", ">", "example.com", "CHANGEME")):
        yield Finding("dead_runbook_link", "warning", f"the runbook link is a placeholder: {link[:120]}")
    elif parts.fragment and (
        parts.fragment != parts.fragment.lower() or " " in parts.fragment or "%20" in parts.fragment
    ):
        yield Finding(
            "dead_runbook_link",
            "warning",
            f"anchors of headings are lower case with hyphens; #{parts.fragment} leads to the top of the page",
            "#" + re.sub(r"[\s_]+|%20", "-", parts.fragment.lower()),
        )
