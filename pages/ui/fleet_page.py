"""The Fleet page on its view: status strip, tiles, charts, replica table."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from pages.ui import charts, data, nav, states, story, view
from pages.ui.fleet_answers import answers, tiles
from pages.ui.fleet_charts import panels
from pages.ui.fleet_scene import Scene
from pages.ui.fleet_table import MOST_ROWS, averaging_text, columns, fleet_line, rows
from pages.ui.frame import gestures
from pages.ui.marks import marks_of, past_of
from pages.ui.table import Row, table
from pages.ui.tiles import status_strip, tile_row
from pages.ui.view import View
from runbooks.timeline import Timeline
from runbooks.verdicts import Diagnosis


def scene_of(here: View) -> Scene | None:
    """The scene of this view, None when there is no picture at all."""
    seen = data.fleet(here)
    if seen.value is None:
        return None
    found: Diagnosis | None = None
    with states.section("The diagnosis"):
        found = data.diagnosis(here).value
    kept = view.kept()
    slots = data.slots_of(here, [row.key for row in seen.value.replicas])
    told = story.told(here.source_key) if here.mode == "replay" else data.lived(here)
    marks = marks_of(seen.value, found, kept, here.at_ms, told if isinstance(told, Timeline) else None)
    if isinstance(told, Timeline):
        marks = (*past_of(told, found, seen.value.window, kept), *marks)
    return Scene(seen.value, found, data.settings(), slots, here.axis, kept, marks)


def draw(here: View) -> None:
    """The whole page; each part fails alone."""
    scene = scene_of(here)
    if scene is None:
        return
    dim = data.fleet(here).error is not None
    if not scene.picture.replicas:
        states.empty(
            "No replica seen",
            "The source answers, but has no vLLM metrics in this range.",
            "Check what it scrapes with: pagewatch doctor",
        )
        return
    with states.section("The scope"):
        _scope(here)
    with states.section("The status strip"):
        status_strip(answers(scene), dim=dim)
    with states.section("The tiles"):
        tile_row(tiles(scene), dim=dim)
    for finding in scene.picture.findings:
        states.line("warn", finding.text, ", ".join(finding.where))
    drawn = []
    with states.section("The charts"):
        drawn = grid(panels(scene), "fleet", dim=dim)
    opened = None
    with states.section("The fleet beside its replicas"):
        if said := averaging_text(scene):
            states.note(said)
    with states.section("The replica table"):
        older = max(0, data.settings_clock_ms() - scene.picture.at_ms) / 1000 if dim else 0.0
        shown = rows(scene, older)
        if len(shown) > MOST_ROWS and not st.toggle(
            f"Show all {len(shown)} replicas, not only the worst {MOST_ROWS}", key="all_replicas"
        ):
            shown = shown[:MOST_ROWS]
        whole: Row | None = None
        with states.section("The line of the fleet"):
            whole = fleet_line(scene, older)
        opened = table(columns(scene), [*([whole] if whole else []), *shown], key="replicas", dim=dim)
    gestures(here, drawn)
    if opened:
        nav.follow(opened)


def _scope(here: View) -> None:
    """Namespace, cluster, job: one choice each, where there is something to choose."""
    choices = data.scope_choices(here)
    if not choices:
        return
    chosen = dict(here.scope)
    wanted: dict[str, str] = {}
    if st.session_state.get("pw_scope") != here.scope:  # the address changed, not the boxes: it wins
        st.session_state["pw_scope"] = here.scope
        for label in choices:
            st.session_state[f"scope_{label}"] = chosen.get(label)
    with st.container(horizontal=True, gap="small", key="scope"):
        for label, values in choices.items():
            picked = st.selectbox(
                label,
                values,
                index=None,
                placeholder=f"every {label}",
                key=f"scope_{label}",
                width=260,
                label_visibility="collapsed",
            )
            if picked:
                wanted[label] = picked
    if wanted != {label: value for label, value in chosen.items() if label in choices}:
        rest = {label: value for label, value in chosen.items() if label not in choices}
        view.change(scope=view.scope_text({**rest, **wanted}))
        st.rerun()


def grid(panels_: Sequence[charts.Panel], name: str, *, dim: bool = False, across: int = 2) -> list[object]:
    """Charts two (or three) in a row, row by row, so that a phone stacks them in reading order."""
    drawn: list[object] = []
    for first in range(0, len(panels_), across):
        for column, number in zip(
            st.columns(across, gap="small"), range(first, min(first + across, len(panels_))), strict=False
        ):
            with column, states.section(panels_[number].title):
                payload = charts.pack(panels_[number], group=name, dim=dim)
                drawn.append(charts.live_chart(payload, key=f"{name}_{number}"))
    return drawn
