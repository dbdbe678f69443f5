"""Round trips through the real programs: what a backend answered before recording, another one answers after."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from collectors.capsule import CapsuleSource, read_capsule, record_plan
from collectors.capsule.body_writer import sorted_series
from collectors.capsule.convert import export_capsule, import_file
from collectors.capsule.file import open_parts, write_capsule
from collectors.capsule.manifest import Manifest
from collectors.capsule.record import record
from collectors.model import Frame, Samples, Window
from collectors.prometheus import RemoteSource
from collectors.settings import Settings, SourceSettings
from collectors.source import QueryRejected, Source
from collectors.sources import open_source
from tests.collectors.capsule.capsules import START_MS, STEP_MS, fleet, written
from tests.collectors.capsule.test_record import every_edge_on_a_sample
from tests.collectors.misbehaving import Asked, Reply, serving
from tests.real_programs import backfill, import_lines, program, prometheus, victoria_metrics
from tests.shared_data import shared_files

pytestmark = pytest.mark.real

RECORDINGS = [
    *shared_files("recordings", pattern="*/*.json.gz"),
    *shared_files("cases", "queue", pattern="replica_restarted*.json.gz"),
]
PAGE_QUERIES = [
    '{__name__=~"vllm:(num_requests_waiting|num_requests_running|kv_cache_usage_perc)"}',
    'label_replace(rate(vllm:prompt_tokens_total[30s]), "signal", "p", "", "") or label_replace(rate(vllm:generation_tokens_total[30s]), "signal", "g", "", "")',
    "sum by (le) (rate(vllm:time_to_first_token_seconds_bucket[1m]))",
    "histogram_quantile(0.99, sum by (le) (rate(vllm:inter_token_latency_seconds_bucket[1m])))",
    "sum(rate(vllm:time_to_first_token_seconds_count[1m])) + sum(deriv(vllm:num_requests_waiting[1m]))",
    "increase(vllm:num_preemptions_total[2m])",
    "changes(process_start_time_seconds[2m])",
    'sum by (status) (rate(http_requests_total[1m]))',
]  # fmt: skip


def remote(url: str) -> RemoteSource:
    return RemoteSource.from_settings(SourceSettings.for_address(url))


def rows(frame: Frame) -> dict[frozenset[tuple[str, str]], np.ndarray]:
    return {frozenset(labels.items()): frame.values[row] for row, labels in enumerate(frame.labels)}


def same_answers(one: Source, other: Source, window: Window, queries: list[str]) -> int:
    """Compare to 1e-9; how many values were compared."""
    compared = 0
    for query in queries:
        first, second = rows(one.range(query, window)), rows(other.range(query, window))
        assert first.keys() == second.keys(), query
        for labels, values in first.items():
            np.testing.assert_allclose(second[labels], values, rtol=1e-9, atol=1e-12, equal_nan=True, err_msg=query)
            compared += int(np.isfinite(values).sum())
    return compared


@contextmanager
def exposing(counts: dict[str, int], dead: threading.Event) -> Iterator[str]:
    """A target whose counters grow with every scrape; when `dead`, its scrapes fail."""

    def reply(asked: Asked) -> Reply:
        if dead.is_set():
            return Reply(500, "gone")
        counts["scrapes"] = count = counts.get("scrapes", 0) + 1
        labels = 'engine="0",model_name="a \\"b\\" \\\\ c"'
        text = f"""# TYPE vllm:num_requests_waiting gauge
# HELP vllm:num_requests_waiting Waiting.
vllm:num_requests_waiting{{{labels}}} {count % 4}
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{{labels}}} {count / 3}
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{{{labels}}} {count * 17 + count % 3}
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{{{labels}}} {count * 5.5}
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{{{labels},le="0.1"}} {count}
vllm:time_to_first_token_seconds_bucket{{{labels},le="1.0"}} {count * 2}
vllm:time_to_first_token_seconds_bucket{{{labels},le="+Inf"}} {count * 3}
vllm:time_to_first_token_seconds_count{{{labels}}} {count * 3}
vllm:time_to_first_token_seconds_sum{{{labels}}} {count * 0.7}
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.796e9
"""
        return Reply(200, text, {"Content-Type": "text/plain; version=0.0.4"})

    with serving(reply) as server:
        yield server.url.removeprefix("http://")


def test_live_prometheus_to_capsule_to_promtool_to_prometheus(tmp_path: Path) -> None:
    program("promtool")
    dead = threading.Event()
    counts: dict[str, int] = {}
    with exposing({}, threading.Event()) as alive, exposing(counts, dead) as mortal:
        config = f"""
scrape_configs:
- job_name: vllm
  scrape_interval: 500ms
  scrape_timeout: 400ms
  static_configs: [{{targets: ["{alive}", "{mortal}"]}}]
"""
        with prometheus(tmp_path / "live", config=config) as live_url:
            live = remote(live_url)
            begin_ms = live.now_ms()
            deadline = time.monotonic() + 60
            while counts.get("scrapes", 0) < 16:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            dead.set()
            died_ms = live.now_ms()
            while len(live.instant(f'count_over_time(up{{instance="{mortal}"}}[60s]) >= 22', live.now_ms())) < 1:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            end_ms = live.now_ms()
            assert live.info().version.startswith("2.")
            assert live.metadata()["vllm:num_requests_waiting"].help == "Waiting."
            record(live, begin_ms, end_ms, tmp_path / "live.capsule")
            manifest, _ = open_parts(tmp_path / "live.capsule")
            assert manifest.metrics["vllm:num_requests_waiting"].help == "Waiting."
            assert {replica.instance for replica in manifest.replicas} == {alive, mortal}
            window = Window(begin_ms + 2_000, end_ms, 700)
            replay = CapsuleSource(read_capsule(tmp_path / "live.capsule"), semantics="2.x")
            assert same_answers(live, replay, window, PAGE_QUERIES) > 100, (
                "a replay shows what was live, deaths included"
            )
            export_capsule(tmp_path / "live.capsule", "openmetrics", tmp_path / "live.om")
            backfill(tmp_path / "live.om", tmp_path / "again")
            with prometheus(tmp_path / "again") as again_url:
                again = remote(again_url)
                before_death = Window(begin_ms + 2_000, died_ms - 1_000, 700)
                assert same_answers(live, again, before_death, PAGE_QUERIES) > 100
                windows_only = [
                    query for query in PAGE_QUERIES if "[" in query and "num_requests" not in query.split("[")[0][-25:]
                ]
                same_answers(live, again, window, windows_only)
    with prometheus(tmp_path / "live") as stopped_url:
        remote(stopped_url).check()
        import_file(tmp_path / "live", tmp_path / "dumped.capsule")
    dumped = CapsuleSource(read_capsule(tmp_path / "dumped.capsule"), semantics="2.x")
    assert same_answers(replay, dumped, window, PAGE_QUERIES) > 100, (
        "a data folder that is in use is read, markers included"
    )


def size_of_blocks(folder: Path) -> int:
    return sum(file.stat().st_size for block in folder.glob("0*") for file in block.rglob("*") if file.is_file())


def test_a_file_of_random_counts_is_well_below_the_blocks_of_the_same_samples(tmp_path: Path) -> None:
    """Counts that nothing ties together, the worst that a histogram can do: 4 replicas, 30 min at 5 s."""
    random = np.random.default_rng(5)
    series = []
    for replica in range(4):
        times = START_MS + 731 * replica + STEP_MS * np.arange(360, dtype=np.int64)
        for family in range(6):
            observed = random.multinomial(random.poisson(25, 360), np.full(20, 0.05))
            counts = random.integers(1, 50_000) + np.cumsum(np.cumsum(observed, axis=1), axis=0)
            for bucket in range(20):
                labels = {
                    "__name__": f"h{family}_bucket",
                    "instance": f"r{replica}:8000",
                    "job": "j",
                    "le": str(bucket),
                }
                series.append(Samples(labels, times, counts[:, bucket].astype(np.float64)))
    written(tmp_path / "a.capsule", series)
    export_capsule(tmp_path / "a.capsule", "openmetrics", tmp_path / "a.om")
    backfill(tmp_path / "a.om", tmp_path / "data")
    assert (tmp_path / "a.capsule").stat().st_size < 0.5 * size_of_blocks(tmp_path / "data")


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name)
def test_recordings_through_promtool_prometheus_and_a_recording_of_it(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_plan, "SAMPLES_PER_QUERY", 40_000)
    import_file(path, tmp_path / "a.capsule")
    manifest, _ = open_parts(tmp_path / "a.capsule")
    export_capsule(tmp_path / "a.capsule", "openmetrics", tmp_path / "a.om")
    backfill(tmp_path / "a.om", tmp_path / "data")
    assert (tmp_path / "a.capsule").stat().st_size < 0.6 * size_of_blocks(tmp_path / "data")
    window = Window(manifest.window.start_ms + 61_003, manifest.window.end_ms, 4_999)
    with prometheus(tmp_path / "data", "--web.route-prefix=/a/prefix") as url:
        server = remote(url + "/")
        record(server, manifest.window.start_ms, manifest.window.end_ms, tmp_path / "b.capsule")
        assert open_parts(tmp_path / "b.capsule")[0].body.sha256 == manifest.body.sha256
        replay = CapsuleSource(read_capsule(tmp_path / "b.capsule"), semantics="2.x")
        over_time = [query for query in PAGE_QUERIES if "[" in query]
        assert same_answers(server, replay, window, over_time) > 50
    import_file(tmp_path / "data", tmp_path / "c.capsule")
    assert open_parts(tmp_path / "c.capsule")[0].body.sha256 == manifest.body.sha256


def shifted(path: Path, out: Path, until_ms: int) -> Manifest:
    """The recording moved into the past: VictoriaMetrics drops samples of the future without a word."""
    manifest, reader = open_parts(path)
    by_ms = manifest.window.end_ms - until_ms
    window = manifest.window.model_copy(update={"start_ms": manifest.window.start_ms - by_ms, "end_ms": until_ms})
    moved = (Samples(each.labels, each.times_ms - by_ms, each.values) for each in reader.read())
    return write_capsule(out, manifest.model_copy(update={"window": window}), moved)


@pytest.mark.parametrize("path", RECORDINGS[1:2], ids=lambda path: path.name)
def test_recordings_through_victoria_metrics_and_back(path: Path, tmp_path: Path) -> None:
    import_file(path, tmp_path / "original.capsule")
    manifest = shifted(tmp_path / "original.capsule", tmp_path / "a.capsule", 1_780_000_000_123)
    export_capsule(tmp_path / "a.capsule", "victoria-metrics", tmp_path / "a.jsonl")
    window = Window(manifest.window.start_ms + 61_003, manifest.window.end_ms, 4_999)
    with victoria_metrics(tmp_path / "one") as first_url:
        import_lines(first_url, (tmp_path / "a.jsonl").read_bytes())
        first = remote(first_url)
        assert first.info().backend == "victoria-metrics"
        record(first, manifest.window.start_ms, manifest.window.end_ms, tmp_path / "b.capsule")
        originals, recorded = (
            sorted_series(open_parts(tmp_path / name)[1].read()) for name in ("a.capsule", "b.capsule")
        )
        for one, other in zip(originals, recorded, strict=True):
            assert dict(one.labels) == dict(other.labels)
            assert one.times_ms.tolist() == other.times_ms.tolist()
            np.testing.assert_allclose(other.values, one.values, rtol=1e-11)
        with urllib.request.urlopen(first_url + '/api/v1/export?match[]={__name__!=""}', timeout=30) as answer:
            (tmp_path / "export.jsonl").write_bytes(answer.read())
        import_file(tmp_path / "export.jsonl", tmp_path / "c.capsule")
        assert open_parts(tmp_path / "c.capsule")[0].body.sha256 == open_parts(tmp_path / "b.capsule")[0].body.sha256
        export_capsule(tmp_path / "b.capsule", "victoria-metrics", tmp_path / "b.jsonl")
        with victoria_metrics(tmp_path / "two") as second_url:
            import_lines(second_url, (tmp_path / "b.jsonl").read_bytes())
            assert same_answers(first, remote(second_url), window, PAGE_QUERIES) > 500


def test_a_real_server_s_refusals_limits_and_scope(tmp_path: Path) -> None:
    written(tmp_path / "a.capsule", fleet(2, 60))
    export_capsule(tmp_path / "a.capsule", "openmetrics", tmp_path / "a.om")
    backfill(tmp_path / "a.om", tmp_path / "data")
    at = START_MS + 50 * STEP_MS
    with prometheus(tmp_path / "data", "--query.max-samples=500") as url:
        source = remote(url)
        with pytest.raises(QueryRejected, match="unclosed left parenthesis"):
            source.instant("sum(", at)
        with pytest.raises(QueryRejected, match=r"too many samples.*Narrow the selector"):
            source.samples('{job="vllm"}', START_MS, at)
        record(source, START_MS, at, tmp_path / "b.capsule")
        assert open_parts(tmp_path / "b.capsule")[0].body.series == len(fleet(2, 60))
        long = "up or " + " or ".join(f'up{{job="{number:0500d}"}}' for number in range(200))
        assert len(source.instant(long, at)) == 2, "a query of 100 KB travels in the body"
        scoped = open_source(url, Settings(), {"instance": 'x"} or up or {a="'})
        assert len(scoped.instant("up", at)) == 0, "a hostile scope selects nothing"
        assert len(open_source(url, Settings(), {"instance": "vllm-1:8000"}).instant("sum by (instance) (up)", at)) == 1
    with prometheus(tmp_path / "data") as url:
        frame = remote(url).range("up", Window(at - 1_234, at + 11_000 * 7, 7))
        assert np.isfinite(frame.values).all()
        assert frame.window.steps > 11_000


def test_edges_of_pieces_that_fall_on_samples_are_exact_on_a_closed_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_plan, "SAMPLES_PER_QUERY", 30)
    series = fleet(2, 60, gone_at=40)
    written(tmp_path / "a.capsule", series)
    export_capsule(tmp_path / "a.capsule", "openmetrics", tmp_path / "a.om")
    backfill(tmp_path / "a.om", tmp_path / "data")
    with prometheus(tmp_path / "data") as url:
        every_edge_on_a_sample(url, series, tmp_path)


def test_victoria_metrics_shows_the_latest_sample_at_once(tmp_path: Path) -> None:
    with victoria_metrics(tmp_path / "data", latency_offset="30s") as url:
        source = remote(url)
        now_ms = source.now_ms()
        times = [now_ms - 60_000 + 5_000 * number for number in range(13)]
        line = f'{{"metric":{{"__name__":"up"}},"values":{list(range(13))},"timestamps":{times}}}\n'
        import_lines(url, line.encode())
        assert source.instant("up", now_ms).values.tolist() == [12.0]
        assert source.samples("up", now_ms - 30_000, now_ms)[0].times_ms.tolist() == times[7:]
