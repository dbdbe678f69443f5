"""Two sources side by side: where zero lies, what is shown around it, and the page that the address asks for."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.aligned import Side, aligned
from collectors.capsule import CapsuleSource
from collectors.capsule.manifest import Manifest
from collectors.settings import Settings
from pages.ui import story
from pages.ui.charts import pack, unpack
from pages.ui.compare import DAY_MS, HOWS, Anchor, How, Party, anchors_of, band_start, charts, incident_of, lay
from pages.ui.view import POINTS
from runbooks.timeline import Episode, Timeline
from tests.pages.conftest import INSIDE, Bench, components, html
from tests.pages.test_pages import opened, panels
from tests.runbooks.shipped import NAMES, path_of, shipped

MINUTE = 60_000


def party(name: str, start: float, end: float, incident: float | None = None, *, live: bool = False) -> Party:
    at_ms = None if incident is None else round(incident * MINUTE)
    return Party(name, name, round(start * MINUTE), round(end * MINUTE), None if at_ms is None else Anchor(at_ms, "x"), live=live)  # fmt: skip


def test_both_incidents_begin_at_zero_and_all_of_both_is_shown() -> None:
    laid = lay(party("A", 100, 110, 104), party("B", 500, 503, 502), "incident")
    assert laid.zeros == (104 * MINUTE, 502 * MINUTE)
    assert (laid.before_ms, laid.after_ms) == (4 * MINUTE, 6 * MINUTE)
    assert laid.remark == ""


def test_a_chosen_mark_wins_where_it_lies_inside() -> None:
    a, b = party("A", 100, 110, 104), party("B", 500, 503, 502)
    assert lay(a, b, "incident", (107 * MINUTE, None)).zeros == (107 * MINUTE, 502 * MINUTE)
    assert lay(a, b, "incident", (99 * MINUTE, 504 * MINUTE)).zeros == (104 * MINUTE, 502 * MINUTE)
    assert lay(a, b, "start", (107 * MINUTE, None)).zeros == (100 * MINUTE, 500 * MINUTE)


def test_a_recording_without_an_incident_is_laid_by_its_start_and_that_is_said() -> None:
    laid = lay(party("A", 100, 110), party("B", 500, 503, 502), "incident")
    assert laid.zeros == (100 * MINUTE, 502 * MINUTE)
    assert "Nothing was found wrong in A" in laid.remark
    unknown = replace(party("A", 100, 110), judged=False)
    assert "A is being judged" in lay(unknown, party("B", 500, 503, 502), "incident").remark


def test_a_live_side_where_nothing_is_wrong_ends_with_the_recording() -> None:
    laid = lay(party("A", 900, 1000, live=True), party("B", 500, 510, 502), "incident")
    assert laid.zeros == (992 * MINUTE, 502 * MINUTE)
    assert (laid.before_ms, laid.after_ms) == (2 * MINUTE, 8 * MINUTE)
    assert "Nothing is wrong in A now" in laid.remark
    wrong = lay(party("A", 900, 1000, 985, live=True), party("B", 500, 510, 502), "incident")
    assert wrong.zeros == (985 * MINUTE, 502 * MINUTE)
    assert (wrong.before_ms, wrong.after_ms) == (2 * MINUTE, 15 * MINUTE)
    assert lay(party("A", 500, 510, 502), party("B", 900, 1000, live=True), "start").zeros == (
        500 * MINUTE,
        990 * MINUTE,
    )


@pytest.mark.parametrize(("later_days", "words"), [(0, "UTC on both"), (1, "1 day apart"), (-3, "3 days apart")])
def test_the_clock_lays_the_same_time_of_the_day_together(later_days: int, words: str) -> None:
    a = party("A", 10_000, 10_010)
    b = party("B", 10_004 + later_days * 1440, 10_012 + later_days * 1440)
    laid = lay(a, b, "clock")
    assert laid.zeros[1] - laid.zeros[0] == later_days * DAY_MS
    assert words in laid.zero_words
    assert (laid.before_ms, laid.after_ms, laid.remark) == (20_000, 12 * MINUTE, "")


def test_the_clock_never_lays_a_live_source_in_the_future_and_says_when_nothing_meets() -> None:
    recording = party("A", 10_000, 10_010)
    assert lay(recording, party("B", 0, 10_000 + 1439, live=True), "clock").zeros == (
        recording.start_ms,
        recording.start_ms,
    )
    assert lay(party("A", 0, 10_000 + 1441, live=True), recording, "clock").zeros == (recording.start_ms + DAY_MS, recording.start_ms)  # fmt: skip
    assert "different hours" in lay(recording, party("B", 10_300, 10_310), "clock").remark


instants = st.integers(0, 40 * 1440).map(float)
lengths = st.floats(0.0, 2000.0)


@st.composite
def parties(draw: st.DrawFn, name: str) -> Party:
    start = draw(instants)
    end = start + draw(lengths)
    share = draw(st.one_of(st.none(), st.floats(0.0, 1.0)))
    return party(name, start, end, None if share is None else start + share * (end - start), live=draw(st.booleans()) and name == "B")  # fmt: skip


@settings(deadline=None, max_examples=200)
@given(
    parties("A"),
    parties("B"),
    st.sampled_from(HOWS),
    st.one_of(st.none(), st.tuples(st.integers(-(10**8), 10**8), st.integers(-(10**8), 10**8))),
)
def test_whatever_is_laid_has_zero_on_a_bounded_grid(
    a: Party, b: Party, how: How, shown: tuple[int, int] | None
) -> None:
    laid = lay(a, b, how, shown=shown)
    assert laid.before_ms >= 0
    assert laid.after_ms >= 0
    assert laid.before_ms % laid.step_ms == laid.after_ms % laid.step_ms == 0
    assert 1 <= (laid.before_ms + laid.after_ms) // laid.step_ms <= POINTS + 2
    assert not b.live or laid.zeros[1] <= b.end_ms


@pytest.mark.parametrize("name", NAMES)
def test_a_judged_recording_tells_since_when_its_incident_held(name: str) -> None:
    manifest = shipped(name).manifest
    found = incident_of(manifest)
    assert found is not None
    first = min(mark.at_ms for mark in manifest.marks if mark.kind in ("verdict", "anomaly"))
    assert manifest.window.start_ms <= found.at_ms <= first
    places = [anchor.at_ms for anchor in anchors_of(manifest, found)]
    assert places == sorted(set(places))
    assert found.at_ms in places


@pytest.mark.parametrize(
    "diagnosis",
    [{}, {"moments": "x"}, {"moments": [1, {"verdicts": 3}, {"verdicts": [{"cause": "overload", "since": {}}]}]}, {"moments": [{"at": "soon", "verdicts": [{}]}]}],
    ids=["nothing", "text", "wrong kinds", "no instant"],
)  # fmt: skip
def test_a_hostile_manifest_tells_nothing_or_its_marks(diagnosis: dict[str, object]) -> None:
    bare = Manifest.model_validate({"window": {"start_ms": 0, "end_ms": 100}, "diagnosis": diagnosis})
    assert incident_of(bare) is None
    marked = Manifest.model_validate({**bare.model_dump(), "marks": [{"at_ms": 40, "kind": "verdict", "text": "y"}, {"at_ms": 20, "kind": "restart"}]})  # fmt: skip
    assert incident_of(marked) == Anchor(40, "y")
    assert [a.label for a in anchors_of(marked, Anchor(40, "y"))] == ["restart", "incident start"]


def test_a_live_source_is_laid_by_what_runs_or_ran_last() -> None:
    told = Timeline((0, 2000), (Episode("verdict", "overload", "a", 1000, 2000, "likely", since_ms=500), Episode("verdict", "kv_limited", "a", 90_000, 95_000, "likely")))  # fmt: skip
    assert band_start(told, 100_000, newest=True) == Anchor(90_000, "kv_limited")
    assert band_start(told, 50_000, newest=True) == Anchor(500, "overload")
    assert band_start(told, 100_000, newest=False) == Anchor(500, "overload")
    assert band_start(Timeline((), ()), 100_000, newest=True) is None


def test_charts_hold_both_sides_on_one_grid_and_name_what_is_missing() -> None:
    a, b = shipped("seats_full"), shipped("preemption_thrash")
    laid = lay(
        Party("A", "a", a.manifest.window.start_ms, a.manifest.window.end_ms, incident_of(a.manifest)),
        Party("B", "b", b.manifest.window.start_ms, b.manifest.window.end_ms, incident_of(b.manifest)),
        "incident",
    )
    around = {"before_ms": laid.before_ms, "after_ms": laid.after_ms, "step_ms": laid.step_ms}
    sides = [
        aligned([Side(CapsuleSource(capsule), zero)], Settings(), **around).sides[0]
        for capsule, zero in zip((a, b), laid.zeros, strict=True)
    ]
    drawn = {chart.title: chart for chart in charts(sides, laid, 30_000, {"time_to_first_token": 2.5})}
    assert set(drawn) == {"Waiting", "Running", "KV cache usage", "TTFT p99", "Preemptions", "Gap between tokens p99"}
    for chart in drawn.values():
        header, _ = unpack(pack(chart))
        assert [each["name"] for each in header["series"]] == ["A", "B"]
        assert header["zeros"] == [["A", laid.zeros[0]], ["B", laid.zeros[1]]]
        assert header["cursor_ms"] == 30_000
        assert header["start_ms"] + (header["points"] - 1) * header["step_ms"] == laid.after_ms
    waiting = drawn["Waiting"].series[0].rows()[0]
    before = np.arange(drawn["Waiting"].points) * laid.step_ms - laid.before_ms < -5000
    assert np.nanmax(waiting[before]) < 5 < 100 < np.nanmax(waiting), "the queue of A begins at zero"
    alone = {chart.title: chart for chart in charts([sides[0], None], laid, None, {})}
    assert alone["Waiting"].aside == "B: no data"
    nobody = charts([None, None], laid, None, {})
    assert nobody[0].notice == "A: no data; B: no data"


def test_the_page_shows_what_its_address_says(bench: Bench) -> None:
    bench.console.incidents_folder.mkdir()
    shutil.copy(path_of("preemption_thrash"), bench.console.incidents_folder / "thrash.capsule")
    address = {"tab": "compare", "at": INSIDE, "with": "thrash.capsule"}
    deadline = time.monotonic() + 60
    while True:
        at = opened("incidents.py", **address)
        if all(story.known(key) is not None for key in ("", "thrash.capsule")):
            break
        assert time.monotonic() < deadline
        time.sleep(0.2)
    at = opened("incidents.py", **address)
    assert "could not be drawn" not in html(at)
    assert set(panels(at)) == {"Waiting", "Running", "KV cache usage", "TTFT p99", "Preemptions", "Gap between tokens p99"}  # fmt: skip
    [(_, lanes)] = components(at, "lanes")
    assert lanes["relative"]
    groups = list(dict.fromkeys(lane["group"] for lane in lanes["lanes"]))
    assert [group[:1] for group in groups] == ["A", "B"]
    assert any("KV cache full" in lane["name"] for lane in lanes["lanes"] if lane["group"].startswith("B"))
    by_clock = opened("incidents.py", **address, align="clock")
    assert panels(by_clock)["Waiting"]["zeros"][0][1] == panels(by_clock)["Waiting"]["zeros"][1][1]
    part = opened("incidents.py", **address, part="-30_60")
    assert panels(part)["Waiting"]["axis"] == [-30_000, 60_000]
    for hostile in ({"with": "../x"}, {"align": "<b>"}, {"zero": "soon"}, {"part": "9_-9"}, {"part": "x" * 900}):
        at = opened("incidents.py", **{**address, **hostile})
        assert "could not be drawn" not in html(at)


def test_a_live_source_stands_beside_a_recording_and_the_other_way_round(bench: Bench) -> None:
    bench.console.incidents_folder.mkdir()
    shutil.copy(path_of("preemption_thrash"), bench.console.incidents_folder / "thrash.capsule")
    live = bench.live()
    at = opened("incidents.py", tab="compare", **{"with": "thrash.capsule"})
    assert [series["name"] for series in panels(at)["Waiting"]["series"]] == ["A", "B"]
    assert "(live)" in html(at)
    at = opened("incidents.py", source="thrash.capsule", tab="compare", **{"with": "live"})
    assert [series["name"] for series in panels(at)["Waiting"]["series"]] == ["A", "B"]
    live.down = True
    bench.clock.now_ms += 60_000
    at = opened("incidents.py", source="thrash.capsule", tab="compare", **{"with": "live"})
    assert "could not be drawn" not in html(at)
    assert "connection refused" in html(at)
