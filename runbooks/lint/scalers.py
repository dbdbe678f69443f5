"""Queries that scale replicas: KEDA triggers and the rules of the Prometheus adapter behind a HorizontalPodAutoscaler."""

from __future__ import annotations

import re
from collections.abc import Iterator
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


def scaling_queries(content: dict[str, Any]) -> Iterator[ScalingQuery]:
    """The PromQL of a ScaledObject or ScaledJob, or of an adapter's configuration, in file order; none for other files."""
    spec = content.get("spec")
    if content.get("kind") in ("ScaledObject", "ScaledJob") and isinstance(spec, dict):
        yield from _triggers(spec)
    rules = content.get("rules")
    parts = [rules] if isinstance(rules, list) else list(rules.values()) if isinstance(rules, dict) else []
    parts.append(content.get("externalRules"))
    for part in parts:
        for rule in as_list(part):
            if isinstance(rule, dict) and isinstance(rule.get("seriesQuery"), str):
                yield from _adapter(rule)


def _triggers(spec: dict[str, Any]) -> Iterator[ScalingQuery]:
    for number, trigger in enumerate(as_list(spec.get("triggers")), 1):
        metadata = trigger.get("metadata") if isinstance(trigger, dict) else None
        if not isinstance(metadata, dict) or trigger.get("type") != "prometheus":
            continue
        if isinstance(metadata.get("query"), str):
            name = trigger.get("name") or metadata.get("metricName") or number
            yield ScalingQuery(metadata["query"], f"trigger {name}", _number(metadata.get("threshold")))


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
