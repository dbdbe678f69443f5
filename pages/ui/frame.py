"""What every page has in common: one timed fragment, the source bar, the anomaly strip, and then the page's own part."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import streamlit as st

from collectors.counting import counted
from collectors.fleet_picture import FleetPicture
from collectors.instants import format_instant
from collectors.source import SourceError
from pages.ui import data, nav, states, story, view
from pages.ui.console import console
from pages.ui.data import Seen
from pages.ui.markup import Markup, icon, tag
from pages.ui.source_bar import Player, Standing, TrackMark, source_bar
from pages.ui.view import SPANS_MS, View
from pages.ui.words import cause_text, clock, duration
from runbooks.verdicts import Diagnosis, Verdict

PLAY_SECONDS = 1.0
STORY_SECONDS = 2.0


def live_page(
    draw: Callable[[View], None], *, strip: bool = True, unfinished: Callable[[], bool] = lambda: False
) -> None:
    """Runs a page: `draw` gets the view of each refresh. Only this one fragment is timed, and nothing nests in it.

    While `unfinished()` something is being made in the background, and even a page that stands still looks again.
    """
    every: float | None = None
    waiting = False
    try:
        here = data.view_of(st.query_params, view.playing(), st.session_state.get("pw_speed", 10))
    except SourceError:
        every = 5.0  # try again
    else:
        if here.mode == "live":
            every = data.held(here.source_key).refresh_ms / 1000
        elif here.playing:
            every = PLAY_SECONDS
        elif _unfinished(here, unfinished):
            every, waiting = STORY_SECONDS, True
    st.fragment(_body, run_every=every)(draw, strip, unfinished if waiting else None)


def _unfinished(here: View, more: Callable[[], bool]) -> bool:
    return (here.mode == "replay" and story.told(here.source_key) is None) or more()


def _body(draw: Callable[[View], None], strip: bool, awaited: Callable[[], bool] | None) -> None:
    try:
        here = data.view_of(st.query_params, view.playing(), st.session_state.get("pw_speed", 10))
    except SourceError as error:
        _no_source(error)
        return
    awaited_is_there = awaited is not None and not _unfinished(here, awaited)
    at_the_end = view.playing() and not here.playing
    if at_the_end:
        view.stop(here)
    _drawn(here, draw, strip)
    if awaited_is_there or at_the_end:  # begun anew only now, or a click that came with this run would not be heard
        st.rerun()


def _drawn(here: View, draw: Callable[[View], None], strip: bool) -> None:
    seen: Seen[FleetPicture] | None = None
    with states.section("The picture of the fleet"):
        seen = data.fleet(here)
    if seen is None:  # a mistake of ours, not the source's: the page says so and the way to other pages stays open
        _act(source_bar(Standing("broken", cause="the picture could not be made"), list(SPANS_MS)), here)
        return
    _act(source_bar(standing(here, seen), list(SPANS_MS)), here)
    if here.mistake:
        states.line("warn", "The address could not be read in full.", here.mistake)
    if seen.value is None:
        failure = seen.error
        states.empty(
            "No picture yet",
            failure.cause if failure else "",
            (failure.next_step if failure else "") or "Check with: pagewatch doctor",
        )
        return
    if strip:
        with states.section("The anomaly strip"):
            anomaly_strip(here, data.diagnosis(here))
    with states.section("This page"):
        draw(here)


def _no_source(error: SourceError) -> None:
    _act(source_bar(Standing("never", cause=error.cause, retry_s=5), list(SPANS_MS)), None)
    states.empty("No source", error.cause, error.next_step)
    if view.kept().get("source") and st.button("Back to the console's own source"):
        view.change(source=None, at=None, **{"from": None, "to": None})
        st.rerun()


def standing(here: View, seen: Seen[FleetPicture]) -> Standing:
    """What the source bar says of this view and its picture."""
    window = here.window
    quiet = max(30.0, 2.5 * data.held(here.source_key).refresh_ms / 1000)
    common: dict[str, Any] = {
        "range": here.range_name, "from_ms": window.start_ms, "to_ms": window.end_ms, "silent_after_s": quiet,
    }  # fmt: skip
    now_ms = data.settings_clock_ms()
    picture = seen.value
    if picture is None:
        error = seen.error
        cause = error.cause if error is not None else "no answer"
        retry = max(0, (seen.retry_ms or now_ms + 5000) - now_ms) / 1000
        return Standing("never", cause=cause, retry_s=retry, **common)
    scope = ", ".join(f"{label}={value}" for label, value in here.scope)
    facts = tuple(
        fact
        for fact in (scope and f"only {scope}", _backend(picture), picture.engine_text, _count(picture), "UTC")
        if fact
    )
    common |= {"facts": facts, "clock": clock(picture.at_ms)}
    if seen.error is not None:
        return Standing(
            "down", cause=seen.error.cause, down_s=max(0, now_ms - (seen.failing_since_ms or now_ms)) / 1000,
            retry_s=max(0, (seen.retry_ms or now_ms) - now_ms) / 1000, age_s=max(0, now_ms - picture.at_ms) / 1000, **common,
        )  # fmt: skip
    if here.mode == "replay":
        assert here.extent is not None
        player = Player(
            here.extent.start_ms, here.extent.end_ms, here.at_ms, here.extent.scrape_ms, here.playing, here.speed, track(here)
        )  # fmt: skip
        return Standing("replay", title=picture.source.name, player=player, close=_way_back(here), **common)
    if here.mode == "paused":
        return Standing("paused", age_s=max(0, now_ms - here.at_ms) / 1000, **common)
    newest = data.newest_age_seconds(picture)
    if newest is None:
        return Standing("starting", **common)
    return Standing("live", age_s=newest + max(0, now_ms - picture.at_ms) / 1000, **common)


def _way_back(here: View) -> str:
    """How the button is called that leads from a recording of the library to the console's own source; '' when this is it."""
    if not here.source_key or not console().source_spec:
        return ""
    try:
        return "Back to live" if data.held().extent is None else "Close"
    except SourceError:
        return "Close"


def track(here: View) -> tuple[TrackMark, ...]:
    """Marks of the player: what the recording carries and what the diagnosis over time found."""
    return tuple(TrackMark(mark.label, mark.from_ms, mark.to_ms, mark.tone) for mark in story.marks(here.source_key))


def _backend(picture: FleetPicture) -> str:
    told = picture.source
    name = " ".join(part for part in (told.backend.replace("-", " ").title().replace("Victoria Metrics", "VictoriaMetrics"), told.version) if part)  # fmt: skip
    if told.kind == "capsule":
        return f"recorded from {name}" if name else ""
    place = told.url.split("://")[-1].rstrip("/") or told.name
    return f"{name} at {place}" if name else place


def _count(picture: FleetPicture) -> str:
    wanted = picture.replicas_desired.value
    of = f"{wanted:g}" if wanted is not None else str(picture.replicas_seen)
    return f"{picture.replicas_up} of {of} {'replica' if of == '1' else 'replicas'}"


def _act(act: dict[str, Any] | None, here: View | None) -> None:
    """What the operator did on the source bar; the whole page runs again, because its timer may change."""
    if act is None:
        return
    kind = act.get("kind")
    if kind == "range" and act.get("range") in SPANS_MS:
        view.change(range=act["range"], **{"from": None, "to": None})
    elif kind == "between" and isinstance(act.get("to_ms"), int) and isinstance(act.get("from_ms"), int):
        between(act["from_ms"], act["to_ms"])
    elif kind == "close":
        view.stop()
        view.change(source=None, scope=None, range=None, at=None, **{"from": None, "to": None})
    elif kind == "live":
        view.change(at=None, **{"from": None, "to": None})
    elif here is not None and kind == "pause":
        view.pin(here.at_ms)
    elif here is not None and here.extent is not None:
        _steer(kind, act, here)
    st.rerun()


def _steer(kind: Any, act: dict[str, Any], here: View) -> None:
    assert here.extent is not None
    now_ms = data.settings_clock_ms()
    if kind == "play":
        view.play(here, now_ms, here.speed)
    elif kind == "stop":
        view.stop(here)
    elif kind == "speed" and act.get("speed") in view.SPEEDS:
        st.session_state["pw_speed"] = act["speed"]
        if here.playing:
            view.play(here, now_ms, act["speed"])
    elif kind == "step":
        view.pin(view.within(here.extent, here.at_ms + (1 if act.get("by", 1) > 0 else -1) * here.extent.scrape_ms))
    elif kind == "seek" and isinstance(act.get("at_ms"), int | float):
        view.pin(view.within(here.extent, int(act["at_ms"])))


def between(from_ms: int, to_ms: int) -> None:
    """Hold an absolute range."""
    view.stop()
    view.change(at=None, range=None, **{"from": format_instant(from_ms), "to": format_instant(to_ms)})


def gestures(here: View, drawn: Iterable[Any]) -> None:
    """A click on a chart pins its instant, a drag holds its range, a mark or the word Runbook opens an address."""
    for chart in drawn:
        if chart.opened:
            nav.follow(chart.opened)
        if chart.picked:
            view.pin(int(chart.picked["at_ms"]))
            st.rerun()
        if chart.zoomed:
            between(int(chart.zoomed["from_ms"]), int(chart.zoomed["to_ms"]))
            st.rerun()


def anomaly_strip(here: View, seen: Seen[Diagnosis]) -> None:
    """The headline: what, where, since when, the likely cause and the runner-up, and the runbook at this instant."""
    found = seen.value
    if found is None:
        states.line("unknown", "Not diagnosed.", seen.error.cause if seen.error else "")
        return
    wrong = [verdict for verdict in found.verdicts if verdict.cause != "healthy"]
    old = f"As last seen at {clock(found.at_ms)} UTC:" if seen.error is not None else ""
    if not wrong:
        calm(found, old)
        return
    for verdict in wrong[:1]:
        with st.container(key="anomaly", horizontal=True, vertical_alignment="center", gap="small"):
            st.html(_headline(found, verdict, len(wrong), old))
            if verdict.runbook:
                st.page_link(
                    nav.FILES["runbook"], label="Open runbook", icon=":material/arrow_forward:", icon_position="right",
                    query_params=runbook_query(here, verdict.runbook, verdict),
                )  # fmt: skip


def runbook_query(
    here: View, runbook: str, verdict: Verdict | None = None, instance: str = "", engine: str = ""
) -> dict[str, str]:
    """Parameters of a runbook's address at this instant: source, place and instant included."""
    place = (
        verdict.where.places[0]
        if verdict is not None and verdict.where.scope != "fleet" and verdict.where.places
        else None
    )
    return nav.merged(
        {key: value for key, value in view.kept().items() if key in ("source", "scope", "range")},
        id=runbook,
        instance=instance or (place.instance if place else ""),
        engine=engine or (place.engine if place and verdict is not None and verdict.where.scope == "rank" else ""),
        at=format_instant(here.at_ms),
    )


def _headline(found: Diagnosis, verdict: Verdict, count: int, old: str) -> Markup:
    level = "bad" if any(a.severity == "page" and a.cause in ("", verdict.cause) for a in found.anomalies) else "warn"
    since = f"since {clock(verdict.since_ms)} ({duration((found.at_ms - verdict.since_ms) / 1000)})" if verdict.since_ms is not None else None  # fmt: skip
    runner = f"runner-up: {cause_text(verdict.runner_up)}" if verdict.runner_up else None
    others = f"and {count - 1} more under Diagnose" if count > 1 else None
    return tag(
        "div",
        icon(level),
        tag("span", old) if old else None,
        tag("strong", f"{cause_text(verdict.cause)} on {verdict.where}"),
        tag("span", f"{verdict.confidence}", class_="pw-confidence"),
        tag("span", since) if since else None,
        tag("span", runner) if runner else None,
        tag("span", others) if others else None,
        class_="pw-anomaly",
        role="alert",
        data_tone=level,
    )


def calm(found: Diagnosis, old: str = "") -> None:
    """One quiet line when all is well, with what was checked; `old` says that it is not of now."""
    broken = sum(law.status == "broken" for law in found.laws)
    kept = sum(law.status == "kept" for law in found.laws)
    unknown = sum(law.status == "unknown" for law in found.laws)
    blind = unknown > kept  # hardly anything could be looked at: that nothing was found says little
    level = "unknown" if old or blind else "warn" if broken else "ok"
    more = f", {unknown} cannot be told" if blind else ""
    looked = tag(
        "span",
        f"{counted(kept, 'check')} kept, {broken} broken{more}, {counted(len(found.replicas), 'rank')} looked at.",
        class_="pw-muted",
    )
    now = "No incident seen, but most checks cannot be told." if blind else "No incident now."
    states.line(level, f"{old} no incident." if old else now, looked)
