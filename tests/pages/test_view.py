"""Time and source out of an address that anybody may have written."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.instants import format_instant
from pages.ui.view import POINTS, SPANS_MS, Extent, _cursor, read

NOW = 1_796_006_300_000
RECORDING = Extent(NOW - 180_000, NOW, 2000)


def test_an_empty_address_is_live_with_the_default_range() -> None:
    view = read({}, NOW, None)
    assert (view.mode, view.at_ms, view.range_name, view.mistake) == ("live", NOW, "15m", "")


def test_an_instant_pauses_a_live_source() -> None:
    view = read({"at": "2026-11-30T02:38:20Z", "range": "5m"}, NOW + 99_000, None)
    assert (view.mode, view.at_ms) == ("paused", NOW)
    assert view.window.end_ms == NOW
    assert view.window.start_ms == NOW - SPANS_MS["5m"]


def test_from_and_to_are_the_axis() -> None:
    view = read({"from": format_instant(NOW - 60_000), "to": format_instant(NOW)}, NOW + 5, None)
    assert view.axis == (NOW - 60_000, NOW)
    assert view.range_name == ""


def test_a_recording_opens_at_its_end_and_shows_all_of_it() -> None:
    view = read({}, NOW + 10**9, RECORDING)
    assert (view.mode, view.at_ms, view.range_name) == ("replay", RECORDING.end_ms, "5m")
    assert view.axis == (RECORDING.start_ms, RECORDING.end_ms)
    assert view.window.start_ms >= RECORDING.start_ms


def test_the_axis_of_a_recording_stays_while_the_cursor_moves() -> None:
    early, late = (read({"at": format_instant(NOW - back)}, NOW, RECORDING) for back in (150_000, 20_000))
    assert early.axis == late.axis
    assert early.window.end_ms == NOW - 150_000


def test_playback_runs_on_scrapes_and_ends_at_the_end() -> None:
    play = {"from_ms": RECORDING.start_ms, "since_ms": NOW, "speed": 10}
    running = read({}, NOW + 3_050, RECORDING, play)
    assert running.playing
    assert running.at_ms == RECORDING.start_ms + 30_000
    assert (running.at_ms - RECORDING.start_ms) % RECORDING.scrape_ms == 0
    over = read({}, NOW + 60_000, RECORDING, play)
    assert (over.playing, over.at_ms) == (False, RECORDING.end_ms)


@settings(deadline=None, max_examples=300)
@given(st.dictionaries(st.sampled_from(["at", "from", "to", "range", "source"]), st.one_of(st.text(max_size=40), st.sampled_from(["15m", "24h", "1796006300", "0", "-5", "1e18", "nan", "2026-11-30T02:38:20Z"]))), st.booleans())  # fmt: skip
def test_no_address_breaks_the_window(params: dict[str, str], recorded: bool) -> None:
    view = read(params, NOW, RECORDING if recorded else None)
    window = view.window
    assert window.start_ms <= window.end_ms
    assert window.steps <= POINTS + 2
    if recorded:
        assert RECORDING.start_ms <= view.at_ms <= RECORDING.end_ms
        assert view.window.end_ms <= max(view.at_ms, RECORDING.start_ms + window.step_ms)


def test_what_cannot_be_read_is_named() -> None:
    assert "at:" in read({"at": "soon"}, NOW, None).mistake
    assert "range:" in read({"range": "soon"}, NOW, None).mistake
    assert "31 days" in read({"from": "0", "to": "1796006300"}, NOW, None).mistake


def test_a_judged_recording_opens_inside_its_incident_until_somebody_moves_the_cursor() -> None:
    judged = Extent(NOW - 180_000, NOW, 2000, opens_ms=NOW - 60_000)
    assert _cursor(None, NOW, judged, None) == NOW - 60_000
    assert _cursor(NOW - 90_000, NOW, judged, None) == NOW - 90_000
    assert _cursor(None, NOW, RECORDING, None) == NOW
    assert _cursor(None, NOW, Extent(NOW - 180_000, NOW, 2000, opens_ms=NOW + 10**9), None) == NOW


def test_a_live_source_that_has_only_begun_is_shown_in_five_minutes() -> None:
    assert read({}, 10**12, None).range_name == "15m"
    assert read({}, 10**12, None, young=True).range_name == "5m"
    assert read({"range": "15m"}, 10**12, None, young=True).range_name == "15m", "what somebody chose stays"
    assert read({"range": "9m"}, 10**12, None, young=True).range_name == "5m"
