"""What the launcher adds around Streamlit."""

from __future__ import annotations

import gzip
import socket
from dataclasses import replace
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import HTMLResponse, PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

import app as launcher
from pages.ui import assets, data
from pages.ui.console import configure
from pages.ui.serving import Hardened
from tests.pages.conftest import INSIDE, Bench


def served() -> TestClient:
    async def page(request: Any) -> HTMLResponse:
        return HTMLResponse("<!DOCTYPE html><head><title>x</title></head>")

    async def text(request: Any) -> PlainTextResponse:
        return PlainTextResponse("<head>")

    routes = [Route("/runbook", page), Route("/plain.txt", text), Route("/text", text), *assets.asset_routes()]
    return TestClient(Starlette(routes=routes, middleware=[Middleware(Hardened)]))


def test_the_page_says_where_its_server_is_before_anything_else_runs() -> None:
    answer = served().get("/runbook?id=x")
    assert answer.text.index("boot.js") < answer.text.index("<title>")
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert served().get("/plain.txt").text == "<head>"
    assert served().get("/text").text == "<head>"


def test_every_answer_lets_nothing_in_from_elsewhere() -> None:
    for path in ("/runbook", "/plain.txt", assets.module_url("live_chart")):
        policy = served().get(path).headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe-eval" not in policy
        script = next(part for part in policy.split("; ") if part.startswith("script-src"))
        assert "unsafe-inline" not in script
        assert "sha256-" in script


def test_plotly_comes_compressed_and_is_kept_for_good() -> None:
    client = served()
    answer = client.get(assets.plotly_url(), headers={"accept-encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip"
    assert "immutable" in answer.headers["cache-control"]
    assert answer.content == assets.plotly_js().read_bytes()
    assert len(gzip.compress(answer.content)) < 0.4 * len(answer.content)
    plain = client.get(assets.plotly_url(), headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.content == answer.content


def test_modules_are_served_and_nothing_else() -> None:
    client = served()
    for module in assets.FOLDER.glob("*.js"):
        assert client.get(assets.module_url(module.stem)).status_code == 200
    for name in ("..%2f..%2fassets", "console.css", "%2e%2e/assets", "nothing"):
        assert client.get(f"/assets/{assets.DIGEST}/{name}.js").status_code == 404


def test_a_taken_port_is_stepped_over() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert launcher.free_port("127.0.0.1", port) > port


def test_an_address_of_another_machine_is_said_to_be_so() -> None:
    with pytest.raises(OSError, match="cannot listen on 203.0.113.9"):
        launcher.free_port("203.0.113.9", 8501)


def test_the_committed_configuration_is_known_to_streamlit_and_binds_loopback() -> None:
    from streamlit import config

    options = launcher.committed_config()
    assert options["server.address"] == "127.0.0.1"
    assert options["browser.gatherUsageStats"] is False
    assert not [name for name in options if name not in config._config_options_template]


def test_the_json_api_and_own_metrics_stand_beside_the_pages(bench: Bench) -> None:
    made = launcher.make_app()
    paths = {getattr(route, "path", "") for route in made._user_routes}
    assert {"/healthz", "/metrics", "/api/v1/alerts", "/api/v1/incidents", "/api/v1/diagnose", "/openapi.json"} <= paths
    client = TestClient(Starlette(routes=made._user_routes), base_url="http://127.0.0.1", client=("127.0.0.1", 50000))
    told = client.get("/api/v1/diagnose", params={"at": INSIDE}).json()
    assert told["verdicts"][0]["cause"] in ("seat_limited", "overload")
    assert "pagewatch_webhook_deliveries" in client.get("/metrics").text
    assert client.get("/healthz").status_code == 200


def test_a_console_without_a_source_still_serves_its_pages(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    configure(replace(bench.console, source_spec=""))
    data.forget_all()
    made = launcher.make_app()
    assert "/healthz" in {getattr(route, "path", "") for route in made._user_routes}
    assert "no source was given" in capsys.readouterr().err
