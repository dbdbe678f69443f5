"""Takes the PromQL out of Grafana dashboards and Prometheus rule files, in file order, with what stands around each expression."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collectors.file_trouble import file_trouble
from runbooks.lint.panels import as_list, queries, variable_queries
from runbooks.lint.scalers import scaling_queries

LARGEST_BYTES = 32 * 2**20
MOST_PARTS = 500_000
"""Objects and lists that are walked: aliases let a small YAML file stand for more than memory holds, or for itself."""
MOST_EXPRESSIONS = 20_000
_CONTROL_BLOCK = re.compile(r"\{%[^{}]{0,1000}%\}")
_TEMPLATE_LINE = re.compile(r"(?m)^[ \t]*\{\{-?\s[^{}]{0,1000}\}\}[ \t]*$")
_TEMPLATE_VALUE = re.compile(r"\{\{.{0,200}?\}\}")
_YAML_TROUBLE = (ValueError, KeyError, AttributeError, TypeError, OverflowError)
"""What PyYAML's own constructors raise for a date that does not exist or a tag whose value is of another kind."""

WANTED = "Give a Grafana dashboard (JSON) or a rule file (YAML)"


class UnreadableFile(Exception):
    """A file that is neither a dashboard nor a rule file; one line with the reason, and one with the next step."""

    def __init__(self, reason: str, next_step: str = WANTED) -> None:
        super().__init__(reason)
        self.next_step = next_step


class TooMuch(UnreadableFile):
    """A file that would go on for too long: nothing of it is looked at."""


@dataclass(frozen=True)
class Expression:
    """One query: `place` as a person would look for it; `unit` the panel's unit ('' in rules); `kind` panel, alert, record, scaler or variable.

    A variable's query has no place in the count of expressions: its `index` is None. `threshold` is what a scaler compares with.
    """

    text: str
    index: int | None
    place: str
    kind: str
    unit: str = ""
    record: str = ""
    runbook_url: str | None = None
    threshold: float | None = None


@dataclass
class Document:
    file: str
    expressions: list[Expression] = field(default_factory=list)
    counted: int = 0
    parts: int = 0

    def add(self, text: str, place: str, kind: str, **context: Any) -> None:
        """Takes one query in. Raises UnreadableFile for more than any file holds."""
        if len(self.expressions) >= MOST_EXPRESSIONS:
            raise TooMuch(f"more than {MOST_EXPRESSIONS:,} queries; no dashboard or rule file has as many")
        index = None if kind == "variable" else self.counted
        self.counted += index is not None
        self.expressions.append(Expression(text, index, place, kind, **context))

    def visit(self) -> None:
        """Counts one object or list on the way to the queries. Raises UnreadableFile where a file stands for too many."""
        self.parts += 1
        if self.parts > MOST_PARTS:
            raise TooMuch(
                f"more than {MOST_PARTS:,} objects and lists, aliases counted each time; no dashboard or rule file has as many"
            )


def read_document(path: Path) -> Document:
    """Every expression of a dashboard (any schema, rows and library panels included) or rule file (plain or PrometheusRule). Raises UnreadableFile."""
    try:
        if path.stat().st_size > LARGEST_BYTES and not path.is_dir():
            raise UnreadableFile(f"larger than {LARGEST_BYTES // 2**20} MiB; no dashboard or rule file is")
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableFile(f"not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    except OSError as error:
        raise UnreadableFile(*file_trouble(path, error)) from None
    document = Document(str(path))
    contents = _parse(path, text) if text.strip() else []
    if not contents:
        raise UnreadableFile("the file is empty", WANTED)
    reasons: list[UnreadableFile] = []
    for content in contents:  # a deployment's file holds other objects beside the rules
        try:
            _collect(document, content)
        except TooMuch:
            raise
        except UnreadableFile as reason:
            reasons.append(reason)
        except RecursionError:
            raise TooMuch("nested too deeply to be a dashboard or a rule file") from None
    if len(reasons) == len(contents):
        raise reasons[0]
    return document


def _parse(path: Path, text: str) -> list[Any]:
    start = text.lstrip()[:2]
    if path.suffix.lower() == ".json" or start.startswith("{") and start != "{{":
        try:
            return [json.loads(text)]
        except json.JSONDecodeError as error:
            raise UnreadableFile(f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
        except RecursionError:
            raise UnreadableFile("nested too deeply to be a dashboard") from None
        except ValueError as error:  # a number of thousands of digits
            raise UnreadableFile(f"not JSON: {error}") from None
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        try:
            return [content for content in yaml.load_all(text, Loader=loader) if content is not None]
        except yaml.YAMLError:
            if "{{" not in text and "{%" not in text:
                raise
            return [content for content in yaml.load_all(_without_template(text), Loader=loader) if content is not None]
    except yaml.YAMLError as error:
        raise UnreadableFile("not YAML: " + " ".join(str(error).split())) from None
    except _YAML_TROUBLE as error:
        raise UnreadableFile(
            f"a value that is not of its kind: {' '.join(str(error).split())[:200]}", "Put the value in quotes"
        ) from None
    except RecursionError:
        raise UnreadableFile("nested too deeply to be a rule file") from None


def _without_template(text: str) -> str:
    """A chart's or a playbook's template before rendering: lines of control go, values become a number, as thresholds are."""
    text = _CONTROL_BLOCK.sub("", text)
    return _TEMPLATE_VALUE.sub("1", _TEMPLATE_LINE.sub("", text))


def _collect(document: Document, content: Any) -> None:
    document.visit()
    if isinstance(content, list) and content and all(isinstance(item, dict) for item in content):
        for item in content:
            _collect(document, item)
        return
    if not isinstance(content, dict):
        raise UnreadableFile("neither a Grafana dashboard nor a rule file: the top is not a mapping")
    if content.get("kind") in ("List", "ConfigMapList"):
        for item in as_list(content.get("items")):
            _collect(document, item)
        return
    if _wrapped_texts(document, content):
        return
    scaling = [] if _is_board(content) else list(scaling_queries(content, document.visit))
    for query in scaling:
        document.add(query.text, query.place, "scaler", threshold=query.threshold)
    if scaling and not isinstance(content.get("groups"), list):
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
    found = list(queries(board, document.visit))
    if not found and not any(
        key in board for key in ("panels", "rows", "elements", "spec", "title", "templating", "schemaVersion")
    ):
        raise UnreadableFile("neither a Grafana dashboard (no panels) nor a rule file (no groups)")
    for text, place, unit in found:
        document.add(text, place, "panel", unit=unit)
    for text, place in variable_queries(board):
        document.add(text, place, "variable")


def _is_board(content: dict[str, Any]) -> bool:
    return any(key in content for key in ("panels", "rows", "dashboard", "elements", "schemaVersion"))


def _wrapped_texts(document: Document, content: dict[str, Any]) -> bool:
    """A ConfigMap or a GrafanaDashboard object holds whole files as strings. True when there were any."""
    spec = content.get("spec")
    if content.get("kind") == "ConfigMap" and isinstance(content.get("data"), dict):
        texts = [(str(name), text) for name, text in content["data"].items() if isinstance(text, str)]
    elif content.get("kind") == "GrafanaDashboard" and isinstance(spec, dict) and isinstance(spec.get("json"), str):
        texts = [("dashboard.json", spec["json"])]
    else:
        return False
    reasons: list[UnreadableFile] = []
    inside = [(name, text) for name, text in texts if name.endswith((".json", ".yaml", ".yml", ".rules"))]
    for name, text in inside:
        try:
            for inner in _parse(Path(name), text):
                _collect(document, inner)
        except TooMuch:
            raise
        except UnreadableFile as reason:
            reasons.append(reason)
    if inside and len(reasons) == len(inside):
        raise reasons[0]
    return True


def _rules(document: Document, group: Any) -> None:
    if not isinstance(group, dict):
        raise UnreadableFile("a group of the rule file is not a mapping")
    for rule in as_list(group.get("rules")):
        document.visit()
        if not isinstance(rule, dict):
            continue
        name = str(rule.get("alert") or rule.get("record") or rule.get("title") or "?")
        if "expr" not in rule:
            if isinstance(rule.get("data"), list):  # Grafana's own alert rules hold queries like a panel's
                for text, _, _ in queries(rule["data"], document.visit):
                    document.add(text, f"{group.get('name', '?')} / {name}", "panel")
            continue
        annotations = rule.get("annotations") if isinstance(rule.get("annotations"), dict) else {}
        link = annotations.get("runbook_url", annotations.get("runbook")) if annotations else None
        document.add(
            str(rule["expr"]),
            f"{group.get('name', '?')} / {name}",
            "alert" if "alert" in rule else "record",
            record=str(rule.get("record") or ""),
            runbook_url=None if link is None else str(link),
        )
