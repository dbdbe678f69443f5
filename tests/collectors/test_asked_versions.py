"""Replicas that are asked for /version: only when allowed, at the scraped address, bounded, remembered, never in the way of a picture."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from collectors import discovery
from collectors.asked_versions import AskedVersions, Urls, ask_version, version_url
from collectors.asking import Answers
from collectors.detection import detect
from collectors.model import Labels, SourceInfo
from collectors.prometheus import RemoteSource
from collectors.scraped import Target
from collectors.settings import Engine, Settings, SourceSettings
from collectors.source import SourceUnreachable
from tests.collectors.misbehaving import Asked, Reply, serving
from tests.collectors.store.test_server import eventually
from tests.collectors.store.test_server import serving as store_at
from tests.sim_backend.live_fleet import Fleet, quiet

NOW_MS = 1_796_000_000_000


class Naming:
    """A source that names targets, for AskedVersions alone."""

    def __init__(self, targets: Sequence[tuple[Labels, str]], failing: bool = False) -> None:
        self._targets, self._failing, self.listed = targets, failing, 0

    def scrape_targets(self) -> Sequence[tuple[Labels, str]]:
        self.listed += 1
        if self._failing:
            raise SourceUnreachable("gone")
        return self._targets

    def info(self) -> SourceInfo:
        return SourceInfo("prod", "remote", "prometheus", "2.42", "http://prometheus:9090")

    def now_ms(self) -> int:
        return NOW_MS


def target(instance: str, started: float | None = 100.0, **labels: str) -> Target:
    return Target({"job": "vllm", "instance": instance, **labels}, 1.0, started, 1.0)


def versions(found: Sequence[Target]) -> list[str]:
    return [one.version for one in found]


@pytest.mark.parametrize(
    ("scraped", "asked"),
    [
        ("http://10.0.0.1:8000/metrics", "http://10.0.0.1:8000/version"),
        ("https://gpu/vllm/metrics?format=text", "https://gpu/vllm/version"),
        ("http://user:secret@[fd00::1]:8000/metrics", "http://[fd00::1]:8000/version"),
        ("file:///etc/passwd", ""),
        ("http://host:port/metrics", ""),
        ("", ""),
    ],
)
def test_the_version_stands_beside_the_metrics_and_no_secret_goes_along(scraped: str, asked: str) -> None:
    assert version_url(scraped) == asked


def slow(wfile: Any, stopping: Any) -> None:
    wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
    while not stopping.wait(0.05):
        wfile.write(b" ")
        wfile.flush()


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (Reply(body={"version": "0.11.0"}), "0.11.0"),
        (Reply(body={"version": "v0.11.1.dev3+cpu "}), "v0.11.1.dev3+cpu"),
        (Reply(body={"version": 11}), ""),
        (Reply(body={"version": "latest"}), ""),
        (Reply(body={"version": "0." + "1" * 100}), ""),
        (Reply(body=b'["0.11.0"]'), ""),
        (Reply(body=b"0.11.0"), ""),
        (Reply(body=b'{"version": "0.11.0", "more": "' + b"x" * 100_000 + b'"}'), ""),
        (Reply(404, {"version": "0.11.0"}), ""),
        (Reply(302, headers={"Location": "http://127.0.0.1:1/version"}), ""),
        (Reply(write=slow), ""),
        (Reply(write=lambda wfile, stopping: wfile.write(b"SSH-2.0-OpenSSH\r\n")), ""),
    ],
    ids=["plain", "build", "number", "word", "long", "list", "text", "large", "missing", "elsewhere", "dripping", "no http"],
)  # fmt: skip
def test_only_a_short_answer_in_time_with_a_version_counts(reply: Reply, told: str) -> None:
    with serving(reply) as server:
        assert ask_version(f"{server.url}/version", 0.5) == told
        assert len(server.asked) <= 1


def test_nobody_there_is_no_version() -> None:
    assert ask_version("http://127.0.0.1:1/version", 0.5) == ""


def known_by(asked: AskedVersions, source: Any, targets: Sequence[Target], wanted: list[str]) -> list[str]:
    eventually(lambda: versions(asked.told(source, targets, NOW_MS)) == wanted)
    return versions(asked.told(source, targets, NOW_MS))


def counting(answers: dict[str, str]) -> tuple[Callable[[str], str], list[str]]:
    asked: list[str] = []

    def ask(url: str) -> str:
        asked.append(url)
        return answers.get(url, "")

    return ask, asked


def test_a_process_is_asked_once_and_again_after_it_restarted() -> None:
    answers = {"http://a:1/version": "0.11.0", "http://b:1/version": "0.12.0"}
    ask, urls = counting(answers)
    source = Naming([({"job": "vllm", "instance": n}, f"http://{n}/metrics") for n in ("a:1", "b:1")])
    asked = AskedVersions(ask, lambda: 0.0)
    assert versions(asked.told(source, [target("a:1")], NOW_MS)) == [""], "the first picture does not wait"
    assert known_by(asked, source, [target("a:1"), target("b:1")], ["0.11.0", "0.12.0"]) == ["0.11.0", "0.12.0"]
    answers["http://a:1/version"] = "0.13.0"
    assert known_by(asked, source, [target("a:1"), target("b:1")], ["0.11.0", "0.12.0"])
    assert known_by(asked, source, [target("a:1", 200.0)], ["0.13.0"]) == ["0.13.0"]
    assert sorted(urls) == ["http://a:1/version", "http://a:1/version", "http://b:1/version"]


def test_a_silent_replica_and_a_list_that_fails_are_left_alone_for_a_while() -> None:
    seconds = [0.0]
    ask, urls = counting({})
    source = Naming([({"job": "vllm", "instance": "a:1"}, "http://a:1/metrics")])
    asked = AskedVersions(ask, lambda: seconds[0])
    for _ in range(5):
        asked.told(source, [target("a:1")], NOW_MS)
        eventually(lambda: bool(urls))
        eventually(lambda: not asked._busy)
    assert urls == ["http://a:1/version"]
    seconds[0] = 301.0
    asked.told(source, [target("a:1")], NOW_MS)
    eventually(lambda: len(urls) == 2)
    failing = Naming([], failing=True)
    asked = AskedVersions(ask, lambda: seconds[0])
    for _ in range(5):
        asked.told(failing, [target("a:1")], NOW_MS)
        eventually(lambda: not asked._busy)
    assert failing.listed == 1


def test_a_long_ago_window_is_told_only_of_the_same_process() -> None:
    ask, _ = counting({"http://a:1/version": "0.11.0"})
    source = Naming([({"job": "vllm", "instance": "a:1"}, "http://a:1/metrics")])
    asked = AskedVersions(ask, lambda: 0.0)
    unknown_start = target("a:1", None)
    assert known_by(asked, source, [target("a:1"), unknown_start], ["0.11.0", "0.11.0"])
    assert versions(asked.told(source, [target("a:1"), unknown_start], NOW_MS - 3_600_000)) == ["0.11.0", ""]


def test_one_address_in_two_clusters_is_told_apart_or_not_asked() -> None:
    place = {"job": "vllm", "instance": "a:1"}
    urls = Urls([({**place, "cluster": "x"}, "http://x/version"), ({**place, "cluster": "y"}, "http://y/version")])
    assert urls.of({**place, "cluster": "y", "prometheus": "0"}) == "http://y/version"
    assert urls.of(place) == ""
    assert urls.of({"job": "vllm", "instance": "b:1"}) == ""


def test_the_configuration_stands_above_what_a_replica_tells() -> None:
    names = {"vllm:num_requests_running", "vllm:kv_cache_usage_perc"}
    assert detect(names, Engine(), told="0.11.2").text == "vLLM 0.11.2 (/version)"
    assert detect(names, Engine(), told="0.11.2").how == "told"
    assert detect(names, Engine(version="0.12.0"), told="0.11.2").text == "vLLM 0.12.0"


def test_nothing_is_asked_unless_the_configuration_allows_it() -> None:
    assert Settings().engine.ask_version is False
    looked: list[str] = []

    def reply(asked: Asked) -> Reply:
        looked.append(asked.path)
        return Reply(body={"status": "success", "data": {"resultType": "vector", "result": []}})

    with serving(reply) as server:
        source = RemoteSource.from_settings(SourceSettings(name="prod", url=server.url))
        discovery.discover(Answers(source), Settings(), NOW_MS)
        source.close()
    assert "/api/v1/targets" not in looked


def test_a_simulated_fleet_behind_a_store_tells_its_versions(tmp_path: Path) -> None:
    settings = Settings(engine=Engine(ask_version=True))
    fleet = Fleet(quiet(fleet={"replicas": 2}), 2, {})
    try:
        addresses = ",".join(fleet.url(n).removeprefix("http://") for n in (0, 1))
        with store_at(addresses, tmp_path) as (_, url):
            source = RemoteSource.from_settings(SourceSettings(name="store", url=url))

            def engines() -> set[str]:
                now_ms = int(time.time() * 1000)
                tree = discovery.discover(Answers(source), settings, now_ms).tree()
                return (
                    {replica.engine.text for replica in tree.replicas if replica.engine}
                    if len(tree.replicas) == 2
                    else set()
                )

            eventually(lambda: engines() == {"vLLM 0.11.0 (/version)"}, 30)
            source.close()
    finally:
        fleet.close()
