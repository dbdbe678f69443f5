"""The remote source against a server that misbehaves in every way that is known."""

from __future__ import annotations

import base64
import gzip
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collectors.model import Window
from collectors.prometheus import RemoteSource
from collectors.settings import Settings, SettingsError, SourceSettings
from collectors.source import QueryRejected, SourceBroken, SourceError, SourceRefused, SourceUnreachable
from tests.collectors.misbehaving import Asked, Reply, serving, success
from tests.real_programs import free_port

ONE = success("vector", [{"metric": {}, "value": [1, "1"]}])


def remote(url: str, **settings: Any) -> RemoteSource:
    return RemoteSource.from_settings(SourceSettings(name="test", url=url, **settings))


def configured(text: str, environment: dict[str, str]) -> RemoteSource:
    return RemoteSource.from_settings(Settings.parse(text, Path("pagewatch.toml"), environment).source[0])


@pytest.mark.parametrize(
    ("reply", "error", "words"),
    [
        (Reply(401, "no"), SourceRefused, "refuses access (401)"),
        (Reply(403, {"message": "no right"}), SourceRefused, "no right"),
        (Reply(200, "<html><title>Sign&nbsp;in &lt;b&gt;</title></html>", {"Content-Type": "text/html"}), SourceRefused, "web page: Sign in <b>"),
        (Reply(200, "<!doctype html><p>x", {"Content-Type": "text/plain"}), SourceRefused, "web page"),
        (Reply(200, "not json"), SourceBroken, "not as a Prometheus API"),
        (Reply(200, b"\xff\xfe\x00"), SourceBroken, "not as a Prometheus API"),
        (Reply(200, {"hello": "world"}), SourceBroken, "not as a Prometheus API"),
        (Reply(200, {"status": "error", "errorType": "bad_data", "error": "parse\nerror"}), QueryRejected, "parse error"),
        (Reply(200, success("vector", {"a": 1})), SourceBroken, "no result"),
        (Reply(200, success("vector", [{"metric": {}}, {"nothing": 1, "value": [1]}])), SourceBroken, "form"),
        (Reply(400, {"status": "error", "errorType": "bad_data", "error": "unclosed parenthesis"}), QueryRejected, "unclosed"),
        (Reply(422, {"status": "error", "errorType": "execution", "error": "too many samples"}), QueryRejected, "Narrow the selector"),
        (Reply(422, {"status": "error", "errorType": "422", "error": "cannot parse"}), QueryRejected, "cannot parse"),
        (Reply(503, {"status": "error", "errorType": "timeout", "error": "query timed out"}), SourceUnreachable, "gave up"),
        (Reply(500, {"status": "error", "errorType": "internal", "error": "oops"}), SourceUnreachable, "oops"),
        (Reply(404, "404 page not found"), SourceBroken, "path prefix"),
        (Reply(405, ""), SourceBroken, "405"),
        (Reply(414, "<html>"), QueryRejected, "too long"),
        (Reply(429, "slow down", {"Retry-After": "7"}), SourceUnreachable, "wait 7 s"),
        (Reply(503, "<html><title>Bad gateway</title>"), SourceUnreachable, "failed (503): Bad gateway"),
        (Reply(200, success("string", [1, "x"])), QueryRejected, "a text"),
        (Reply(200, success("matrix", [])), QueryRejected, "raw samples"),
    ],
)  # fmt: skip
def test_every_refusal_is_one_line_with_a_next_step(reply: Reply, error: type[SourceError], words: str) -> None:
    with serving(reply) as server, pytest.raises(SourceError) as caught:
        remote(server.url).instant("up", 1_000)
    assert type(caught.value) is error
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_server_that_is_not_there_is_said_at_once() -> None:
    began = time.monotonic()
    with pytest.raises(SourceUnreachable, match="connection refused"):
        remote(f"http://127.0.0.1:{free_port()}").instant("up", 1_000)
    assert time.monotonic() - began < 2


def test_an_unknown_host_is_named_without_the_query() -> None:
    with pytest.raises(SourceUnreachable) as caught:
        remote("http://no-such-host.invalid", timeout_seconds=5).instant('secret_metric{a="hunter2"}', 1_000)
    assert "hunter2" not in str(caught.value)


def silent(_: Any, stopping: threading.Event) -> None:
    stopping.wait(15)


def dripping(out: Any, stopping: threading.Event) -> None:
    out.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n")
    while not stopping.wait(0.05):
        out.write(b" ")
        out.flush()


@pytest.mark.parametrize("write", [silent, dripping])
def test_the_deadline_holds_over_everything(write: Callable[[Any, threading.Event], None]) -> None:
    began = time.monotonic()
    with serving(Reply(write=write)) as server:
        with pytest.raises(SourceUnreachable, match=r"no answer within 0\.4 s"):
            remote(server.url, timeout_seconds=0.4).instant("up", 1_000)
        assert time.monotonic() - began < 2
        assert len(server.asked) == 1


def test_a_gateway_error_is_retried_once_and_no_more() -> None:
    replies = [Reply(502, "bad gateway"), Reply(200, ONE), *[Reply(503, "no")] * 5]
    with serving(lambda _: replies.pop(0)) as server:
        source = remote(server.url)
        assert source.instant("up", 1_000).values.tolist() == [1.0]
        assert len(server.asked) == 2
        with pytest.raises(SourceUnreachable):
            source.instant("up", 1_000)
        assert len(server.asked) == 4


def test_a_broken_connection_is_tried_once_more() -> None:
    def reply(_: Asked) -> Reply:
        return Reply(200, ONE) if len(server.asked) > 1 else Reply(write=lambda out, _: None)

    with serving(reply) as server:
        assert remote(server.url).instant("up", 1_000).values.tolist() == [1.0]


def test_an_answer_that_is_cut_off_is_no_answer() -> None:
    def half(out: Any, _: threading.Event) -> None:
        out.write(b'HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"status":"success"')

    with serving(Reply(write=half)) as server, pytest.raises(SourceUnreachable):
        remote(server.url).instant("up", 1_000)


def test_an_answer_that_is_too_large_is_left_unread() -> None:
    bomb = gzip.compress(b" " * 50_000_000)
    with (
        serving(Reply(200, bomb, {"Content-Encoding": "gzip"})) as server,
        pytest.raises(SourceBroken, match="more than 1000000 bytes"),
    ):
        remote(server.url, max_response_bytes=1_000_000).instant("up", 1_000)


def test_start_end_and_step_are_exact_to_the_millisecond() -> None:
    with serving(Reply(200, success("matrix", []))) as server:
        remote(server.url).range("up", Window(1_796_006_013_341, 1_796_006_023_342, 1_234))
        remote(server.url).samples("up", 1_796_006_013_341, 1_796_006_013_342 + 500)
    asked = server.asked[0].params
    assert (asked["start"], asked["end"], asked["step"]) == (["1796006013.341"], ["1796006023.213"], ["1.234"])
    assert server.asked[1].params["query"] == ["up[501ms]"]
    assert server.asked[1].params["time"] == ["1796006013.842"]


def test_long_ranges_are_asked_in_parts_and_put_together() -> None:
    def reply(asked: Asked) -> Reply:
        start, end = float(asked.params["start"][0]), float(asked.params["end"][0])
        times = np.arange(round(start * 1000), round(end * 1000) + 1, 100)
        assert times.size <= 11_000
        values = [[int(at) / 1000, str(int(at))] for at in times]
        return Reply(200, success("matrix", [{"metric": {"a": "b"}, "values": values}]))

    window = Window(1_796_006_000_000, 1_796_006_000_000 + 25_000 * 100, 100)
    with serving(reply) as server:
        frame = remote(server.url).range("up", window)
    assert len(server.asked) == 3
    assert frame.values.shape == (1, 25_001)
    assert (frame.values[0] == frame.times_ms).all()


def test_points_beside_the_grid_are_asked_again_without_a_cache_then_refused() -> None:
    with serving(Reply(200, success("matrix", [{"metric": {}, "values": [[999.5, "1"]]}]))) as server:
        source = remote(server.url)
        with pytest.raises(SourceBroken, match="other instants"):
            source.range("up", Window(1_000_100, 1_010_000, 1_000))
        with pytest.raises(SourceBroken, match="other instants"):
            source.range("up", Window(1_000_100, 1_010_000, 1_000))
        with pytest.raises(SourceBroken, match="other instants"):
            source.range("up", Window(1_000_000, 1_010_000, 1_000))
        assert [asked.params.get("nocache") for asked in server.asked] == [None, ["1"], ["1"], None]


def test_gaps_warnings_scalars_and_special_values_are_kept() -> None:
    matrix = [{"metric": {"value": "v", "timestamp": "t"}, "values": [[1, "NaN"], [3, "+Inf"]]}]
    with serving(
        Reply(200, success("matrix", matrix, warnings=["partial  response"], infos=["maybe no counter"]))
    ) as server:
        frame = remote(server.url).range("up", Window(1_000, 4_000, 1_000))
    assert frame.labels == ({"value": "v", "timestamp": "t"},)
    assert np.isnan(frame.values[0, [0, 1, 3]]).all()
    assert frame.values[0, 2] == np.inf
    assert frame.warnings == ("partial response", "maybe no counter")
    with serving(Reply(200, success("scalar", [1, "-Inf"]))) as server:
        vector = remote(server.url).instant("1", 1_000)
    assert vector.labels == ({},)
    assert vector.values.tolist() == [-np.inf]
    with serving(Reply(200, success("vector", []))) as server:
        assert len(remote(server.url).instant("up", 1_000)) == 0


def test_native_histograms_are_left_out_and_said() -> None:
    result = [{"metric": {"a": "1"}, "histogram": [1, {}]}, {"metric": {"a": "2"}, "value": [1, "2"]}]
    with serving(Reply(200, success("vector", result))) as server:
        vector = remote(server.url).instant("up", 1_000)
    assert vector.labels == ({"a": "2"},)
    assert "native histograms" in vector.warnings[0]


def test_raw_samples_are_left_open_and_never_double() -> None:
    values = [[at, str(at)] for at in (10.0, 11.5, 12.0, 13.0)]
    with serving(Reply(200, success("matrix", [{"metric": {}, "values": values}]))) as server:
        source = remote(server.url)
        assert source.samples("up", 10_000, 12_000)[0].times_ms.tolist() == [11_500, 12_000]
        assert source.samples("up", 13_000, 14_000) == []
        assert source.samples("up # comment", 10_000, 12_000)[0].values.tolist() == [11.5, 12.0]
    assert server.asked[-1].params["query"] == ["up # comment\n[2000ms]"]


def test_long_queries_travel_in_a_body_and_short_ones_in_the_address() -> None:
    with serving(Reply(200, ONE)) as server:
        source = remote(server.url)
        source.instant("up", 1_000)
        source.instant('up{a="' + "x" * 200_000 + '"}', 1_000)
    short, long = server.asked
    assert (short.method, long.method) == ("GET", "POST")
    assert long.query == ""
    assert len(long.params["query"][0]) > 200_000
    assert "Content-Length" in long.headers


@pytest.mark.parametrize("suffix", ["", "/", "/prefix", "/prefix/"])
def test_path_prefix_and_trailing_slash(suffix: str) -> None:
    with serving(Reply(200, ONE)) as server:
        remote(server.url + suffix).check()
    assert server.asked[0].path == suffix.rstrip("/") + "/api/v1/query"
    assert server.asked[0].params["query"] == ["1"]


def test_a_web_server_that_answers_something_else_to_one_is_no_prometheus() -> None:
    with serving(Reply(200, success("vector", []))) as server, pytest.raises(SourceBroken, match="does not answer 1"):
        remote(server.url).check()


def test_headers_bearer_and_parameters_are_sent(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    with serving(Reply(200, ONE)) as server:
        source = configured(
            f"""
[[source]]
name = "thanos"
url = "{server.url}"
headers = {{ X-Scope-OrgID = "a|b" }}
headers_env = {{ X-Api-Token = "API_TOKEN" }}
auth = {{ bearer_file = "{token}" }}
params = {{ dedup = true, partial_response = false, "replicaLabels[]" = ["a", "b"] }}
""",
            {"API_TOKEN": "t0ken"},
        )
        source.instant("up", 1_000)
        token.write_text("second\n")
        source.instant("up", 1_000)
    first, second = server.asked
    assert first.headers["X-Scope-OrgID"] == "a|b"
    assert first.headers["X-Api-Token"] == "t0ken"
    assert first.headers["Authorization"] == "Bearer first"
    assert second.headers["Authorization"] == "Bearer second", "a renewed token is read anew"
    assert first.params["dedup"] == ["true"]
    assert first.params["replicaLabels[]"] == ["a", "b"]
    assert "Cookie" not in second.headers


def test_basic_auth_of_settings_and_of_an_address() -> None:
    with serving(Reply(200, ONE)) as server:
        configured(
            f'[[source]]\nname="a"\nurl="{server.url}"\nauth={{username="ü", password_env="P"}}\n', {"P": "hunter2"}
        ).check()
        host = server.url.removeprefix("http://")
        source = RemoteSource.from_settings(SourceSettings.for_address(f"http://u:hunter2@{host}/?dedup=true"))
        source.check()
        shown = source.info()
    sent = [
        base64.b64decode(asked.headers["Authorization"].removeprefix("Basic ")).decode() for asked in server.asked[:2]
    ]
    assert sent == ["ü:hunter2", "u:hunter2"]
    assert server.asked[1].params["dedup"] == ["true"]
    assert "hunter2" not in repr(shown) + repr(vars(source))
    assert shown.url == server.url


def test_a_netrc_entry_never_replaces_the_configured_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login other password other\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    with serving(Reply(200, ONE)) as server:
        configured(f'[[source]]\nname="a"\nurl="{server.url}"\nauth={{bearer_env="T"}}\n', {"T": "mine"}).check()
    assert server.asked[0].headers["Authorization"] == "Bearer mine"


def test_a_missing_secret_is_named_before_anything_is_asked() -> None:
    with pytest.raises(SettingsError, match="bearer_env names T, which is not set"):
        configured('[[source]]\nname="a"\nurl="http://127.0.0.1:1"\nauth={bearer_env="T"}\n', {})


def test_credentials_do_not_follow_a_redirect_to_another_server() -> None:
    with serving(Reply(200, ONE)) as thief:
        moved = Reply(302, "", {"Location": thief.url + "/login?next=secret"})
        with serving(moved) as server:
            source = configured(f'[[source]]\nname="a"\nurl="{server.url}"\nauth={{bearer_env="T"}}\n', {"T": "mine"})
            with pytest.raises(SourceRefused, match="another server"):
                source.instant("up", 1_000)
        assert thief.asked == []


def test_a_redirect_on_the_same_server_keeps_the_question() -> None:
    def reply(asked: Asked) -> Reply:
        if asked.path.startswith("/prom/"):
            return Reply(200, ONE)
        return Reply(308, "", {"Location": "/prom" + asked.path})

    with serving(reply) as server:
        source = remote(server.url)
        source.instant("up", 1_000)
        source.instant("up + " + "0" * 3000, 1_000)
    assert server.asked[1].params["query"] == ["up"]
    assert server.asked[3].method == "POST"
    assert server.asked[3].params["query"] == ["up + " + "0" * 3000]


def test_a_circle_of_redirects_ends() -> None:
    with serving(Reply(302, "", {"Location": "/again"})) as server, pytest.raises(SourceBroken, match="circle"):
        remote(server.url).instant("up", 1_000)


def test_cookies_are_not_kept() -> None:
    with serving(Reply(200, ONE, {"Set-Cookie": "session=hunter2"})) as server:
        source = remote(server.url)
        source.instant("up", 1_000)
        source.instant("up", 1_000)
    assert "Cookie" not in server.asked[1].headers


@pytest.mark.parametrize(
    ("data", "backend", "version"),
    [
        ({"version": "2.42.0", "revision": "x", "goVersion": "go"}, "prometheus", "2.42.0"),
        ({}, "victoria-metrics", ""),
        ({"version": "2.24.0"}, "victoria-metrics", ""),
        ({"application": "Grafana Mimir", "version": "2.10", "revision": "x"}, "mimir", "2.10"),
    ],
)
def test_the_flavour_is_told_by_buildinfo(data: dict[str, str], backend: str, version: str) -> None:
    with serving(Reply(200, {"status": "success", "data": data})) as server:
        info = remote(server.url).info()
    assert (info.backend, info.version, info.kind) == (backend, version, "remote")


def test_info_never_raises_and_metadata_may_be_missing() -> None:
    with serving(Reply(404, "nothing here")) as server:
        source = remote(server.url)
        assert source.info().version == ""
        assert source.metadata() == {}
        assert source.rules() == []
        source.info()
        assert len([asked for asked in server.asked if "buildinfo" in asked.path]) == 1, "a failure is kept for a while"


def test_many_threads_share_one_source() -> None:
    def reply(asked: Asked) -> Reply:
        return Reply(200, success("vector", [{"metric": {}, "value": [1, asked.params["query"][0]]}]))

    with serving(reply) as server:
        source = remote(server.url)
        with ThreadPoolExecutor(24) as pool:
            got = list(pool.map(lambda n: source.instant(str(n), 1_000).values[0], range(400)))
    assert got == list(range(400))


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:99999", "http://[::1", "file:///etc/passwd"])
def test_an_address_that_is_none_is_named(url: str) -> None:
    with pytest.raises((SourceBroken, SettingsError)):
        RemoteSource.from_settings(SourceSettings.for_address(url))


def test_series_and_metadata_are_read() -> None:
    def reply(asked: Asked) -> Reply:
        if asked.path.endswith("series"):
            return Reply(200, {"status": "success", "data": [{"__name__": "up", "a": "b"}]})
        return Reply(
            200, {"status": "success", "data": {"up": [{"type": "gauge", "help": "h", "unit": ""}], "odd": []}}
        )

    with serving(reply) as server:
        source = remote(server.url)
        assert source.series(["up", '{a="b"}'], 1_000, 2_000) == [{"__name__": "up", "a": "b"}]
        assert source.metadata()["up"].type == "gauge"
    assert server.asked[0].params["match[]"] == ["up", '{a="b"}']
