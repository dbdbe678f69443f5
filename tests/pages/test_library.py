"""Incident files: looked up, never joined; what is not a recording is refused and leaves nothing behind."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from collectors.source import SourceBroken, SourceError
from pages.ui import library
from tests.pages.conftest import RECORDING, Bench


def test_the_neighbours_of_an_opened_file_are_listed_with_their_manifest(bench: Bench) -> None:
    [entry] = library.entries()
    assert entry.manifest is not None
    assert entry.manifest.title == "b_waiting_growth"
    assert library.path_of(entry.key) == bench.capsule_path


@pytest.mark.parametrize(
    "key", ["../b_waiting_growth.capsule", "/etc/passwd", "", "x" * 4000, "b_waiting_growth.capsule\0"]
)
def test_a_key_from_an_address_never_becomes_a_path(bench: Bench, key: str) -> None:
    with pytest.raises(SourceBroken, match="no incident file"):
        library.path_of(key)


def test_an_uploaded_recording_joins_the_library(bench: Bench) -> None:
    key = library.take_in("../../my incident (1).json.gz", RECORDING.read_bytes())
    assert key == "my-incident-1.capsule"
    assert library.path_of(key).parent == bench.console.incidents_folder
    again = library.take_in("my incident (1).json.gz", RECORDING.read_bytes())
    assert again == "my-incident-1-2.capsule"
    taken = library.take_in("copy.capsule", bench.capsule_path.read_bytes())
    assert library.path_of(taken).read_bytes() == bench.capsule_path.read_bytes()


@pytest.mark.parametrize(
    "content",
    [b"", b"hello", b"PK\x03\x04 not a zip", gzip.compress(b"{}", mtime=0), b'{"result": [', b"\0" * 5000, RECORDING.read_bytes()[:4000]],
    ids=["empty", "text", "zip head", "empty object", "cut JSON", "zeroes", "cut gzip"],
)  # fmt: skip
def test_what_is_no_recording_is_refused_and_leaves_nothing(bench: Bench, content: bytes) -> None:
    with pytest.raises(SourceError) as refused:
        library.take_in("x.json", content)
    assert "\n" not in str(refused.value)
    assert list(bench.console.incidents_folder.iterdir()) == []


def test_a_damaged_file_in_the_folder_is_listed_with_its_problem(bench: Bench, tmp_path: Path) -> None:
    bench.console.incidents_folder.mkdir()
    (bench.console.incidents_folder / "broken.capsule").write_bytes(b"PK nothing")
    problems = {entry.key: entry.problem for entry in library.entries()}
    assert problems["broken.capsule"]
    assert not problems["b_waiting_growth.capsule"]


def test_a_deleted_file_is_put_aside_and_comes_back(bench: Bench) -> None:
    key = library.take_in("night.json.gz", RECORDING.read_bytes())
    content = library.path_of(key).read_bytes()
    assert library.own_keys() == [key]
    library.delete(key)
    assert library.own_keys() == []
    assert library.deleted() == [key]
    with pytest.raises(SourceBroken):
        library.path_of(key)
    newer = library.take_in("night.json.gz", RECORDING.read_bytes())
    assert newer == key, "the name is free again"
    back = library.bring_back(key)
    assert back == "night-2.capsule", "what came meanwhile is not overwritten"
    assert library.path_of(back).read_bytes() == content
    assert library.deleted() == []


@pytest.mark.parametrize("key", ["b_waiting_growth.capsule", "../night.capsule", "", ".deleted/x.capsule"])
def test_only_files_of_the_own_folder_are_deleted(bench: Bench, key: str) -> None:
    with pytest.raises(SourceBroken):
        library.delete(key)
    with pytest.raises(SourceBroken):
        library.bring_back(key)
    assert bench.capsule_path.exists()


def test_what_was_deleted_long_ago_goes_for_good(bench: Bench) -> None:
    first = library.take_in("first.json.gz", RECORDING.read_bytes())
    library.delete(first)
    aside = bench.console.incidents_folder / library.DELETED / first
    bench.clock.now_ms = round(aside.stat().st_mtime * 1000) + 6 * 86_400_000
    library.purge()
    assert aside.exists()
    bench.clock.now_ms += 2 * 86_400_000
    library.purge()
    assert not aside.exists()


def test_a_search_looks_at_names_titles_replicas_and_findings(bench: Bench) -> None:
    library.take_in("night.json.gz", RECORDING.read_bytes())
    found = {entry.key: "seats full on 127.0.0.1:8000" for entry in library.entries()}

    def search(words: str) -> list[str]:
        return sorted(each.key for each in library.matching(library.entries(), words, lambda entry: found[entry.key]))

    assert search("") == search("   ") == sorted(found)
    assert search("NIGHT") == ["night.capsule"]
    assert search("night seats 8001") == ["night.capsule"]
    assert search("night overload") == []


def test_files_of_one_title_are_told_apart(bench: Bench) -> None:
    library.take_in("night.json.gz", RECORDING.read_bytes())
    copy = library.take_in("copy.capsule", library.path_of("night.capsule").read_bytes())
    found = library.names(library.entries())
    assert len(set(found.values())) == 3, "a recording's title goes with every copy of it"
    assert found[copy] == f"b_waiting_growth ({copy})"
    assert library.names(library.entries()[:1]) == {library.entries()[0].key: "b_waiting_growth"}
