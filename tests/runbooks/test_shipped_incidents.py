"""Shipped incidents: each opens whole, and its story tells what the file and pagewatch say."""

from __future__ import annotations

import re
import sys

import pytest

from collectors.settings import Settings
from runbooks.diagnosis import diagnose
from runbooks.engine import walk
from runbooks.lab_truth import incidents_of
from runbooks.shipped import shipped_incidents
from runbooks.verdicts import RUNBOOK_OF_CAUSE
from tests.runbooks.shipped import FOLDER, NAMES, STORIES, as_of, offset_ms, path_of, rows, shipped, story
from tests.shared_data import ROOT

SETTINGS = Settings()


def test_there_are_some_they_are_small_and_each_has_a_story() -> None:
    assert len(NAMES) >= 6
    assert FOLDER == ROOT / "incidents"
    assert all(each.story is not None and each.path.is_file() for each in shipped_incidents())
    assert {path.stem for path in STORIES.glob("*.md")} - {"README"} == set(NAMES)
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 1_000_000


@pytest.mark.parametrize("name", NAMES)
def test_it_opens_its_hash_holds_and_it_names_no_one(name: str) -> None:
    capsule = shipped(name)
    manifest = capsule.manifest
    samples = list(capsule.samples())
    assert len(samples) == manifest.body.series
    assert sum(each.times_ms.size for each in samples) == manifest.body.samples
    assert manifest.title
    assert re.search(r"/home/|/root/|/tmp/|@", manifest.to_json().decode()) is None
    assert manifest.detectors["waiting_growth"]
    assert manifest.burn_rates
    assert manifest.diagnosis["verdicts"][0]["cause"] != "healthy"
    assert any(mark.kind == "verdict" for mark in manifest.marks)


@pytest.mark.parametrize("name", NAMES)
def test_every_number_of_the_story_is_in_the_file(name: str) -> None:
    start_ms = shipped(name).manifest.window.start_ms
    table = rows(name, "| at | replica |")
    assert len(table) >= 10
    for at, replica, figure, told, promql in table:
        at_ms = start_ms + offset_ms(at)
        query = promql.strip("`")
        assert f'instance="{replica}"' in query
        found = as_of(name, at_ms).instant(query, at_ms)
        assert len(found.labels) == 1, (at, query)
        assert float(f"{found.values[0]:.3g}") == float(told), (at, figure)


@pytest.mark.parametrize("name", NAMES)
def test_pagewatch_says_what_the_story_tells(name: str) -> None:
    start_ms = shipped(name).manifest.window.start_ms
    right = {cause for incident in incidents_of(shipped(name).manifest) for cause in incident.causes}
    said = set()
    for at, told in rows(name, "| at | says |"):
        at_ms = start_ms + offset_ms(at)
        first = diagnose(as_of(name, at_ms), at_ms, SETTINGS).verdicts[0]
        assert told.startswith(f"{first.cause} ({first.confidence}) on "), (at, told, first)
        said.add(first.cause)
    assert "healthy" in said
    assert said - {"healthy"}
    assert said - {"healthy"} <= right


@pytest.mark.parametrize("name", NAMES)
def test_the_runbook_goes_as_the_story_tells(name: str) -> None:
    command = re.search(r"pagewatch walk (\w+) --source incidents/(\w+)\.capsule --at ([\d.]+)", story(name))
    assert command is not None
    assert command[2] == name
    at_ms = round(float(command[3]) * 1000)
    walked = walk(command[1], as_of(name, at_ms), at_ms, SETTINGS)
    *told, (outcome, cause) = rows(name, "| step | finding |")
    assert [[finding.question, finding.finding] for finding in walked.path] == told
    assert (outcome, cause) == ("outcome", walked.outcome.cause)
    assert RUNBOOK_OF_CAUSE[cause] == command[1]


def test_the_maker_knows_them_all_and_makes_the_same_bytes_again(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.syspath_prepend(str(STORIES))
    sys.modules.pop("make", None)
    import make  # type: ignore[import-not-found]

    assert {incident.name for incident in (*make.SIMULATED, *make.RECORDED)} == set(NAMES)
    monkeypatch.setattr(make, "DURATION_SECONDS", 60.0)
    made = []
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        made.append(make.make_simulated(make.SIMULATED[0], tmp_path / folder).read_bytes())
    assert made[0] == made[1]
    assert path_of(make.SIMULATED[0].name).read_bytes()[:2] == made[0][:2] == b"PK"
    sys.modules.pop("make", None)
