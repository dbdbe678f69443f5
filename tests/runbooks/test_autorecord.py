"""Incidents that alerts opened are recorded on their own: when they are due, once, with bounded effort."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from collectors.capsule import CapsuleSource, read_capsule
from collectors.model import Samples
from collectors.settings import Settings
from collectors.settings import Store as StoreSettings
from collectors.source import Source, SourceUnreachable
from collectors.store.blocks import Blocks
from collectors.store.embedded import EmbeddedSource
from runbooks import autorecord
from runbooks.api import api_app
from runbooks.autorecord import ATTEMPTS, RETRY_MS, AutoRecorder, Limits, incidents_folder
from runbooks.due_recordings import LONGEST_MS, OLDEST_MS, PATIENCE_MS, Cleared, cleared, due_groups, file_name
from runbooks.incidents import Incidents
from runbooks.recording import AFTER_MS, BEFORE_MS, record_incident
from runbooks.records import Records, records_path
from runbooks.webhook import Alert, Message
from tests.runbooks.shipped import shipped

SETTINGS = Settings()
MINUTE_MS = 60_000
NAME = "seats_full"
NO_RESERVE = Limits(free_bytes=0)


def store(name: str = NAME) -> EmbeddedSource:
    """The samples of a shipped incident in a store, as if they had been scraped."""
    blocks = Blocks()
    blocks.load(shipped(name).samples())
    end_ms = shipped(name).manifest.window.end_ms
    return EmbeddedSource(blocks, name="store", clock=lambda: end_ms)


class Flaky(EmbeddedSource):
    """Does not answer while `down`; counts the questions for samples."""

    def __init__(self, inner: EmbeddedSource) -> None:
        self.__dict__.update(inner.__dict__)
        self.down = False
        self.asked = 0

    def samples(self, selector: str, start_ms: int, end_ms: int) -> list[Samples]:
        self.asked += 1
        if self.down:
            raise SourceUnreachable("the server\nis gone")
        return super().samples(selector, start_ms, end_ms)


class House:
    """A records file, a folder, a clock that is set by hand, and the recorder over a source."""

    def __init__(self, tmp_path: Path, source: Source | None = None, limits: Limits = NO_RESERVE) -> None:
        window = shipped(NAME).manifest.window
        self.began_ms = window.start_ms + 10_000
        self.now_ms = self.began_ms
        self.folder = tmp_path / "incidents"
        self.records_file = tmp_path / "records.sqlite3"
        self.source = source or store()
        self.limits = limits
        self.records = Records(self.records_file)
        self.incidents = Incidents(self.records, lambda: self.now_ms)

    def recorder(self) -> AutoRecorder:
        return AutoRecorder(self.source, SETTINGS, self.records, lambda: self.now_ms, self.folder, self.limits)

    def alert(
        self, after_ms: int = 0, until_ms: int | None = None, *, fingerprint: str = "f", name: str = "Waits"
    ) -> None:
        began = self.began_ms + after_ms
        alert = Alert.model_construct(
            status="firing" if until_ms is None else "resolved",
            labels={"alertname": name, "instance": "a:1"},
            annotations={},
            startsAt=began,
            endsAt=None if until_ms is None else self.began_ms + until_ms,
            fingerprint=fingerprint,
        )
        self.incidents.receive(Message.model_construct(version="4", status=alert.status, alerts=[alert]))

    def look(self, at_ms: int) -> None:
        self.now_ms = self.began_ms + at_ms
        self.recorder().record_due()

    def told(self, incident_id: int = 1) -> dict[str, object] | None:
        found = self.incidents.get(incident_id).to_json()["recording"]
        assert found is None or isinstance(found, dict)
        return found

    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir()) if self.folder.is_dir() else []


def test_an_incident_is_recorded_once_when_fifteen_minutes_after_it_cleared_are_over(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.alert()
    house.look(LONGEST_MS // 2)
    assert (house.told(), house.files()) == (None, [])
    house.alert(until_ms=MINUTE_MS)
    house.look(MINUTE_MS + AFTER_MS - 1)
    assert (house.told(), house.files()) == (None, [])
    house.look(MINUTE_MS + AFTER_MS)
    (file,) = house.files()
    assert house.told() == {"state": "recorded", "file": file, "problem": None}
    written = read_capsule(house.folder / file).manifest
    assert (written.window.start_ms, written.window.end_ms) == (
        house.began_ms - BEFORE_MS,
        house.began_ms + MINUTE_MS + AFTER_MS,
    )
    assert "seat_limited" in str(written.diagnosis["moments"])
    assert {(mark.at_ms, mark.text, mark.instance) for mark in written.marks if mark.kind == "note"} == {
        (house.began_ms, "alert Waits began", "a:1"),
        (house.began_ms + MINUTE_MS, "alert Waits cleared", "a:1"),
    }
    before = (house.folder / file).stat()
    house.look(MINUTE_MS + AFTER_MS + 1)
    house.look(10 * AFTER_MS)
    assert house.files() == [file]
    assert (house.folder / file).stat().st_ino == before.st_ino


def test_what_was_deleted_by_hand_is_not_recorded_again(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.alert(until_ms=0)
    house.look(AFTER_MS)
    (file,) = house.files()
    (house.folder / file).unlink()
    house.look(2 * AFTER_MS)
    assert house.files() == []


def test_a_recording_as_the_source_can_be_recorded_from(tmp_path: Path) -> None:
    house = House(tmp_path, CapsuleSource(shipped(NAME)))
    house.alert(until_ms=0)
    house.look(AFTER_MS)
    told = house.told()
    assert told is not None
    assert told["state"] == "recorded"


def test_a_storm_of_overlapping_alerts_makes_one_file(tmp_path: Path) -> None:
    house = House(tmp_path)
    for number in range(30):
        house.alert(number * 1000, MINUTE_MS + number * 10_000, fingerprint=f"f{number}", name=f"A{number}")
    house.look(MINUTE_MS + AFTER_MS)
    assert house.files() == []  # others clear within the next minutes
    house.look(MINUTE_MS + 290_000 + AFTER_MS)
    (file,) = house.files()
    assert {house.told(n + 1)["file"] for n in range(30)} == {file}  # type: ignore[index]
    manifest = read_capsule(house.folder / file).manifest
    assert manifest.title == "A0 and 29 more"
    house.alert(5000, MINUTE_MS, fingerprint="late")
    house.look(3 * AFTER_MS)
    assert house.files() == [file]
    assert house.told(31)["file"] == file  # type: ignore[index]


def test_failures_are_tried_again_a_bounded_number_of_times_and_their_reason_is_kept(tmp_path: Path) -> None:
    source = Flaky(store())
    source.down = True
    house = House(tmp_path, source)
    house.alert(until_ms=0)
    at_ms = AFTER_MS
    for attempt in range(1, ATTEMPTS + 1):
        asked = source.asked
        house.look(at_ms - 1 if attempt > 1 else at_ms - AFTER_MS)
        assert source.asked == asked  # not before its time
        house.look(at_ms)
        assert source.asked > asked
        told = house.told()
        assert told == {
            "state": "failed" if attempt == ATTEMPTS else "waiting",
            "file": None,
            "problem": "the server is gone",
        }
        at_ms += RETRY_MS * 4 ** (attempt - 1)
    asked = source.asked
    house.look(100 * AFTER_MS)
    assert source.asked == asked
    assert house.files() == []


def test_a_failure_that_passes_leaves_no_trace(tmp_path: Path) -> None:
    source = Flaky(store())
    source.down = True
    house = House(tmp_path, source)
    house.alert(until_ms=0)
    house.look(AFTER_MS)
    source.down = False
    house.look(AFTER_MS + RETRY_MS)
    (file,) = house.files()
    assert house.told() == {"state": "recorded", "file": file, "problem": None}


def test_a_window_without_samples_says_so(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.alert(10 * LONGEST_MS // 24, 10 * LONGEST_MS // 24)
    house.look(11 * LONGEST_MS // 24)
    told = house.told()
    assert told is not None
    assert "no vLLM metrics between start and end" in str(told["problem"])


def test_a_recording_that_was_stopped_goes_on_after_a_restart(tmp_path: Path) -> None:
    class Slow(Flaky):
        pass

    source = Slow(store())
    house = House(tmp_path, source)
    house.alert(until_ms=0)
    house.now_ms = house.began_ms + AFTER_MS
    first = house.recorder()
    ask = source.samples

    def stop_then_ask(selector: str, start_ms: int, end_ms: int) -> list[Samples]:
        first._stopping.set()
        return ask(selector, start_ms, end_ms)

    source.samples = stop_then_ask  # type: ignore[method-assign]
    first.record_due()
    source.samples = ask  # type: ignore[method-assign]
    assert house.told() == {"state": "waiting", "file": None, "problem": None}
    (partial,) = house.files()
    assert partial.endswith(".capsule.partial")
    house.records.close()
    house.records = Records(house.records_file)
    house.incidents = Incidents(house.records, lambda: house.now_ms)
    house.look(AFTER_MS)
    assert house.files() == [partial.removesuffix(".partial")]
    attempts = house.records.connection().execute("SELECT attempts FROM recordings").fetchone()[0]
    assert attempts == 1  # being stopped is no failure


def test_an_attempt_that_takes_the_process_down_counts(tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    source = store()
    house = House(tmp_path, source)
    house.alert(until_ms=0)

    def kill(*_: object, **__: object) -> None:
        raise Killed

    source.series = kill  # type: ignore[method-assign,assignment]
    with pytest.raises(Killed):
        house.look(AFTER_MS)
    assert house.records.connection().execute("SELECT attempts FROM recordings").fetchone()[0] == 1


def test_a_defect_is_stored_and_does_not_end_later_recordings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    house = House(tmp_path)
    house.alert(until_ms=0)
    house.alert(3 * AFTER_MS + BEFORE_MS, 3 * AFTER_MS + BEFORE_MS, fingerprint="g")
    made = record_incident
    calls = []

    def broken(*args: object, **options: object) -> object:
        calls.append(args)
        if len(calls) == 1:
            raise ZeroDivisionError("a defect")
        return made(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(autorecord, "record_incident", broken)
    house.look(5 * AFTER_MS + BEFORE_MS)
    assert house.told() == {
        "state": "failed",
        "file": None,
        "problem": "the recording failed: ZeroDivisionError: a defect",
    }
    assert len(calls) == 2
    assert "ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("limits", "state", "says"),
    [
        (Limits(free_bytes=1 << 62), "waiting", "stay free"),
        (Limits(free_bytes=0, file_bytes=100), "failed", "the recording takes more than 0 MiB"),
        (Limits(free_bytes=0, total_bytes=100), "waiting", "Delete those"),
    ],
)
def test_the_disk_is_not_filled(tmp_path: Path, limits: Limits, state: str, says: str) -> None:
    house = House(tmp_path, limits=limits)
    house.alert(until_ms=0)
    house.look(AFTER_MS)
    told = house.told()
    assert told is not None
    assert (told["state"], told["file"]) == (state, None)
    assert says in str(told["problem"])
    assert not [name for name in house.files() if name.endswith(".capsule")]
    if state == "failed":
        assert house.files() == []


def test_two_processes_record_nothing_twice(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.alert(until_ms=0)
    house.now_ms = house.began_ms + AFTER_MS
    lock = house.records_file.with_name(house.records_file.name + ".recorder")
    held = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import fcntl,sys; f=open(sys.argv[1],'ab'); fcntl.flock(f,fcntl.LOCK_EX); print('held',flush=True); sys.stdin.read()",
            str(lock),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert held.stdout is not None
        assert held.stdout.readline() == "held\n"
        house.recorder().record_due()
        assert house.files() == []
    finally:
        held.kill()
        held.communicate(timeout=10)
    house.recorder().record_due()
    assert len(house.files()) == 1


def test_the_thread_records_and_the_api_names_the_file(tmp_path: Path) -> None:
    running = set(threading.enumerate())  # other tests of this process may have a console with its own recorder
    house = House(tmp_path)
    house.alert(until_ms=0)
    house.now_ms = house.began_ms + AFTER_MS
    recorder = house.recorder().start(0.05)
    deadline = time.monotonic() + 30
    while (told := house.told()) is None or told["state"] == "waiting":
        assert time.monotonic() < deadline, told
        time.sleep(0.05)
    recorder.stop()
    assert not [thread for thread in set(threading.enumerate()) - running if thread.name == "pagewatch-autorecord"]
    app = api_app(house.source, SETTINGS, house.records, lambda: house.now_ms)
    with TestClient(app, base_url="http://127.0.0.1:8502", client=("127.0.0.1", 50_000)) as client:
        one = client.get("/api/v1/incidents/1").json()["recording"]
        (listed,) = client.get("/api/v1/incidents").json()["incidents"]
    assert one == listed["recording"] == {"state": "recorded", "file": house.files()[0], "problem": None}


def test_old_incidents_are_left_alone(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.alert(until_ms=0)
    house.look(AFTER_MS + OLDEST_MS + 1)
    assert house.told() is None


def test_a_long_incident_is_recorded_from_its_beginning_and_says_so(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.alert()
    house.look(LONGEST_MS - BEFORE_MS)
    told = house.told()
    assert told is not None
    assert (told["state"], told["problem"]) == ("recorded", "only the first 24 h")


def test_a_records_file_of_the_first_version_keeps_its_incidents(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.alert(until_ms=0)
    house.records.close()
    with sqlite3.connect(house.records_file) as old:
        old.execute("ALTER TABLE incidents DROP COLUMN recording")
        old.execute("DROP TABLE recordings")
        old.execute("PRAGMA user_version = 1")
    old.close()
    house.records = Records(house.records_file)
    house.incidents = Incidents(house.records, lambda: house.now_ms)
    house.look(AFTER_MS)
    assert len(house.files()) == 1


@pytest.mark.parametrize("name", ["../../etc/x", "a b\n", "", "x" * 300, "ü"])
def test_file_names_are_plain_whatever_an_alert_is_called(name: str) -> None:
    made = file_name((cleared(7, name, 1_764_500_000_000, 1_764_500_100_000),))
    assert made.startswith("20251130T105320Z-")
    assert made.endswith("-7")
    assert len(made) < 100
    assert all(char.isascii() and (char.isalnum() or char in "-_") for char in made)


spans = st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 1800)), max_size=25)


@settings(deadline=None, max_examples=150)
@given(spans, st.integers(0, 6000))
def test_groups_hold_each_due_incident_once_within_bounds(found: list[tuple[int, int]], now: int) -> None:
    now_ms = now * MINUTE_MS
    incidents: list[Cleared] = [
        cleared(number, "A", began * MINUTE_MS, (began + lasted) * MINUTE_MS)
        for number, (began, lasted) in enumerate(found)
    ]
    groups = due_groups(incidents, now_ms)
    taken = [each.id for group in groups for each in group]
    assert len(taken) == len(set(taken))
    for group in groups:
        assert all(each.end_ms <= now_ms for each in group)
        assert max(each.end_ms for each in group) - group[0].start_ms <= LONGEST_MS
    overdue = {each.id for each in incidents if each.end_ms + PATIENCE_MS <= now_ms}
    assert overdue <= set(taken)


def test_the_folder_is_beside_the_store(tmp_path: Path) -> None:
    assert incidents_folder(Settings(store=StoreSettings(data=tmp_path))) == tmp_path / "incidents"
    named = {"PAGEWATCH_INCIDENTS": str(tmp_path / "named"), "XDG_DATA_HOME": str(tmp_path / "home")}
    assert incidents_folder(Settings(store=StoreSettings(data=tmp_path)), named) == tmp_path / "named"
    assert incidents_folder(Settings(), {"XDG_DATA_HOME": str(tmp_path)}) == tmp_path / "pagewatch" / "incidents"
    assert records_path(Settings(), {"PAGEWATCH_RECORDS": str(tmp_path / "r.sqlite3")}) == tmp_path / "r.sqlite3"
    assert records_path(Settings(), {"PAGEWATCH_RECORDS": str(tmp_path)}) == tmp_path / "records.sqlite3"
