"""Recording from a page: the last minutes of a live source, or what a verdict rests on, and the replay of it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from collectors.capsule import read_capsule
from collectors.model import Window
from collectors.source import SourceUnreachable
from pages.ui import data, record_job
from runbooks.recording import since_first_sample
from tests.pages.conftest import INSIDE, INSIDE_MS, Bench, html
from tests.pages.test_pages import bar, opened

BEGAN_MS = 1796006207341


def press(at: Any, label: str) -> Any:
    at.button[[button.label for button in at.button].index(label)].click()
    at.run()
    assert not at.exception
    return at


def ended() -> record_job.Job:
    job = record_job.current()
    assert job is not None
    assert job.ended.wait(60)
    return job


def recorded(bench: Bench) -> Path:
    [file] = bench.console.incidents_folder.glob("*.capsule")
    return file


def test_the_last_half_hour_is_recorded_and_replayed(bench: Bench) -> None:
    bench.live()
    press(opened("incidents.py"), "Record the last 30 min")
    job = ended()
    at = opened("incidents.py")
    assert f"Recorded as {job.key}" in html(at)
    assert "The source holds no more than 1 min" in html(at)
    file = recorded(bench)
    assert file.name == job.key
    manifest = read_capsule(file).manifest
    assert BEGAN_MS - 8000 <= manifest.window.start_ms <= BEGAN_MS, "an empty beginning was recorded"
    assert manifest.window.end_ms == INSIDE_MS
    assert "seats full" in manifest.title or "overload" in manifest.title
    [link] = [element.proto for element in at.get("page_link") if element.proto.label == "Replay it"]
    assert f"source={job.key}" in link.query_string
    replayed = opened("fleet.py", source=file.name)
    assert bar(replayed)["mode"] == "replay"
    assert bar(replayed)["title"] == manifest.title
    assert "seats full" in html(replayed) or "overload" in html(replayed)
    listed = opened("incidents.py", source=file.name)
    assert "could not be drawn" not in html(listed)


def test_an_incident_is_recorded_from_its_card_and_a_refresh_keeps_the_link(bench: Bench) -> None:
    bench.live()
    at = press(opened("diagnose.py"), "Record this incident")
    ended()
    for _ in range(2):
        at.run()
        assert "Recorded as" in html(at), "a refresh takes the link away"
    assert recorded(bench).name.startswith(("seat_limited", "overload"))


def test_a_paused_page_records_up_to_its_instant_and_a_replay_offers_nothing(bench: Bench) -> None:
    source = bench.live()
    bench.clock.now_ms = INSIDE_MS + 60_000
    press(opened("incidents.py", at=INSIDE), "Record the last 30 min")
    job = ended()
    assert read_capsule(job.order.out).manifest.window.end_ms == INSIDE_MS
    assert source.asked > 0
    replay = opened("incidents.py", source=job.key)
    assert not any(button.label.startswith("Record") for button in replay.button)


def test_one_recording_at_a_time_with_its_progress(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.live()
    go_on, begun = threading.Event(), threading.Event()

    def slow(*arguments: Any, **named: Any) -> None:
        named["progress"](0.4, "vllm:num_requests_waiting")
        begun.set()
        assert go_on.wait(60)
        named["progress"](0.5, "writing")

    monkeypatch.setattr(record_job, "record_incident", slow)
    monkeypatch.setattr("pages.ui.record_view.PATIENCE_SECONDS", 0.0)
    press(opened("incidents.py"), "Record the last 30 min")
    assert begun.wait(60)
    at = opened("incidents.py")
    [button] = [button for button in at.button if button.label.startswith("Record the last")]
    assert button.disabled
    told = [element.proto for element in at.get("progress")]
    assert [(each.value, "vllm:num_requests_waiting" in each.text) for each in told] == [(40, True)]
    go_on.set()
    ended()


def test_why_nothing_was_recorded_is_said(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    source = bench.live()
    at = opened("incidents.py")

    def fails(*arguments: Any, **named: Any) -> None:
        raise SourceUnreachable("connection refused", "Is it running? pagewatch doctor")

    monkeypatch.setattr(record_job, "record_incident", fails)
    press(at, "Record the last 30 min")
    ended()
    assert "Nothing was recorded." in html(at := opened("incidents.py"))
    assert "connection refused" in html(at)
    assert source.asked
    assert not list(bench.console.incidents_folder.glob("*.capsule"))


def test_a_recording_begins_with_the_first_scrape(bench: Bench) -> None:
    bench.live()
    source = data.held().source
    assert since_first_sample(source, BEGAN_MS + 20_000, INSIDE_MS) == BEGAN_MS + 20_000
    for early_ms in (600_000, 3_600_000):
        found = since_first_sample(source, BEGAN_MS - early_ms, INSIDE_MS)
        assert BEGAN_MS - 2 * (early_ms + 93_000) // 240 <= found <= BEGAN_MS
        first = source.range("count(up)", Window(found, INSIDE_MS, 1000))
        assert first.values.size
    assert since_first_sample(source, BEGAN_MS - 9_000_000, BEGAN_MS - 8_000_000) == BEGAN_MS - 9_000_000
