"""Walks a dashboard of any schema for its Prometheus queries and the unit that each is shown in."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

OTHER_LANGUAGES = (
    "loki", "elasticsearch", "opensearch", "influx", "tempo", "jaeger", "zipkin", "mysql", "postgres", "mssql", "cloudwatch", "graphite", "__expr__", "clickhouse",
    "bigquery", "snowflake", "azure-monitor", "stackdriver", "cloud-monitoring", "opentsdb", "pyroscope", "phlare", "parca", "athena", "redshift", "testdata",
    "victorialogs",
)  # fmt: skip
"""Parts of the type (or old-style name) of data sources whose `expr` is not PromQL."""
_NOT_QUERIES = ("templating", "variables", "__inputs", "__requires")
_REWRITING = ("calculateField",)
"""Transformations that change values, so that the panel's unit says nothing of the query's."""


@dataclass(frozen=True)
class _Around:
    """What holds for the targets below a node."""

    place: str = ""
    unit: str = ""
    units: tuple[tuple[str, str], ...] = ()
    """Overrides by refId."""
    source: str = ""
    ref: str = ""


def queries(board: Any, visit: Callable[[], None] = lambda: None) -> Iterator[tuple[str, str, str]]:
    """(expression, place, unit) depth first in file order; a panel's title, unit and data source hold for the targets inside it.

    `visit` is called for every object and list on the way and may raise to end the walk.
    """
    stack: list[tuple[Any, _Around]] = [(board, _Around())]
    while stack:
        node, around = stack.pop()
        visit()
        if isinstance(node, list):
            stack += [(child, around) for child in reversed(node) if isinstance(child, dict | list)]
            continue
        around = _entered(node, around)
        text = node.get("expr")
        if isinstance(text, str) and text.strip() and not _foreign(around.source):
            yield text, f"{around.place} [{around.ref or '?'}]", dict(around.units).get(around.ref, around.unit)
        stack += [
            (child, around)
            for key, child in reversed(node.items())
            if key not in _NOT_QUERIES and isinstance(child, dict | list)
        ]


_LABEL_VALUES = re.compile(r"^\s*label_values\(\s*(?P<series>.+?)\s*,\s*\w+\s*\)\s*$", re.DOTALL)
_QUERY_RESULT = re.compile(r"^\s*query_result\(\s*(?P<query>.+)\s*\)\s*$", re.DOTALL)


def variable_queries(board: Any) -> Iterator[tuple[str, str]]:
    """(PromQL, place) of the dashboard's query variables: the series of label_values() and the query of query_result()."""
    if not isinstance(board, dict):
        return
    templating = board.get("templating")
    listed = as_list(templating.get("list")) if isinstance(templating, dict) else as_list(board.get("variables"))
    for variable in listed:
        if not isinstance(variable, dict):
            continue
        inner = variable.get("spec")
        variable = inner if isinstance(inner, dict) else variable
        query = variable.get("query")
        if isinstance(query, dict):
            inner = query.get("spec")
            query = (inner if isinstance(inner, dict) else query).get("query")
        if variable.get("type", "query") != "query" or not isinstance(query, str) or _foreign(_source(variable)):
            continue
        found = _LABEL_VALUES.match(query) or _QUERY_RESULT.match(query)
        if found:
            yield next(iter(found.groups())), f"variable {variable.get('name', '?')}"


def _entered(node: dict[str, Any], around: _Around) -> _Around:
    if isinstance(node.get("title"), str):
        around = replace(around, place=f"{around.place} / {node['title']}".strip(" /"))
    unit = _unit(node)
    if unit is not None:
        around = replace(around, unit=unit[0], units=unit[1])
    if isinstance(node.get("refId"), str):
        around = replace(around, ref=node["refId"])
    source = _source(node)
    return replace(around, source=source) if source else around


def _source(node: dict[str, Any]) -> str:
    """Type of the data source that a panel or target names ('' when it names none); an old schema gives only its name."""
    source = node.get("datasource")
    if isinstance(source, dict) and isinstance(source.get("type"), str):
        return str(source["type"])
    if isinstance(source, str):
        return source
    query = node.get("query")
    if isinstance(query, dict) and isinstance(query.get("kind"), str):  # elements of schema v2
        return str(query.get("group") or query["kind"])
    return ""


def _foreign(source: str) -> bool:
    return any(part in source.lower() for part in OTHER_LANGUAGES)


def _unit(panel: dict[str, Any]) -> tuple[str, tuple[tuple[str, str], ...]] | None:
    """(unit, overrides by refId); None when the node is no panel. ('', ()) where overrides or axes leave it open."""
    holder = panel
    if isinstance(panel.get("vizConfig"), dict) and isinstance(panel["vizConfig"].get("spec"), dict):
        holder = panel["vizConfig"]["spec"]
    config = holder.get("fieldConfig")
    if isinstance(config, dict):
        defaults = config.get("defaults")
        unit = defaults.get("unit") if isinstance(defaults, dict) else None
        overrides, decided = _overrides(config.get("overrides"))
        if not decided or _rewritten(panel):
            return "", ()
        return (str(unit) if isinstance(unit, str) else ""), overrides
    axes = panel.get("yaxes")
    if isinstance(axes, list) and axes and isinstance(axes[0], dict) and isinstance(axes[0].get("format"), str):
        series = panel.get("seriesOverrides")
        second = isinstance(series, list) and any(isinstance(one, dict) and one.get("yaxis") == 2 for one in series)
        return ("" if second else str(axes[0]["format"])), ()
    if "targets" in panel and isinstance(panel.get("format"), str):
        return str(panel["format"]), ()
    return None


def _overrides(overrides: Any) -> tuple[tuple[tuple[str, str], ...], bool]:
    """Units by refId, and whether nothing else sets a unit: a matcher by name or pattern cannot be followed to its query."""
    by_ref: list[tuple[str, str]] = []
    for override in as_list(overrides):
        if not isinstance(override, dict):
            continue
        units = [
            str(setting.get("value"))
            for setting in as_list(override.get("properties"))
            if isinstance(setting, dict) and setting.get("id") == "unit"
        ]
        if not units:
            continue
        matcher = override.get("matcher")
        if not isinstance(matcher, dict) or matcher.get("id") != "byFrameRefID":
            return (), False
        by_ref.append((str(matcher.get("options")), units[-1]))
    return tuple(by_ref), True


def as_list(value: Any) -> list[Any]:
    """The value where it is a list, as a damaged file may hold anything in its place."""
    return value if isinstance(value, list) else []


def _rewritten(panel: dict[str, Any]) -> bool:
    steps = panel.get("transformations")
    if (
        not isinstance(steps, list)
        and isinstance(panel.get("data"), dict)
        and isinstance(panel["data"].get("spec"), dict)
    ):
        steps = panel["data"]["spec"].get("transformations")
    return isinstance(steps, list) and any(
        isinstance(step, dict) and str(step.get("id") or step.get("kind") or step.get("group")) in _REWRITING
        for step in steps
    )
