"""From a walk to what the Runbook page draws: steps, figures, evidence charts, the outcome. Pure but for the panels it is handed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from collectors.figures import Panel
from pages.ui.charts import Line, Mark, Tone
from pages.ui.charts import Panel as Chart
from pages.ui.doubts import Doubts, of_query, signals_of
from pages.ui.markup import Markup, icon, tag
from pages.ui.states import SOME_NUMBERS, mistrust
from pages.ui.words import cause_text
from runbooks.findings import Finding, Leaf, Number, Walk
from runbooks.runbook import Runbook

SYMPTOMS = {
    "queue": "Requests wait",
    "memory": "Memory and KV cache",
    "latency": "Slow answers",
    "errors": "Refused and broken requests",
    "availability": "Replicas and engines",
    "metrics": "The metrics themselves",
    "change": "Before and after a change",
}
CHART_UNITS = {"seconds": "s", "ratio": "ratio", "requests/s": "/s", "requests": ""}
MOST_LINES = 12


def step_items(walk: Walk) -> list[dict[str, Any]]:
    """The steps for the list, in order."""
    return [
        {"id": f.step_id, "question": f.question, "finding": f.finding, "says": f.says, "on_path": f.on_path}
        for f in walk.findings
    ]


def opened_step(walk: Walk, wanted: str) -> Finding:
    """The step that an address names, else the one that decided: the last automatic one on the path with an answer."""
    named = next((f for f in walk.findings if f.step_id == wanted), None)
    if named is not None:
        return named
    waiting = next((f for f in walk.path if f.finding == "needs_answer"), None)
    decided = next((f for f in reversed(walk.path) if f.finding == "yes"), None)
    return decided or waiting or (walk.path[-1] if walk.path else walk.findings[0])


def numbers_html(numbers: Sequence[Number], doubts: Doubts | None = None) -> Markup:
    """The figures of a step: value, label, kind of evidence, why there is none, and why one is not trusted.

    What the evidence of more than four figures has in common (all were read from one pasted log) is said once, below them.
    """
    kinds = {number.kind + (f": {number.note}" if number.note else "") for number in numbers}
    common = kinds.pop() if len(kinds) == 1 and len(numbers) > 4 else ""
    return tag(
        "div",
        *(
            tag(
                "div",
                tag("span", number.label),
                tag("b", number.words),
                tag(
                    "small",
                    number.kind + (f": {number.note}" if number.note and number.words != "not configured" else ""),
                )
                if not common
                else None,
                *mistrust(of_query(doubts or {}, number.promql), f"number {number.name}"),
                class_="pw-number",
            )
            for number in numbers
        ),
        tag("small", f"All {common}", class_="pw-muted") if common else None,
        class_="pw-numbers",
    )


def instruction_html(line: str) -> Markup:
    """One line of what a person is to look at; words of a log between back-quotes stand out."""
    return tag("div", *(tag("code", part) if place % 2 else part for place, part in enumerate(line.split("`"))))


def evidence_groups(finding: Finding) -> list[list[Number]]:
    """Numbers that can share a chart: the same unit, with a query behind them."""
    groups: dict[str, list[Number]] = {}
    for number in finding.numbers:
        if number.promql and number.words != "not configured":
            groups.setdefault(number.unit, []).append(number)
    return list(groups.values())


def evidence_chart(
    title: str, numbers: Sequence[Number], drawn: Sequence[Panel], slots: Mapping[str, int | None], axis: tuple[int, int], marks: tuple[Mark, ...], at_ms: int, doubts: Doubts | None = None,
) -> Chart:  # fmt: skip
    """One chart of the queries behind some numbers; a line per series, named after its number where there is one."""
    lines: list[Line] = []
    for which, (number, panel) in enumerate(zip(numbers, drawn, strict=True)):
        for line in panel.lines[:MOST_LINES]:
            alone = len(panel.lines) == 1
            instance = line.key.partition(" rank ")[0]
            tone: Tone | None = slots.get(instance) if not alone and len(numbers) == 1 else which
            lines.append(
                Line(
                    number.label if alone else f"{number.label} {line.key}",
                    line.values,
                    "quiet" if tone is None else tone,
                )
            )
    window = drawn[0].window
    there = any(np.isfinite(line.values).any() for line in lines)
    unit = numbers[0].unit
    more = sum(max(0, len(panel.lines) - MOST_LINES) for panel in drawn)
    return Chart(
        title, CHART_UNITS.get(unit, unit), window.start_ms, window.step_ms, window.steps, tuple(lines) if there else (), axis=axis,
        unit_label=unit if unit not in ("ratio", "seconds") else "", marks=(*marks, Mark("this walk", at_ms, tone="text", line=True)),
        y_max=None, height=150, promql=tuple(dict.fromkeys(number.promql for number in numbers)),
        notice="" if there else "No data in this range", aside=f"{more} more not drawn" if more else "",
        taints=tuple(dict.fromkeys([
            *(reason for panel in drawn for reason in panel.tainted),
            *(reason for number in numbers for reason in of_query(doubts or {}, number.promql)),
        ])),
    )  # fmt: skip


def facts_html(pairs: Sequence[tuple[str, str | Sequence[str]]]) -> Markup | None:
    """Labels with their text or list of texts; what is empty is left out."""
    shown: list[Markup] = []
    for label, told in pairs:
        if not told:
            continue
        text = (
            told
            if isinstance(told, str)
            else told[0]
            if len(told) == 1
            else tag("ul", *(tag("li", line) for line in told))
        )
        shown += [tag("dt", label), tag("dd", text)]
    return tag("dl", *shown) if shown else None


def _said(leaf: Leaf) -> str:
    """The outcome in a few words. Metrics name no cause for an out-of-memory error or a checklist: there the leaf's own sentence is it."""
    if leaf.cause == "healthy":
        return "Nothing wrong here"
    return f"{leaf.confidence.capitalize()}: {cause_text(leaf.cause) if leaf.cause else leaf.says or 'no single cause'}"


def outcome_html(walk: Walk) -> Markup:
    """The leaf: cause with its confidence, the runner-up and the check between them, the change with risk and verification."""
    leaf: Leaf = walk.outcome
    level = "ok" if leaf.cause == "healthy" else "unknown" if leaf.cause is None else "warn"
    pairs = [
        ("Runner-up", cause_text(leaf.runner_up) if leaf.runner_up else ""),
        ("To separate", leaf.separating_check if leaf.runner_up else ""),
        ("The steps alone say", cause_text(leaf.steps_led_to) if leaf.steps_led_to else ""),
        ("Change to consider", leaf.change),
        ("Risk", leaf.risk),
        ("Verify afterwards", leaf.verify),
        ("Because", leaf.evidence),
        ("Cannot be known", leaf.cannot_know),
    ]
    return tag(
        "div",
        tag("h4", icon(level), _said(leaf)),
        tag("div", leaf.says) if leaf.says not in _said(leaf) else None,
        facts_html(pairs),
        class_="pw-card",
        data_tone="warn" if level == "warn" else "ok" if level == "ok" else None,
    )  # fmt: skip


def signals_read(walk: Walk) -> frozenset[str]:
    """The signals that the steps on its path looked at."""
    return frozenset(s for finding in walk.path for number in finding.numbers for s in signals_of(number.promql))


def conclusion_html(walk: Walk, reasons: Sequence[str] = ()) -> Markup:
    """The outcome in one line, before the steps: what a reader in a hurry came for; `reasons` put numbers of its place in doubt."""
    leaf = walk.outcome
    level = "ok" if leaf.cause == "healthy" else "unknown" if leaf.cause is None else "warn"
    runner_up = f"Runner-up: {cause_text(leaf.runner_up)}." if leaf.runner_up else ""
    return tag(
        "div",
        tag("strong", icon(level), _said(leaf)),
        *mistrust(reasons, "conclusion", SOME_NUMBERS),
        tag("span", f"{runner_up} {leaf.change}".strip(), class_="pw-sub"),
        class_="pw-card",
        data_tone="warn" if level == "warn" else "ok" if level == "ok" else None,
    )


def head_html(runbook: Runbook, walk: Walk, when: str, recorded: str) -> Markup:
    """Title, place, instant, and which recorded walk this is; then what it means and what it does to users."""
    return tag(
        "div",
        tag(
            "div",
            tag("h2", runbook.title),
            tag("span", str(walk.where)),
            tag("span", f"at {when} UTC"),
            tag("span", recorded) if recorded else None,
            class_="pw-head",
        ),
        tag("div", f"{runbook.meaning} {runbook.impact}", class_="pw-muted"),
    )
