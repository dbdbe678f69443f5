"""The Incidents page: the library of incident files, upload, what alerts opened, walks; two recordings side by side."""

from __future__ import annotations

import streamlit as st

from collectors.instants import format_instant
from collectors.source import SourceError
from pages.ui import compare_page, data, lab_page, library, library_view, nav, record_view, records, states, story, view
from pages.ui.frame import live_page
from pages.ui.lanes import lane_chart
from pages.ui.story_view import UNIT_LABEL, lanes_of
from pages.ui.table import Cell, Column, Row, table
from pages.ui.view import View
from pages.ui.words import cause_text, day_and_clock
from runbooks.incidents import Incident
from runbooks.timeline import Timeline
from runbooks.walks import RecordedWalk

OPENED_COLUMNS = (
    Column("alert"),
    Column("state"),
    Column("since"),
    Column("where"),
    Column("the diagnosis then", "wrap"),
)
WALK_COLUMNS = (Column("walk"), Column("runbook"), Column("at"), Column("by"), Column("outcome"))


def draw(here: View) -> None:
    """The page under the source bar; the lanes of an opened recording stand first."""
    _tabs("library")
    if here.mode == "replay":
        with states.section("The lanes"):
            _lanes(here)
    else:
        with states.section("The recording"):
            record_view.last_minutes(here)
    _below()


TABS = {"library": "Library", "compare": "Compare", "lab": "Threshold lab"}


def page() -> None:
    """The page works without a source too: the library does not need one."""
    try:
        data.held(view.kept().get("source", ""))
    except SourceError:
        states.note("No source is open. Open an incident file below.")
        _below()
        return
    tab = nav.given("tab")
    if tab == "lab":
        live_page(lambda here: _tabs("lab"))
        with states.section("The threshold lab"):
            lab_page.draw()
        return
    if tab == "compare":
        live_page(_compare, unfinished=_compared_is_made)
        return
    live_page(draw, unfinished=_being_judged)


def _compare(here: View) -> None:
    _tabs("compare")
    with states.section("The comparison"):
        compare_page.draw(here)


def _tabs(shown: str) -> None:
    chosen = st.segmented_control(
        "Part",
        list(TABS),
        default=shown,
        required=True,
        key=f"tab_{shown}",
        label_visibility="collapsed",
        format_func=TABS.__getitem__,
    )
    if chosen and chosen != shown:
        _open(chosen)


def _open(tab: str) -> None:
    for name in ("tab", *compare_page.PARAMETERS):
        if name in st.query_params:
            del st.query_params[name]
    if tab != "library":
        st.query_params["tab"] = tab
    st.rerun()


def _compared_is_made() -> bool:
    """Something still changes beside a replay that stands still: a live second source, or one that is being judged."""
    other = nav.given("with")
    if other == compare_page.LIVE:
        return True
    return other in library.files() and story.told(other, first=False) is None


def _being_judged() -> bool:
    return any(entry.manifest is not None and story.told(entry.key, first=False) is None for entry in library.entries())


def _below() -> None:
    opened = [library_view.listing()]
    with states.section("The opened incidents"):
        incidents = records.opened_incidents()
        if incidents:
            states.heading("Opened by alerts")
            opened.append(table(OPENED_COLUMNS, [_incident(incident) for incident in incidents], key="opened"))
    with states.section("The walks"):
        walks = records.history(limit=30)
        if walks:
            states.heading("Recorded walks")
            opened.append(table(WALK_COLUMNS, [_walk(walk) for walk in walks], key="walks"))
    for address in opened:
        if address:
            nav.follow(address)


def _lanes(here: View) -> None:
    extent = here.extent
    told = story.told(here.source_key)
    if extent is None:
        return
    if not isinstance(told, Timeline):
        states.line("unknown", told if isinstance(told, str) else "The recording is being judged from its beginning; the lanes appear with the next refresh.")  # fmt: skip
    else:
        picked = lane_chart(
            "What held, and when", lanes_of(told), extent.start_ms, extent.end_ms, here.at_ms, key="incident_lanes",
            unit_label=UNIT_LABEL,
        )  # fmt: skip
        if picked is not None:
            view.pin(view.within(extent, picked))
            st.rerun()
    text = library.story_of(data.capsule_path(here.source_key))
    if text:
        with st.expander("The story of this incident"):
            st.markdown(text)
    manifest = library.manifest_of(here.source_key)
    if manifest is not None and manifest.ground_truth:
        with st.expander("What was done to the fleet (ground truth; no judgement reads it)"):
            st.json(manifest.ground_truth, expanded=1)
    others = [entry.key for entry in library.entries() if entry.manifest is not None and entry.key != here.source_key]
    if others and st.button(
        "Compare with another incident or with live", icon=":material/compare_arrows:", type="tertiary"
    ):
        _open("compare")


def _incident(incident: Incident) -> Row:
    verdicts = incident.diagnosis.get("verdicts", []) if incident.diagnosis else []
    said = (
        cause_text(str(verdicts[0].get("cause", ""))) + f" ({verdicts[0].get('confidence', '')})"
        if verdicts
        else incident.problem or "not diagnosed yet"
    )
    level = "bad" if incident.status == "firing" else "ok"
    cells = (
        Cell(incident.status, level if level == "bad" else "muted", level),
        Cell(f"{day_and_clock(incident.starts_ms)} UTC", "muted"),
        Cell(incident.labels.get("instance", "the fleet")),
        Cell(said),
    )
    href = nav.link("runbook", id=incident.runbook, instance=incident.labels.get("instance", ""), at=format_instant(incident.starts_ms)) if incident.runbook else ""  # fmt: skip
    return Row(incident.alert, cells, href)


def _walk(walk: RecordedWalk) -> Row:
    found = walk.walk
    outcome = (
        f"{found.outcome.confidence}: {cause_text(found.outcome.cause)}"
        if found is not None and found.outcome.cause
        else "open"
    )
    cells = (
        Cell(found.title if found is not None else walk.runbook),
        Cell(f"{day_and_clock(walk.at_ms)} UTC", "muted"),
        Cell(walk.started_by),
        Cell(outcome),
    )
    href = nav.link(
        "runbook",
        id=walk.runbook,
        instance=walk.instance,
        engine=walk.engine,
        at=format_instant(walk.at_ms),
        walk=str(walk.id),
    )
    return Row(f"walk {walk.id}", cells, href)
