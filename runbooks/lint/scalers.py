"""Queries that scale replicas: KEDA triggers and the rules of the Prometheus adapter behind a HorizontalPodAutoscaler."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from runbooks.lint.panels import as_list

_NAMED_SERIES = re.compile(r"^\s*(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)\s*(?:\{.*\})?\s*$", re.DOTALL)


@dataclass(frozen=True)
class ScalingQuery:
    """`threshold` is what the query's value is scaled against; None when the file leaves it open."""

    text: str
    place: str
    threshold: float | None = None


def scaling_queries(content: dict[str, Any], visit: Callable[[], None] = lambda: None) -> Iterator[ScalingQuery]:
    """The PromQL of scaling triggers (a ScaledObject, or a chart's values that make one) or of an adapter's configuration, in file order.

    `visit` is called for every object and list on the way and may raise to end the walk.
    """
    if content.get("kind") in ("ScaledObject", "ScaledJob") or "kind" not in content:
        yield from _triggers(content, visit)
    rules = content.get("rules")
    parts = [rules] if isinstance(rules, list) else list(rules.values()) if isinstance(rules, dict) else []
    parts.append(content.get("externalRules"))
    for part in parts:
        for rule in as_list(part):
            if isinstance(rule, dict) and isinstance(rule.get("seriesQuery"), str):
                yield from _adapter(rule)


def _triggers(content: dict[str, Any], visit: Callable[[], None]) -> Iterator[ScalingQuery]:
    """Wherever a trigger of type prometheus stands; a dashboard holds none."""
    stack: list[Any] = [content]
    number = 0
    while stack:
        node = stack.pop()
        visit()
        if isinstance(node, list):
            stack += [child for child in reversed(node) if isinstance(child, dict | list)]
            continue
        metadata = node.get("metadata")
        if node.get("type") == "prometheus" and isinstance(metadata, dict) and isinstance(metadata.get("query"), str):
            number += 1
            name = node.get("name") or metadata.get("metricName") or number
            yield ScalingQuery(metadata["query"], f"trigger {name}", _number(metadata.get("threshold")))
        else:
            stack += [child for child in reversed(node.values()) if isinstance(child, dict | list)]


def _adapter(rule: dict[str, Any]) -> Iterator[ScalingQuery]:
    """`metricsQuery` with the adapter's own placeholders filled in; a series chosen by pattern only names nothing to check."""
    series = _NAMED_SERIES.match(rule["seriesQuery"])
    if not series:
        return
    query = rule.get("metricsQuery")
    text = query if isinstance(query, str) else "sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)"
    text = re.sub(r"<<\s*\.Series\s*>>", series["name"], text)
    text = re.sub(r",?\s*<<\s*\.LabelMatchers\s*>>", "", text)
    text = re.sub(r"<<\s*\.GroupBy\s*>>", "namespace", text)
    yield ScalingQuery(text, f"rule for {series['name']}")


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
