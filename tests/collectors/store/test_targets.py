"""Target lists: addresses and file_sd files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from collectors.store.targets import FileTargets, TargetsError, open_targets, read_targets_file, target_of


@pytest.mark.parametrize(
    ("address", "url", "instance"),
    [
        ("10.0.0.1:8000", "http://10.0.0.1:8000/metrics", "10.0.0.1:8000"),
        ("replica", "http://replica:80/metrics", "replica:80"),
        ("https://replica", "https://replica:443/metrics", "replica:443"),
        ("http://replica:8000/prom/metrics?a=1", "http://replica:8000/prom/metrics?a=1", "replica:8000"),
        ("[::1]:8000", "http://[::1]:8000/metrics", "[::1]:8000"),
    ],
)
def test_an_address_becomes_a_url_and_an_instance(address: str, url: str, instance: str) -> None:
    target = target_of(address, {}, "vllm")
    assert (target.url, target.instance, target.job) == (url, instance, "vllm")


@pytest.mark.parametrize(
    "address", ["", ":8000", "a:port", "a:99999", "a/b", "ftp://a", "http://user:pw@a", "a b:1/", "a b:1"]
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(TargetsError, match="is not host:port|has no valid port"):
        target_of(address, {}, "vllm")


def test_labels_of_a_group_shape_the_url_and_meta_labels_are_dropped() -> None:
    labels = {
        "__scheme__": "https",
        "__metrics_path__": "/m",
        "__param_x": "1 2",
        "__meta_y": "z",
        "zone": "a",
        "job": "j",
        "empty": "",
    }
    target = target_of("h:1", labels, "vllm")
    assert target.url == "https://h:1/m?x=1+2"
    assert target.labels == {"instance": "h:1", "job": "j", "zone": "a"}


def test_lists_are_split_and_repeated_targets_counted_once() -> None:
    assert [t.instance for t in open_targets("a:1, b:2,a:1").current()] == ["a:1", "b:2"]
    with pytest.raises(TargetsError, match="no targets given"):
        open_targets("")
    with pytest.raises(TargetsError, match="have the same labels"):
        open_targets(["http://a:1/x", "http://a:1/y"])


GROUPS = [{"targets": ["a:1", "b:2"], "labels": {"model": "m"}}, {"targets": ["c:3"]}]


@pytest.mark.parametrize("name", ["targets.json", "targets.yml", "targets.yaml"])
def test_a_file_in_either_form_lists_its_targets(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(json.dumps(GROUPS))
    listed = open_targets(str(path)).current()
    assert [(t.instance, t.labels.get("model")) for t in listed] == [("a:1", "m"), ("b:2", "m"), ("c:3", None)]


def test_yaml_is_read_as_yaml(tmp_path: Path) -> None:
    path = tmp_path / "targets.yml"
    path.write_text("- targets: [a:1]\n  labels: {job: other}\n")
    assert read_targets_file(path, "vllm")[0].job == "other"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "line 1"),
        ('{"targets": []}', "holds no list of groups"),
        ('[{"target": ["a:1"]}]', "group 1: expected an object with a list"),
        ('[{"targets": ["a:1"]}, {"targets": ["b:2"], "label": {}}]', "group 2: unknown field 'label'"),
        ('[{"targets": [1]}]', "group 1: target 1 is not a text"),
        ('[{"targets": ["a:x"]}]', "group 1: 'a:x' has no valid port"),
        ('[{"targets": ["a:1"], "labels": {"x": 1}}]', "labels must be an object of texts"),
        ('[{"targets": ["a:1"], "labels": {"x-y": "1"}}]', "'x-y' is not a label name"),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "targets.json"
    path.write_text(text)
    with pytest.raises(TargetsError, match=reason):
        open_targets(path)


def test_a_missing_file_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(TargetsError, match="no targets file at"):
        open_targets(tmp_path / "none.json")


def test_a_changed_file_is_read_again_and_a_broken_one_keeps_the_list(tmp_path: Path) -> None:
    path = tmp_path / "targets.json"
    path.write_text(json.dumps([{"targets": ["a:1"]}]))
    targets = FileTargets(path, "vllm")
    assert [t.instance for t in targets.current()] == ["a:1"]
    path.write_text(json.dumps([{"targets": ["a:1", "b:2"]}]))
    assert [t.instance for t in targets.current()] == ["a:1", "b:2"]
    path.write_text("[{")
    assert [t.instance for t in targets.current()] == ["a:1", "b:2"]
    assert "keeping the 2 targets" in targets.problem
    path.unlink()
    assert len(targets.current()) == 2
    assert "cannot read" in targets.problem
    replacement = tmp_path / "new"
    replacement.write_text("[]")
    os.replace(replacement, path)
    assert targets.current() == ()
    assert targets.problem == ""
