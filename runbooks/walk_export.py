"""A recorded walk as Markdown for a ticket, and as the JSON that a capsule keeps.

Everything that came from outside (label values, notes, logs) is written so that no viewer takes it for markup.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from collectors.instants import format_instant
from runbooks.findings import Finding, Walk
from runbooks.walk_charts import StepChart
from runbooks.walks import RecordedWalk

_WORDS = {"yes": "yes", "no": "no", "inconclusive": "cannot be told", "error": "query failed", "needs_answer": "open"}


def plain(text: str) -> str:
    """Text from outside on one Markdown line: markup characters escaped, control characters made visible.

    What is markup only at the beginning of a line or beside a bracket (`-`, `+`, `(`, `!`) stays as it is elsewhere: an option such as
    --max-num-seqs is copied from the ticket into a shell.
    """
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    shown = shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    shown = re.sub(r"([\\`*_\[\]#|~@])", r"\\\1", shown)
    return re.sub(r"^(\s*)([-+]|\d+(?=[.)]))", _not_a_list, shown)


def _not_a_list(found: re.Match[str]) -> str:
    """A line that would begin a list item: the mark is escaped, or stands as a character reference where it is a number."""
    space, mark = found.groups()
    return f"{space}&#{ord(mark[0])};{mark[1:]}" if mark.isdigit() else f"{space}\\{mark}"


def block(text: str) -> str:
    """Text from outside as a fenced block that its own backticks cannot close."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    shown = "\n".join(
        "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in line)
        for line in text.splitlines()
    )
    return f"{fence}text\n{shown}\n{fence}"


def to_markdown(
    recorded: RecordedWalk, charts: Sequence[StepChart] = (), addresses: Mapping[str, str] = MappingProxyType({})
) -> str:
    """The walk from its first line to its outcome, with every note, answer and PromQL.

    `addresses`: where the picture of each chart's name stands - a path beside the file, or a data URI.
    """
    walk = recorded.walk
    title = walk.title if walk else recorded.runbook
    lines = [f"# {plain(title)}: walk {recorded.id}" if recorded.id else f"# {plain(title)}", ""]
    lines += [
        f"- runbook: `{recorded.runbook}`",
        f"- instant: {format_instant(recorded.at_ms)}",
        f"- source: {plain(recorded.source)}",
        f"- place: {plain(str(walk.where) if walk else recorded.instance or 'the fleet')}",
        f"- started by {plain(recorded.started_by)} at {format_instant(recorded.started_ms)}",
        "",
    ]
    if walk is not None:
        lines += _outcome(walk)
        for number, finding in enumerate(walk.findings, start=1):
            lines += _step(number, finding, recorded)
            lines += _pictures([chart for chart in charts if chart.step_id == finding.step_id], addresses)
    general = recorded.notes("")
    if general:
        lines += ["## Notes", ""]
        for event in general:
            lines += [
                f"{plain(event.who)}, {format_instant(event.at_ms)}:",
                "",
                block(str(event.body.get("note", ""))),
                "",
            ]
    return "\n".join(lines).rstrip() + "\n"


def _pictures(charts: Sequence[StepChart], addresses: Mapping[str, str]) -> list[str]:
    lines = []
    for chart in charts:
        if chart.name in addresses:
            lines += [f"![{plain(chart.title)}]({addresses[chart.name]})", ""]
        if chart.problem:
            lines += [
                f"No picture of {plain(chart.title)}: {plain(chart.problem)}"
                if not chart.png
                else f"Not drawn: {plain(chart.problem)}",
                "",
            ]
    return lines


def _outcome(walk: Walk) -> list[str]:
    leaf = walk.outcome
    lines = [f"## Outcome: {leaf.cause or 'no cause'} ({leaf.confidence})", "", plain(leaf.says), ""]
    for label, text in (
        ("Runner-up", f"{leaf.runner_up}; to tell them apart: {leaf.separating_check}" if leaf.runner_up else ""),
        ("Change to consider", leaf.change),
        ("Risk", leaf.risk),
        ("Verify afterwards", leaf.verify),
    ):
        if text:
            lines.append(f"- {label}: {plain(text)}")
    lines += [f"- {plain(text)}" for text in leaf.evidence]
    lines += [f"- Cannot be known: {plain(text)}" for text in leaf.cannot_know]
    return [*lines, ""]


def _step(number: int, finding: Finding, recorded: RecordedWalk) -> list[str]:
    off = "" if finding.on_path else " (beside the path)"
    lines = [f"## {number}. {plain(finding.question)} {_WORDS[finding.finding]}{off}", ""]
    if finding.says:
        lines += [plain(finding.says), ""]
    if finding.numbers:
        lines += ["| figure | value | evidence |", "|---|---|---|"]
        for figure in finding.numbers:
            note = f" ({figure.note})" if figure.note else ""
            lines.append(f"| {plain(figure.label)} | {plain(figure.words + note)} | {figure.kind} |")
        lines.append("")
    queries = list(dict.fromkeys(figure.promql for figure in finding.numbers if figure.promql))
    if queries:
        lines += [block("\n".join(queries)), ""]
    for event in recorded.events:
        if event.step != finding.step_id or event.kind not in ("answer", "note"):
            continue
        who = f"{plain(event.who)}, {format_instant(event.at_ms)}"
        if event.kind == "answer":
            lines += [f"{who} answered: {event.body.get('value') or 'pasted a log'}", ""]
        for text in (event.body.get("log"), event.body.get("note")):
            if text:
                lines += [*([f"{who}:", ""] if event.kind == "note" else []), block(str(text)), ""]
    return lines


def to_record(recorded: RecordedWalk) -> dict[str, Any]:
    """The walk as plain data, for a capsule's `walks` or another program. Schema 1."""
    return {"schema": 1, **asdict(recorded)}
