"""The HTTP API on its own: parameters, answers, limits, who may ask."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from collectors.store.api_params import BadParameter, Parameters, parse_api_duration_ms, parse_time_ms
from collectors.store.hosts import HostCheck, host_of
from collectors.store.server import samples_app, store_app
from collectors.store.store import Store
from tests.collectors.store import served
from tests.collectors.store.served import BASE_MS, NOW_MS

AT = str(NOW_MS / 1000)


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(store_app(served.store()), base_url="http://127.0.0.1:9090") as asked:
        yield asked


def test_an_instant_query_by_get_and_by_form_is_the_same(client: TestClient) -> None:
    by_get = client.get("/api/v1/query", params={"query": "waiting", "time": AT})
    by_form = client.post("/api/v1/query", data={"query": "waiting", "time": AT})
    assert by_get.json() == by_form.json()
    assert by_get.headers["content-type"] == "application/json"
    first = by_get.json()["data"]["result"][0]
    assert first == {
        "metric": {"__name__": "waiting", "instance": "a:1", "job": "vllm"},
        "value": [NOW_MS // 1000, "1.6666666666666667"],
    }


def test_a_query_without_time_is_asked_at_the_stores_own_clock(client: TestClient) -> None:
    answer = client.get("/api/v1/query", params={"query": "time()"}).json()
    assert answer["data"] == {"resultType": "scalar", "result": [NOW_MS // 1000, str(NOW_MS // 1000)]}


def test_form_and_query_string_are_read_together(client: TestClient) -> None:
    answer = client.post(f"/api/v1/query?time={AT}", data={"query": "count(waiting)"})
    assert answer.json()["data"]["result"][0]["value"][1] == "2"


@pytest.mark.parametrize("limit", [0, 1, 2, 3])
@pytest.mark.parametrize(
    ("path", "params", "size"),
    [
        ("query", {"query": "waiting", "time": AT}, 2),
        ("query_range", {"query": "waiting", "start": str(BASE_MS / 1000), "end": AT, "step": "60"}, 2),
        ("series", {"match[]": "waiting"}, 2),
        ("label/instance/values", {"match[]": "waiting"}, 2),
    ],
)
def test_limit_cuts_and_says_so(client: TestClient, path: str, params: dict[str, str], size: int, limit: int) -> None:
    answer = client.get(f"/api/v1/{path}", params=params | {"limit": str(limit)}).json()
    data = answer["data"]["result"] if path.startswith("query") else answer["data"]
    assert len(data) == (min(size, limit) or size)
    assert answer.get("warnings") == (["results truncated due to limit"] if 0 < limit < size else None)


def test_infos_are_given(client: TestClient) -> None:
    answer = client.get("/api/v1/query", params={"query": "rate(waiting[5m])", "time": AT}).json()
    assert answer["status"] == "success"
    assert any("might not be a counter" in info for info in answer["infos"])


def test_metadata_can_be_narrowed(client: TestClient) -> None:
    asked = client.get("/api/v1/metadata", params={"metric": "waiting"}).json()["data"]
    assert asked == {"waiting": [{"type": "gauge", "help": "Waiting now.", "unit": "requests"}]}
    assert list(client.get("/api/v1/metadata", params={"limit": "1"}).json()["data"]) == ["requests_total"]


@pytest.mark.parametrize(
    "path",
    ["targets", "rules", "alerts", "alertmanagers", "scrape_pools", "status/flags", "status/runtimeinfo", "status/config", "status/tsdb", "status/buildinfo", "query_exemplars"],
)  # fmt: skip
def test_what_grafana_asks_beside_queries_is_answered(client: TestClient, path: str) -> None:
    answer = client.get(f"/api/v1/{path}", params={"query": "up"})
    assert (answer.status_code, answer.json()["status"]) == (200, "success")


def test_unknown_paths_are_404(client: TestClient) -> None:
    assert client.get("/api/v1/none").status_code == 404
    assert client.get("/api/v1/label/x/none").status_code == 404


def test_health_and_own_metrics(client: TestClient) -> None:
    assert client.get("/-/ready").text == "pagewatch store is ready.\n"
    assert client.head("/-/healthy").status_code == 200
    assert "pagewatch_store_series 12.0" in client.get("/metrics").text
    assert "# EOF" in client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}).text


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:9090", "localhost.evil", "", "[::2]:9090", "10.0.0.1"]
)
def test_a_name_that_points_here_is_not_served(client: TestClient, host: str) -> None:
    assert client.get("/api/v1/query?query=1", headers={"Host": host}).status_code == 403


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9090", "127.0.0.1:9090", "127.1.2.3", "[::1]:9090"])
def test_loopback_names_are_served(client: TestClient, host: str) -> None:
    assert client.get("/api/v1/query?query=1", headers={"Host": host}).status_code == 200


def test_further_hosts_can_be_allowed_and_an_open_bind_serves_every_name() -> None:
    made = served.store()
    named = TestClient(store_app(made, allowed_hosts=["store.internal"]), base_url="http://store.internal:9090")
    assert named.get("/-/ready").status_code == 200
    public = TestClient(store_app(made, host="0.0.0.0"), base_url="http://anything")
    assert public.get("/-/ready").status_code == 200
    strict = TestClient(
        HostCheck(store_app(made, host="0.0.0.0"), bound_to="0.0.0.0", allowed=["a"]), base_url="http://b"
    )
    assert strict.get("/-/ready").status_code == 403
    assert host_of("[::1]:80") == "::1"


def test_a_form_that_is_too_large_is_refused(client: TestClient) -> None:
    answer = client.post("/api/v1/query", data={"query": "x" * 11_000_000})
    assert answer.status_code == 400
    assert answer.json()["errorType"] == "bad_data"


def test_a_query_that_takes_too_long_is_503(client: TestClient) -> None:
    answer = client.get("/api/v1/query", params={"query": "sum(waiting)", "timeout": "0"})
    assert (answer.status_code, answer.json()["errorType"]) == (503, "timeout")


def test_an_unsupported_construct_is_named(client: TestClient) -> None:
    answer = client.get("/api/v1/query", params={"query": "histogram_avg(waiting)", "time": AT})
    assert answer.status_code in (400, 422)
    assert "histogram_avg" in answer.json()["error"]


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("1796000000", 1_796_000_000_000),
        ("1796000000.1234", 1_796_000_000_123),
        ("1.796e9", 1_796_000_000_000),
        ("-5", -5000),
        ("2026-11-30T00:53:20Z", 1_796_000_000_000),
        ("2026-11-30T00:53:20.123456789Z", 1_796_000_000_123),
        ("2026-11-30T02:53:20+02:00", 1_796_000_000_000),
    ],
)
def test_instants_are_unix_seconds_or_rfc_3339(text: str, at_ms: int) -> None:
    assert parse_time_ms(text) == at_ms


@pytest.mark.parametrize(
    "text", ["", "now", "NaN", "Inf", "1_0", " 1", "2026-11-30", "2026-11-30T00:53:20", "2026-13-30T00:53:20Z"]
)
def test_other_instants_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="to a valid timestamp"):
        parse_time_ms(text)


@pytest.mark.parametrize(("text", "ms"), [("15", 15_000), ("0.5", 500), ("15s", 15_000), ("1h30m", 5_400_000), ("1d1ms", 86_400_001), ("0", 0), ("-1", -1000)])  # fmt: skip
def test_durations_are_seconds_or_units(text: str, ms: int) -> None:
    assert parse_api_duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "1m1h", "1.5m", "m", "1 m", "1x", "1e999"])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="to a valid duration"):
        parse_api_duration_ms(text)


@settings(deadline=None)
@given(st.text(max_size=30), st.text(max_size=30), st.text(max_size=10))
def test_any_window_is_read_or_refused(start: str, end: str, step: str) -> None:
    try:
        window = Parameters([("start", start), ("end", end), ("step", step)]).window()
    except BadParameter:
        return
    assert window.step_ms > 0


@settings(deadline=None)
@given(st.binary(max_size=60), st.binary(max_size=60))
def test_any_bytes_are_a_form_or_refused(query_string: bytes, form: bytes) -> None:
    try:
        parsed = Parameters.parse(query_string, form)
    except BadParameter:
        return
    assert parsed.limit("a name that is not there") == 0


def test_samples_that_nothing_is_added_to_are_served_at_their_own_clock() -> None:
    opened = TestClient(samples_app(served.store().blocks, lambda: BASE_MS + 60_000), base_url="http://localhost")
    answer = opened.get("/api/v1/query", params={"query": "count(waiting)"}).json()
    assert answer["data"]["result"][0]["value"] == [BASE_MS // 1000 + 60, "2"]
    assert opened.get("/api/v1/targets").json()["data"]["activeTargets"] == []
    assert opened.get("/-/ready").status_code == 200


def test_health_follows_scraping_and_not_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    made = served.store()
    asked = TestClient(store_app(made), base_url="http://localhost")
    monkeypatch.setattr(Store, "problem", property(lambda self: "words"))
    assert asked.get("/-/healthy").status_code == 200
    monkeypatch.setattr(Store, "failed", property(lambda self: True))
    assert asked.get("/-/healthy").text == "pagewatch store is not healthy: words\n"
    assert asked.get("/-/ready").status_code == 503


@pytest.mark.parametrize(
    "query",
    ["+".join(["1"] * 20_000), "(" * 5000 + "1" + ")" * 5000, "-" * 5000 + "1", "sum(" * 3000 + "x" + ")" * 3000],
)
def test_endless_expressions_are_refused_or_answered_in_json(client: TestClient, query: str) -> None:
    answer = client.post("/api/v1/query", data={"query": query})
    assert answer.status_code in (200, 400, 422)
    assert answer.json()["status"] in ("success", "error")


def test_a_defect_is_an_internal_error_in_json(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def defective(*_: object) -> None:
        raise ZeroDivisionError("words")

    monkeypatch.setattr("collectors.store.api.formatted", defective)
    answer = client.get("/api/v1/format_query", params={"query": "x"})
    assert (answer.status_code, answer.json()["errorType"]) == (500, "internal")
    assert answer.json()["error"] == "ZeroDivisionError: words"
