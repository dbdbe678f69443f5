"""The same questions put to a real VictoriaMetrics: every query is understood, and counts agree where its rates need not."""

import json
import subprocess
import time
import urllib.request

import pytest

from collectors.fleet import fleet_picture
from collectors.latency import latency_picture
from collectors.model import Window
from collectors.prometheus import RemoteSource
from collectors.settings import Settings, SourceSettings
from tests.collectors.fleet_data import START_MS, PretendReplica, pretend
from tests.collectors.store.real_prometheus import binary_or_skip, free_port

pytestmark = pytest.mark.real
END_MS = START_MS + 1_200_000


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read()


@pytest.fixture
def victoria(tmp_path):
    binary, url = binary_or_skip("victoria-metrics"), f"http://127.0.0.1:{free_port()}"
    server = subprocess.Popen(
        [binary, f"-httpListenAddr={url[7:]}", f"-storageDataPath={tmp_path}", "-retentionPeriod=100y"]
        + ["-search.latencyOffset=0s", "-search.disableCache"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                get(f"{url}/health")
                break
            except OSError:
                assert server.poll() is None, "victoria-metrics ended"
                assert time.monotonic() < deadline, "victoria-metrics did not answer within 30 s"
                time.sleep(0.05)
        yield url
    finally:
        server.terminate()
        server.wait(20)


def test_the_pictures_are_understood(victoria):
    lines = [
        json.dumps({"metric": one.labels, "values": one.values.tolist(), "timestamps": one.times_ms.tolist()})
        for one in pretend(PretendReplica("a:8000", waiting=120, running=16), PretendReplica("b:8000"))
    ]
    get(urllib.request.Request(f"{victoria}/api/v1/import", "\n".join(lines).encode()))
    get(f"{victoria}/internal/force_flush")
    source = RemoteSource.from_settings(SourceSettings(name="victoria", url=victoria))
    deadline = time.monotonic() + 20
    while not len(source.instant("up", END_MS)):
        assert time.monotonic() < deadline, "imported samples did not become visible"
        time.sleep(0.1)
    window = Window(END_MS - 900_000, END_MS, 15_000)
    seen = fleet_picture(source, window, Settings())
    assert seen.source.backend == "victoria-metrics"
    assert seen.scrape_interval_seconds == 5
    assert seen.engine_text == "vLLM 0.11"
    worst = seen.replicas[0]
    assert worst.key == "a:8000"
    assert worst.waiting.value == 120
    assert worst.wait.value == pytest.approx(40, rel=0.02)
    assert worst.capacity_requests.value == pytest.approx(3, rel=0.02)
    assert worst.seats.value == 16
    assert seen.totals.time_to_first_token[2].interval.text("s") == "0.1-0.25 s"
    assert not seen.warnings
    latency = latency_picture(source, window, Settings(), earlier_ms=(60_000,))
    assert latency.ranking.fleet_p99.interval.text("s") == "0.1-0.25 s"
    assert not latency.warnings
    source.close()
