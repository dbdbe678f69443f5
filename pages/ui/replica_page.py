"""The page of one replica: its state, its figures, its charts, its ranks, and what the diagnosis says of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import streamlit as st

from collectors.fleet_picture import RankRow, ReplicaRow
from collectors.source import SourceError
from pages.ui import data, nav, states, view
from pages.ui.charts import Limit, Line
from pages.ui.charts import Panel as Chart
from pages.ui.diagnose_view import LAW_COLUMNS, law_rows
from pages.ui.doubts import at_one_of
from pages.ui.fleet_answers import figure_tile
from pages.ui.fleet_charts import notice_of, panels
from pages.ui.fleet_page import grid, scene_of
from pages.ui.fleet_scene import STATE_LEVELS, Scene, state_words
from pages.ui.frame import gestures, runbook_query
from pages.ui.markup import Markup, icon, tag
from pages.ui.runbook_view import facts_html
from pages.ui.table import Cell, Column, Row, table
from pages.ui.tiles import Tile, tile_row
from pages.ui.view import View
from pages.ui.words import age, cause_text, day_and_clock, figure_text, quantile_text

RANK_COLUMNS = (
    Column("rank"), Column("model"), Column("waiting", "right"), Column("running", "right"), Column("KV", "right"), Column("tokens out", "right"),
)  # fmt: skip


def draw(here: View) -> None:
    """The page of the replica that the address names; an unknown one is said and the known ones listed."""
    scene = scene_of(here)
    if scene is None:
        return
    dim = data.fleet(here).error is not None
    older = max(0, data.settings_clock_ms() - scene.picture.at_ms) / 1000 if dim else 0.0
    wanted = nav.given("instance")
    row = scene.picture.replica(wanted)
    if row is None:
        states.empty(
            "Unknown replica",
            f"This source has no replica {wanted!r} in this range." if wanted else "No replica is named.",
            "Open one from the list.",
        )
        for known in scene.picture.replicas[:20]:
            st.page_link(
                nav.FILES["replica"], label=known.key, query_params=nav.merged(view.kept(), instance=known.key)
            )
        return
    with states.section("The head"):
        _head(scene, row, older, dim)
    with states.section("The tiles"):
        tile_row(_tiles(scene, row), dim=dim)
    with states.section("What is wrong here"):
        _wrong(here, scene, row)
    drawn: list[object] = []
    with states.section("The charts"):
        drawn = grid([*_charts(scene, row), *_flow_charts(here, scene, row)], "replica", dim=dim, across=3)
    if len(row.ranks) > 1:
        with states.section("The ranks"):
            states.heading("Ranks")
            table(RANK_COLUMNS, [_rank(rank, scene, row) for rank in row.ranks], key="ranks", dim=dim)
    with states.section("The checks"):
        laws = [
            law
            for law in (scene.found.laws if scene.found else ())
            if law.status == "broken" and at_one_of(scene.names(row))(law.where)
        ]
        if laws:
            states.heading("Broken checks")
            table(LAW_COLUMNS, law_rows(laws), key="laws_here", dim=dim)
    gestures(here, drawn)


def _head(scene: Scene, row: ReplicaRow, older_seconds: float, dim: bool) -> None:
    state = scene.state(row)
    level = STATE_LEVELS[state.state] if state is not None else "unknown"
    word = state_words(state, scene.picture.at_ms) if state is not None else row.scraped
    st.html(
        tag(
            "div",
            tag("div", tag("h2", row.key), tag("span", icon(level), word, data_tone=level if level in ("warn", "bad") else None), class_="pw-head"),
            facts_html(
                [
                    ("Why", state.why if state is not None else ""),
                    ("Engine", row.engine_text),
                    ("Model", ", ".join(row.models)),
                    ("Scope", ", ".join(f"{name}={value}" for name, value in row.scope.items())),
                    ("Started", f"{day_and_clock(row.started_ms)} UTC" if row.started_ms is not None else "not exported"),
                    ("Newest sample", f"{age(row.age_seconds + older_seconds)} old" if row.age_seconds is not None else "none in this range"),
                    ("Queue", _doubted(scene, row, _queue_words(row), "requests_waiting", "time_to_first_token")),
                    ("KV cache", _doubted(scene, row, row.kv_forecast.text, "kv_cache_usage")),
                    ("Measured capacity", _doubted(scene, row, _capacity_words(row), "time_to_first_token", "generation_tokens")),
                ]
            ),
            class_="pw-card pw-two pw-dim" if dim else "pw-card pw-two",
        )
    )  # fmt: skip


def _doubted(scene: Scene, row: ReplicaRow, text: str, *signals: str) -> str | Markup:
    """A fact with its mark where a broken check speaks against the signals that it rests on."""
    reasons = scene.doubts(*signals, row=row)
    return tag("span", text, " ", *states.mistrust(reasons, f"fact {signals[0]}")) if reasons else text


def _tiles(scene: Scene, row: ReplicaRow) -> list[Tile]:
    p99 = row.time_to_first_token_p99
    return [
        _wait_tile(scene, row),
        figure_tile("Waiting", row.waiting, scene.doubts("requests_waiting", row=row)),
        figure_tile("KV cache", row.kv_cache_usage, scene.doubts("kv_cache_usage", row=row)),
        figure_tile("Tokens out", row.generation_tokens, scene.doubts("generation_tokens", row=row)),
        figure_tile("Prefix hits", row.prefix_hit_ratio, scene.doubts("prefix_cache_hits", "prefix_cache_queries", row=row)),
        figure_tile("Finished", row.finished, scene.doubts("requests_finished", row=row)),
        figure_tile("Arriving", row.arrivals, scene.doubts("time_to_first_token", row=row)),
        figure_tile("Preemptions", row.preemptions, scene.doubts("preemptions", row=row)),
        figure_tile("Tokens in", row.prompt_tokens, scene.doubts("prompt_tokens", row=row)),
        Tile(
            "TTFT p99", quantile_text(p99), "", "", np.full(1, np.nan), "muted" if p99.interval is None else "", note=p99.note,
            doubt="; ".join((*p99.tainted, *scene.doubts("time_to_first_token", row=row))),
        ),
    ]  # fmt: skip


def _wait_tile(scene: Scene, row: ReplicaRow) -> Tile:
    doubts = scene.doubts("requests_waiting", "time_to_first_token", row=row)
    told = figure_tile("Wait", row.wait, doubts)
    nothing = row.waiting.value == 0 and row.wait.value is None
    return replace(told, value="0", unit="s", change="nothing waits", tone="", note="") if nothing else told


def _wrong(here: View, scene: Scene, row: ReplicaRow) -> None:
    found = scene.found
    mine = [
        v
        for v in (found.verdicts if found else ())
        if v.cause != "healthy" and any(p.instance in scene.names(row) for p in v.where.places)
    ]
    for verdict in mine:
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            st.html(
                tag(
                    "div",
                    icon("warn"),
                    tag("strong", cause_text(verdict.cause)),
                    tag("span", verdict.confidence),
                    tag("span", verdict.evidence[0] if verdict.evidence else ""),
                    class_="pw-line",
                )
            )
            st.page_link(nav.FILES["runbook"], label="Open runbook", query_params=runbook_query(here, verdict.runbook, verdict))  # fmt: skip


def _queue_words(row: ReplicaRow) -> str:
    text = row.drain.text
    return f"does not clear{text.removeprefix('never')}" if row.drain.kind == "never" else text


def _capacity_words(row: ReplicaRow) -> str:
    if not row.capacity_requests.known and not row.capacity_tokens.known:
        return "not seen: no work waited through a whole rate window in this range"
    return f"{figure_text(row.capacity_requests)}; {figure_text(row.capacity_tokens)}"


def _flow_charts(here: View, scene: Scene, row: ReplicaRow) -> list[Chart]:
    """What only a picture of this replica alone can show: its arrivals and completions, its quantiles."""
    seen = data.of_replica(here, row.labels)
    if seen.value is None:
        raise seen.error or SourceError("no answer")
    concerns = at_one_of(scene.names(row))
    found = scene.found
    if found is not None:
        found = replace(
            found, laws=tuple(law for law in found.laws if law.where.scope == "fleet" or concerns(law.where))
        )
    alone = replace(scene, picture=seen.value, found=found)
    wanted = ("Arrivals and completions", "Time to first token", "Gap between tokens")
    return [chart for chart in panels(alone, "this replica") if chart.title in wanted]


def _charts(scene: Scene, row: ReplicaRow) -> list[Chart]:
    picture = scene.picture
    slot = scene.slots.get(row.key)
    told = (
        ("Waiting", "", picture.waiting, "requests_waiting", "requests", None, ()),
        ("KV cache usage", "ratio", picture.kv_cache_usage, "kv_cache_usage", "% of blocks, the fullest rank", 1.0, ()),
        ("Running", "", picture.running, "requests_running", "requests", None, (Limit("seats", row.seats.value),) if row.seats.value is not None else ()),
    )  # fmt: skip
    found = []
    for title, unit, panel, signal, label, top, limits in told:
        shown = replace(panel, lines=tuple(line for line in panel.lines if line.key == row.key))
        lines = tuple(Line(line.key, line.values, "accent" if slot is None else slot, 1.8) for line in shown.lines)
        notice = notice_of(shown)
        window = panel.window
        found.append(
            Chart(
                title, unit, window.start_ms, window.step_ms, window.steps, () if notice else lines, axis=scene.axis, unit_label=label, marks=scene.marks,
                limits=limits, y_max=top, promql=panel.promql, notice=notice, taints=(*panel.tainted, *scene.doubts(signal, row=row)),
            )
        )  # fmt: skip
    return found


def _rank(rank: RankRow, scene: Scene, row: ReplicaRow) -> Row:
    signals = ("requests_waiting", "requests_running", "kv_cache_usage", "generation_tokens")
    figures = (rank.waiting, rank.running, rank.kv_cache_usage, rank.generation_tokens)
    tone = "" if rank.present else "muted"
    cells = []
    for signal, figure in zip(signals, figures, strict=True):
        doubts = tuple(dict.fromkeys((*figure.tainted, *scene.doubts(signal, row=row))))
        why = figure.note if figure.value is None else ""
        cells.append(Cell(figure_text(figure), tone, note="; ".join(doubts) or why, doubt=bool(doubts)))
    return Row(rank.engine or "-", (Cell(rank.model), *cells))
