"""A wrong runbook is refused when it is loaded, with the file and the place."""

from pathlib import Path

import pytest

from runbooks.runbook import RunbookError, parse_runbook, read_runbook

GOOD = """
schema = 1
id = "x"
title = "X"
symptom = "queue"
meaning = "m"
impact = "i"
[[step]]
id = "one"
question = "?"
next = { yes = "two", no = "outcome:fine" }
number = [{ name = "waiting", unit = "requests", promql = "sum($requests_waiting)" }]
predicate = { name = "above", number = "waiting", than = 0 }
[[step]]
id = "two"
kind = "manual"
question = "?"
instructions = ["look"]
next = { yes = "outcome:fine", no = "outcome:fine" }
[[outcome]]
id = "fine"
cause = "healthy"
says = "fine"
"""


def test_a_whole_runbook_is_read() -> None:
    runbook = parse_runbook(GOOD, "x.toml", prose="text")
    assert [step.id for step in runbook.steps] == ["one", "two"]
    assert runbook.prose == "text"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('name = "above", number', 'name = "aboev", number', "step.0.predicate"),
        (
            "$requests_waiting",
            "$requests_wating",
            r"step.0.number.0: promql of waiting: unknown signal \$requests_wating",
        ),
        ('number = "waiting", than', 'number = "wait", than', "reads number 'wait'"),
        ('yes = "two"', 'yes = "three"', "next.yes names 'three'"),
        ('no = "outcome:fine" }\nnumber', 'no = "outcome:none" }\nnumber', "next.no names 'outcome:none'"),
        ('next = { yes = "outcome:fine"', 'next = { yes = "one"', "goes back"),
        ('cause = "healthy"', 'cause = "gremlins"', "unknown cause 'gremlins'"),
        ('id = "two"', 'id = "one"', "used twice"),
        ('instructions = ["look"]\n', "", "needs instructions"),
        ('title = "X"\n', 'title = "X"\ntitel = "Y"\n', "titel"),
        ('says = "fine"', 'says = "fine"\nchange = "more"', "with its risk"),
        ('says = "fine"', 'says = "fine"\nverify_step = "v"', "verify_step 'v' does not exist"),
        ('question = "?"\nnext', 'question = "?"\nsays.yes = "{nope}"\nnext', "says.yes shows {nope}"),
        ('promql = "sum($requests_waiting)"', 'limit = "waiting_growth.nope"', "no threshold"),
        ('promql = "sum($requests_waiting)"', 'promql = "$up", reading = "pinned"', "exactly one of"),
        ('unit = "requests"', "unit = 3", "step.0.number.0.unit"),
        ("schema = 1", "schema = 2", "schema"),
        ("schema = 1", "schema = = 1", "not TOML"),
    ],
)
def test_mistakes_are_named_with_their_place(old: str, new: str, says: str) -> None:
    assert old in GOOD
    with pytest.raises(RunbookError, match=says) as caught:
        parse_runbook(GOOD.replace(old, new, 1), "library/x/runbook.toml")
    assert str(caught.value).startswith("library/x/runbook.toml: ")
    assert "\n" not in str(caught.value)


def test_the_id_is_the_name_of_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "y"
    folder.mkdir()
    (folder / "runbook.toml").write_text(GOOD)
    (folder / "runbook.md").write_text("# X")
    with pytest.raises(RunbookError, match="must be the folder's name 'y'"):
        read_runbook(folder)


def test_a_missing_text_is_said(tmp_path: Path) -> None:
    (tmp_path / "runbook.toml").write_text(GOOD)
    with pytest.raises(RunbookError, match="cannot be read"):
        read_runbook(tmp_path)
