"""The same requests put to the store and to a real Prometheus that hold the same samples; and real clients at work on the store."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from collectors.model import Samples, is_stale
from tests.collectors.store import served
from tests.collectors.store.remote_write import send
from tests.collectors.store.served import BASE_MS, NOW_MS
from tests.real_programs import program, prometheus

pytestmark = pytest.mark.real

START, END = str(BASE_MS / 1000), str(NOW_MS / 1000)
RANGE = {"start": START, "end": END, "step": "30"}
Request = tuple[str, dict[str, Any]]

SAME_ANSWER: list[Request] = [
    ("query", {"query": "waiting", "time": END}),
    ("query", {"query": "waiting", "time": "2026-11-30T01:03:20Z"}),
    ("query", {"query": "waiting", "time": f"{NOW_MS / 1000 - 7.5:.3f}"}),
    ("query", {"query": "waiting[40s]", "time": f"{NOW_MS / 1000 - 1:.3f}"}),
    ("query", {"query": "odd[10m]", "time": START.replace("0.0", "9.0")}),
    ("query", {"query": "odd", "time": str(BASE_MS / 1000 + 61)}),
    ("query", {"query": "ended", "time": str(BASE_MS / 1000 + 290)}),
    ("query", {"query": "ended", "time": END}),
    ("query", {"query": "nothing", "time": END}),
    ("query", {"query": "1.5e3", "time": END}),
    ("query", {"query": "'text'", "time": END}),
    ("query", {"query": "time()", "time": "1796000000.25"}),
    ("query_range", {"query": "sum by (job) (waiting)", **RANGE}),
    ("query_range", {"query": "sum by (job) (waiting)", **RANGE, "step": "1m30s"}),
    ("query_range", {"query": "waiting", "start": "2026-11-30T00:53:20.5Z", "end": END, "step": "0.5m".replace("0.5m", "22.5")}),
    ("query_range", {"query": "ended", **RANGE}),
    ("query_range", {"query": "1", **RANGE}),
    ("query_range", {"query": "nothing", **RANGE}),
    ("query_range", {"query": "waiting > 1e9", **RANGE}),
    ("series", {"match[]": "waiting", "start": START, "end": END}),
    ("series", {"match[]": ["waiting", '{__name__=~"ttft.*",le="0.1"}', 'waiting{instance="a:1"}'], "start": START, "end": END}),
    ("series", {"match[]": "nothing", "start": START, "end": END}),
    ("labels", {"start": START, "end": END}),
    ("labels", {"match[]": "ttft_bucket", "start": START, "end": END}),
    ("label/le/values", {"start": START, "end": END}),
    ("label/instance/values", {"match[]": "waiting", "start": START, "end": END}),
    ("label/__name__/values", {"start": START, "end": END}),
    ("label/nothing/values", {"start": START, "end": END}),
    ("query_exemplars", {"query": "waiting", "start": START, "end": END}),
    ("rules", {}),
    ("alerts", {}),
    ("format_query", {"query": "sum(rate(waiting{job=~'a.*'}[5m]))by(instance)>0"}),
]  # fmt: skip
REFUSED: list[tuple[Request, bool]] = [
    # the request, and whether the message is compared word for word (a parser's own words differ)
    (("query", {}), False),
    (("query", {"query": ""}), False),
    (("query", {"query": "sum("}), False),
    (("query", {"query": "rate(waiting)"}), False),
    (("query", {"query": "waiting", "time": "yesterday"}), True),
    (("query", {"query": "waiting", "timeout": "soon"}), True),
    (("query", {"query": "waiting + on(job) requests_total", "time": END}), False),
    (("query", {"query": "label_replace(waiting, 'instance', 'x', '', '')", "time": END}), False),
    (("query_range", {"query": "waiting"}), True),
    (("query_range", {"query": "waiting", "start": START}), True),
    (("query_range", {"query": "waiting", "start": START, "end": END}), True),
    (("query_range", {"query": "waiting", "start": END, "end": START, "step": "5"}), True),
    (("query_range", {"query": "waiting", **RANGE, "step": "0"}), True),
    (("query_range", {"query": "waiting", **RANGE, "step": "-5"}), True),
    (("query_range", {"query": "waiting", **RANGE, "step": "often"}), True),
    (("query_range", {"query": "waiting", **RANGE, "step": "0.01"}), True),
    (("query_range", {"query": "waiting[5m]", **RANGE}), False),
    (("query_range", {"query": "'text'", **RANGE}), False),
    (("series", {}), True),
    (("series", {"match[]": "waiting{"}), False),
    (("series", {"match[]": '{job=~".*"}'}), False),
    (("series", {"match[]": "waiting", "start": "x"}), True),
    (("labels", {"match[]": "sum(x)"}), False),
    (("labels", {"start": END, "end": "x"}), True),
    (("label/a-b/values", {}), True),
    (("format_query", {"query": "sum("}), False),
]


def ask(url: str, request: Request, method: str) -> tuple[int, Any]:
    path, parameters = request
    body = urllib.parse.urlencode(parameters, doseq=True)
    full = f"{url}/api/v1/{path}" + (f"?{body}" if method == "GET" else "")
    sent = urllib.request.Request(full, data=body.encode() if method == "POST" else None, method=method)
    try:
        with urllib.request.urlopen(sent, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        text = refused.read()
        return refused.code, json.loads(text) if text.startswith(b"{") else text.decode()


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    folder = tmp_path_factory.mktemp("api") / "tsdb"
    with prometheus(folder, "--web.enable-remote-write-receiver") as theirs, served.on_a_port(served.store()) as ours:
        send(theirs, [one if not is_stale(one.values).any() else Samples(one.labels, one.times_ms, one.values) for one in served.samples()])  # fmt: skip
        yield ours, theirs


def tidy(answer: Any) -> Any:
    """Without what differs by nature: notes of newer versions, the order of series in a vector."""
    answer = {key: value for key, value in answer.items() if key not in ("infos", "warnings")}
    data = answer.get("data")
    if isinstance(data, dict) and data.get("resultType") in ("vector", "matrix"):
        answer["data"] = data | {"result": sorted(data["result"], key=lambda one: sorted(one["metric"].items()))}
    return answer


@pytest.mark.parametrize("request_", SAME_ANSWER, ids=lambda request: f"{request[0]} {request[1]}"[:60])
def test_answers_are_the_same(both: tuple[str, str], request_: Request) -> None:
    ours, theirs = both
    by_get = ask(ours, request_, "GET")
    assert (by_get[0], tidy(by_get[1])) == (lambda answer: (answer[0], tidy(answer[1])))(ask(theirs, request_, "GET"))
    if request_[0] in ("query", "query_range", "series", "labels", "query_exemplars", "format_query"):
        assert ask(ours, request_, "POST") == by_get


@pytest.mark.parametrize(("request_", "word_for_word"), REFUSED, ids=lambda value: str(value)[:60])
def test_refusals_are_the_same(both: tuple[str, str], request_: Request, word_for_word: bool) -> None:
    (our_status, our_answer), (their_status, their_answer) = (ask(url, request_, "GET") for url in both)
    assert (our_status, our_answer["errorType"]) == (their_status, their_answer["errorType"]), their_answer
    assert set(our_answer) == set(their_answer)
    if word_for_word:
        assert our_answer["error"] == their_answer["error"]


PROMTOOL = [
    ["instant", "waiting", f"--time={NOW_MS // 1000}"],
    ["instant", "waiting[1m]", f"--time={NOW_MS // 1000 - 1}"],
    ["range", "sum(waiting)", f"--start={BASE_MS // 1000}", f"--end={NOW_MS // 1000}", "--step=60s"],
    ["series", "--match=waiting", "--match=ended", f"--start={BASE_MS // 1000}", f"--end={NOW_MS // 1000}"],
    ["labels", "instance"],
]


@pytest.mark.parametrize("arguments", PROMTOOL, ids=lambda arguments: arguments[0])
@pytest.mark.parametrize("form", ["promql", "json"])
def test_promtool_prints_the_same(both: tuple[str, str], arguments: list[str], form: str) -> None:
    kind, rest = arguments[0], arguments[1:]
    options = [one for one in rest if one.startswith("--")]
    positional = [one for one in rest if not one.startswith("--")]

    def printed(url: str) -> list[str]:
        command = [program("promtool"), "query", kind, f"--format={form}", *options, url, *positional]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return sorted(done.stdout.split("\n")) if form == "promql" else json.loads(done.stdout)

    assert printed(both[0]) == printed(both[1])


def test_prometheus_api_client_reads_the_store(both: tuple[str, str]) -> None:
    from datetime import UTC, datetime

    from prometheus_api_client import PrometheusConnect

    client = PrometheusConnect(url=both[0])
    theirs = PrometheusConnect(url=both[1])
    start, end = (datetime.fromtimestamp(at / 1000, UTC) for at in (BASE_MS, NOW_MS))
    assert client.check_prometheus_connection()
    assert set(client.all_metrics()) >= {"waiting", "requests_total", "ttft_bucket"}
    assert client.custom_query("sum(waiting)", params={"time": END}) == theirs.custom_query(
        "sum(waiting)", params={"time": END}
    )
    assert client.custom_query_range("waiting", start, end, "30") == theirs.custom_query_range(
        "waiting", start, end, "30"
    )
    assert client.get_label_values("instance") == theirs.get_label_values("instance")
    assert client.get_series(start, end, {"match[]": "waiting"}) == theirs.get_series(
        start, end, {"match[]": "waiting"}
    )


GRAFANA: list[tuple[str, Request]] = [
    # what Grafana's Prometheus data source asks: saving it, the query builder, a panel, a variable, annotations
    ("GET", ("status/buildinfo", {})),
    ("GET", ("rules", {})),
    ("GET", ("metadata", {"limit": "40000"})),
    ("POST", ("labels", {"start": START, "end": END})),
    ("GET", ("label/__name__/values", {"start": START, "end": END, "limit": "40000"})),
    ("GET", ("label/job/values", {"match[]": "waiting", "start": START, "end": END})),
    ("POST", ("series", {"match[]": "waiting", "start": START, "end": END, "limit": "40000"})),
    ("POST", ("query", {"query": "1+1", "time": END})),
    ("POST", ("query", {"query": "waiting", "time": END})),
    ("POST", ("query_range", {"query": "rate(requests_total[1m0s])", "start": START, "end": END, "step": "15"})),
    ("POST", ("query_exemplars", {"query": "waiting", "start": START, "end": END})),
    ("GET", ("status/flags", {})),
    ("GET", ("status/runtimeinfo", {})),
    ("GET", ("alerts", {})),
    ("GET", ("targets", {"state": "active"})),
]


@pytest.mark.parametrize(("method", "request_"), GRAFANA, ids=lambda value: str(value)[:40])
def test_grafanas_requests_are_answered_in_the_same_form(both: tuple[str, str], method: str, request_: Request) -> None:
    def form(value: Any, depth: int = 0) -> Any:
        """Keys and kinds, not values; of lists the first entry."""
        if isinstance(value, dict):
            return {key: form(inner, depth + 1) for key, inner in value.items()} if depth < 2 else "object"
        return [form(value[0], depth + 1)] if isinstance(value, list) and value else type(value).__name__

    (our_status, ours), (their_status, theirs) = (ask(url, request_, method) for url in both)
    assert our_status == their_status == 200
    our_form, their_form = form(ours), form(theirs)
    if isinstance(their_form["data"], dict) and request_[0] != "metadata" and request_[0] != "status/flags":
        assert set(their_form["data"]) <= set(our_form["data"])
        shared = {key: our_form["data"][key] for key in their_form["data"]}
        assert {k: type(v) for k, v in shared.items()} == {k: type(v) for k, v in their_form["data"].items()}
    else:
        assert type(our_form["data"]) is type(their_form["data"])


def test_the_store_is_not_taken_for_another_product(both: tuple[str, str]) -> None:
    _, answer = ask(both[0], ("status/buildinfo", {}), "GET")
    assert answer["data"]["version"].startswith("3.")
    assert answer["data"]["application"] == "pagewatch"


def test_scraping_the_store_itself_works(both: tuple[str, str], tmp_path: Path) -> None:
    with urllib.request.urlopen(f"{both[0]}/metrics", timeout=10) as answer:
        text = answer.read()
    done = subprocess.run([program("promtool"), "check", "metrics"], input=text, capture_output=True, timeout=30)
    assert done.returncode in (0, 3), done.stdout  # 3: only remarks on style
    assert b"error while linting" not in done.stderr
