"""From a diagnosis to cards and tables. Pure."""

from __future__ import annotations

from pages.ui.doubts import at_place, broken
from pages.ui.fleet_scene import STATE_LEVELS, STATE_WORDS
from pages.ui.markup import Markup, icon, tag
from pages.ui.runbook_view import facts_html
from pages.ui.states import SOME_NUMBERS, mistrust
from pages.ui.table import Cell, Column, Row
from pages.ui.words import cause_text, clock, duration, name_text, opening
from runbooks.laws.model import all_laws
from runbooks.verdicts import Anomaly, Diagnosis, LawFinding, Verdict, Where


def level_of(found: Diagnosis, verdict: Verdict) -> str:
    """bad when users wait or fail now, else warn."""
    return "bad" if any(a.severity == "page" and a.cause == verdict.cause for a in found.anomalies) else "warn"


def symptoms_of(found: Diagnosis, verdict: Verdict) -> list[str]:
    """What the incident looks like: the detectors that fire because of it, in words."""
    mine = [a for a in found.anomalies if a.cause == verdict.cause]
    told = [_symptom(a) for a in mine]
    return list(dict.fromkeys([*told, *(name_text(s) for s in verdict.symptoms if s not in {a.id for a in mine})]))


def _symptom(anomaly: Anomaly) -> str:
    return f"{name_text(anomaly.id)} on {anomaly.where}" + (f": {anomaly.says}" if anomaly.says else "")


def card(found: Diagnosis, verdict: Verdict, rank: int) -> Markup:
    """One incident: the headline, what speaks for and against it, the runner-up with the check that separates them."""
    level = level_of(found, verdict)
    since = (
        f"since {clock(verdict.since_ms)} UTC ({duration((found.at_ms - verdict.since_ms) / 1000)})"
        if verdict.since_ms is not None
        else "since when cannot be told"
    )
    return tag(
        "div",
        tag("h4", icon(level), opening(cause_text(verdict.cause)), " on ", str(verdict.where)),
        tag("div", f"{verdict.confidence.capitalize()} · {since}" + (" · the headline" if rank == 0 else ""), *mistrust(at_place(broken(found), verdict.where, verdict.reads), f"card {verdict.cause} {verdict.where}", SOME_NUMBERS), class_="pw-sub"),
        facts_html(
            [
                ("For it", verdict.evidence),
                ("Against it", verdict.against),
                ("Runner-up", cause_text(verdict.runner_up) if verdict.runner_up else ""),
                ("To separate", verdict.separating_check),
                ("Made worse by", [cause_text(cause) for cause in verdict.aggravated_by]),
                ("Seen as", symptoms_of(found, verdict)),
                ("Cannot be known", verdict.cannot_know),
            ]
        ),
        class_="pw-card",
        data_tone=level,
    )  # fmt: skip


LAW_COLUMNS = (
    Column("check", width="30%"),
    Column("where", width="16%"),
    Column("what was seen", "wrap"),
    Column("puts in doubt", "wrap", width="20%"),
)
STATE_COLUMNS = (Column("replica"), Column("rank"), Column("state"), Column("since"), Column("why", "wrap"))
ANOMALY_COLUMNS = (
    Column("detector"),
    Column("where"),
    Column("since"),
    Column("what was seen", "wrap"),
    Column("part of"),
)


def law_rows(laws: list[LawFinding]) -> list[Row]:
    """Checks with their statement; what a broken one puts in doubt."""
    known = all_laws()
    rows = []
    for law in laws:
        told = known.get(law.id)
        statement = told.statement if told is not None else law.id
        why = told.why if told is not None else ""
        tone = {"broken": "bad", "unknown": "muted", "kept": ""}[law.status]
        rows.append(
            Row(
                statement,
                (
                    Cell(str(law.where)),
                    Cell(
                        law.evidence or ("kept" if law.status == "kept" else ""),
                        tone,
                        note=f"{why} (check {law.id})" if why else "",
                    ),
                    Cell(", ".join(s.replace("_", " ") for s in law.taints) if law.status == "broken" else "", "muted"),
                ),
            )
        )
    return rows  # fmt: skip


def state_rows(found: Diagnosis) -> list[Row]:
    rows, laws = [], broken(found)
    for state in found.replicas:
        level = STATE_LEVELS[state.state]
        since = f"{clock(state.since_ms)} ({duration((found.at_ms - state.since_ms) / 1000)})" if state.since_ms is not None else "unknown"  # fmt: skip
        tone = level if level in ("warn", "bad") else "muted" if state.state == "unknown" else ""
        reasons = at_place(laws, Where("rank", (state.place,)))
        cells = (Cell(state.place.engine or "-"), Cell(STATE_WORDS.get(state.state, state.state), tone, level), Cell(since, "muted"), Cell(state.why, "muted", note="; ".join(reasons), doubt=bool(reasons)))  # fmt: skip
        rows.append(Row(state.place.instance, cells))
    return rows


def _seen_cell(found: Diagnosis, anomaly: Anomaly) -> Cell:
    """What a detector saw, and why its numbers are not trusted where a check of that place is broken."""
    reasons = at_place(broken(found), anomaly.where, anomaly.reads)
    return Cell(anomaly.says, note="; ".join(reasons), doubt=bool(reasons))


def anomaly_rows(found: Diagnosis) -> list[Row]:
    return [
        Row(
            name_text(anomaly.id),
            (
                Cell(str(anomaly.where), "bad" if anomaly.severity == "page" else "warn", "bad" if anomaly.severity == "page" else "warn"),
                Cell(clock(anomaly.since_ms) if anomaly.since_ms is not None else "unknown", "muted"),
                _seen_cell(found, anomaly),
                Cell(cause_text(anomaly.cause) if anomaly.cause else "stands alone", "muted"),
            ),
        )
        for anomaly in found.anomalies
    ]  # fmt: skip
