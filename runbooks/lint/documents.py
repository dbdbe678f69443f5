"""Takes the PromQL out of Grafana dashboards and Prometheus rule files, in file order, with what stands around each expression."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LARGEST_BYTES = 32 * 2**20


class UnreadableFile(Exception):
    """A file that is neither a dashboard nor a rule file; one line with the reason."""


@dataclass(frozen=True)
class Expression:
    """One query: `place` as a person would look for it; `unit` the panel's unit ('' in rules); `kind` panel, alert or record."""

    text: str
    index: int
    place: str
    kind: str
    unit: str = ""
    record: str = ""
    runbook_url: str | None = None


@dataclass
class Document:
    file: str
    expressions: list[Expression] = field(default_factory=list)

    def add(self, text: str, place: str, kind: str, **context: Any) -> None:
        self.expressions.append(Expression(text, len(self.expressions), place, kind, **context))


def read_document(path: Path) -> Document:
    """Every expression of a dashboard (any schema, rows and library panels included) or rule file (plain or PrometheusRule). Raises UnreadableFile."""
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise UnreadableFile(f"larger than {LARGEST_BYTES // 2**20} MiB; no dashboard or rule file is")
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableFile(f"not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    except OSError as error:
        raise UnreadableFile(error.strerror or str(error)) from None
    document = Document(str(path))
    for content in _parse(path, text):
        _collect(document, content)
    return document


def _parse(path: Path, text: str) -> list[Any]:
    if path.suffix.lower() == ".json" or text.lstrip().startswith("{"):
        try:
            return [json.loads(text)]
        except json.JSONDecodeError as error:
            raise UnreadableFile(f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
        except RecursionError:
            raise UnreadableFile("nested too deeply to be a dashboard") from None
    import yaml

    try:
        return [
            content
            for content in yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
            if content is not None
        ]
    except yaml.YAMLError as error:
        raise UnreadableFile("not YAML: " + " ".join(str(error).split())) from None
    except RecursionError:
        raise UnreadableFile("nested too deeply to be a rule file") from None


def _collect(document: Document, content: Any) -> None:
    if not isinstance(content, dict):
        raise UnreadableFile("neither a Grafana dashboard nor a rule file: the top is not a mapping")
    if content.get("kind") in ("List", "ConfigMapList"):
        for item in content.get("items") or []:
            _collect(document, item)
        return
    groups = content.get("groups")
    if groups is None and isinstance(content.get("spec"), dict):
        groups = content["spec"].get("groups")
    if isinstance(groups, list):
        for group in groups:
            _rules(document, group)
        return
    wrapped = content.get("dashboard")
    board = wrapped if isinstance(wrapped, dict) else content
    found = list(_queries(board, "", ""))
    if not found and not any(
        key in board for key in ("panels", "rows", "elements", "spec", "title", "templating", "schemaVersion")
    ):
        raise UnreadableFile("neither a Grafana dashboard (no panels) nor a rule file (no groups)")
    for text, place, unit in found:
        document.add(text, place, "panel", unit=unit)


def _rules(document: Document, group: Any) -> None:
    if not isinstance(group, dict):
        raise UnreadableFile("a group of the rule file is not a mapping")
    for rule in group.get("rules") or []:
        if not isinstance(rule, dict) or "expr" not in rule:
            continue
        name = str(rule.get("alert") or rule.get("record") or "?")
        annotations = rule.get("annotations") if isinstance(rule.get("annotations"), dict) else {}
        link = annotations.get("runbook_url", annotations.get("runbook")) if annotations else None
        document.add(
            str(rule["expr"]),
            f"{group.get('name', '?')} / {name}",
            "alert" if "alert" in rule else "record",
            record=str(rule.get("record") or ""),
            runbook_url=None if link is None else str(link),
        )


def _queries(node: Any, place: str, unit: str) -> Iterator[tuple[str, str, str]]:
    """Depth first in file order; a panel's title and unit hold for the targets inside it."""
    stack: list[tuple[Any, str, str]] = [(node, place, unit)]
    while stack:
        current, where, measured = stack.pop()
        if isinstance(current, dict):
            if isinstance(current.get("title"), str):
                where = f"{where} / {current['title']}".strip(" /")
            measured = _unit(current) or measured
            if isinstance(current.get("expr"), str) and current["expr"].strip():
                yield current["expr"], f"{where} [{current.get('refId', '?')}]", measured
            stack += [
                (child, where, measured)
                for key, child in reversed(current.items())
                if key != "templating" and isinstance(child, dict | list)
            ]
        elif isinstance(current, list):
            stack += [(child, where, measured) for child in reversed(current) if isinstance(child, dict | list)]


def _unit(panel: dict[str, Any]) -> str:
    for holder in (
        panel,
        panel.get("vizConfig", {}).get("spec", {}) if isinstance(panel.get("vizConfig"), dict) else {},
    ):
        config = holder.get("fieldConfig") if isinstance(holder, dict) else None
        if (
            isinstance(config, dict)
            and isinstance(config.get("defaults"), dict)
            and isinstance(config["defaults"].get("unit"), str)
        ):
            return str(config["defaults"]["unit"])
    axes = panel.get("yaxes")
    if isinstance(axes, list) and axes and isinstance(axes[0], dict) and isinstance(axes[0].get("format"), str):
        return str(axes[0]["format"])
    return str(panel["format"]) if "targets" in panel and isinstance(panel.get("format"), str) else ""
