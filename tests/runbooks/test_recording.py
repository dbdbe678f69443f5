"""Recording an incident with what pagewatch said and judged by."""

from __future__ import annotations

import hashlib
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

from collectors.capsule import CapsuleSource, read_capsule
from collectors.capsule.file import amend_manifest
from collectors.capsule.manifest import Manifest, Mark
from collectors.capsule.record import record
from collectors.model import Samples
from collectors.settings import Alerts, Engine, Settings
from collectors.source import SourceBroken, SourceUnreachable
from collectors.store.blocks import Blocks
from collectors.store.embedded import EmbeddedSource
from runbooks import said
from runbooks.diagnosis import diagnose
from runbooks.engine import walk
from runbooks.in_force import detector_versions
from runbooks.library import library
from runbooks.recording import (
    AFTER_MS,
    BEFORE_MS,
    Note,
    incident_window,
    record_incident,
    record_last,
    walks_in,
)
from runbooks.records import Records
from runbooks.rules import rules
from runbooks.walks import Walks
from tests.runbooks.shipped import path_of, shipped
from tests.shared_data import ROOT

SETTINGS = Settings()


def embedded(name: str) -> EmbeddedSource:
    """The samples of a shipped incident in the store, as if they had been scraped: no manifest, no truth."""
    blocks = Blocks()
    blocks.load(shipped(name).samples())
    end_ms = shipped(name).manifest.window.end_ms
    return EmbeddedSource(blocks, name="store", clock=lambda: end_ms)


def extent(name: str) -> tuple[int, int]:
    window = shipped(name).manifest.window
    return window.start_ms, window.end_ms


class Failing(EmbeddedSource):
    """Gives up after some pieces of the recording."""

    def __init__(self, inner: EmbeddedSource, after: int) -> None:
        self.__dict__.update(inner.__dict__)
        self.left = after

    def samples(self, selector: str, start_ms: int, end_ms: int) -> list[Samples]:
        if self.left <= 0:
            raise SourceUnreachable("the server is gone")
        self.left -= 1
        return super().samples(selector, start_ms, end_ms)


def test_the_manifest_says_what_pagewatch_said(tmp_path: Path) -> None:
    start_ms, end_ms = extent("seats_full")
    out = tmp_path / "x.capsule"
    record_incident(embedded("seats_full"), start_ms, end_ms, out, SETTINGS)
    written = read_capsule(out)
    told = written.manifest.diagnosis
    assert told["verdicts"][0]["cause"] == "seat_limited"
    assert [moment["verdicts"][0]["cause"] for moment in told["moments"]][0] == "seat_limited"
    assert told["end"]["verdicts"][0]["cause"] == "healthy"
    at_ms = next(
        mark.at_ms for mark in written.manifest.marks if mark.kind == "verdict" and "seat_limited" in mark.text
    )
    live = diagnose(embedded("seats_full"), at_ms, SETTINGS).to_json()
    moment = next(m for m in told["moments"] if any(v["cause"] == "seat_limited" for v in m["verdicts"]))
    for part in ("at", "verdicts", "anomalies", "replicas"):
        assert moment[part] == live[part]
    earlier = at_ms - 4000
    assert [v.cause for v in diagnose(embedded("seats_full"), earlier, SETTINGS).verdicts] == ["healthy"]


def test_the_samples_are_those_of_a_plain_recording(tmp_path: Path) -> None:
    start_ms, end_ms = extent("replica_killed")
    record(embedded("replica_killed"), start_ms, end_ms, tmp_path / "plain.capsule")
    record_incident(embedded("replica_killed"), start_ms, end_ms, tmp_path / "told.capsule", SETTINGS)
    bodies = []
    for name in ("plain", "told"):
        with zipfile.ZipFile(tmp_path / f"{name}.capsule") as archive:
            bodies.append(archive.read("series.jsonl.gz"))
    assert bodies[0] == bodies[1]
    told = read_capsule(tmp_path / "told.capsule").manifest
    assert told.body.sha256 == hashlib.sha256(bodies[1]).hexdigest()
    assert {mark.kind for mark in told.marks} >= {"restart", "verdict"}
    assert list(told.marks) == sorted(told.marks, key=lambda mark: mark.at_ms)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plain.capsule", "told.capsule"]


def test_versions_are_hashes_of_the_files_that_judge() -> None:
    folder = ROOT / "runbooks"
    versions = detector_versions()
    assert set(versions) == {*library(), "thresholds"}
    for name, version in versions.items():
        file = folder / "thresholds.toml" if name == "thresholds" else folder / "library" / name / "runbook.toml"
        assert version == hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def test_detectors_and_burn_rates_are_asked_of_the_source_which_knows_more_than_the_file(tmp_path: Path) -> None:
    start_ms, end_ms = extent("seats_full")
    cut_ms = end_ms - 30_000
    source = embedded("seats_full")
    record_incident(source, cut_ms, end_ms, tmp_path / "x.capsule", SETTINGS)
    manifest = read_capsule(tmp_path / "x.capsule").manifest
    burn = {(b["objective"], b["window_ms"]): b["burn"] for b in manifest.burn_rates}
    assert set(burn) == {
        (s, w)
        for s in ("time_to_first_token", "inter_token_latency")
        for w in (300_000, 1_800_000, 3_600_000, 21_600_000)
    }
    late = source.instant(
        'sum(increase(vllm:time_to_first_token_seconds_bucket{le=~"\\\\+Inf"}[5m]))'
        ' - sum(increase(vllm:time_to_first_token_seconds_bucket{le="2.5"}[5m]))',
        end_ms,
    ).values[0]
    all_of_them = source.instant("sum(increase(vllm:time_to_first_token_seconds_count[5m]))", end_ms).values[0]
    assert burn["time_to_first_token", 300_000] == pytest.approx(late / all_of_them / 0.05, rel=1e-5)
    replayed = CapsuleSource(read_capsule(tmp_path / "x.capsule"))
    assert start_ms < cut_ms
    assert replayed.extent_ms() == (cut_ms, end_ms)
    states = {state["detector"]: state for state in manifest.detector_states}
    known = {f"{rule.runbook.id}.{rule.detector.name}": rule for rule in rules(SETTINGS)}
    assert set(states) == set(known)
    for name, state in states.items():
        found = source.instant(known[name].expr, end_ms)
        assert state["holds_at"] == len(found.labels)
        assert {tuple(sorted(w["labels"].items())) for w in state.get("where", ())} == {
            tuple(sorted(labels.items())) for labels in found.labels
        }
    assert any(state["holds_at"] for state in states.values())


def test_the_configuration_that_judged_is_told_without_secrets(tmp_path: Path) -> None:
    tuned = Settings.model_validate(
        {
            "source": [{"name": "p", "url": "http://p:9090", "headers": {"X-Key": "hush-hush"}}],
            "engine": {"seats": 16, "window": 2048},
            "alerts": {
                "thresholds": {"kv_pressure": {"full_ratio": 0.95}, "rules": {"waiting_growth.wait_seconds": 9}}
            },
            "desired_replicas": 2,
        }
    )
    start_ms, end_ms = extent("preemption_thrash")
    out = tmp_path / "x.capsule"
    record_incident(embedded("preemption_thrash"), start_ms, end_ms, out, tuned)
    manifest = read_capsule(out).manifest
    assert manifest.config["engine"] == {"seats": 16, "window": 2048}
    assert manifest.config["desired_replicas"] == 2
    assert manifest.config["thresholds"]["kv_pressure"] == {"full_ratio": 0.95}
    [rule] = [rule for rule in manifest.rules if rule["detector"] == "waiting_growth.wait_seconds"]
    assert rule["threshold"] == 9
    assert "hush" not in manifest.to_json().decode()
    assert manifest.cache_config["127.0.0.1:8002/0"]["num_gpu_blocks"] == "160"


def test_what_is_redacted_stands_nowhere_in_the_file(tmp_path: Path) -> None:
    start_ms, end_ms = extent("replica_killed")
    scoped = Settings(scope={"instance": "127.0.0.1:8001"})
    walks = Walks(Records(tmp_path / "walks.sqlite"), clock=lambda: end_ms)
    walked = walks.start(walk("replica_down", embedded("replica_killed"), start_ms + 100_000, SETTINGS), "kim")
    for source in (embedded("replica_killed"), CapsuleSource(shipped("replica_killed"))):
        out = tmp_path / "hidden.capsule"
        record_incident(
            source,
            start_ms,
            end_ms,
            out,
            scoped,
            redact={"instance": r"127\.0\.0\.1:80\d\d"},
            notes=[Note(start_ms + 1000, "127.0.0.1:8001 looks odd", "127.0.0.1:8001")],
            walks=[walked],
        )
        manifest = read_capsule(out).manifest
        assert "127.0.0.1" not in manifest.to_json().decode()
        assert all("127.0.0.1" not in str(dict(each.labels)) for each in read_capsule(out).samples())
        assert manifest.diagnosis["verdicts"][0]["cause"] in ("replica_down", "replica_restarted")
        assert [mark.text for mark in manifest.marks if mark.kind == "note"] == ["redacted looks odd"]
        assert manifest.ground_truth is None
        assert manifest.walks == ()
        out.unlink()


def test_notes_and_walks_of_the_window_go_along(tmp_path: Path) -> None:
    start_ms, end_ms = extent("seats_full")
    walks = Walks(Records(tmp_path / "walks.sqlite"), clock=lambda: end_ms)
    source = embedded("seats_full")
    inside = walks.start(walk("waiting_growth", source, start_ms + 100_000, SETTINGS), "kim")
    walks.note(inside.id, "", "kim", "the batch job again")
    walks.start(walk("waiting_growth", source, start_ms + 20_000, SETTINGS), "kim")
    found = walks_in(walks, "store", start_ms + 50_000, end_ms)
    assert [each.id for each in found] == [inside.id]
    assert walks_in(walks, "another", start_ms, end_ms) == ()
    notes = [Note(start_ms + 60_000, "phone rings"), Note(start_ms, "too early")]
    out = tmp_path / "x.capsule"
    record_incident(source, start_ms + 50_000, end_ms, out, SETTINGS, notes=notes, walks=found, title="Batch job")
    manifest = read_capsule(out).manifest
    assert manifest.title == "Batch job"
    assert [mark.text for mark in manifest.marks if mark.kind == "note"] == ["phone rings"]
    [kept] = manifest.walks
    assert kept["runbook"] == "waiting_growth"
    assert [event["body"]["note"] for event in kept["events"] if event["kind"] == "note"] == ["the batch job again"]


def test_a_recording_of_a_recording_keeps_what_no_sample_tells(tmp_path: Path) -> None:
    start_ms, end_ms = extent("seats_full")
    old = shipped("seats_full").manifest
    out = tmp_path / "cut.capsule"
    record_incident(CapsuleSource(shipped("seats_full")), start_ms + 30_000, end_ms - 20_000, out, SETTINGS)
    new = read_capsule(out).manifest
    assert (new.title, new.ground_truth, new.server_flags) == (old.title, old.ground_truth, old.server_flags)
    assert (new.engine, new.staleness) == (old.engine, old.staleness)
    assert (new.window.start_ms, new.window.end_ms) == (start_ms + 30_000, end_ms - 20_000)
    assert all(new.window.start_ms <= mark.at_ms <= new.window.end_ms for mark in new.marks)


def test_same_source_same_bytes(tmp_path: Path) -> None:
    start_ms, end_ms = extent("preemption_thrash")
    for name in ("a", "b"):
        record_incident(embedded("preemption_thrash"), start_ms, end_ms, tmp_path / f"{name}.capsule", SETTINGS)
    assert (tmp_path / "a.capsule").read_bytes() == (tmp_path / "b.capsule").read_bytes()


def test_an_interrupted_recording_goes_on_when_repeated(tmp_path: Path) -> None:
    start_ms, end_ms = extent("preemption_thrash")
    out = tmp_path / "x.capsule"
    with pytest.raises(SourceUnreachable):
        record_incident(Failing(embedded("preemption_thrash"), 0), start_ms, end_ms, out, SETTINGS)
    assert not out.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["x.capsule.partial"]
    record_incident(embedded("preemption_thrash"), start_ms, end_ms, out, SETTINGS)
    assert read_capsule(out).manifest.diagnosis["verdicts"][0]["cause"] == "kv_limited"
    assert [path.name for path in tmp_path.iterdir()] == ["x.capsule"]


def test_progress_only_grows_and_ends_at_one(tmp_path: Path) -> None:
    start_ms, end_ms = extent("preemption_thrash")
    seen: list[float] = []
    record_incident(
        embedded("preemption_thrash"),
        start_ms,
        end_ms,
        tmp_path / "x.capsule",
        SETTINGS,
        progress=lambda done, _: seen.append(done),
    )
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_large_fleets_are_judged_at_fewer_instants() -> None:
    def instants(replicas: int, hours: float) -> tuple[int, ...]:
        return said.judged_instants(
            Manifest.model_validate(
                {
                    "window": {"start_ms": 0, "end_ms": round(hours * 3_600_000)},
                    "replicas": [
                        {"instance": f"r{n}", "engines": ["0"], "scrape_interval_ms": 5000} for n in range(replicas)
                    ],
                }
            )
        )

    assert len(instants(4, 24)) <= said.MOST_INSTANTS
    assert len(instants(64, 1)) * 64 <= said.RANK_INSTANTS
    assert len(instants(1000, 1)) <= said.LEAST_INSTANTS
    assert len(instants(2, 0.05)) == 36  # every scrape of three minutes
    assert instants(64, 1)[-1] == 3_600_000


def test_a_silence_of_one_instant_does_not_part_a_spell() -> None:
    source = embedded("seats_full")
    start_ms, _ = extent("seats_full")
    ill = diagnose(source, start_ms + 100_000, SETTINGS)
    well = diagnose(source, start_ms + 20_000, SETTINGS)
    found = [s for s in said.spells([well, ill, well, ill, well, well, ill]) if s.id == "seat_limited"]
    assert len(found) == 2


def test_the_last_minutes_and_the_window_of_an_alert(tmp_path: Path) -> None:
    _, end_ms = extent("preemption_thrash")
    record_last(embedded("preemption_thrash"), 1.5, tmp_path / "x.capsule", SETTINGS)
    window = read_capsule(tmp_path / "x.capsule").manifest.window
    assert (window.start_ms, window.end_ms) == (end_ms - 90_000, end_ms)
    began, cleared = 10_000_000, 11_000_000
    assert incident_window(began, None, cleared) is None
    assert incident_window(began, cleared, cleared + AFTER_MS - 1) is None
    assert incident_window(began, cleared, cleared + AFTER_MS) == (began - BEFORE_MS, cleared + AFTER_MS)


def test_amending_keeps_the_file_when_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.capsule"
    path.write_bytes(path_of("preemption_thrash").read_bytes())
    before = path.read_bytes()

    def full(_: Any, __: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full)
        with pytest.raises(OSError, match="No space"):
            amend_manifest(path, lambda manifest: manifest.model_copy(update={"title": "other"}))
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["x.capsule"]
    damaged = bytearray(before)
    damaged[len(damaged) // 3] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(SourceBroken):
        amend_manifest(path, lambda manifest: manifest)
    assert path.read_bytes() == bytes(damaged)


def test_judging_again_replaces_what_was_said_and_keeps_notes(tmp_path: Path) -> None:
    path = tmp_path / "x.capsule"
    path.write_bytes(path_of("preemption_thrash").read_bytes())
    old = read_capsule(path).manifest
    amend_manifest(path, lambda m: m.model_copy(update={"marks": (*m.marks, Mark(at_ms=old.window.start_ms, kind="note", text="n"))}))  # fmt: skip
    deaf = Settings(engine=Engine(seats=16), alerts=Alerts(thresholds={"pace": {"hold_seconds": 3000}}))
    once = said.tell(path, SETTINGS)
    again = said.tell(path, SETTINGS)
    assert once == again
    assert [mark.text for mark in again.marks if mark.kind == "note"] == ["n"]
    assert again.body == old.body
    quiet = said.tell(path, deaf)
    assert len([m for m in quiet.marks if m.kind == "verdict"]) <= len([m for m in again.marks if m.kind == "verdict"])
    assert quiet.diagnosis != again.diagnosis


def test_an_unpacked_folder_is_amended_too(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    with zipfile.ZipFile(path_of("preemption_thrash")) as archive:
        archive.extractall(folder)
    body = (folder / "series.jsonl.gz").read_bytes()
    amend_manifest(folder, lambda manifest: manifest.model_copy(update={"title": "unpacked"}))
    assert read_capsule(folder).manifest.title == "unpacked"
    assert (folder / "series.jsonl.gz").read_bytes() == body
