"""The Latency page: quantile bands, heat map, where time goes, replicas against the fleet, the same window earlier."""

from __future__ import annotations

import streamlit as st

from collectors.latency_picture import LatencyPicture
from pages.ui import charts, data, nav, states, view
from pages.ui.fleet_page import grid, scene_of
from pages.ui.fleet_scene import Scene
from pages.ui.frame import gestures
from pages.ui.latency_view import (
    EARLIER_COLUMNS,
    FLEET,
    PHASES,
    TITLES,
    averaging_text,
    earlier_rows,
    heat_chart,
    quantile_charts,
    rank_columns,
    ranking_rows,
    slo_text,
    time_goes_chart,
    title_of,
    window_text,
)  # fmt: skip
from pages.ui.table import table
from pages.ui.view import View

MOST_ROWS = 8


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
    dim = seen.error is not None or data.fleet(here).error is not None
    doubts = scene.doubts(chosen)
    drawn: list[object] = []
    with states.section("The quantiles"):
        drawn += grid(quantile_charts(picture, scene.axis, scene.marks, scene.taints), "latency", dim=dim)
    named = st.segmented_control(
        "Look closer at", [panel.id for panel in picture.panels], format_func=title_of, default=chosen, required=True, key="histogram_choice"
    )  # fmt: skip
    if named and named != chosen:
        st.query_params["histogram"] = named
        st.rerun(scope="fragment")
    with states.section("The objective"):
        states.heading(window_text(picture))
        level, words = slo_text(picture, doubts)
        if words:
            states.line(level, words, *states.mistrust(doubts, "objective"))
        if said := averaging_text(picture.ranking):
            states.note(said)
    left, right = st.columns(2, gap="small")
    with left, states.section("The heat map"):
        payload = charts.pack(heat_chart(picture.heat_map, scene.axis, scene.marks, doubts), group="latency", dim=dim)
        drawn.append(charts.live_chart(payload, key="heat"))
    with right, states.section("Where the time goes"):
        chart = time_goes_chart(picture, scene.axis, scene.marks, scene.doubts(*PHASES))
        drawn.append(charts.live_chart(charts.pack(chart, group="latency", dim=dim), key="time_goes"))
    if picture.where_note:
        states.note(picture.where_note)
    opened = None
    left, right = st.columns(2, gap="small")
    with left, states.section("The ranking"):
        opened = _ranking(picture, scene, dim)
    with right, states.section("The comparison"):
        table(EARLIER_COLUMNS, earlier_rows(picture, doubts), key="earlier", dim=dim)
    for finding in picture.findings:
        states.line("warn", finding.text, ", ".join(finding.where))
    gestures(here, drawn)
    if opened:
        nav.follow(opened)


def _ranking(picture: LatencyPicture, scene: Scene, dim: bool) -> str | None:
    """The table, with the worst of many replicas; the address of the row that was opened."""
    ranked = picture.ranking.replicas
    doubts = {row.key: scene.doubts(picture.chosen, row=row) for row in scene.picture.replicas}
    most = None
    if len(ranked) > MOST_ROWS and not st.toggle(
        f"Show all {len(ranked)} replicas, not only the worst {MOST_ROWS}", key="all_ranked"
    ):
        most = MOST_ROWS
    rows = ranking_rows(
        picture.ranking, scene.slots, view.kept(), {FLEET: scene.doubts(picture.chosen), **doubts}, most
    )
    return table(rank_columns(picture), rows, key="ranking", dim=dim)
