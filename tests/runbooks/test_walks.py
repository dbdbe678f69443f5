"""A recorded walk survives its process, keeps everyone's words, and is exported as text that no viewer takes for markup."""

import json
import re
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.settings import Settings
from runbooks.engine import walk
from runbooks.findings import Walk
from runbooks.records import Records, RecordsError, records_path
from runbooks.walk_export import block, plain, to_markdown, to_record
from runbooks.walks import NoSuchWalk, WalkConflict, Walks, walk_from_record
from tests.runbooks.recorded_walks import recorded
from tests.shared_data import shared

SETTINGS = Settings()


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_000

    def __call__(self) -> int:
        self.now_ms += 1_000
        return self.now_ms


@pytest.fixture
def walked() -> Walk:
    source, wrapper = recorded(shared("recordings", "vllm-0.11.0-cpu", "b_waiting_growth.json.gz"))
    at_ms = round((float(wrapper["start"]) + 93) * 1000)
    return walk("waiting_growth", source, at_ms, SETTINGS, instance="127.0.0.1:8000")


@pytest.fixture
def walks(tmp_path: Path) -> Walks:
    return Walks(Records(tmp_path / "records.sqlite3"), Clock())


def test_a_walk_is_there_again_in_another_process(tmp_path: Path, walked: Walk) -> None:
    path = tmp_path / "records.sqlite3"
    first = Walks(Records(path), Clock()).start(walked, "jo", instance="127.0.0.1:8000")
    answered = Walks(Records(path), Clock()).answer(
        first.id, "gateway", "jo", seen=first.seq, value="no", note="looked"
    )
    again = Walks(Records(path), Clock()).get(first.id)
    assert again == answered
    assert again.walk == walked
    assert again.answers()["gateway"].value == "no"
    assert (again.runbook, again.started_by, again.instance) == ("waiting_growth", "jo", "127.0.0.1:8000")


def test_answers_are_taken_up_by_the_next_walk(walks: Walks, walked: Walk) -> None:
    source, _ = recorded(shared("recordings", "vllm-0.11.0-cpu", "b_waiting_growth.json.gz"))
    kept = walks.start(walked, "jo")
    kept = walks.answer(kept.id, "gateway", "jo", seen=kept.seq, value="yes")
    again = walk("waiting_growth", source, kept.at_ms, SETTINGS, instance="127.0.0.1:8000", answers=kept.answers())
    kept = walks.walked(kept.id, again, "jo")
    assert kept.walk is not None
    assert kept.walk.outcome.id == "unwanted"


def test_two_people_do_not_overwrite_each_other(walks: Walks, walked: Walk) -> None:
    kept = walks.start(walked, "jo")
    walks.answer(kept.id, "gateway", "jo", seen=kept.seq, value="yes", note="one client floods")
    with pytest.raises(WalkConflict, match=r"jo answered this step in the meantime \(yes\)") as caught:
        walks.answer(kept.id, "gateway", "kim", seen=kept.seq, value="no")
    now = walks.answer(kept.id, "gateway", "kim", seen=caught.value.event.seq, value="no", note="it was the probe")
    assert now.answers()["gateway"].value == "no"
    assert [event.body["note"] for event in now.notes("gateway")] == ["one client floods", "it was the probe"]


def test_one_person_may_change_their_mind_and_other_steps_do_not_conflict(walks: Walks, walked: Walk) -> None:
    kept = walks.start(walked, "jo")
    walks.answer(kept.id, "gateway", "jo", seen=kept.seq, value="yes")
    assert walks.answer(kept.id, "gateway", "jo", seen=kept.seq, value="no").answers()["gateway"].value == "no"
    walks.answer(kept.id, "other_step", "kim", seen=kept.seq, value="no")


def test_notes_of_many_at_once_all_stay(tmp_path: Path, walked: Walk) -> None:
    records = Records(tmp_path / "records.sqlite3")
    kept = Walks(records, Clock()).start(walked, "jo")

    def write(who: str) -> None:
        mine = Walks(records, Clock())
        for number in range(10):
            mine.note(kept.id, "gateway", who, f"{who} {number}")
        records.close()

    threads = [threading.Thread(target=write, args=(name,)) for name in ("ann", "bob", "cy")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    now = Walks(records, Clock()).get(kept.id)
    assert sorted(event.body["note"] for event in now.notes("gateway")) == sorted(
        f"{who} {number}" for who in ("ann", "bob", "cy") for number in range(10)
    )
    assert [event.seq for event in now.events] == list(range(1, 32))


def test_a_closed_walk_opens_again_with_an_answer(walks: Walks, walked: Walk) -> None:
    kept = walks.start(walked, "jo")
    kept = walks.close(kept.id, "jo", "handed over")
    assert kept.closed
    assert not walks.answer(kept.id, "gateway", "kim", seen=kept.seq, value="no").closed


def test_history_is_newest_first_and_by_runbook(walks: Walks, walked: Walk) -> None:
    source, _ = recorded(shared("recordings", "vllm-0.11.0-cpu", "b_waiting_growth.json.gz"))
    first = walks.start(walked, "jo")
    other = walks.start(walk("kv_pressure", source, walked.at_ms, SETTINGS), "jo")
    second = walks.start(walked, "kim")
    assert [kept.id for kept in walks.history()] == [second.id, other.id, first.id]
    assert [kept.id for kept in walks.history("waiting_growth")] == [second.id, first.id]
    assert len(walks.history(limit=1)) == 1


def test_what_is_not_there_is_said(walks: Walks, walked: Walk) -> None:
    for call in (
        lambda: walks.get(99),
        lambda: walks.note(99, "", "jo", "x"),
        lambda: walks.answer(99, "gateway", "jo", seen=0, value="yes"),
    ):
        with pytest.raises(NoSuchWalk, match="no walk 99"):
            call()
    kept = walks.start(walked, "jo")
    with pytest.raises(ValueError, match="yes, no, skip or a pasted log"):
        walks.answer(kept.id, "gateway", "jo", seen=0)


def test_a_file_that_is_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "records.sqlite3"
    path.write_bytes(b"not a database, " * 100)
    with pytest.raises(RecordsError, match="cannot be used"):
        Records(path)
    assert path.read_bytes().startswith(b"not a database")
    (tmp_path / "file").write_text("x")
    with pytest.raises(RecordsError, match="cannot be used"):
        Records(tmp_path / "file" / "records.sqlite3")


def test_a_newer_file_is_refused(tmp_path: Path) -> None:
    records = Records(tmp_path / "records.sqlite3")
    records.connection().execute("PRAGMA user_version = 99")
    records.close()
    with pytest.raises(RecordsError, match="newer pagewatch"):
        Records(tmp_path / "records.sqlite3")


def test_the_folder_follows_the_settings(tmp_path: Path) -> None:
    assert records_path(Settings(store={"data": tmp_path})) == tmp_path / "records.sqlite3"


HOSTILE = "<img src=x onerror=alert(1)> ``` | [x](javascript:1) \x1b[31m\n# heading\n```\n<script>"


def test_the_export_holds_everything_and_no_markup_from_outside(walks: Walks, walked: Walk) -> None:
    kept = walks.start(walked, "<b>jo</b>")
    kept = walks.answer(kept.id, "gateway", "kim|x", seen=kept.seq, value="no", note=HOSTILE)
    kept = walks.note(kept.id, "", "kim", HOSTILE)
    text = to_markdown(kept)
    outside = re.sub(r"^(`{3,})text\n.*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    assert "<" not in outside.replace("&lt;", "")
    assert "\x1b" not in text
    assert "seat\\_limited" in text or "seat_limited" in text
    assert "Change to consider" in text
    assert 'vllm:num_requests_waiting{instance="127.0.0.1:8000"}' in text
    assert text.count("kim answered: no") == 0  # the bar in the name is escaped
    assert "kim\\|x, " in text
    for finding in walked.findings:
        assert plain(finding.question) in text


@settings(deadline=None, max_examples=150)
@given(st.text(max_size=80))
def test_plain_text_is_one_line_without_markup(text: str) -> None:
    shown = plain(text)
    assert "\n" not in shown
    assert "<" not in shown
    shown = re.sub(r"&#\d+;", "", shown)  # the digit that would begin a list
    assert not re.search(r"(?<!\\)[`*_\[\]|#~]", shown.replace("\\\\", ""))


def test_options_can_be_copied_from_the_ticket_and_nothing_begins_a_list() -> None:
    assert plain("Lower --max-num-seqs (or cap it): 2.5 s + more") == "Lower --max-num-seqs (or cap it): 2.5 s + more"
    assert plain("--max-num-seqs") == "\\--max-num-seqs"
    assert plain("+ item") == "\\+ item"
    assert plain("12. item") == "&#49;2. item"
    assert plain("![x](http://a)") == "!\\[x\\](http://a)"


@settings(deadline=None, max_examples=150)
@given(st.text(alphabet="`a\n<", max_size=40))
def test_a_block_cannot_be_closed_from_inside(text: str) -> None:
    lines = block(text).splitlines()
    fence = lines[0].removesuffix("text")
    assert lines[-1] == fence
    assert all(not line.startswith(fence) for line in lines[1:-1])


def test_the_record_for_a_capsule_is_plain_data(walks: Walks, walked: Walk) -> None:
    record = to_record(walks.start(walked, "jo"))
    assert json.loads(json.dumps(record))["schema"] == 1
    assert walk_from_record(json.loads(json.dumps(record))["events"][0]["body"]) == walked
