"""The Compare part of the Incidents page: the shown source (A) beside another one (B), on time that counts from a common zero.

Everything chosen stands in the address: `with` (an incident file, or `live`), `align`, `zero` and `zero2` (instants), `part` (offsets shown).
"""

from __future__ import annotations

import re

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from collectors.aligned import AlignedSide
from collectors.instants import format_instant, parse_instant_ms
from collectors.source import SourceError
from pages.ui import compare, data, library, nav, states, story, view
from pages.ui.compare import HOWS, Anchor, How, Laid, Party
from pages.ui.doubts import of_timeline
from pages.ui.fleet_page import grid
from pages.ui.lanes import Lane, lane_chart
from pages.ui.markup import Markup, tag
from pages.ui.story_view import UNIT_LABEL, lanes_of
from pages.ui.view import View
from pages.ui.words import clock, day_and_clock
from runbooks.timeline import Timeline

LIVE = "live"
HOW_WORDS: dict[How, str] = {"incident": "Incident start", "start": "Start of both", "clock": "The clock"}
PARAMETERS = ("with", "align", "zero", "zero2", "part")


def draw(here: View) -> None:
    """The whole part; what stands on the page is what the address says."""
    others = _others(here)
    if not others:
        states.empty("Nothing to compare with", "There is no second incident file and no live source.", "Add a recording under Library.")  # fmt: skip
        return
    if st.session_state.pop("pw_compare_anew", False):
        st.rerun()  # all of the page: another second source may need another timer
    _settle(here, others)
    boxes = st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="compare_with")
    with boxes:
        key = st.selectbox(
            "Compare with (B)", list(others), index=None, format_func=lambda k: others.get(k, k), key="cmp_with",
            placeholder="an incident file or the live source", width=300, on_change=_say, args=("with", "cmp_with"),
        )  # fmt: skip
        if key is not None:
            st.segmented_control(
                "Laid side by side by", list(HOWS), format_func=lambda how: HOW_WORDS[how], key="cmp_align", required=True,
                on_change=_say, args=("align", "cmp_align"),
            )  # fmt: skip
    if key is None:
        states.note(
            "Choose a second source: both are drawn on one time axis, laid together where their incidents began."
        )
        return
    try:
        second_view = _other_view(here, str(key))
    except SourceError as error:
        states.trouble("The second source cannot be opened.", error.cause, error.next_step)
        return
    _beside(here, second_view, str(key), boxes)


def _others(here: View) -> dict[str, str]:
    """Sources that may stand beside the shown one -> how they are listed."""
    own = data.capsule_path(here.source_key)
    found = {}
    if here.extent is not None and data.held().extent is None:
        found[LIVE] = f"Live: {data.held().source.info().name}"
    entries = library.entries()
    names = library.names(entries)
    for entry in entries:
        if entry.manifest is not None and (own is None or entry.path.resolve() != own.resolve()):
            found[entry.key] = names[entry.key]
    return found


def _settle(here: View, others: dict[str, str]) -> None:
    """The boxes follow the address, whoever changed it."""
    said = {name: nav.given(name) for name in PARAMETERS}
    if st.session_state.get("pw_compare") == (here.source_key, said):
        return
    st.session_state["pw_compare"] = (here.source_key, said)
    st.session_state["cmp_with"] = said["with"] if said["with"] in others else None
    st.session_state["cmp_align"] = said["align"] if said["align"] in HOWS else "incident"
    for name in ("zero", "zero2"):
        st.session_state[f"cmp_{name}"] = said[name] or ""


def _say(name: str, key: str) -> None:
    """A box was changed: the address says so, and forgets what depended on it."""
    st.session_state["pw_compare_anew"] = name == "with"
    _set(name, str(st.session_state.get(key) or ""))
    for other in {"with": ("zero", "zero2", "part"), "align": ("part",), "zero": ("part",), "zero2": ("part",)}[name]:
        _set(other, "")


def _set(name: str, value: str) -> None:
    if value:
        st.query_params[name] = value
    elif name in st.query_params:
        del st.query_params[name]


def _other_view(here: View, key: str) -> View:
    if key != LIVE:
        source = data.held(key)
        assert source.extent is not None
        extent = source.extent
        return View(key, "replay", extent.end_ms, extent.end_ms - extent.start_ms, "", extent)
    return data.view_of({}, None)


def _party(name: str, seen: View) -> Party:
    if seen.extent is None:
        data.diagnosis(seen)
        told = data.lived(seen)
        incident = compare.band_start(told, seen.at_ms, newest=True)
        anchors = tuple(Anchor(band.from_ms, band.id) for band in told.bands(seen.at_ms, compare.QUIET_MS)[-8:])
        title = data.held(seen.source_key).source.info().name
        return Party(name, title, seen.window.start_ms, seen.at_ms, incident, anchors, live=True)
    capsule = data.held(seen.source_key).capsule
    assert capsule is not None
    manifest = capsule.manifest
    incident = compare.incident_of(manifest)
    told_all = story.told(seen.source_key)
    judged = incident is not None or told_all is not None
    if incident is None and isinstance(told_all, Timeline):
        incident = compare.band_start(told_all, seen.extent.end_ms, newest=False)
    title = manifest.title or (capsule.path.name if capsule.path is not None else seen.source_key)
    anchors = compare.anchors_of(manifest, incident)
    return Party(name, title, seen.extent.start_ms, seen.extent.end_ms, incident, anchors, judged=judged)


def _beside(here: View, other: View, key: str, boxes: DeltaGenerator) -> None:
    parties = (_party("A", here), _party("B", other))
    how: How = next((h for h in HOWS if h == st.session_state.get("cmp_align")), "incident")
    if how == "incident":
        with boxes:
            _choose_zeros(parties)
    chosen = (_instant("zero"), _instant("zero2")) if how == "incident" else (None, None)
    laid = compare.lay(parties[0], parties[1], how, chosen, _part())
    at_ms = here.at_ms - laid.zeros[0]
    with states.section("The two sources"):
        _legend(parties, laid, at_ms, key)
    drawn: list[object] = []
    with states.section("The charts"):
        sides = [_side(seen, party, zero, laid) for seen, party, zero in zip((here, other), parties, laid.zeros, strict=True)]  # fmt: skip
        slo = data.settings().slo
        limits = {name: getattr(slo, name).threshold_seconds for name in ("time_to_first_token", "inter_token_latency")}
        doubts = [of_timeline(told) if isinstance(told := _told(seen), Timeline) else {} for seen in (here, other)]
        shown = compare.charts(sides, laid, at_ms, limits, doubts)
        drawn = grid(shown, "compare", across=3)
    with states.section("The lanes"):
        picked = _lanes(here, other, parties, laid, at_ms)
    _gestures(here, laid, drawn, picked)


def _choose_zeros(parties: tuple[Party, Party]) -> None:
    """Another mark than the beginning of the incident, where there is one."""
    for party, name in zip(parties, ("zero", "zero2"), strict=True):
        given = str(st.session_state.get(f"cmp_{name}") or "")
        begun = party.incident.at_ms if party.incident is not None else None
        words = {"": "incident start" if party.incident is not None else "its start"}
        words |= {format_instant(a.at_ms): f"{clock(a.at_ms)} {a.label}" for a in party.anchors if a.at_ms != begun}
        if given:
            words.setdefault(given, given[:40])
        if len(words) > 1:
            st.selectbox(
                f"Zero of {party.name}", list(words), format_func=words.__getitem__, key=f"cmp_{name}", width=260,
                on_change=_say, args=(name, f"cmp_{name}"),
            )  # fmt: skip


def _instant(name: str) -> int | None:
    try:
        return parse_instant_ms(nav.given(name, 64).replace(" ", "+"))
    except ValueError:
        return None


def _part() -> tuple[int, int] | None:
    found = re.fullmatch(r"(-?\d{1,9})_(-?\d{1,9})", nav.given("part", 24))
    return (int(found[1]) * 1000, int(found[2]) * 1000) if found else None


def _side(seen: View, party: Party, zero_ms: int, laid: Laid) -> AlignedSide | None:
    told = data.beside(seen, zero_ms, laid.before_ms, laid.after_ms, laid.step_ms)
    if told.error is not None:
        states.trouble(f"{party.name} does not answer.", told.error.cause, told.error.next_step)
    return told.value


def _legend(parties: tuple[Party, Party], laid: Laid, at_ms: int, key: str) -> None:
    """Which colour is which source, where its zero and its cursor lie."""
    for number, (party, zero) in enumerate(zip(parties, laid.zeros, strict=True)):
        with st.container(horizontal=True, vertical_alignment="center", gap="small", key=f"compare_{party.name}"):
            st.html(_side_line(party, zero, at_ms, second=number == 1))
            if number == 1 and not party.live:
                there = format_instant(min(max(zero + at_ms, party.start_ms), party.end_ms))
                st.page_link(
                    nav.FILES["fleet"], label="Open B here", icon=":material/arrow_forward:", icon_position="right",
                    query_params={"source": key, "at": there},
                )  # fmt: skip
    if laid.remark:
        states.line("unknown", laid.remark)
    if _part() is not None and st.button("Show all of both", key="compare_whole"):
        _set("part", "")
        st.rerun()


def _side_line(party: Party, zero_ms: int, at_ms: int, *, second: bool) -> Markup:
    cursor = zero_ms + at_ms
    inside = (party.live or party.start_ms <= cursor) and cursor <= party.end_ms
    return tag(
        "div",
        tag("i", class_="pw-swatch pw-side" + (" pw-second" if second else "")),
        tag("strong", f"{party.name} · {party.title}" + (" (live)" if party.live else "")),
        tag("span", f"zero at {day_and_clock(zero_ms)} UTC"),
        tag("span", f"cursor at {clock(cursor)} UTC" if inside else "the cursor is outside of it"),
        class_="pw-anomaly",
    )


def _told(seen: View) -> Timeline | str | None:
    return data.lived(seen) if seen.extent is None else story.told(seen.source_key)


def _lanes(here: View, other: View, parties: tuple[Party, Party], laid: Laid, at_ms: int) -> int | None:
    found: list[Lane] = []
    for seen, party, zero in zip((here, other), parties, laid.zeros, strict=True):
        told = _told(seen)
        group = f"{party.name} · {party.title}"
        if isinstance(told, Timeline):
            found += [lane.moved(-zero, group) for lane in lanes_of(told)]
        else:
            found.append(Lane(told if isinstance(told, str) else "being judged", (), group))
    return lane_chart(
        "What held, and when", found, -laid.before_ms, laid.after_ms, at_ms, key="compare_lanes", unit_label=UNIT_LABEL, relative=True, least=24
    )  # fmt: skip


def _gestures(here: View, laid: Laid, drawn: list[object], picked: int | None) -> None:
    """A click moves the common cursor, which is the first source's own; a drag shows a part."""
    for chart in drawn:
        told = getattr(chart, "picked", None)
        zoomed = getattr(chart, "zoomed", None)
        if told:
            picked = int(told["at_ms"])
        if zoomed:
            _set("part", f"{int(zoomed['from_ms']) // 1000}_{-(-int(zoomed['to_ms']) // 1000)}")
            st.rerun()
    if picked is None:
        return
    at_ms = laid.zeros[0] + picked
    if here.extent is not None:
        view.pin(view.within(here.extent, at_ms))
    else:
        view.pin(min(at_ms, data.settings_clock_ms()))
    st.rerun()
