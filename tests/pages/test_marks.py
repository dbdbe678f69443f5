"""Bands on time axes: where the strip says since when, there the band begins, while it runs and when it is over."""

from __future__ import annotations

import time
from typing import Any

import pytest

from collectors.instants import parse_instant_ms
from pages.ui import data, story
from runbooks.timeline import Episode, Timeline
from tests.pages.conftest import BEFORE, INSIDE, INSIDE_MS, Bench
from tests.pages.test_pages import opened, panels


def bands(at: Any) -> list[dict[str, Any]]:
    return [
        mark for mark in panels(at)["Waiting"]["marks"] if "seats full" in mark["label"] or "overload" in mark["label"]
    ]


def judged() -> None:
    deadline = time.monotonic() + 60
    while story.told("") is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_band_of_a_replay_begins_at_the_same_instant_during_and_after(bench: Bench) -> None:
    judged()
    [during] = bands(opened("fleet.py", at=INSIDE))
    [later] = bands(opened("fleet.py", at="2026-11-30T02:38:50Z"))
    [after] = bands(opened("fleet.py", at="2026-11-30T02:39:53Z"))
    assert during["to_ms"] is None
    assert after["to_ms"] is not None
    assert during["from_ms"] == later["from_ms"] == after["from_ms"]
    assert parse_instant_ms(BEFORE) <= during["from_ms"] < INSIDE_MS - 30_000
    assert bands(opened("fleet.py", at=BEFORE)) == [], "nothing that the instant could not know"


def test_the_band_of_a_live_incident_stays_where_the_strip_put_it(bench: Bench) -> None:
    bench.live()
    begun = []
    for later_s in (0, 10, 20, 30):
        bench.clock.now_ms = INSIDE_MS + 1000 * later_s
        [band] = bands(opened("fleet.py"))
        begun.append(band["from_ms"])
        found = data.diagnosis(data.view_of({}, None)).value
        assert found is not None
        assert band["from_ms"] <= min(v.since_ms for v in found.verdicts if v.cause != "healthy" and v.since_ms)
    bench.clock.now_ms = INSIDE_MS + 93_000
    [past] = bands(opened("fleet.py"))
    assert past["to_ms"] is not None
    assert set(begun) == {past["from_ms"]}


def test_the_track_is_red_where_a_page_fires_at_one_of_the_replicas_of_a_cause(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(place: str, fires: str) -> str:
        episodes = (Episode("verdict", "overload", place, 20, 40, "likely"), Episode("anomaly", "waiting_growth", fires, 30, 50, severity="page"))  # fmt: skip
        monkeypatch.setattr(story, "told", lambda key: Timeline((20, 30, 40, 50), episodes))
        [mark] = [mark for mark in story.marks("") if mark.label.startswith("overload")]
        return str(mark.tone)

    assert told("a:80", "a:80") == told("the fleet", "b:1") == told("a:80, b:1", "b:1") == "bad"
    assert told("a:8000", "a:80") == "warn"
