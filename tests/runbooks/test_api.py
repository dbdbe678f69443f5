"""The JSON API: what Alertmanager sends opens incidents once, and nobody else gets in."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from collectors.settings import Settings
from collectors.source import SourceUnreachable
from collectors.store.embedded import EmbeddedSource
from runbooks.api import MAX_BODY_BYTES, api_app
from runbooks.api_access import is_loopback
from runbooks.incidents import Incidents
from runbooks.records import Records
from runbooks.webhook import WebhookRefused, read_message
from tests.runbooks.recorded_walks import recorded
from tests.shared_data import shared

NOW_MS = 1_900_000_000_000
LOCAL = ("127.0.0.1", 50_000)


@pytest.fixture
def queue() -> tuple[EmbeddedSource, int]:
    """A source with an incident, and an instant in the middle of it."""
    source, wrapper = recorded(shared("recordings", "vllm-0.11.0-cpu", "b_waiting_growth.json.gz"))
    return source, round((float(wrapper["start"]) + 93) * 1000)


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(tmp_path / "records.sqlite3")


@pytest.fixture
def client(queue: tuple[EmbeddedSource, int], records: Records) -> Iterator[TestClient]:
    app = api_app(queue[0], Settings(), records, lambda: NOW_MS)
    with TestClient(app, base_url="http://127.0.0.1:8502", client=LOCAL) as opened:
        yield opened


def rfc(at_ms: int) -> str:
    from collectors.instants import format_instant

    return format_instant(at_ms)


def message(at_ms: int, *, status: str = "firing", fingerprint: str = "f1", **labels: str) -> dict[str, object]:
    """As Alertmanager 0.25 writes it."""
    return {
        "receiver": "pagewatch",
        "status": status,
        "alerts": [
            {
                "status": status,
                "labels": {"alertname": "PagewatchWaitingGrowthWaitSeconds", "runbook": "waiting_growth", **labels},
                "annotations": {"summary": "Requests wait"},
                "startsAt": rfc(at_ms),
                "endsAt": "0001-01-01T00:00:00Z" if status == "firing" else rfc(at_ms + 60_000),
                "generatorURL": "" if status == "resolved" else "http://prometheus/graph",
                "fingerprint": fingerprint,
            }
        ],
        "groupLabels": {"alertname": "x"},
        "commonLabels": {},
        "commonAnnotations": {},
        "externalURL": "http://alertmanager",
        "version": "4",
        "groupKey": '{}:{alertname="x"}',
        "truncatedAlerts": 0,
    }


def test_a_delivery_opens_an_incident_with_the_diagnosis_of_its_instant(client: TestClient, queue: tuple) -> None:
    answer = client.post("/api/v1/alerts", json=message(queue[1]))
    assert answer.status_code == 200
    (opened,) = answer.json()["opened"]
    incident = client.get(f"/api/v1/incidents/{opened}").json()
    assert incident["status"] == "firing"
    assert incident["ends_at"] is None
    assert incident["starts_at"] == rfc(queue[1])
    assert incident["runbook"] == "waiting_growth"
    assert incident["diagnosis"]["verdicts"][0]["cause"] in ("seat_limited", "overload")
    assert incident["headline"]["where"]["replicas"][0]["instance"] == "127.0.0.1:8000"
    (listed,) = client.get("/api/v1/incidents").json()["incidents"]
    assert listed["id"] == opened
    assert "diagnosis" not in listed


def test_the_same_delivery_twice_changes_nothing(client: TestClient, queue: tuple) -> None:
    first = client.post("/api/v1/alerts", json=message(queue[1])).json()
    before = client.get("/api/v1/incidents/1").json()
    second = client.post("/api/v1/alerts", json=message(queue[1])).json()
    assert (len(first["opened"]), second) == (1, {"opened": [], "known": 1})
    assert client.get("/api/v1/incidents/1").json() == before


def test_a_resolved_delivery_closes_it_and_an_old_firing_does_not_open_it_again(
    client: TestClient, queue: tuple
) -> None:
    client.post("/api/v1/alerts", json=message(queue[1]))
    client.post("/api/v1/alerts", json=message(queue[1], status="resolved"))
    incident = client.get("/api/v1/incidents/1").json()
    assert (incident["status"], incident["ends_at"]) == ("resolved", rfc(queue[1] + 60_000))
    client.post("/api/v1/alerts", json=message(queue[1]))
    assert client.get("/api/v1/incidents/1").json() == incident
    client.post("/api/v1/alerts", json=message(queue[1] + 1000))
    assert [i["status"] for i in client.get("/api/v1/incidents").json()["incidents"]] == ["firing", "resolved"]
    assert len(client.get("/api/v1/incidents?status=resolved").json()["incidents"]) == 1
    assert [i["id"] for i in client.get("/api/v1/incidents?limit=1&before=2").json()["incidents"]] == [1]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": "3"}, 'version is not "4"'),
        ({"version": 4}, 'version is not "4"'),
        ({"alerts": "none"}, "alerts: "),
        ({"alerts": [{"status": "firing"}]}, "alerts.0."),
        ({"status": "burning"}, "status: "),
        (
            {
                "alerts": [
                    {"status": "firing", "labels": {"a": 1}, "startsAt": "2026-01-01T00:00:00Z", "fingerprint": "f"}
                ]
            },
            "alerts.0.labels.a",
        ),
        (
            {"alerts": [{"status": "firing", "labels": {}, "startsAt": "yesterday", "fingerprint": "f"}]},
            "alerts.0.startsAt",
        ),
        (
            {"alerts": [{"status": "firing", "labels": {}, "startsAt": "0001-01-01T00:00:00Z", "fingerprint": "f"}]},
            "without a start",
        ),
        (
            {"alerts": [{"status": "firing", "labels": {}, "startsAt": "2026-01-01T00:00:00Z", "fingerprint": ""}]},
            "fingerprint",
        ),
    ],
)
def test_what_is_not_a_message_of_version_4_is_refused_with_the_reason(
    client: TestClient, change: dict[str, object], says: str
) -> None:
    answer = client.post("/api/v1/alerts", json={**message(NOW_MS), **change})
    assert answer.status_code == 400
    assert says in answer.json()["error"]
    assert client.get("/api/v1/incidents").json()["incidents"] == []


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000])
def test_bytes_that_are_no_message_are_refused(body: bytes) -> None:
    with pytest.raises(WebhookRefused):
        read_message(body)


def test_ten_megabytes_are_refused_however_they_come(client: TestClient) -> None:
    big = json.dumps({**message(NOW_MS), "x": "y" * 10_000_000}).encode()
    headers = {"content-type": "application/json"}
    assert client.post("/api/v1/alerts", content=big, headers=headers).status_code == 413
    pieces = (big[i : i + 65_536] for i in range(0, len(big), 65_536))
    assert client.post("/api/v1/alerts", content=pieces, headers=headers).status_code == 413
    assert len(big) > MAX_BODY_BYTES
    assert client.post("/api/v1/alerts", content=b"x", headers={"content-type": "text/plain"}).status_code == 415


@pytest.mark.parametrize(
    "value", ['"}', "<script>alert(1)</script>", "a\nb", "z" * 10_000, "\u0000", "{{ $labels.x }}"]
)
def test_hostile_labels_are_kept_as_text(client: TestClient, queue: tuple, value: str) -> None:
    (opened,) = client.post("/api/v1/alerts", json=message(queue[1], instance=value)).json()["opened"]
    answer = client.get(f"/api/v1/incidents/{opened}")
    assert answer.json()["labels"]["instance"] == value
    assert answer.headers["content-type"] == "application/json"


def test_wrong_questions_are_answered_with_a_reason(client: TestClient) -> None:
    assert client.get("/api/v1/incidents/7").status_code == 404
    assert client.get("/api/v1/incidents/%3Cb%3E").json() == {"error": "an incident's id is a number"}
    assert client.get(f"/api/v1/incidents/{'9' * 400}").status_code == 404
    for query in ("status=burning", "limit=0", "limit=x", "before=-1", f"before={2**70}"):
        assert client.get(f"/api/v1/incidents?{query}").status_code == 400
    assert "neither RFC 3339" in client.get("/api/v1/diagnose?at=yesterday").json()["error"]


@pytest.mark.parametrize("query", ["limit=abc", "limit=-1", "limit=1e3", "before=x", "limit=" + "9" * 5000])
def test_a_wrong_number_is_named_and_not_repeated(client: TestClient, query: str) -> None:
    answer = client.get(f"/api/v1/incidents?{query}")
    assert answer.status_code == 400
    assert "is a whole number" in answer.json()["error"] or "limit is 1 to 500" in answer.json()["error"]


def test_no_such_path_and_no_such_method_are_answered_as_json_too(client: TestClient) -> None:
    assert "no such path" in client.get("/api/v2/alerts").json()["error"]
    wrong = client.get("/api/v1/alerts")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    assert "another method" in wrong.json()["error"]


@pytest.mark.parametrize(
    "starts", ["9999-12-31T23:59:59Z", "9999-12-31T23:59:59-12:00", "0001-02-01T00:00:00Z", "0001-01-02T00:00:00+23:00"]
)
def test_a_start_that_no_clock_shows_is_refused(client: TestClient, queue: tuple, starts: str) -> None:
    sent = message(queue[1])
    sent["alerts"][0]["startsAt"] = starts  # type: ignore[index]
    answer = client.post("/api/v1/alerts", json=sent)
    assert answer.status_code == 400
    assert "startsAt" in answer.json()["error"]


def test_diagnose_answers_what_the_command_line_does(client: TestClient, queue: tuple) -> None:
    from runbooks.diagnosis import diagnose

    source, at_ms = queue
    answer = client.get(f"/api/v1/diagnose?at={at_ms / 1000}").json()
    assert answer == json.loads(json.dumps(diagnose(source, at_ms, Settings()).to_json()))


def at(
    client_host: str, records: Records, source: object, token: str | None = None, base: str = "http://127.0.0.1"
) -> TestClient:
    app = api_app(source, Settings(), records, lambda: NOW_MS, token=token)  # type: ignore[arg-type]
    return TestClient(app, base_url=base, client=(client_host, 50_000))


def test_other_machines_need_the_token(queue: tuple, records: Records) -> None:
    far = at("10.0.0.9", records, queue[0], token="s3cret")
    assert far.get("/api/v1/incidents").status_code == 401
    assert far.get("/api/v1/incidents").headers["www-authenticate"] == "Bearer"
    assert far.get("/api/v1/incidents", headers={"Authorization": "Bearer s3cret"}).status_code == 200
    for wrong in ("Bearer nope", "Bearer ", "Basic s3cret", "s3cret"):
        assert far.get("/api/v1/incidents", headers={"Authorization": wrong}).status_code == 401
    assert far.post("/api/v1/alerts", json=message(queue[1])).status_code == 401
    assert far.get("/healthz").status_code == 200
    closed = at("10.0.0.9", records, queue[0])
    assert "none is configured" in closed.get("/api/v1/incidents").json()["error"]
    assert closed.get("/api/v1/incidents", headers={"Authorization": "Bearer "}).status_code == 401


def test_loopback_is_for_programs_on_this_machine_only(queue: tuple, records: Records) -> None:
    near = at("127.0.0.1", records, queue[0])
    assert near.get("/api/v1/incidents").status_code == 200
    assert near.get("/api/v1/incidents", headers={"X-Forwarded-For": "10.0.0.9"}).status_code == 401
    assert near.get("/api/v1/incidents", headers={"Origin": "https://evil.example"}).status_code == 401
    assert near.get("/api/v1/incidents", headers={"Origin": "http://localhost:8501"}).status_code == 200
    assert near.get("/api/v1/incidents", headers={"Host": "evil.example"}).status_code == 401
    assert near.get("/api/v1/incidents", headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert [is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost")] == [True] * 5
    assert [is_loopback(host) for host in ("10.0.0.1", "localhost.evil", "", "127.0.0.1.evil")] == [False] * 4


class Unreachable:
    def now_ms(self) -> int:
        return NOW_MS

    def samples(self, selector: str, start_ms: int, end_ms: int) -> list[object]:
        raise SourceUnreachable("connection refused", "Look whether the server runs")


def test_a_source_that_is_down_leaves_an_incident_with_the_reason(records: Records) -> None:
    near = at("127.0.0.1", records, Unreachable())
    assert near.post("/api/v1/alerts", json=message(NOW_MS)).status_code == 200
    incident = near.get("/api/v1/incidents/1").json()
    assert incident["diagnosis"] is None
    assert incident["problem"] == "connection refused. Look whether the server runs"
    answer = near.get("/api/v1/diagnose")
    assert (answer.status_code, answer.json()) == (502, {"error": incident["problem"]})


def test_what_an_ended_process_left_is_diagnosed_at_the_next_start(queue: tuple, records: Records) -> None:
    incidents = Incidents(records, lambda: NOW_MS)
    incidents.receive(read_message(json.dumps(message(queue[1])).encode()))
    assert incidents.pending() == (1,)
    app = api_app(queue[0], Settings(), records, lambda: NOW_MS)
    app.state.api.diagnose_pending()
    assert incidents.pending() == ()
    assert incidents.get(1).diagnosis is not None


def test_a_defect_is_kept_with_its_incident_and_others_go_on(queue: tuple, records: Records) -> None:
    incidents = Incidents(records, lambda: NOW_MS)
    for fingerprint in ("f1", "f2"):
        incidents.receive(read_message(json.dumps(message(queue[1], fingerprint=fingerprint)).encode()))

    def broken(at_ms: int) -> dict[str, object]:
        raise ZeroDivisionError("division by zero")

    with pytest.raises(ZeroDivisionError):
        incidents.diagnose([1], broken)
    assert incidents.get(1).problem == "the diagnosis failed: ZeroDivisionError: division by zero"
    assert incidents.pending() == (2,)


def test_a_damaged_file_of_incidents_is_said(queue: tuple, records: Records) -> None:
    near = at("127.0.0.1", records, queue[0])
    with records.writing() as connection:
        connection.execute("DROP TABLE incidents")
    for answer in (
        near.get("/healthz"),
        near.get("/api/v1/incidents"),
        near.post("/api/v1/alerts", json=message(NOW_MS)),
    ):
        assert answer.status_code == 503
        assert "cannot be used" in answer.json()["error"]


def test_own_metrics_and_description(client: TestClient, queue: tuple) -> None:
    client.post("/api/v1/alerts", json=message(queue[1]))
    client.post("/api/v1/alerts", json={"version": "9"})
    text = client.get("/metrics").text
    assert 'pagewatch_webhook_deliveries_total{result="stored"} 1.0' in text
    assert 'pagewatch_webhook_deliveries_total{result="refused"} 1.0' in text
    assert "pagewatch_diagnosis_seconds_count 1.0" in text
    from fastapi.openapi.models import OpenAPI

    described = OpenAPI.model_validate(client.get("/openapi.json").json())
    routes = {route.path for route in client.app.routes}  # type: ignore[attr-defined]
    assert set(described.paths or {}) == routes - {"/openapi.json"}
