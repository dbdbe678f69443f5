"""Incident files: determinism, laziness, the cursor, and one line for every kind of damage."""

from __future__ import annotations

import gzip
import json
import os
import resource
import shutil
import stat
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.capsule import CapsuleSource, body_reader, body_writer, read_capsule, write_capsule
from collectors.capsule.file import amend_manifest, open_parts
from collectors.capsule.manifest import Manifest
from collectors.model import Samples, Window
from collectors.progress import telling_progress
from collectors.settings import Settings
from collectors.source import QueryRejected, SourceBroken, SourceError
from collectors.sources import capsule_of, open_source
from tests.collectors.capsule.capsules import START_MS, STEP_MS, fleet, parts, rebuilt, written
from tests.shared_data import ROOT

QUERIES = [
    "up",
    "sum by (instance) (rate(vllm:prompt_tokens_total[1m]))",
    "histogram_quantile(0.9, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket[1m])))",
    '{__name__=~"vllm:(num_requests_waiting|kv_cache_usage_perc)"}',
    "max_over_time(vllm:num_requests_waiting[5m] @ end())",
    "vllm:num_requests_waiting offset -30s",
    "sum(vllm:num_requests_waiting) or vector(0)",
    'count({job="vllm"})',
    "increase(vllm:prompt_tokens_total[2m:10s])",
]


def damaged(path: Path, tmp_path: Path) -> str:
    """The one line that opening and reading everything gives; nothing may be left beside the file."""
    before = sorted(entry.name for entry in tmp_path.parent.rglob("*"))
    with pytest.raises(SourceError) as caught:
        read_capsule(path).load(None)
    assert sorted(entry.name for entry in tmp_path.parent.rglob("*")) == before
    assert "\n" not in str(caught.value)
    assert path.name in str(caught.value)
    return str(caught.value)


def as_text(vector: Any) -> list[Any]:
    return sorted(
        zip((sorted(labels.items()) for labels in vector.labels), map(repr, vector.values.tolist()), strict=True)
    )


def test_same_samples_same_bytes_whatever_their_order(tmp_path: Path) -> None:
    written(tmp_path / "a.capsule", fleet())
    written(tmp_path / "b.capsule", fleet()[::-1])
    assert (tmp_path / "a.capsule").read_bytes() == (tmp_path / "b.capsule").read_bytes()


def test_the_body_is_one_series_a_line_that_any_gunzip_reads(tmp_path: Path) -> None:
    written(tmp_path / "a.capsule", fleet(gone_at=20))
    manifest, raw = parts(tmp_path / "a.capsule")
    lines = [json.loads(line) for line in raw.splitlines()]
    assert manifest["schema"] == 2
    shared = [line for line in lines if "metric" not in line]
    assert [line["count"] for line in shared] == [60, 21, 60], "of two targets; one of them ended, all but its up"
    assert lines[-3:] == shared
    lines = lines[:-3]
    assert len(lines) == manifest["body"]["series"] == len(fleet())
    order = [
        (line["metric"]["instance"], line["metric"]["__name__"], float(line["metric"].get("le", 0))) for line in lines
    ]
    assert order == sorted(order), "one member holds them all; in it, target by target, buckets by their bounds"
    assert any(None in line.get("deltas", line.get("values")) for line in lines)


def test_what_is_written_reads_back(tmp_path: Path) -> None:
    series = fleet(gone_at=20)
    written(tmp_path / "a.capsule", series)
    read = {tuple(sorted(each.labels.items())): each for each in open_parts(tmp_path / "a.capsule")[1].read()}
    for each in series:
        back = read.pop(tuple(sorted(each.labels.items())))
        assert back.times_ms.tolist() == each.times_ms.tolist()
        assert back.values.tobytes() == each.values.tobytes()
    assert read == {}


def test_an_unpacked_folder_and_a_zip_made_by_hand_open_too(tmp_path: Path) -> None:
    written(tmp_path / "a.capsule")
    with zipfile.ZipFile(tmp_path / "a.capsule") as archive:
        archive.extractall(tmp_path / "folder")
    with zipfile.ZipFile(tmp_path / "again.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("manifest.json", "series.jsonl.gz"):
            archive.write(tmp_path / "folder" / name, name)
    for path in ("a.capsule", "folder", "again.zip"):
        source = CapsuleSource(read_capsule(tmp_path / path))
        assert len(source.instant("up", source.now_ms())) == 2


def test_a_question_reads_only_what_it_touches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "a.capsule")
    capsule = read_capsule(tmp_path / "a.capsule")
    source = CapsuleSource(capsule)
    read: list[str] = []
    original = body_reader.LineDecoder.decode

    def counted(self: Any, line: bytes, number: int) -> Samples:
        series = original(self, line, number)
        read.append(series.labels["__name__"])
        return series

    monkeypatch.setattr(body_reader.LineDecoder, "decode", counted)
    source.instant("sum(vllm:kv_cache_usage_perc) / scalar(sum(up))", source.now_ms())
    assert sorted(read) == ["up", "up", "vllm:kv_cache_usage_perc", "vllm:kv_cache_usage_perc"]
    source.instant("up", source.now_ms())
    assert len(read) == 4
    source.instant('{job="vllm"}', source.now_ms())
    assert len(read) == len(fleet())


def test_lazily_read_answers_equal_those_of_everything_read(tmp_path: Path) -> None:
    written(tmp_path / "a.capsule", fleet(gone_at=30))
    whole = read_capsule(tmp_path / "a.capsule")
    whole.load(None)
    for query in QUERIES:
        lazy = CapsuleSource(read_capsule(tmp_path / "a.capsule"))
        assert as_text(lazy.instant(query, lazy.now_ms())) == as_text(
            CapsuleSource(whole).instant(query, lazy.now_ms())
        )


@pytest.mark.parametrize("cut", [START_MS + 3 * STEP_MS, START_MS + 100_000, START_MS + 31 * STEP_MS + 137])
def test_no_sample_after_the_cursor_is_used(tmp_path: Path, cut: int) -> None:
    series = fleet(gone_at=30)
    written(tmp_path / "whole.capsule", series)
    shortened = [
        Samples(
            each.labels,
            each.times_ms[: (kept := int(np.searchsorted(each.times_ms, cut, side="right")))],
            each.values[:kept],
        )
        for each in series
    ]
    written(tmp_path / "cut.capsule", [each for each in shortened if each.times_ms.size])
    whole = CapsuleSource(read_capsule(tmp_path / "whole.capsule"), cut)
    cut_off = CapsuleSource(read_capsule(tmp_path / "cut.capsule"), cut)
    for query in QUERIES:
        assert as_text(whole.instant(query, cut)) == as_text(cut_off.instant(query, cut)), query
        window = Window(cut - 60_000, cut + 60_000, 7_000)
        one, other = whole.range(query, window), cut_off.range(query, window)
        order = [sorted(range(len(frame)), key=lambda row: sorted(frame.labels[row].items())) for frame in (one, other)]
        assert [one.labels[row] for row in order[0]] == [other.labels[row] for row in order[1]], query
        np.testing.assert_array_equal(one.values[order[0]], other.values[order[1]], err_msg=query)
    for each in whole.samples('{job="vllm"}', 0, cut + 10**9):
        assert each.times_ms[-1] <= cut
    extent = whole.extent_ms()
    assert extent is not None
    assert extent[1] == cut


def test_the_cursor_may_move(tmp_path: Path) -> None:
    written(tmp_path / "a.capsule")
    now = [START_MS + 10 * STEP_MS]
    source = CapsuleSource(read_capsule(tmp_path / "a.capsule"), lambda: now[0])
    first = source.samples("up", 0, 2**60)[0].times_ms.size
    now[0] += 5 * STEP_MS
    assert source.now_ms() == now[0]
    assert source.samples("up", 0, 2**60)[0].times_ms.size == first + 5


def test_a_capsule_is_opened_by_path_by_name_and_with_a_scope(tmp_path: Path) -> None:
    written(tmp_path / "a.capsule")
    config = Settings.parse('[[source]]\nname = "last"\nurl = "a.capsule"\n', tmp_path / "pagewatch.toml", {})
    scoped = open_source("last", config, {"instance": "vllm-1:8000"})
    assert len(scoped.instant("up", scoped.now_ms())) == 1
    assert capsule_of(scoped) is not None
    plain = open_source(str(tmp_path / "a.capsule"), Settings())
    assert plain.info().kind == "capsule"
    assert plain.metadata()["vllm:num_requests_waiting"].type == "gauge"
    with pytest.raises(SourceBroken, match="Configured sources: last"):
        open_source("lost", config)
    with pytest.raises(QueryRejected):
        plain.instant("sum(", plain.now_ms())


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "a.capsule"
    written(target)
    before = target.read_bytes()
    with pytest.raises(SourceBroken, match="comes twice"):
        written(target, [*fleet(), fleet()[0]])

    def breaks() -> Any:
        yield fleet()[0]
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_capsule(target, Manifest(), breaks())
    assert target.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.capsule"]


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_no_flipped_bit_and_no_cut_goes_unseen(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("flipped")
    written(folder / "good.capsule", fleet(1, 10))
    good = (folder / "good.capsule").read_bytes()
    whole = [(dict(each.labels), each.values.tolist()) for each in open_parts(folder / "good.capsule")[1].read()]
    bad = bytearray(good)
    if data.draw(st.booleans()):
        bad = bad[: data.draw(st.integers(0, len(good) - 1))]
    else:
        bad[data.draw(st.integers(0, len(good) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    (folder / "bad.capsule").write_bytes(bad)
    try:
        manifest, reader = open_parts(folder / "bad.capsule")
        reader.verify()
        read = [(dict(each.labels), each.values.tolist()) for each in reader.read()]
    except SourceBroken:
        return
    assert read == whole, "damage that does no harm (a zip's own spare fields) may pass, but never changed samples"
    assert manifest == open_parts(folder / "good.capsule")[0]


def test_files_that_are_no_capsule_are_named(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name, content in {"empty": b"", "text": b"hello", "gz": gzip.compress(b"x"), "png": b"\x89PNG\r\n"}.items():
        (tmp_path / "sub" / name).write_bytes(content)
        assert "not an incident file" in damaged(tmp_path / "sub" / name, tmp_path / "sub")
    assert "no such file" in damaged(tmp_path / "sub" / "absent", tmp_path / "sub")
    (tmp_path / "sub" / "folder").mkdir()
    assert "manifest.json" in damaged(tmp_path / "sub" / "folder", tmp_path / "sub")
    with zipfile.ZipFile(tmp_path / "sub" / "other.zip", "w") as archive:
        archive.writestr("readme.txt", "x")
    assert "holds no manifest.json" in damaged(tmp_path / "sub" / "other.zip", tmp_path / "sub")


def test_a_newer_schema_is_refused_by_name(tmp_path: Path) -> None:
    written(tmp_path / "a.capsule")
    manifest, raw = parts(tmp_path / "a.capsule")
    words = damaged(rebuilt(tmp_path / "b.capsule", {**manifest, "schema": 3}, raw), tmp_path)
    assert "schema 3" in words
    assert "Update pagewatch" in words


def test_a_file_of_the_first_schema_opens_and_keeps_its_samples_when_written_anew(tmp_path: Path) -> None:
    old = ROOT / "tests" / "data" / "schema_1.capsule"
    manifest, reader = open_parts(old)
    assert manifest.schema_ == 1
    series = list(reader.read())
    assert len(series) == manifest.body.series == 402
    source = CapsuleSource(read_capsule(old))
    assert source.instant("sum(vllm:num_preemptions_total)", source.now_ms()).values.tolist() == [306.0]
    shutil.copy(old, tmp_path / "amended.capsule")
    assert amend_manifest(tmp_path / "amended.capsule", lambda told: told).schema_ == 1, "its lines are the old ones"
    assert len(list(open_parts(tmp_path / "amended.capsule")[1].read())) == 402
    anew = write_capsule(tmp_path / "anew.capsule", manifest, series)
    assert anew.schema_ == 2
    assert anew.body.bytes < 0.65 * manifest.body.bytes
    again = {tuple(sorted(each.labels.items())): each for each in open_parts(tmp_path / "anew.capsule")[1].read()}
    for each in series:
        back = again.pop(tuple(sorted(each.labels.items())))
        assert (back.times_ms.tolist(), back.values.tobytes()) == (each.times_ms.tolist(), each.values.tobytes())
    assert again == {}


def test_where_every_series_has_its_own_times_they_stand_in_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_writer, "MAX_TABLE_BYTES", 250)
    series = [
        Samples({**each.labels, "shift": str(shift)}, each.times_ms + shift, each.values)
        for each in fleet(2, 40)
        for shift in range(5)
    ]
    body = written(tmp_path / "a.capsule", series).body
    assert body.times is not None
    assert 1 < body.times.vectors < 10
    assert parts(tmp_path / "a.capsule")[1].count(b'"times":{"count"') > 20
    read = {tuple(sorted(each.labels.items())): each for each in open_parts(tmp_path / "a.capsule")[1].read()}
    for each in series:
        back = read[tuple(sorted(each.labels.items()))]
        assert (back.times_ms.tolist(), back.values.tobytes()) == (each.times_ms.tolist(), each.values.tobytes())


@pytest.mark.parametrize(
    ("limit", "words"),
    [("MAX_SERIES_SAMPLES", "60 samples, more than the 19"), ("MAX_SERIES", "more than the 19 series")],
)
def test_what_would_not_be_read_back_is_not_written(
    limit: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(fleet()) == 20
    monkeypatch.setattr(body_writer, limit, 19)
    with pytest.raises(SourceBroken, match=words):
        written(tmp_path / "a.capsule")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": None}, "names no schema"),
        ({"schema": 0}, "schema"),
        ({"window": {"start_ms": "yesterday", "end_ms": 5}}, "window.start_ms"),
        ({"window": {"start_ms": 5, "end_ms": 4}}, "ends before it starts"),
        ({"window": {"start_ms": 5, "end_ms": 2**53}}, "window.end_ms"),
        ({"window": {"start_ms": -1, "end_ms": START_MS}}, "window.start_ms"),
        ({"marks": [{"at_ms": 10**30, "kind": "note"}]}, "marks.0.at_ms"),
        ({"window": {"start_ms": START_MS // 1000, "end_ms": START_MS // 1000 + 300}}, "seconds and milliseconds"),
        ({"marks": [{"at_ms": 1}]}, "marks.0.kind"),
        ({"metrics": []}, "metrics"),
    ],
)
def test_a_wrong_manifest_is_named_by_its_field(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    written(tmp_path / "a.capsule")
    manifest, raw = parts(tmp_path / "a.capsule")
    assert words in damaged(rebuilt(tmp_path / "b.capsule", {**manifest, **change}, raw), tmp_path)


def _with_table(lines: list[bytes], change: Any) -> list[bytes]:
    """The lines with the last table line changed as `change` does with its (first, steps)."""
    parsed = json.loads(lines[-1])
    first, steps = change(parsed["first"], parsed["steps"])
    changed = json.dumps({**parsed, "first": first, "steps": steps}, separators=(",", ":")).encode()
    return [*lines[:-1], changed]


DAMAGE: list[tuple[Any, str]] = [
    (lambda lines: [lines[0], *lines], "comes twice"),
    (lambda lines: _with_table(lines, lambda first, steps: (first, [-5000])), "out of order"),
    (lambda lines: _with_table(lines, lambda first, steps: (first // 1000, [5])), "seconds"),
    (lambda lines: _with_table(lines, lambda first, steps: (first * 1000, [5_000_000])), "milliseconds"),
    (lambda lines: _with_table(lines, lambda first, steps: (first, [0])), "twice"),
    (lambda lines: lines[:-1], "there are no timestamps 1"),
    (lambda lines: [lines[0].replace(b'"times":0', b'"times":-1'), *lines[1:]], "there are no timestamps -1"),
    (lambda lines: [lines[0].replace(b"[0]", b"[7]"), *lines[1:]], "places do not rise"),
    (lambda lines: [lines[0][:-30], *lines[1:]], "line 1"),
    (lambda lines: [lines[0].replace(b'"process_start_time_seconds"', b"5"), *lines[1:]], "line 1"),
]
UNLISTABLE = 2
"""The last ones have no name that a list of members could hold."""


@pytest.mark.parametrize(
    ("change", "words", "members"),
    [(*each, False) for each in DAMAGE] + [(*each, True) for each in DAMAGE[:-UNLISTABLE]],
)
def test_damage_within_a_body_whose_hash_is_right(tmp_path: Path, change: Any, words: str, members: bool) -> None:
    written(tmp_path / "a.capsule")
    manifest, raw = parts(tmp_path / "a.capsule")
    lines = change(raw.splitlines())
    bad = rebuilt(tmp_path / "b.capsule", manifest, b"\n".join(lines) + b"\n", members=members)
    assert words in damaged(bad, tmp_path)


def test_a_wrong_hash_and_wrong_sizes_are_seen(tmp_path: Path) -> None:
    written(tmp_path / "a.capsule")
    with zipfile.ZipFile(tmp_path / "a.capsule") as archive:
        manifest, body = json.loads(archive.read("manifest.json")), archive.read("series.jsonl.gz")

    def put(account: dict[str, Any]) -> Path:
        with zipfile.ZipFile(tmp_path / "b.capsule", "w") as archive:
            archive.writestr("series.jsonl.gz", body)
            archive.writestr("manifest.json", json.dumps({**manifest, "body": {**manifest["body"], **account}}))
        return tmp_path / "b.capsule"

    assert "sha256" in damaged(put({"sha256": "0" * 64}), tmp_path)
    assert "sha256" in damaged(put({"sha256": "../../etc/passwd"}), tmp_path)
    assert "its manifest says 5" in damaged(put({"bytes": 5}), tmp_path)
    assert "1000001 series" in damaged(put({"series": 1_000_001}), tmp_path)
    member = manifest["body"]["members"][0]
    assert "add up" in damaged(put({"raw_bytes": member["raw_bytes"] + 1}), tmp_path)
    bigger = {"raw_bytes": member["raw_bytes"] + 1}
    more = {"raw_bytes": manifest["body"]["raw_bytes"] + 1}
    assert "unpack to the size" in damaged(put({**more, "members": [{**member, **bigger}]}), tmp_path)
    table = manifest["body"]["times"]
    assert "place of the timestamps" in damaged(put({"times": {**table, "offset": 7}}), tmp_path)
    assert "number of timestamps" in damaged(put({"times": {**table, "vectors": 9}}), tmp_path)
    fewer = {"samples": member["samples"] - 1}
    assert "more samples" in damaged(put({**fewer, "members": [{**member, **fewer}]}), tmp_path)
    assert "8000000001 samples" in damaged(put({"samples": 8_000_000_001}), tmp_path)
    assert "does not list" in damaged(put({"members": [{**member, "metrics": ["up"]}]}), tmp_path)
    assert "members is damaged" in damaged(put({"members": [{**member, "offset": 7}]}), tmp_path)


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil", "C:\\evil", "..\\evil", "c:/evil"])
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "sub").mkdir()
    written(tmp_path / "sub" / "a.capsule")
    with zipfile.ZipFile(tmp_path / "sub" / "a.capsule", "a") as archive:
        archive.writestr(name, "evil")
    assert "leads outside" in damaged(tmp_path / "sub" / "a.capsule", tmp_path / "sub")


def test_symbolic_links_doubles_and_ciphers_are_refused(tmp_path: Path) -> None:
    written(tmp_path / "a.capsule")
    with zipfile.ZipFile(tmp_path / "a.capsule", "a") as archive:
        link = zipfile.ZipInfo("link")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
    assert "symbolic link" in damaged(tmp_path / "a.capsule", tmp_path)
    written(tmp_path / "b.capsule")
    with zipfile.ZipFile(tmp_path / "b.capsule", "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("manifest.json", "{}")
    assert "twice" in damaged(tmp_path / "b.capsule", tmp_path)
    folder = tmp_path / "folder"
    with zipfile.ZipFile(tmp_path / "a.capsule") as archive:
        archive.extract("manifest.json", folder)
    (folder / "series.jsonl.gz").symlink_to("/etc/passwd")
    assert "symbolic link" in damaged(folder, tmp_path)


def test_bombs_are_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_reader, "RATIO_FREE_BYTES", 16_000_000)
    written(tmp_path / "a.capsule")
    manifest, _ = parts(tmp_path / "a.capsule")
    zeros = gzip.compress(b"0" * 100_000_000)
    claims_little = rebuilt(tmp_path / "b.capsule", manifest, b"x\n", packed=zeros)
    claims_all = rebuilt(tmp_path / "c.capsule", manifest, b"0" * 100_000_000, packed=zeros)
    for name, entry in {"d.capsule": "series.jsonl.gz", "e.capsule": "manifest.json"}.items():
        with zipfile.ZipFile(tmp_path / name, "w", zipfile.ZIP_DEFLATED) as archive:
            contents = {
                "manifest.json": json.dumps(manifest).encode(),
                "series.jsonl.gz": b"",
                entry: b" " * 70_000_000,
            }
            for each, content in contents.items():
                archive.writestr(each, content)
    del contents, content
    for path in (claims_little, claims_all, tmp_path / "d.capsule", tmp_path / "e.capsule"):
        tracemalloc.start()
        assert "times its size" in damaged(path, tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 90_000_000
        tracemalloc.stop()


def test_a_million_series_are_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_reader, "MAX_SERIES", 1_000)
    written(tmp_path / "a.capsule")
    manifest, _ = parts(tmp_path / "a.capsule")
    lines = b"".join(
        b'{"metric":{"__name__":"up","instance":"%06d"},"values":[1],"timestamps":[%d]}\n' % (number, START_MS)
        for number in range(1_001)
    )
    bad = rebuilt(tmp_path / "b.capsule", manifest, lines)
    assert "series" in damaged(bad, tmp_path)
    with zipfile.ZipFile(bad) as archive:
        manifest, body = json.loads(archive.read("manifest.json")), archive.read("series.jsonl.gz")
    manifest["body"]["series"] = 1
    with zipfile.ZipFile(tmp_path / "c.capsule", "w") as archive:
        archive.writestr("series.jsonl.gz", body)
        archive.writestr("manifest.json", json.dumps(manifest))
    assert "more than the 1000 series" in damaged(tmp_path / "c.capsule", tmp_path)


def test_a_large_capsule_opens_within_little_memory_and_shows_progress(tmp_path: Path) -> None:
    """The shape of 64 replicas x 24 h, thinned: what is resident must follow what was asked, not what the file holds."""
    scrapes = 2_000
    times = START_MS + STEP_MS * np.arange(scrapes, dtype=np.int64)
    random = np.random.default_rng(1)

    def series() -> Any:
        for name in range(60):
            for replica in range(16):
                labels = {"__name__": f"metric_{name:03d}", "job": "vllm", "instance": f"r{replica:02d}"}
                yield Samples(labels, times, random.integers(0, 50, scrapes).astype(np.float64))

    write_capsule(tmp_path / "large.capsule", Manifest(), series(), presorted=True)
    total_bytes = 60 * 16 * scrapes * 16
    code = f"""
import resource
from collectors.capsule import CapsuleSource, read_capsule
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
seen = []
source = CapsuleSource(read_capsule({str(tmp_path / "large.capsule")!r}, progress=lambda done, note: seen.append(done)))
assert len(source.instant("sum(rate(metric_007[1m]))", source.now_ms())) == 1
assert seen and seen == sorted(seen)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) < total_bytes / 2
    assert resource.getpagesize() > 0


def test_whoever_listens_hears_how_far_opening_and_each_question_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_writer, "MEMBER_BYTES", 500)
    monkeypatch.setattr(body_reader, "_READ_BYTES", 40)
    written(tmp_path / "a.capsule")
    heard: list[tuple[float, str]] = []
    with telling_progress(lambda share, words: heard.append((share, words))):
        source = CapsuleSource(read_capsule(tmp_path / "a.capsule"))
        opening, heard = heard, []
        source.instant("up", source.now_ms())
        one, heard = heard, []
        source.instant('{job="vllm"}', source.now_ms())
        rest, heard = heard, []
        source.instant("up", source.now_ms())
    assert heard == [], "nothing is read twice"
    for told, words, steps in ((opening, "hash", 5), (one, "samples", 2), (rest, "samples", 5)):
        shares = [share for share, _ in told]
        assert len(shares) >= steps
        assert shares == sorted(shares)
        assert 0 <= shares[0] <= shares[-1] == 1.0
        assert all(words in text for _, text in told)
    assert len(one) < len(rest)
    before = len(rest)
    CapsuleSource(read_capsule(tmp_path / "a.capsule")).instant("up", source.now_ms())
    assert len(rest) == before, "nobody listens any more"


def test_writing_is_quick_to_read_by_others_and_has_plain_rights(tmp_path: Path) -> None:
    written(tmp_path / "a.capsule")
    with zipfile.ZipFile(tmp_path / "a.capsule") as archive:
        assert sorted(archive.namelist()) == ["manifest.json", "series.jsonl.gz"]
        assert archive.testzip() is None
    assert os.access(tmp_path / "a.capsule", os.R_OK)


def test_reading_in_batches_gives_the_same_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "a.capsule", fleet(3, 60, gone_at=30))
    whole = CapsuleSource(read_capsule(tmp_path / "a.capsule"))
    monkeypatch.setattr("collectors.capsule.opened.BATCH_SAMPLES", 100)
    batched = CapsuleSource(read_capsule(tmp_path / "a.capsule"))
    for query in QUERIES[::-1]:
        assert as_text(batched.instant(query, whole.now_ms())) == as_text(whole.instant(query, whole.now_ms()))


def test_a_question_that_needs_too_much_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "a.capsule")
    monkeypatch.setattr("collectors.capsule.opened.MAX_MEMORY_BYTES", 1)
    source = CapsuleSource(read_capsule(tmp_path / "a.capsule"))
    with pytest.raises(QueryRejected, match="Ask for fewer metrics"):
        source.instant("up", source.now_ms())


@settings(deadline=None, max_examples=250)
@given(st.data())
def test_any_value_anywhere_in_a_manifest(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.getbasetemp()
    written(folder / "good.capsule", fleet(1, 5))
    with zipfile.ZipFile(folder / "good.capsule") as archive:
        manifest, body = json.loads(archive.read("manifest.json")), archive.read("series.jsonl.gz")
    place: Any = manifest
    while True:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        if not place[key] or not isinstance(place[key], dict | list) or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = data.draw(
        st.sampled_from(
            [None, True, -1, 0, 1, 2**63, 2**70, 1.5, "", "x", "\x00", [], [1], {}, {"a": 1}, [[]], "0" * 64]
        )
    )
    with zipfile.ZipFile(folder / "bad.capsule", "w") as archive:
        archive.writestr("series.jsonl.gz", body)
        archive.writestr("manifest.json", json.dumps(manifest))
    reason = ""
    try:
        capsule = read_capsule(folder / "bad.capsule")
        capsule.load(None)
        CapsuleSource(capsule).info()
    except SourceBroken as error:
        reason = str(error)
    assert "\n" not in reason
