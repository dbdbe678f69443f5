"""The Diagnose page: one card per incident, the detectors, the checks, the states."""

from __future__ import annotations

import streamlit as st

from collectors.counting import counted
from pages.ui import data, nav, record_view, states, story, view
from pages.ui.diagnose_view import (
    ANOMALY_COLUMNS,
    LAW_COLUMNS,
    STATE_COLUMNS,
    anomaly_rows,
    card,
    law_rows,
    state_rows,
)  # fmt: skip
from pages.ui.frame import runbook_query
from pages.ui.lanes import lane_chart
from pages.ui.story_view import UNIT_LABEL, lanes_of
from pages.ui.table import table
from pages.ui.view import View
from pages.ui.words import clock
from runbooks.timeline import Timeline
from runbooks.verdicts import Diagnosis, Verdict


def draw(here: View) -> None:
    """The whole page; each part fails alone."""
    seen = data.diagnosis(here)
    found = seen.value
    if found is None:
        states.empty(
            "Not diagnosed", seen.error.cause if seen.error else "", seen.error.next_step if seen.error else ""
        )
        return
    if seen.error is not None:
        states.trouble(
            f"The source does not answer; this is the diagnosis of {clock(found.at_ms)} UTC.",
            seen.error.cause,
            seen.error.next_step,
        )
    wrong = [verdict for verdict in found.verdicts if verdict.cause != "healthy"]
    for rank, verdict in enumerate(wrong):
        with states.section(f"The card of {verdict.cause}"):
            st.html(card(found, verdict, rank))
            _next_steps(here, found, verdict, rank)
    if found.anomalies:
        with states.section("The detectors"):
            states.heading("Detectors that fire")
            table(ANOMALY_COLUMNS, anomaly_rows(found), key="anomalies")
    if here.mode == "replay":
        with states.section("The lanes"):
            _lanes(here)
    with states.section("The checks"):
        _laws(found)
    with states.section("The states"):
        states.heading("Replicas and ranks")
        table(STATE_COLUMNS, state_rows(found), key="states")
    for warning in found.warnings:
        states.line("warn", warning)


def _next_steps(here: View, found: Diagnosis, verdict: Verdict, rank: int) -> None:
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        if verdict.runbook:
            st.page_link(
                nav.FILES["runbook"], label="Open runbook at this instant", icon=":material/arrow_forward:",
                query_params=runbook_query(here, verdict.runbook, verdict),
            )  # fmt: skip
        if rank == 0 and here.mode != "replay" and st.button("Record this incident", help="Raw samples of the shown range into an incident file, to replay it later"):  # fmt: skip
            record_view.begin(here, here.window.start_ms, verdict)
    if rank == 0 and here.mode != "replay":
        record_view.progress(here)


def _lanes(here: View) -> None:
    told = story.told(here.source_key)
    extent = here.extent
    if not isinstance(told, Timeline) or extent is None:
        states.line(
            "unknown",
            told
            if isinstance(told, str)
            else "The recording is being judged from its beginning; the lanes appear with the next refresh.",
        )
        return
    picked = lane_chart(
        "The whole recording", lanes_of(told), extent.start_ms, extent.end_ms, here.at_ms, key="lanes",
        unit_label=UNIT_LABEL,
    )  # fmt: skip
    if picked is not None:
        view.pin(view.within(extent, picked))
        st.rerun()


def _laws(found: Diagnosis) -> None:
    by_status = {
        status: [law for law in found.laws if law.status == status] for status in ("broken", "unknown", "kept")
    }
    broken, unknown, kept = by_status["broken"], by_status["unknown"], by_status["kept"]
    states.heading("Are the metrics honest?")
    if broken:
        table(LAW_COLUMNS, law_rows(broken), key="laws_broken")
    else:
        states.line("ok", f"No check is broken: {len(kept)} kept, {len(unknown)} cannot be told.")
    if unknown:
        with st.expander(f"{counted(len(unknown), 'check')} that cannot be told, with the reason"):
            table(LAW_COLUMNS, law_rows(unknown), key="laws_unknown")
    if kept:
        with st.expander(f"{counted(len(kept), 'check')} that {'is' if len(kept) == 1 else 'are'} kept"):
            table(LAW_COLUMNS, law_rows(kept), key="laws_kept")
