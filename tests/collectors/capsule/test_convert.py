"""Imports and exports: every format there and back, bad input named, staleness put back as Prometheus wrote it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.capsule import CapsuleSource, read_capsule
from collectors.capsule.convert import FORMATS, export_capsule, import_file
from collectors.capsule.file import open_parts
from collectors.capsule.format_openmetrics import read_openmetrics
from collectors.capsule.manifest import Extent
from collectors.capsule.staleness import with_markers
from collectors.model import STALE, MetricMeta, Samples, is_stale
from collectors.source import SourceBroken, SourceError
from tests.collectors.capsule.capsules import START_MS, STEP_MS, fleet, parts, written
from tests.shared_data import shared_files

RECORDINGS = [
    *shared_files("recordings", pattern="*/*.json.gz"),
    *shared_files("cases", "queue", pattern="*.json.gz"),
]

AT = START_MS / 1000


def wrapper(**fields: Any) -> dict[str, Any]:
    series = [{"metric": {"__name__": "up", "instance": "a"}, "values": [[AT, "1"], [AT + 5, "0"]]}]
    return {"scenario": "made up", "engine": "vLLM 0.11.0 (CPU build)", "result": series, **fields}


def imported(tmp_path: Path, content: bytes | str | dict[str, Any] | list[Any], name: str = "in.json") -> Any:
    data = (
        content
        if isinstance(content, bytes)
        else content.encode()
        if isinstance(content, str)
        else json.dumps(content).encode()
    )
    (tmp_path / name).write_bytes(data)
    import_file(tmp_path / name, tmp_path / "out.capsule")
    return open_parts(tmp_path / "out.capsule")


def refused(tmp_path: Path, content: bytes | str | dict[str, Any] | list[Any], name: str = "in.json") -> str:
    with pytest.raises(SourceError) as caught:
        imported(tmp_path, content, name)
    assert "\n" not in str(caught.value)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [name]
    return str(caught.value)


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name)
def test_every_recording_is_imported_whole(path: Path, tmp_path: Path) -> None:
    recording = orjson.loads(gzip.decompress(path.read_bytes()))
    import_file(path, tmp_path / "out.capsule")
    manifest, reader = open_parts(tmp_path / "out.capsule")
    read = {tuple(sorted(each.labels.items())): each for each in reader.read()}
    assert len(read) == len(recording["result"])
    first_ms, last_ms = round(recording["start"] * 1000), round(recording["end"] * 1000)
    for entry in recording["result"]:
        series = read[tuple(sorted(entry["metric"].items()))]
        real = ~is_stale(series.values)
        seconds = np.array([pair[0] for pair in entry["values"]])
        np.testing.assert_array_equal(series.times_ms[real], np.rint(seconds * 1000))
        first_ms, last_ms = min(first_ms, series.times_ms[0]), max(last_ms, series.times_ms[real][-1])
        np.testing.assert_array_equal(series.values[real], [float(value) for _, value in entry["values"]])
    assert manifest.ground_truth == recording["ground_truth"]
    assert manifest.server_flags == recording["server_flags"]
    assert manifest.title == recording["scenario"]
    assert (manifest.engine.name, manifest.engine.version) == ("vLLM", "0.11.0")
    assert manifest.metrics["vllm:num_requests_waiting"].type == "gauge" or "log_stats_off" in path.name
    assert (manifest.window.start_ms, manifest.window.end_ms) == (first_ms, last_ms)
    intervals = {replica.scrape_interval_ms for replica in manifest.replicas}
    assert intervals == {round(recording["scrape_interval_s"] * 1000)}
    assert {replica.instance for replica in manifest.replicas} == {e["metric"]["instance"] for e in recording["result"]}


def test_the_envelope_and_a_bare_list_and_gzip_are_read(tmp_path: Path) -> None:
    result = wrapper()["result"]
    envelope = {"status": "success", "data": {"resultType": "matrix", "result": result}}
    for number, content in enumerate([envelope, result, gzip.compress(json.dumps(envelope).encode())]):
        manifest, _ = imported(tmp_path, content, f"in{number}")
        assert manifest.body.samples == 2
        assert (manifest.window.start_ms, manifest.window.end_ms) == (START_MS, START_MS + 5000)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"{", "not whole JSON"),
        (b'{"result": [', "not whole JSON"),
        (gzip.compress(b'{"result": []}' * 100, mtime=0)[:-20], "damaged"),
        (b"PK\x03\x04", "zip"),
        (b"\x00\x01\x02\x03", "no format"),
        ("hello world\n", "no sample"),
        ({"result": []}, "no samples"),
        ({"hello": 1}, "no list named result"),
        ([5], "series 1 has no metric"),
        ({"status": "error", "error": "query timed out"}, "query timed out"),
        ({"status": "success", "data": {"resultType": "vector", "result": []}}, "a matrix of raw samples is needed"),
        (wrapper(result=[{"metric": {"a": 1}, "values": []}]), "no metric"),
        (wrapper(result=[{"metric": {}, "values": [[1, "x"]]}]), "[seconds, value]"),
        (wrapper(result=[{"metric": {}, "values": [[AT]]}]), "[seconds, value]"),
        (wrapper(result=[{"metric": {}, "values": [["NaN", "1"]]}]), "no number"),
        (wrapper(result=[{"metric": {}, "values": [[AT, "1"], [AT - 1, "1"]]}]), "out of order"),
        (wrapper(result=[{"metric": {}, "values": [[AT, "1"], [AT, "1"]]}]), "twice"),
        (wrapper(result=[{"metric": {}, "values": [[START_MS, "1"]]}]), "Milliseconds?"),
        (wrapper(result=wrapper()["result"] * 2), "twice for the same time"),
        ('{"metric":{"__name__":"up"},"values":[1],"timestamps":[1796000000]}\n', "Seconds, perhaps?"),
        ('{"metric":{"__name__":"up"},"values":[1],"timestamps":[17960', "line 1"),
        ("# TYPE a gauge\na 1 1796000000\n", "no # EOF"),
        ("# TYPE a gauge\na 1\n# EOF\n", "no timestamp"),
        ("# TYPE a gauge\na 1 1796000000000\n# EOF\n", "Milliseconds?"),
        ('# TYPE a gauge\na{b="c} 1 1796000000\n# EOF\n', "no sample"),
        ("a 1 1796000001\na 1 1796000000\n# EOF\n", "out of order"),
        ("a 1 1796000001\n# EOF\nb 2 1796000001\n", "after # EOF"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_writes_nothing(tmp_path: Path, content: Any, words: str) -> None:
    assert words in refused(tmp_path, content)


def test_a_gzip_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collectors.capsule.convert.MAX_INPUT_BYTES", 5_000_000)
    assert "more than 5000000 bytes" in refused(tmp_path, gzip.compress(b"{" + b" " * 50_000_000))


def test_an_incident_file_or_a_strange_folder_is_not_imported(tmp_path: Path) -> None:
    written(tmp_path / "a.capsule")
    with pytest.raises(SourceBroken, match="incident file already"):
        import_file(tmp_path / "a.capsule", tmp_path / "b.capsule")
    (tmp_path / "folder").mkdir()
    with pytest.raises(SourceBroken, match="no Prometheus data folder"):
        import_file(tmp_path / "folder", tmp_path / "b.capsule")
    with pytest.raises(SourceBroken, match="no such file"):
        import_file(tmp_path / "nothing", tmp_path / "b.capsule")
    with pytest.raises(SourceBroken, match="unknown format 'xml'"):
        export_capsule(tmp_path / "a.capsule", "xml", tmp_path / "x")


@pytest.mark.parametrize("form", FORMATS)
def test_a_round_trip_gives_the_same_samples(form: str, tmp_path: Path) -> None:
    original = written(tmp_path / "a.capsule", fleet(3, 40, gone_at=25))
    export_capsule(tmp_path / "a.capsule", form, tmp_path / "exported")
    import_file(tmp_path / "exported", tmp_path / "b.capsule")
    manifest, _ = open_parts(tmp_path / "b.capsule")
    assert manifest.body == original.body, "markers are put back where up tells that they were"
    assert manifest.replicas == original.replicas
    if form in ("openmetrics", "parquet"):
        types = [{name: meta.type for name, meta in each.metrics.items()} for each in (manifest, original)]
        assert types[0].items() >= {name: type_ for name, type_ in types[1].items() if name.startswith("vllm:")}.items()


@pytest.mark.parametrize("form", FORMATS)
def test_hostile_labels_and_values_survive_or_are_counted(form: str, tmp_path: Path) -> None:
    times = START_MS + 1000 * np.arange(4, dtype=np.int64)
    labels = {"__name__": "x", "value": 'a"b\\c\nd', "timestamp": "t", "metric": "m", "job": "<b>", "u": "ü\u2028"}
    hostile = Samples(labels, times, np.array([np.nan, np.inf, -np.inf, 5e-324]))
    written(tmp_path / "a.capsule", [hostile])
    summary = export_capsule(tmp_path / "a.capsule", form, tmp_path / "exported")
    import_file(tmp_path / "exported", tmp_path / "b.capsule")
    (back,) = open_parts(tmp_path / "b.capsule")[1].read()
    assert dict(back.labels) == labels
    if form == "victoria-metrics":
        assert back.values.tolist() == [5e-324]
        assert "3 staleness markers or values" in str(summary)
    else:
        np.testing.assert_array_equal(back.values, hostile.values)


def test_parquet_opens_in_pandas_as_a_long_table(tmp_path: Path) -> None:
    series = fleet(2, 20, gone_at=10)
    written(tmp_path / "a.capsule", series)
    export_capsule(tmp_path / "a.capsule", "parquet", tmp_path / "a.parquet")
    table = pd.read_parquet(tmp_path / "a.parquet")
    assert len(table) == sum(each.times_ms.size for each in series)
    waiting = table[(table.metric == "vllm:num_requests_waiting") & (table.instance == "vllm-0:8000")]
    assert waiting.value.tolist() == series[1].values.tolist()
    assert waiting.timestamp.iloc[0] == pd.Timestamp(START_MS, unit="ms", tz="UTC")
    assert table[table.stale].value.isna().all()
    assert table.stale.sum() == 9


def test_a_foreign_parquet_table_is_read(tmp_path: Path) -> None:
    table = pd.DataFrame(
        {
            "timestamp": pd.to_datetime([START_MS, START_MS + 1000] * 2, unit="ms"),
            "value": [1, 2, 3, 4],
            "__name__": ["up"] * 4,
            "instance": ["a", "a", "b", None],
        }
    )
    table.to_parquet(tmp_path / "foreign.parquet")
    import_file(tmp_path / "foreign.parquet", tmp_path / "b.capsule")
    read = {
        each.labels.get("instance", ""): each.values.tolist() for each in open_parts(tmp_path / "b.capsule")[1].read()
    }
    assert read == {"a": [1.0, 2.0], "b": [3.0], "": [4.0]}
    table.drop(columns="value").to_parquet(tmp_path / "bad.parquet")
    with pytest.raises(SourceBroken, match="no column 'value'"):
        import_file(tmp_path / "bad.parquet", tmp_path / "c.capsule")
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "foreign.parquet").read_bytes()[:-30])
    with pytest.raises(SourceBroken, match="cannot be read as Parquet"):
        import_file(tmp_path / "cut.parquet", tmp_path / "c.capsule")


def test_pieces_of_one_series_in_victoria_metrics_lines_are_joined(tmp_path: Path) -> None:
    line = '{{"metric":{{"__name__":"x"}},"values":[{0}],"timestamps":[{1}]}}\n'
    text = line.format(2, START_MS + 5) + line.format(1, START_MS)
    (read,) = imported(tmp_path, text, "lines.jsonl")[1].read()
    assert read.values.tolist() == [1.0, 2.0]


def test_openmetrics_types_help_and_exemplars() -> None:
    text = b"""# TYPE h histogram
# HELP h line one\\nline two
# UNIT h seconds
h_bucket{le="+Inf",a="x } y # z"} 5 1796000000.123 # {trace_id="1"} 0.5 1796000000
h_count 5 1796000000.123
# EOF
"""
    types: dict[str, MetricMeta] = {}
    first, second = read_openmetrics(iter(text.splitlines(keepends=True)), "x", types)
    assert dict(first.labels) == {"__name__": "h_bucket", "le": "+Inf", "a": "x } y # z"}
    assert first.times_ms.tolist() == [1_796_000_000_123]
    assert dict(second.labels) == {"__name__": "h_count"}
    assert types["h"] == MetricMeta("histogram", "line one\nline two", "seconds")


def test_native_histograms_are_noted(tmp_path: Path) -> None:
    content = wrapper(result=[*wrapper()["result"], {"metric": {"__name__": "native"}, "histograms": [[AT, {}]]}])
    manifest, _ = imported(tmp_path, content)
    assert "1 native histogram series were left out" in manifest.notes[0]


@settings(deadline=None, max_examples=100)
@given(st.lists(st.sampled_from([0, 1, 2]), min_size=1, max_size=40))
def test_markers_are_put_back_exactly_where_they_were_lost(states: list[int]) -> None:
    """0: the scrape failed; 1: the series was there; 2: the scrape worked, the series was missing."""
    labels = {"job": "j", "instance": "i"}
    times = START_MS + STEP_MS * np.arange(len(states), dtype=np.int64)
    up = Samples({"__name__": "up", **labels}, times, np.array([float(state != 0) for state in states]))
    values = np.array([1.0 if state == 1 else STALE for state in states])
    written_at = np.array([state == 1 or (at > 0 and states[at - 1] == 1) for at, state in enumerate(states)])
    truth = Samples({"__name__": "x", **labels}, times[written_at], values[written_at])
    lost = ~is_stale(truth.values)
    back = with_markers([up, Samples(truth.labels, truth.times_ms[lost], truth.values[lost])])
    assert back[0] is up
    assert back[1].times_ms.tolist() == truth.times_ms.tolist()
    assert is_stale(back[1].values).tolist() == is_stale(truth.values).tolist()


def test_a_series_with_times_of_its_own_gets_no_markers() -> None:
    labels = {"job": "j", "instance": "i"}
    up = Samples({"__name__": "up", **labels}, START_MS + STEP_MS * np.arange(5), np.ones(5))
    own = Samples({"__name__": "pushed", **labels}, START_MS + 7 + STEP_MS * np.arange(3), np.ones(3))
    assert with_markers([up, own])[1] is own


def test_a_dead_replica_is_gone_at_once_in_an_imported_recording(tmp_path: Path) -> None:
    series = fleet(2, 40, gone_at=20)
    written(tmp_path / "a.capsule", series)
    export_capsule(tmp_path / "a.capsule", "prometheus-json", tmp_path / "a.json")
    import_file(tmp_path / "a.json", tmp_path / "b.capsule")
    assert parts(tmp_path / "b.capsule")[0]["staleness"] == "reconstructed"
    source = CapsuleSource(read_capsule(tmp_path / "b.capsule"))
    alive = START_MS + 19 * STEP_MS + 200
    assert len(source.instant("vllm:num_requests_waiting", alive)) == 2
    assert len(source.instant("vllm:num_requests_waiting", alive + STEP_MS)) == 1


@pytest.mark.parametrize(
    ("form", "kept"),
    [("prometheus-json", True), ("parquet", True), ("openmetrics", False), ("victoria-metrics", False)],
)
def test_a_window_wider_than_its_samples_is_kept_or_said_to_be_lost(form: str, kept: bool, tmp_path: Path) -> None:
    series = fleet(1, 20)
    seen = Extent(start_ms=int(series[0].times_ms[0]), end_ms=int(series[0].times_ms[-1]))
    asked = Extent(start_ms=seen.start_ms - 1_501, end_ms=seen.end_ms + 499)
    written(tmp_path / "a.capsule", series, window=asked, title="kept too")
    summary = export_capsule(tmp_path / "a.capsule", form, tmp_path / "out")
    assert import_file(tmp_path / "out", tmp_path / "b.capsule").series == len(series)
    manifest, _ = open_parts(tmp_path / "b.capsule")
    assert manifest.window == (asked if kept else seen)
    assert any("tells no window" in note for note in manifest.notes) is not kept
    assert any("does not carry window" in note for note in summary.notes) is not kept
    if kept:
        assert manifest.title == "kept too"


def test_restarts_and_configuration_are_told_by_the_samples(tmp_path: Path) -> None:
    labels = {"instance": "a", "job": "j"}
    times = START_MS + STEP_MS * np.arange(4, dtype=np.int64)
    written(
        tmp_path / "a.capsule",
        [
            Samples({"__name__": "process_start_time_seconds", **labels}, times, np.array([5.0, 5.0, STALE, 900.0])),
            Samples(
                {"__name__": "vllm:cache_config_info", "engine": "1", "block_size": "16", **labels}, times, np.ones(4)
            ),
        ],
    )
    manifest, _ = open_parts(tmp_path / "a.capsule")
    assert [(mark.at_ms, mark.kind, mark.instance) for mark in manifest.marks] == [(int(times[3]), "restart", "a")]
    assert manifest.cache_config == {"a/1": {"block_size": "16", "engine": "1"}}
    assert manifest.replicas[0].engines == ("1",)
