"""The button that records a live source, how far it is, and the way to what was recorded."""

from __future__ import annotations

from datetime import UTC, datetime

import streamlit as st

from pages.ui import data, library, nav, record_job, states
from pages.ui.console import console
from pages.ui.record_job import Job, Order
from pages.ui.view import View
from pages.ui.words import cause_text, duration
from runbooks.verdicts import Verdict

LENGTHS_MINUTES = (15, 30, 60, 180, 360)
PATIENCE_SECONDS = 2.0
"""A short recording is there when the page is drawn again; a longer one goes on behind it."""


def last_minutes(here: View) -> None:
    """Record the last minutes of a live source: half an hour unless another length is chosen."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="record_last"):
        minutes = st.session_state.get("record_minutes", 30)
        if st.button(
            f"Record the last {duration(60 * minutes)}", icon=":material/radio_button_checked:", disabled=_busy()
        ):
            found = data.diagnosis(here).value
            wrong = [verdict for verdict in found.verdicts if verdict.cause != "healthy"] if found is not None else []
            begin(here, here.at_ms - minutes * 60_000, wrong[0] if wrong else None)
        st.selectbox(
            "Length", LENGTHS_MINUTES, index=LENGTHS_MINUTES.index(30), format_func=lambda m: duration(60 * m), key="record_minutes",
            label_visibility="collapsed", width=110,
        )  # fmt: skip
        states.note("Raw samples and what pagewatch says of them, into one file: replay it here, or hand it on.")
    progress(here)


def begin(here: View, start_ms: int, verdict: Verdict | None) -> None:
    """Record from `start_ms` up to the view's instant; the file is named after what is wrong then."""
    folder = console().incidents_folder
    when = datetime.fromtimestamp(here.at_ms / 1000, UTC)
    key = library.free_key(folder, f"{verdict.cause if verdict else 'fleet'}-{when:%Y%m%d-%H%M%S}")
    title = (
        f"{cause_text(verdict.cause)} on {verdict.where}" if verdict else f"The fleet until {when:%Y-%m-%d %H:%M} UTC"
    )
    order = Order(here.source_key, data.source_at(here), start_ms, here.at_ms, folder / key, title)
    job = record_job.begin(order, data.settings())
    if job is None:
        states.line("unknown", "Another recording runs; this one was not begun.")
        return
    with st.spinner("Recording"):
        job.ended.wait(PATIENCE_SECONDS)


def _busy() -> bool:
    job = record_job.current()
    return job is not None and job.running


def progress(here: View) -> None:
    """How far the recording of this source is, or what became of it."""
    job = record_job.current()
    if job is None or job.order.source_key != here.source_key:
        return
    if job.running:
        st.progress(min(1.0, job.share), text=f"Recording {job.key}: {job.words}")
    elif job.problem is not None:
        states.trouble("Nothing was recorded.", job.problem.cause, job.problem.next_step)
    elif job.failure:
        states.trouble("Nothing was recorded.", job.failure, "Choose another folder with PAGEWATCH_INCIDENTS.")
    else:
        _recorded(job)


def _recorded(job: Job) -> None:
    wanted = (job.order.end_ms - job.order.start_ms) / 1000
    short = f" The source holds no more than {duration(job.seconds)}." if job.seconds < 0.95 * wanted else ""
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="recorded"):
        states.line("ok", f"Recorded as {job.key}.{short}")
        st.page_link(
            nav.FILES["fleet"], label="Replay it", icon=":material/arrow_forward:", icon_position="right", query_params={"source": job.key}
        )  # fmt: skip
