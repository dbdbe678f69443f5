"""Recording: every raw sample once, resumable, redacted before it is written, within what the backend allows."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collectors.capsule import CapsuleSource, read_capsule, record_plan
from collectors.capsule.file import open_parts
from collectors.capsule.record import record
from collectors.model import Labels, MetricMeta, Samples, SourceInfo, Vector
from collectors.source import QueryRejected, SourceBroken, SourceError, SourceUnreachable
from tests.collectors.capsule.capsules import START_MS, STEP_MS, fleet, written
from tests.collectors.misbehaving import Asked, Reply, serving, success

END_MS = START_MS + 59 * STEP_MS + 137


class Backend:
    """A remote server's manners over a capsule: no staleness markers, a longest window, and failures to order."""

    def __init__(self, capsule: CapsuleSource, *, longest_ms: int = 2**60, fail_after: int | None = None) -> None:
        self._capsule = capsule
        self._longest_ms = longest_ms
        self.fail_after = fail_after
        self.asked: list[tuple[str, int, int]] = []

    def info(self) -> SourceInfo:
        return SourceInfo("fleet", "remote", "prometheus", "2.42.0", "http://prometheus:9090")

    def now_ms(self) -> int:
        return self._capsule.now_ms()

    def instant(self, promql: str, at_ms: int) -> Vector:
        return self._capsule.instant(promql, at_ms)

    def series(self, matchers: Sequence[str], start_ms: int, end_ms: int) -> list[Labels]:
        return self._capsule.series(matchers, start_ms, end_ms)

    def metadata(self) -> Mapping[str, MetricMeta]:
        return {"vllm:num_requests_waiting": MetricMeta("gauge", "Told by the backend.")}

    def samples(self, selector: str, start_ms: int, end_ms: int) -> list[Samples]:
        if self.fail_after is not None and len(self.asked) >= self.fail_after:
            raise SourceUnreachable("gone")
        self.asked.append((selector, start_ms, end_ms))
        if end_ms - start_ms > self._longest_ms:
            raise QueryRejected("query processing would load too many samples")
        kept = []
        for each in self._capsule.samples(selector, start_ms, end_ms):
            real = each.values.view(np.uint64) != np.uint64(0x7FF0000000000002)
            if real.any():
                kept.append(Samples(each.labels, each.times_ms[real], each.values[real]))
        return kept


@pytest.fixture
def incident(tmp_path: Path) -> Path:
    path = tmp_path / "incident.capsule"
    written(path, fleet(3, 60, gone_at=40))
    return path


def backend(incident: Path, **manners: Any) -> Any:
    return Backend(CapsuleSource(read_capsule(incident)), **manners)


def body(path: Path) -> str:
    return open_parts(path)[0].body.sha256


def test_a_recording_holds_every_sample_and_its_markers(incident: Path, tmp_path: Path) -> None:
    summary = record(backend(incident), START_MS, END_MS + 200, tmp_path / "out.capsule")
    manifest, _ = open_parts(tmp_path / "out.capsule")
    assert body(tmp_path / "out.capsule") == body(incident)
    assert summary.replicas == 3
    assert (manifest.window.start_ms, manifest.window.end_ms) == (START_MS, END_MS + 200)
    assert manifest.staleness == "reconstructed"
    assert manifest.source.url == "http://prometheus:9090"
    assert manifest.source.version == "2.42.0"
    assert manifest.metrics["vllm:num_requests_waiting"].help == "Told by the backend."
    assert manifest.metrics["vllm:kv_cache_usage_perc"].type == "gauge"
    assert {replica.scrape_interval_ms for replica in manifest.replicas} == {5000}
    assert manifest.engine.dialect == "vllm"
    assert not (tmp_path / "out.capsule.partial").exists()


def test_a_capsule_recorded_from_a_capsule_keeps_its_own_markers(incident: Path, tmp_path: Path) -> None:
    source = CapsuleSource(read_capsule(incident))
    record(source, START_MS, END_MS + 200, tmp_path / "out.capsule")
    assert body(tmp_path / "out.capsule") == body(incident)
    assert open_parts(tmp_path / "out.capsule")[0].staleness == "kept"


def test_chunks_meet_without_a_gap_and_without_a_double(
    incident: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_plan, "SAMPLES_PER_QUERY", 50)
    source = backend(incident)
    record(source, START_MS, END_MS + 200, tmp_path / "out.capsule")
    assert body(tmp_path / "out.capsule") == body(incident)
    assert len(source.asked) > 40
    edges: dict[str, list[tuple[int, int]]] = {}
    for selector, begin, end in source.asked:
        edges.setdefault(selector, []).append((begin, end))
    for windows in edges.values():
        assert windows[0][0] == START_MS - 1
        assert windows[-1][1] == END_MS + 200
        assert all(earlier[1] == later[0] for earlier, later in zip(windows, windows[1:], strict=False))


def test_a_window_that_is_too_much_for_the_backend_is_halved(incident: Path, tmp_path: Path) -> None:
    source = backend(incident, longest_ms=40_000)
    record(source, START_MS, END_MS + 200, tmp_path / "out.capsule")
    assert body(tmp_path / "out.capsule") == body(incident)
    with pytest.raises(QueryRejected, match="too many samples"):
        record(backend(incident, longest_ms=100), START_MS, END_MS, tmp_path / "never.capsule")
    assert not (tmp_path / "never.capsule").exists()


def test_an_interrupted_recording_goes_on_where_it_stopped(
    incident: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_plan, "SAMPLES_PER_QUERY", 200)
    out = tmp_path / "out.capsule"
    with pytest.raises(SourceUnreachable):
        record(backend(incident, fail_after=7), START_MS, END_MS + 200, out)
    assert not out.exists()
    assert len(list((tmp_path / "out.capsule.partial").glob("*.jsonl.gz"))) == 7
    with pytest.raises(SourceBroken, match="another unfinished recording"):
        record(backend(incident), START_MS + 1, END_MS, out)
    second = backend(incident)
    seen: list[float] = []
    record(second, START_MS, END_MS + 200, out, progress=lambda done, note: seen.append(done))
    assert body(out) == body(incident)
    whole = backend(incident)
    record(whole, START_MS, END_MS + 200, tmp_path / "again.capsule")
    assert len(second.asked) == len(whole.asked) - 7
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    assert out.read_bytes() == (tmp_path / "again.capsule").read_bytes()


def test_a_damaged_piece_is_named(incident: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.capsule"
    with pytest.raises(SourceUnreachable):
        record(backend(incident, fail_after=0), START_MS, END_MS, out)
    plan = tmp_path / "out.capsule.partial" / "plan.json"
    kept = plan.read_bytes()
    plan.write_bytes(kept[:-40])
    with pytest.raises(SourceBroken, match=r"plan\.json is damaged"):
        record(backend(incident), START_MS, END_MS, out)
    plan.write_bytes(kept)
    (plan.parent / f"00000-{START_MS - 1}-{END_MS}.jsonl.gz").write_bytes(b"not gzip")
    with pytest.raises(SourceBroken, match="Remove .* and record again"):
        record(backend(incident), START_MS, END_MS, out)


def test_only_what_vllm_targets_expose_is_recorded_unless_told(incident: Path, tmp_path: Path) -> None:
    node = Samples(
        {"__name__": "node_load1", "job": "node", "instance": "n"}, START_MS + STEP_MS * np.arange(9), np.ones(9)
    )
    written(tmp_path / "more.capsule", [*fleet(3, 60, gone_at=40), node])
    record(backend(tmp_path / "more.capsule"), START_MS, END_MS + 200, tmp_path / "out.capsule")
    assert body(tmp_path / "out.capsule") == body(incident)
    record(
        backend(tmp_path / "more.capsule"),
        START_MS,
        END_MS,
        tmp_path / "node.capsule",
        match=["node_load1", '{job="node"}'],
    )
    (only,) = open_parts(tmp_path / "node.capsule")[1].read()
    assert only.values.size == 9, "two selectors that both match record a series once"
    with pytest.raises(SourceBroken, match="nothing matches"):
        record(backend(incident), START_MS, END_MS, tmp_path / "x.capsule", match=['{job="nothing"}'])
    with pytest.raises(SourceBroken, match="no vLLM metrics"):
        record(backend(incident), START_MS - 10**9, START_MS - 10**8, tmp_path / "x.capsule")
    with pytest.raises(QueryRejected, match="ends before"):
        record(backend(incident), END_MS, START_MS, tmp_path / "x.capsule")
    with pytest.raises(SourceBroken, match="no such folder"):
        record(backend(incident), START_MS, END_MS, tmp_path / "lost" / "x.capsule")


def test_redacted_text_is_in_no_piece_and_not_in_the_file(
    incident: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_plan, "SAMPLES_PER_QUERY", 200)
    out = tmp_path / "out.capsule"
    rules = {"instance": r"vllm-\d+", "model_name": ".+"}
    with pytest.raises(SourceUnreachable):
        record(backend(incident, fail_after=20), START_MS, END_MS + 200, out, redact=rules)
    pieces = list((tmp_path / "out.capsule.partial").glob("*.gz"))
    assert len(pieces) == 20
    for piece in pieces:
        assert b"vllm-1" not in gzip.decompress(piece.read_bytes())
    record(backend(incident), START_MS, END_MS + 200, out, redact=rules)
    with zipfile.ZipFile(out) as archive:
        manifest, lines = archive.read("manifest.json"), gzip.decompress(archive.read("series.jsonl.gz"))
    assert b"vllm-1" not in manifest + lines
    parsed = json.loads(manifest)
    assert parsed["redactions"] == [{"label": "instance", "values": 3}, {"label": "model_name", "values": 1}]
    assert len(parsed["replicas"]) == 3, "different text stays different"
    assert all(replica["instance"].endswith(":8000") for replica in parsed["replicas"])
    assert parsed["body"]["samples"] == open_parts(incident)[0].body.samples


@pytest.mark.parametrize(
    ("rules", "words"), [({"le": "1"}, "cannot be redacted"), ({"a": "("}, "no regular expression")]
)
def test_a_redaction_that_cannot_be_is_named(incident: Path, tmp_path: Path, rules: dict[str, str], words: str) -> None:
    with pytest.raises(QueryRejected, match=words):
        record(backend(incident), START_MS, END_MS, tmp_path / "out.capsule", redact=rules)
    assert not (tmp_path / "out.capsule.partial").exists()


def reply(asked: Asked) -> Reply:
    """A Prometheus with one vLLM target, a rule that fires, and a slow answer to every question for samples."""
    metric = {"job": "vllm", "instance": "secret-host:8000"}
    if asked.path.endswith("/series"):
        names = ["up", *[f"vllm:metric_{number:02d}" for number in range(30)]]
        return Reply(200, {"status": "success", "data": [{"__name__": name, **metric} for name in names]})
    if asked.path.endswith("/rules"):
        rule = {
            "type": "alerting",
            "name": "Waiting",
            "query": "x > 1",
            "state": "firing",
            "labels": metric,
            "alerts": [{"labels": metric}],
        }
        return Reply(200, {"status": "success", "data": {"groups": [{"name": "g", "rules": [rule]}]}})
    if asked.path.endswith("/metadata"):
        return Reply(404, "")
    if asked.path.endswith("/buildinfo"):
        return Reply(200, {"status": "success", "data": {"version": "2.42.0", "revision": "r"}})
    time.sleep(0.02)
    name = asked.params["query"][0].split('__name__="')[-1].split('"')[0]
    values = [[START_MS / 1000 + second, "1"] for second in (0, 5, 10)]
    return Reply(200, success("matrix", [{"metric": {"__name__": name, **metric}, "values": values}]))


def test_the_state_of_every_rule_is_kept_and_nothing_that_was_to_be_hidden(tmp_path: Path) -> None:
    from collectors.prometheus import RemoteSource
    from collectors.settings import SourceSettings

    with serving(reply) as server:
        source = RemoteSource.from_settings(SourceSettings.for_address(server.url))
        record(source, START_MS, START_MS + 10_000, tmp_path / "a.capsule", match=["up"])
        record(source, START_MS, START_MS + 10_000, tmp_path / "b.capsule", match=["up"], redact={"instance": "secret"})
    plain, hidden = open_parts(tmp_path / "a.capsule")[0], open_parts(tmp_path / "b.capsule")[0]
    assert plain.rule_states[0]["alerts"][0]["labels"]["instance"] == "secret-host:8000"
    assert hidden.rule_states == (
        {"group": "g", "type": "alerting", "name": "Waiting", "state": "firing", "alerts": 1},
    )
    assert "secret" not in hidden.to_json().decode()


def test_kill_9_leaves_a_partial_that_goes_on_or_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out.capsule"
    code = """
import sys
from pathlib import Path
from collectors.capsule import record_plan
from collectors.prometheus import RemoteSource
from collectors.capsule.record import record
from collectors.settings import SourceSettings
record_plan.SAMPLES_PER_QUERY = 5
source = RemoteSource.from_settings(SourceSettings.for_address(sys.argv[1]))
record(source, int(sys.argv[2]), int(sys.argv[2]) + 10_000, Path(sys.argv[3]))
"""
    with serving(reply) as server:
        command = [sys.executable, "-c", code, server.url, str(START_MS), str(out)]
        process = subprocess.Popen(command, cwd=Path(__file__).parents[3])
        partial = tmp_path / "out.capsule.partial"
        deadline = time.monotonic() + 30
        while len(list(partial.glob("0*.jsonl.gz"))) < 3:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert not out.exists()
        kept = len(list(partial.glob("0*.jsonl.gz")))
        questions = len([asked for asked in server.asked if asked.path.endswith("/query")])
        done = subprocess.run(command, cwd=Path(__file__).parents[3], timeout=60)
        assert done.returncode == 0
        more = len([asked for asked in server.asked if asked.path.endswith("/query")]) - questions
    assert not partial.exists()
    manifest, reader = open_parts(out)
    reader.verify()
    assert manifest.body.series == 31
    assert more <= 2 * 31 - kept, (
        "each of 31 names is asked in two pieces, and those that were kept are not asked again"
    )
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.capsule"]


def test_a_selector_may_be_written_as_anyone_writes_it(incident: Path, tmp_path: Path) -> None:
    written_as = [
        'up{job="vllm"}',
        '{__name__="up"}',
        "up",
        '{__name__=~"u.",instance!="x"}',
        "up{instance=~`vllm.\\d:8000`}",
    ]
    for number, match in enumerate(written_as):
        record(backend(incident), START_MS, END_MS, tmp_path / f"{number}.capsule", match=[match])
        assert open_parts(tmp_path / f"{number}.capsule")[0].body.series == 3, match


def test_edges_of_pieces_that_fall_on_samples_are_exact_on_a_left_open_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.collectors.store.served import on_a_port, store

    served = store()
    series = fleet(2, 60, gone_at=40)
    served.blocks.load(series)
    monkeypatch.setattr(record_plan, "SAMPLES_PER_QUERY", 30)
    with on_a_port(served) as url:
        every_edge_on_a_sample(url, series, tmp_path)


def every_edge_on_a_sample(url: str, series: list[Samples], tmp_path: Path) -> None:
    """Record from just after a scrape, in pieces of two scrapes: every edge is the time of a sample of the first target."""
    from collectors.prometheus import RemoteSource
    from collectors.settings import SourceSettings

    source = RemoteSource.from_settings(SourceSettings.for_address(url))
    record(source, START_MS + 1, END_MS, tmp_path / "edges.capsule", match=['{instance=~"vllm-.*"}'])
    read = {tuple(sorted(each.labels.items())): each for each in open_parts(tmp_path / "edges.capsule")[1].read()}
    assert len(read) == len(series)
    for each in series:
        wanted = (each.times_ms > START_MS) & (each.times_ms <= END_MS)
        got = read[tuple(sorted(each.labels.items()))]
        assert got.times_ms.tolist() == each.times_ms[wanted].tolist()
        assert got.values.tobytes() == each.values[wanted].tobytes()


def test_a_backend_that_takes_exact_names_only_is_asked_name_by_name(incident: Path, tmp_path: Path) -> None:
    source = backend(incident)
    plain = source.samples

    def exact(selector: str, start_ms: int, end_ms: int) -> list[Samples]:
        if "__name__=~" in selector:
            raise QueryRejected("metric name must be exact")
        return plain(selector, start_ms, end_ms)

    source.samples = exact
    record(source, START_MS, END_MS + 200, tmp_path / "out.capsule")
    assert body(tmp_path / "out.capsule") == body(incident)


def test_without_up_there_is_no_telling_when_a_series_ended(tmp_path: Path) -> None:
    written(tmp_path / "a.capsule", [each for each in fleet(2, 30, gone_at=10) if each.labels["__name__"] != "up"])
    record(backend(tmp_path / "a.capsule"), START_MS, END_MS, tmp_path / "out.capsule")
    assert open_parts(tmp_path / "out.capsule")[0].staleness == "absent"


@pytest.mark.parametrize(
    "match", ["{", "a or b", "up[5m]", '{a="b"} or {c="d"}', "rate(up[5m])", "(up)", "up offset 5m", "-up"]
)
def test_a_match_that_is_no_selector_is_named(incident: Path, tmp_path: Path, match: str) -> None:
    with pytest.raises(SourceError):
        record(backend(incident), START_MS, END_MS, tmp_path / "out.capsule", match=[match])
    assert not (tmp_path / "out.capsule.partial").exists()
