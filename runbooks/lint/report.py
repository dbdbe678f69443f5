"""Runs every rule over every expression (design: `lint --json`, schema 1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from collectors.counting import counted
from collectors.dialect import load_dialect, split_dialect_name
from runbooks.lint.documents import Document, Expression, UnreadableFile, read_document
from runbooks.lint.finding import Finding, Subject
from runbooks.lint.query import parse_query
from runbooks.lint.rules_alerts import dead_links, filters_that_should_count, silent_when_gone, zero_for_nothing
from runbooks.lint.rules_counters import matchers, rates, raw_counters, unlike_ratios
from runbooks.lint.rules_names import labels, names
from runbooks.lint.rules_parsing import range_as_result, unparsed, watched_absent
from runbooks.lint.rules_quantiles import combined_quantiles, lost_le, mixed_buckets, units

RULES: tuple[Callable[[Subject], Iterator[Finding]], ...] = (
    names, labels, raw_counters, rates, lost_le, mixed_buckets, combined_quantiles, units, matchers, unlike_ratios, filters_that_should_count, zero_for_nothing, silent_when_gone, dead_links, range_as_result,
)  # fmt: skip


def lint_files(files: Sequence[Path], dialect: str = "vllm-0.11.0") -> dict[str, Any]:
    """Findings of every file, in file order. Files are read, never fetched or run. Raises ValueError for an unknown dialect."""
    engine, version = split_dialect_name(dialect)
    known = load_dialect(engine)
    at = version or ".".join(str(part) for part in known.default)
    findings: list[dict[str, Any]] = []
    documents: list[Document] = []
    for file in files:
        try:
            documents.append(read_document(file))
        except UnreadableFile as reason:
            findings.append(_row(str(file), None, Finding("unreadable_file", "error", str(reason), reason.next_step)))
    recorded = {
        expression.record: expression.text
        for document in documents
        for expression in document.expressions
        if expression.record
    }
    watched = watched_absent([expression.text for document in documents for expression in document.expressions])
    for document in documents:
        for expression in document.expressions:
            try:
                query = parse_query(expression.text)
            except ValueError as reason:
                if expression.kind == "variable":
                    continue  # a variable inside it may stand for anything
                findings += [
                    _row(document.file, expression, finding) for finding in unparsed(expression.text, str(reason))
                ]
                continue
            subject = Subject(expression, query, known, at, recorded, watched)
            seen: set[tuple[str, str]] = set()
            for rule in RULES if expression.kind != "variable" else (names, labels):
                for finding in rule(subject):
                    if expression.kind == "variable":
                        finding = replace(
                            finding, severity="warning", message=f"{finding.message}: the variable stays empty"
                        )
                    if (finding.rule, finding.message) not in seen:
                        seen.add((finding.rule, finding.message))
                        findings.append(_row(document.file, expression, finding))
    return {"schema": 1, "dialect": f"{engine}-{at}", "findings": findings}


def _row(file: str, expression: Expression | None, finding: Finding) -> dict[str, Any]:
    return {
        "rule": finding.rule,
        "severity": finding.severity,
        "file": file,
        "place": expression.place if expression else "",
        "expr": expression.text if expression else "",
        "expr_index": expression.index if expression else None,
        "message": finding.message,
        "suggestion": finding.suggestion,
    }


def lint_text(answer: dict[str, Any]) -> str:
    """One line a finding, then the count."""
    lines = []
    for finding in answer["findings"]:
        place = ": ".join(text for text in (finding["file"], finding["place"]) if text)
        line = f"{place}: {finding['severity']} {finding['rule']}: {finding['message']}"
        lines.append(line + (f" -> {finding['suggestion']}" if finding["suggestion"] else ""))
    errors = sum(finding["severity"] == "error" for finding in answer["findings"])
    lines.append(
        f"{counted(errors, 'error')}, {counted(len(answer['findings']) - errors, 'warning')} ({answer['dialect']})"
    )
    return "".join(
        character if character.isprintable() or character == "\n" else "\N{REPLACEMENT CHARACTER}"
        for character in "\n".join(lines)
    )
