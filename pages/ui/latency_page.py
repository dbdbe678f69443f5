"""The Latency page: quantile bands, heat map, where time goes, replicas against the fleet, the same window earlier."""

from __future__ import annotations

import streamlit as st

from pages.ui import charts, data, nav, states, view
from pages.ui.fleet_page import grid, scene_of
from pages.ui.frame import gestures
from pages.ui.latency_view import (
    EARLIER_COLUMNS,
    RANK_COLUMNS,
    TITLES,
    averaging_text,
    earlier_rows,
    heat_chart,
    quantile_charts,
    ranking_rows,
    slo_text,
    time_goes_chart,
    title_of,
)  # fmt: skip
from pages.ui.table import table
from pages.ui.view import View


def draw(here: View) -> None:
    """The whole page; each part fails alone."""
    wanted = nav.given("histogram")
    chosen = wanted if wanted in TITLES else "time_to_first_token"
    scene = scene_of(here)
    seen = data.latency(here, chosen)
    picture = seen.value
    if picture is None or scene is None:
        error = seen.error
        states.empty("No latency picture", error.cause if error else "", error.next_step if error else "")
        return
    dim = seen.error is not None
    drawn: list[object] = []
    with states.section("The quantiles"):
        drawn += grid(quantile_charts(picture, scene.axis, scene.marks, scene.taints), "latency", dim=dim)
    named = st.segmented_control(
        "Look closer at", [panel.id for panel in picture.panels], format_func=title_of, default=chosen, required=True, key="histogram_choice"
    )  # fmt: skip
    if named and named != chosen:
        st.query_params["histogram"] = named
        st.rerun(scope="fragment")
    level, words = slo_text(picture)
    if words:
        states.line(level, words)
    left, right = st.columns(2, gap="small")
    with left, states.section("The heat map"):
        payload = charts.pack(heat_chart(picture.heat_map, scene.axis, scene.marks), group="latency", dim=dim)
        drawn.append(charts.live_chart(payload, key="heat"))
    with right, states.section("Where the time goes"):
        payload = charts.pack(time_goes_chart(picture, scene.axis, scene.marks), group="latency", dim=dim)
        drawn.append(charts.live_chart(payload, key="time_goes"))
    if picture.where_note:
        states.note(picture.where_note)
    opened = None
    left, right = st.columns(2, gap="small")
    with left, states.section("The ranking"):
        opened = table(RANK_COLUMNS, ranking_rows(picture.ranking, scene.slots, view.kept()), key="ranking", dim=dim)
        if said := averaging_text(picture.ranking):
            states.note(said)
    with right, states.section("The comparison"):
        table(EARLIER_COLUMNS, earlier_rows(picture), key="earlier", dim=dim)
    for finding in picture.findings:
        states.line("warn", finding.text, ", ".join(finding.where))
    gestures(here, drawn)
    if opened:
        nav.follow(opened)
