"""The threshold lab: what another threshold would have done to the recorded incidents, before it pages anybody."""

from __future__ import annotations

import streamlit as st

from pages.ui import lab_job, library, states
from pages.ui.console import console
from pages.ui.lab_job import Job, Trial
from pages.ui.table import Cell, Column, Row, table
from pages.ui.words import cause_text, digits, duration
from runbooks.lab import Detection, Tried, config_lines, threshold_names
from runbooks.naming import settings_dialect
from runbooks.rules import rules
from runbooks.thresholds import Thresholds

COLUMNS = (
    Column("value"), Column("incidents found", "right"), Column("missed", "right"), Column("median delay", "right"),
    Column("false alarms", "right"), Column("false a week", "right", "scaled; the upper end of the 95 % interval in brackets"),
)  # fmt: skip
MOST_FILES = 24


def draw() -> None:
    """The whole tab."""
    entries = {entry.key: entry for entry in library.entries() if entry.manifest is not None}
    if not entries:
        states.empty(
            "No incident file yet", "The lab needs recorded incidents to try a threshold on.", "Add one under Library."
        )
        return
    states.note(
        "Each value is tried on the chosen recordings as the diagnosis would have seen them then. Incidents are those of the recordings' ground truth or marks; it is the yardstick, no judgement reads it."
    )
    kind = st.segmented_control(
        "What to change",
        ["threshold", "detector"],
        default="threshold",
        required=True,
        key="lab_kind",
        format_func=_kind_word,
    )
    names, present = _choices(str(kind))
    left, middle, right = st.columns([3, 3, 4], gap="small", vertical_alignment="bottom")
    with left:
        name = st.selectbox("Which", names, key=f"lab_name_{kind}")
    with middle:
        now = present.get(str(name))
        text = st.text_input(
            "Values, separated by blanks",
            key=f"lab_values_{name}",
            placeholder=f"now {now:g}" if now is not None else "",
            max_chars=200,
        )
    with right:
        chosen = st.multiselect(
            "On these recordings",
            list(entries),
            default=list(entries)[:MOST_FILES],
            key="lab_files",
            max_selections=MOST_FILES,
        )
    values = _numbers(text, now)
    if values is None:
        states.line("warn", "The values cannot be read.", "Write up to 12 numbers, such as: 2 5 10 30")
    elif st.button("Try them", type="primary", disabled=not chosen):
        lab_job.begin(Trial(str(kind), str(name), values, tuple(entries[key].path for key in chosen)))
    job = lab_job.current()
    if job is not None:
        st.fragment(_watch, run_every=None if job.done else 1.0)()


def _kind_word(kind: str) -> str:
    return "a threshold of the diagnosis" if kind == "threshold" else "a detector of the alert rules"


def _choices(kind: str) -> tuple[list[str], dict[str, float]]:
    """Names and what they are now."""
    settings = console().settings
    if kind == "detector":
        known = {
            f"{rule.runbook.id}.{rule.detector.name}": rule.detector.threshold
            for rule in rules(settings, settings_dialect(settings))
        }
        return sorted(known), known
    held = Thresholds.of(settings).values
    present = {
        f"{table_}.{name}": float(held[table_][name])
        for table_, name in threshold_names()
        if table_ in held and name in held[table_]
    }
    return sorted(present), present


def _numbers(text: str, now: float | None) -> tuple[float, ...] | None:
    """The values of the box; half, present and double when it is empty; None when they cannot be read."""
    if not text.strip():
        return (now / 2, now, now * 2) if now else (1.0,)
    try:
        values = tuple(float(part) for part in text.replace(",", " ").split())
    except ValueError:
        return None
    return values if 1 <= len(values) <= 12 else None


def _watch() -> None:
    job = lab_job.current()
    if job is not None:
        _progress(job)


def _progress(job: Job) -> None:
    if not job.done:
        st.progress(min(1.0, job.share), text=f"Trying {job.trial.name} on {len(job.trial.files)} recordings")
        if st.button("Stop"):
            lab_job.stop()
            st.rerun()
        return
    if st.session_state.get("lab_seen") is not job:  # the timer of this part has done its work
        st.session_state["lab_seen"] = job
        st.rerun()
    with states.section("The answer"):
        _answer(job)


def _answer(job: Job) -> None:
    if job.problem:
        states.trouble(f"{job.trial.name} could not be tried.", job.problem)
        return
    tried = job.answer or ()
    table(COLUMNS, [_row(each) for each in tried], key="lab_answer")
    left, right = st.columns(2, gap="small")
    with left:
        picked = st.selectbox(
            "The lines of pagewatch.toml for",
            [each.choice.value for each in tried],
            key="lab_pick",
            format_func=lambda v: f"{v:g}",
        )
        each = next((each for each in tried if each.choice.value == picked), None)
        if each is not None:
            st.code(config_lines(each.choice), language="toml")
    with right:
        if each is not None and each.detections:
            columns = (Column("incident"), Column("cause"), Column("found after", "right"))
            table(columns, [_detection(found) for found in each.detections], key="lab_detections")


def _detection(found: Detection) -> Row:
    late = found.delay_seconds is None
    words = (
        "missed"
        if found.delay_seconds is None
        else f"{duration(found.delay_seconds)} (to {duration(found.resolution_seconds)})"
    )
    return Row(
        found.recording,
        (
            Cell(", ".join(cause_text(c) for c in found.causes)),
            Cell(words, "warn" if late else "", "warn" if late else ""),
        ),
    )


def _row(each: Tried) -> Row:
    delay, weekly, most = each.median_delay_seconds, each.false_per_week, each.false_per_week_at_most
    return Row(
        f"{each.choice.value:g}",
        (
            Cell(str(len(each.detections) - each.missed)),
            Cell(str(each.missed), "warn" if each.missed else "", "warn" if each.missed else ""),
            Cell("none found" if delay is None else duration(delay), "muted" if delay is None else ""),
            Cell(str(each.false_alarms), note=f"in {duration(each.healthy_seconds)} without an incident"),
            Cell("unknown" if weekly is None else f"{digits(weekly)} (at most {digits(most or 0.0)})", "muted" if weekly is None else ""),
        ),
    )  # fmt: skip
