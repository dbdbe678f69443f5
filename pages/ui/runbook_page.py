"""The Runbook page: the list by symptom, or one walk with its steps, evidence, answers and outcome."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import streamlit as st

from collectors.counting import counted
from collectors.instants import format_instant
from collectors.source import SourceError
from pages.ui import charts, data, nav, records, states, view
from pages.ui.doubts import Doubts, at_place, broken, by_signal, near
from pages.ui.fleet_page import scene_of
from pages.ui.frame import gestures, runbook_query
from pages.ui.markup import icon, tag
from pages.ui.runbook_view import (
    SYMPTOMS,
    conclusion_html,
    evidence_chart,
    evidence_groups,
    head_html,
    instruction_html,
    numbers_html,
    opened_step,
    outcome_html,
    signals_read,
    step_items,
)  # fmt: skip
from pages.ui.steps import step_list
from pages.ui.table import Cell, Column, Row, table
from pages.ui.view import View
from pages.ui.words import cause_text, clock, day_and_clock
from runbooks.engine import RunbookError
from runbooks.findings import Finding, Walk
from runbooks.library import library, load
from runbooks.records import RecordsError
from runbooks.runbook import Runbook
from runbooks.verdicts import Anomaly, LawFinding
from runbooks.walk_bundle import markdown_with_charts, zipped
from runbooks.walk_charts import StepChart, charts_of
from runbooks.walks import NoSuchWalk, RecordedWalk, WalkConflict

WORDS = {"yes": "yes", "no": "no", "inconclusive": "cannot be told", "error": "query failed", "needs_answer": "needs your answer"}  # fmt: skip
LOG_LIMIT = 2_000_000
ALERTED_MS = 24 * 3_600_000
"""An alert older than that is not what brought somebody here."""


def draw(here: View) -> None:
    """The page: with `id` a walk, without one the list."""
    wanted = nav.given("id")
    if not wanted:
        _list(here)
        return
    try:
        runbook = load(wanted)
    except RunbookError as error:
        states.empty("Unknown runbook", str(error), "Choose one from the list.")
        _back()
        return
    if here.mode == "live":  # a walk is about an instant: hold it, so that figures do not move while they are read
        view.hold_for_a_walk(here.at_ms)
        st.rerun()
    _walk_page(here, runbook)


def _back() -> None:
    st.page_link(
        nav.FILES["runbook"], label="All runbooks", icon=":material/arrow_back:", query_params=dict(view.kept())
    )


def _list(here: View) -> None:
    found = data.diagnosis(here).value
    firing = {anomaly.runbook: anomaly for anomaly in found.anomalies} if found is not None else {}
    against = broken(found)
    last = {walk.runbook: walk for walk in reversed(records.history(limit=200))}
    books = library()
    opened: list[str | None] = []
    for symptom, title in SYMPTOMS.items():
        rows = [
            Row(
                book.title,
                (
                    _now(firing[book.id], against) if book.id in firing else Cell("quiet" if found is not None else "not diagnosed", "muted"),
                    Cell(book.meaning),
                    Cell(counted(len(book.step), "step"), "muted"),
                    Cell(f"walk {last[book.id].id}, {day_and_clock(last[book.id].started_ms)}" if book.id in last else "never walked", "muted"),
                ),
                nav.link("runbook", **runbook_query(here, book.id)),
            )
            for book in sorted(books.values(), key=lambda book: (book.id not in firing, book.title))
            if book.symptom == symptom
        ]  # fmt: skip
        if rows:
            with states.section(title):
                columns = (
                    Column(title, width="24%"),
                    Column("now", width="20%"),
                    Column("means", "wrap"),
                    Column("", width="6rem"),
                    Column("last walk", width="15rem"),
                )
                opened.append(table(columns, rows, key=f"books_{symptom}"))
    for address in opened:
        if address:
            nav.follow(address)


def _now(anomaly: Anomaly, against: Sequence[LawFinding]) -> Cell:
    reasons = at_place(against, anomaly.where, anomaly.reads)
    return Cell(f"fires on {anomaly.where}", "warn", "warn", "; ".join(reasons), bool(reasons))


def _recorded() -> RecordedWalk | None:
    number = nav.given("walk")
    if not number.isdigit():
        return None
    try:
        return records.walks().get(int(number[:12]))
    except (NoSuchWalk, RecordsError) as error:
        states.line("warn", str(error))
        return None


def _walk_page(here: View, runbook: Runbook) -> None:
    instance, engine = nav.given("instance") or None, nav.given("engine") or None
    recorded = _recorded()
    if recorded is not None and recorded.runbook != runbook.id:
        states.line("warn", f"Walk {recorded.id} belongs to another runbook and is not shown here.")
        recorded = None
    try:
        seen = data.walked(here, runbook.id, instance, engine, recorded.answers() if recorded is not None else {})
    except RunbookError as error:
        states.empty("This walk cannot be made", str(error), "Open it from the Fleet page, or without a replica.")
        _back()
        return
    walk = seen.value
    if walk is None or seen.error is not None:
        states.trouble(
            "This walk cannot be made now."
            if walk is None
            else f"The source does not answer; this is the walk of {clock(walk.at_ms)} UTC.",
            seen.error.cause if seen.error else "",
            seen.error.next_step if seen.error else "",
        )
        if walk is None:
            return
    started = f"walk {recorded.id}, started by {recorded.started_by} {clock(recorded.started_ms)}" if recorded else ""
    with st.container(horizontal=True, vertical_alignment="center", key="walk_head"):
        _back()
    with states.section("The head"):
        st.html(head_html(runbook, walk, clock(walk.at_ms), started))
    against = broken(data.diagnosis(here).value)
    with states.section("The conclusion"):
        st.html(conclusion_html(walk, at_place(against, walk.where, signals_read(walk))))
        _alerted(here, runbook, walk)
    finding = opened_step(walk, nav.given("step"))
    left, right = st.columns([9, 11], gap="small")
    with left, states.section("The steps"):
        chosen = step_list(step_items(walk), finding.step_id, key="steps")
        if chosen and chosen != nav.given("step"):  # the address names it even where it was open already
            st.query_params["step"] = chosen
            st.rerun(scope="fragment")
    with right, states.section("The evidence"):
        _detail(here, runbook, walk, finding, recorded, by_signal(against, near(walk.where)))
    with states.section("The outcome"):
        st.html(outcome_html(walk))
        _after(here, runbook, walk, recorded)
    with st.expander("About this runbook: why this order, what the metrics cannot tell"):
        st.markdown(runbook.prose)


def _alerted(here: View, runbook: Runbook, walk: Walk) -> None:
    """Where nothing is wrong now, the way to the instant at which an alert last led to this runbook: its link opens late, too."""
    if walk.outcome.cause != "healthy":
        return
    before = (each for each in records.opened_incidents() if each.runbook == runbook.id)
    last = next((each for each in before if walk.at_ms - ALERTED_MS <= each.starts_ms < walk.at_ms), None)
    if last is None:
        return
    until = f" to {clock(last.ends_ms)}" if last.ends_ms is not None else ""
    said = f", {cause_text(last.diagnosis['verdicts'][0]['cause'])}" if last.diagnosis else ""
    st.page_link(
        nav.FILES["runbook"],
        label=f"An alert fired {day_and_clock(last.starts_ms)}{until} UTC{said}: walk it as it was then",
        icon=":material/history:",
        query_params=runbook_query(here, runbook.id, instance=last.labels.get("instance", ""))
        | {"at": format_instant(last.starts_ms)},
    )


def _detail(
    here: View, runbook: Runbook, walk: Walk, finding: Finding, recorded: RecordedWalk | None, doubts: Doubts
) -> None:
    level = {"yes": "warn", "error": "bad", "needs_answer": "unknown", "inconclusive": "unknown"}.get(
        finding.finding, "ok"
    )
    st.html(
        tag(
            "div",
            tag("h4", icon(level), finding.question),
            tag("div", f"{WORDS[finding.finding].capitalize()}. {finding.says}" if finding.says else WORDS[finding.finding].capitalize()),
            tag("div", finding.why, class_="pw-sub") if finding.why else None,
            class_="pw-card",
        )
    )  # fmt: skip
    if finding.numbers:
        with states.section("The numbers"):
            st.html(numbers_html(finding.numbers, doubts))
    _evidence(here, finding, doubts)
    for line in finding.instructions:
        if line.startswith("$ "):
            st.code(line[2:], language=None, wrap_lines=True)
        else:
            st.html(instruction_html(line))
    _answer(here, runbook, walk, finding, recorded)


def _evidence(here: View, finding: Finding, doubts: Doubts) -> None:
    scene = scene_of(here)
    if scene is None:
        return
    drawn = []
    for which, group in enumerate(evidence_groups(finding)):
        title = group[0].label.capitalize() if len(group) == 1 else "Evidence"
        with states.section(title):
            panels, dim = [], False
            for number in group:
                seen = data.drawn(here, number.promql, number.unit)
                if seen.value is None:
                    raise seen.error or SourceError("no answer")
                panels.append(seen.value)
                dim = dim or seen.error is not None
            chart = evidence_chart(title, group, panels, scene.slots, scene.axis, (), here.at_ms, doubts)
            drawn.append(charts.live_chart(charts.pack(chart, group="walk", dim=dim), key=f"evidence_{which}"))
    gestures(here, drawn)


def _begin(walk: Walk) -> RecordedWalk:
    """Start recording this walk; its number goes into the address."""
    began = records.walks().start(walk, records.who(), nav.given("instance") or None, nav.given("engine") or None)
    st.query_params["walk"] = str(began.id)
    return began


def _answer(here: View, runbook: Runbook, walk: Walk, finding: Finding, recorded: RecordedWalk | None) -> None:
    """Answers of manual and pasted steps, and notes; the first of them starts a recorded walk."""
    key = f"{runbook.id}_{finding.step_id}"
    try:
        if finding.kind == "manual":
            said = st.segmented_control(
                "Your answer", ["yes", "no", "skip"], key=f"answer_{key}", default=_given(recorded, finding)
            )
            if said and said != _given(recorded, finding):
                _say(walk, finding, recorded, value=said)
        elif finding.kind == "pasted":
            log = st.text_area(
                "Paste the log (it stays on this machine)", key=f"log_{key}", height=120, max_chars=LOG_LIMIT
            )
            # Never disabled: the text arrives when the box loses the focus, that is with the very click on the button.
            if st.button("Read it", key=f"read_{key}"):
                if log.strip():
                    _say(walk, finding, recorded, log=log)
                states.note("Paste the log first.")
        for event in recorded.notes(finding.step_id) if recorded is not None else ():
            st.html(tag("div", f"{event.who}, {clock(event.at_ms)}: {event.body.get('note', '')}", class_="pw-muted"))
        with (
            st.form(f"note_{key}", border=False, clear_on_submit=True),
            st.container(horizontal=True, vertical_alignment="bottom"),
        ):
            text = st.text_input(
                "Note", key=f"text_{key}", placeholder="what you saw or did", label_visibility="collapsed"
            )
            name = st.text_input(
                "Your name",
                key=f"who_{key}",
                value=records.who(),
                width=140,
                label_visibility="collapsed",
                max_chars=80,
            )
            if st.form_submit_button("Add note") and text.strip():
                st.session_state["pw_who"] = name.strip()
                begun = recorded or _begin(walk)
                records.walks().note(begun.id, finding.step_id, records.who(), text)
                st.rerun()
    except WalkConflict as conflict:
        states.line("warn", str(conflict))
    except RecordsError as error:
        states.line("warn", "Answers and notes cannot be kept.", str(error))


def _given(recorded: RecordedWalk | None, finding: Finding) -> str | None:
    answer = recorded.answers().get(finding.step_id) if recorded is not None else None
    return answer.value if answer is not None else None


def _say(walk: Walk, finding: Finding, recorded: RecordedWalk | None, *, value: Literal["yes", "no", "skip"] | Any = None, log: str | None = None) -> None:  # fmt: skip
    begun = recorded or _begin(walk)
    records.walks().answer(begun.id, finding.step_id, records.who(), seen=begun.seq, value=value, log=log)
    if finding.next:
        st.query_params["step"] = finding.next
    st.rerun()


def _charts(here: View, kept: RecordedWalk) -> tuple[StepChart, ...]:
    """The pictures of a recorded walk, drawn when somebody asks for the file; none where the source does not answer."""
    try:
        return charts_of(kept.walk, data.source_at(here)) if kept.walk is not None else ()
    except SourceError:
        return ()


def _after(here: View, runbook: Runbook, walk: Walk, recorded: RecordedWalk | None) -> None:
    leaf = walk.outcome
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        if leaf.runbook and leaf.runbook != runbook.id:
            place = walk.where.places[0].instance if walk.where.places and walk.where.scope != "fleet" else ""
            st.page_link(
                nav.FILES["runbook"], label=f"Go on with: {load(leaf.runbook).title}", icon=":material/arrow_forward:",
                query_params=runbook_query(here, leaf.runbook, instance=place),
            )  # fmt: skip
        try:
            if recorded is None:
                if st.button("Record this walk", help="Keeps findings, answers and notes under a number"):
                    _begin(walk)
                    st.rerun()
            else:
                if recorded.walk != walk and not recorded.closed and walk.at_ms == recorded.at_ms:
                    recorded = records.walks().walked(recorded.id, walk, records.who())
                kept = recorded
                st.download_button(
                    "Export walk", lambda: markdown_with_charts(kept, _charts(here, kept)), f"walk-{kept.id}.md", "text/markdown",
                    on_click="ignore", help="One Markdown file with its charts inside, to paste",
                )  # fmt: skip
                st.download_button(
                    "Zip with charts", lambda: zipped(kept, _charts(here, kept)), f"walk-{kept.id}.zip", "application/zip",
                    on_click="ignore", help="Markdown and its charts as PNG files, to attach to a ticket",
                )  # fmt: skip
        except RecordsError as error:
            states.line("warn", "Walks cannot be kept.", str(error))
        if leaf.verify_step and st.button("Check now whether a change helped"):
            st.session_state["pw_verify"] = (runbook.id, here.at_ms)
    if leaf.verify_step and st.session_state.get("pw_verify") == (runbook.id, here.at_ms):
        _verify(here, runbook, leaf.verify_step)


def _verify(here: View, runbook: Runbook, verify_step: str) -> None:
    """The runbook's own check: for a live source as of now, for a replay as of the cursor."""
    from dataclasses import replace

    when = here if here.mode == "replay" else replace(here, at_ms=data.settings_clock_ms())
    finding = data.verified(when, runbook.id, verify_step, nav.given("instance") or None, nav.given("engine") or None)
    level = {"yes": "ok", "no": "warn"}.get(finding.finding, "unknown")
    states.line(level, f"{finding.question} {WORDS[finding.finding].capitalize()}, at {clock(when.at_ms)} UTC.", ", ".join(f"{n.label} {n.words}" for n in finding.numbers))  # fmt: skip
