"""Whatever is given to the command line: one line that names the cause and the next step, the right exit code, never a traceback."""

import gzip
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cli import app
from collectors.capsule.convert import FORMATS

RUN = CliRunner()
START = 1_796_000_000


def run(*arguments: str, stdin: str | None = None) -> Result:
    result = RUN.invoke(app, list(arguments), input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def one_line(result: Result, code: int = 1) -> str:
    assert result.exit_code == code, result.output
    lines = [line for line in result.stderr.strip().splitlines() if line]
    assert len(lines) == 1, lines
    assert lines[0].startswith("pagewatch: ")
    assert "Traceback" not in result.output
    return lines[0]


def recording(path: Path, result: list[dict[str, object]] | None = None, **more: object) -> Path:
    series = result or [
        {
            "metric": {"__name__": "up", "job": "vllm", "instance": "a:1"},
            "values": [[START + 5 * i, "1"] for i in range(60)],
        },
        {
            "metric": {
                "__name__": "vllm:num_requests_waiting",
                "job": "vllm",
                "instance": "a:1",
                "engine": "0",
                "model_name": "<b>\"x'{}\\",
            },
            "values": [
                [START + 5 * i, "NaN" if i == 3 else "+Inf" if i == 4 else "0"] for i in range(60) if not 20 <= i < 30
            ],
        },
    ]
    with gzip.open(path, "wt") as file:
        json.dump({"scenario": "t", "start": START, "end": START + 300, "result": series, **more}, file)
    return path


@pytest.fixture
def capsule(tmp_path: Path) -> Path:
    out = tmp_path / "t.capsule"
    assert run("import", str(recording(tmp_path / "t.json.gz")), "--out", str(out)).exit_code == 0
    return out


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status, kind, body = self.server.answer  # type: ignore[attr-defined]
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def backend() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(5)


@pytest.mark.parametrize(
    ("status", "kind", "body", "says"),
    [
        (200, "text/html", b"<html><form>Sign in</form></html>", ("page", "login", "html")),
        (401, "text/plain", b"no", ("401",)),
        (403, "text/html", b"<html>no</html>", ("403",)),
        (
            422,
            "application/json",
            b'{"status":"error","errorType":"execution","error":"too many samples"}',
            ("too many samples",),
        ),
        (
            400,
            "application/json",
            b'{"status":"error","errorType":"bad_data","error":"parse error at char 3"}',
            ("parse error",),
        ),
        (200, "application/json", b'{"status":"success"', ("json", "answer")),
        (500, "text/plain", b"boom", ("500",)),
        (
            200,
            "application/json",
            b'{"status":"success","data":{"resultType":"vector","result":"x"}}',
            ("answer", "result"),
        ),
    ],
)
def test_every_kind_of_wrong_answer_is_named(
    backend: ThreadingHTTPServer, status: int, kind: str, body: bytes, says: tuple[str, ...]
) -> None:
    backend.answer = (status, kind, body)  # type: ignore[attr-defined]
    url = f"http://user:secret@127.0.0.1:{backend.server_address[1]}"
    said = one_line(run("query", "--source", url, "up"))
    assert any(word in said.lower() for word in says), said
    assert "secret" not in said


def test_nobody_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert "127.0.0.1" in one_line(run("diagnose", "--source", f"http://127.0.0.1:{port}", "--json"))


def test_an_empty_answer_is_an_answer(backend: ThreadingHTTPServer) -> None:
    backend.answer = (200, "application/json", b'{"status":"success","data":{"resultType":"vector","result":[]}}')  # type: ignore[attr-defined]
    result = run("query", "--source", f"http://127.0.0.1:{backend.server_address[1]}", "nothing")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["data"] == {"resultType": "vector", "result": []}


def test_gaps_nan_inf_and_hostile_labels_travel_through(capsule: Path) -> None:
    result = run("query", "--source", str(capsule), "vllm:num_requests_waiting[60s]", "--at", str(START + 30))
    values = json.loads(result.stdout)["data"]["result"][0]
    assert values["metric"]["model_name"] == "<b>\"x'{}\\"
    assert {"NaN", "+Inf", "0"} <= {value for _, value in values["values"]}
    in_gap = run("query", "--source", str(capsule), "vllm:num_requests_waiting", "--at", str(START + 120))
    assert json.loads(in_gap.stdout)["data"]["result"] == []  # the target answered without the series: it ended there
    after = run("query", "--source", str(capsule), "vllm:num_requests_waiting", "--at", str(START + 160))
    assert len(json.loads(after.stdout)["data"]["result"]) == 1
    assert run("diagnose", "--source", str(capsule), "--json", "--at", str(START + 200)).exit_code in (0, 1)


@pytest.mark.parametrize("damage", ["truncated", "text", "empty", "missing", "folder"])
def test_files_that_are_no_incident_files(tmp_path: Path, capsule: Path, damage: str) -> None:
    path = tmp_path / "bad.capsule"
    if damage == "truncated":
        path.write_bytes(capsule.read_bytes()[:-200])
    elif damage == "text":
        path.write_text("hello")
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "folder":
        path.mkdir()
    one_line(run("query", "--source", str(path), "up"))


def test_an_import_that_fails_leaves_nothing_and_harms_nothing(tmp_path: Path, capsule: Path) -> None:
    before = capsule.read_bytes()
    bad = tmp_path / "bad.json"
    bad.write_text('{"result": [{"metric": {"__name__": "up"}, "values": [[1, "x"]]}]}')
    one_line(run("import", str(bad), "--out", str(capsule)))
    assert capsule.read_bytes() == before
    one_line(run("import", str(tmp_path / "none.json"), "--out", str(tmp_path / "o.capsule")))
    assert not (tmp_path / "o.capsule").exists()


@pytest.mark.parametrize("to", [*FORMATS, "import"])
def test_a_folder_that_is_not_there_is_named_and_no_name_that_nobody_gave(
    tmp_path: Path, capsule: Path, to: str
) -> None:
    out = str(tmp_path / "nowhere" / "o")
    verb = ("import", str(recording(tmp_path / "r.json.gz")), "--out", out) if to == "import" else None
    said = one_line(run(*(verb or ("export", str(capsule), "--to", to, out))))
    assert f"no such folder: {tmp_path / 'nowhere'}." in said
    assert ".tmp" not in said


@pytest.mark.parametrize(
    "arguments",
    [
        ("query", "up", "--at", "yesterday"),
        ("query", "up", "--start", "10", "--end", "5"),
        ("diagnose", "--scope", "novalue"),
        ("walk", "no_such_runbook"),
        ("walk", "waiting_growth", "--instance", "nobody:1"),
    ],
)
def test_wrong_usage_exits_2_with_the_reason(capsule: Path, arguments: tuple[str, ...]) -> None:
    verb, *rest = arguments
    said = one_line(run(verb, *rest, "--source", str(capsule)), 2)
    assert len(said) > 30


def test_wrong_promql_says_what(capsule: Path) -> None:
    assert "parse" in one_line(run("query", "sum(", "--source", str(capsule))).lower()
    one_line(run("query", 'up{a="', "--source", str(capsule)))


def test_a_wrong_config_names_file_and_field(tmp_path: Path, capsule: Path) -> None:
    config = tmp_path / "pagewatch.toml"
    config.write_text("[server]\nport = 99999999\n")
    said = one_line(run("diagnose", "--source", str(capsule), "--config", str(config)), 2)
    assert "port" in said
    assert "pagewatch.toml" in said


def test_logs_from_standard_input() -> None:
    result = run("ledger", "-", "--json", stdin="ValueError: No available memory for the cache blocks.\n")
    assert json.loads(result.stdout)["class"] == "no_kv_blocks"
    result = run("admission", "--json", stdin='{"error": {"message": "The model `x` does not exist.", "code": 404}}')
    assert json.loads(result.stdout)["class"] == "model_not_found"
    one_line(run("ledger", "/no/such/file"))


def test_exit_codes_tell_whether_something_was_found(tmp_path: Path, capsule: Path) -> None:
    healthy = "(EngineCore_DP0 pid=1) INFO 10-14 09:12:16 [core.py:210] init engine (profile, create kv cache, warmup model) took 31.42 seconds\n"
    assert run("ledger", "-", "--json", stdin=healthy).exit_code == 0
    assert run("ledger", "-", stdin="ValueError: No available memory for the cache blocks.\n").exit_code == 1
    assert run("ledger", "-", stdin="nothing of a log\n").exit_code == 1
    assert run("admission", "-", stdin="The model `x` does not exist.").exit_code == 1
    one_line(run("export", str(capsule), "--to", "stone", str(tmp_path / "o")), 2)
    assert run("doctor", "--source", str(capsule), "--scope", "job=nobody").exit_code == 1
