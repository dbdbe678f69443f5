"""The JSON API: Alertmanager's webhook in, incidents and diagnoses out. `serve_api` runs it on a port of its own."""

from __future__ import annotations

import atexit
import socket
import sqlite3
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import orjson
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from collectors.instants import parse_instant_ms
from collectors.settings import Settings, SettingsError
from collectors.source import Source, SourceError
from runbooks.api_access import refusal
from runbooks.api_description import description
from runbooks.autorecord import AutoRecorder, incidents_folder
from runbooks.incidents import Incidents, NoSuchIncident
from runbooks.records import Records, RecordsError, records_path
from runbooks.webhook import WebhookRefused, read_message

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

MAX_BODY_BYTES = 2_000_000
"""Alertmanager sends a group of a thousand alerts in well under a megabyte."""
Endpoint = Callable[[Request], Awaitable[Response]]


def answer(data: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(data, option=orjson.OPT_SERIALIZE_NUMPY), status, media_type="application/json")


def problem(text: str, status: int) -> Response:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return Response(orjson.dumps({"error": text}), status, headers, media_type="application/json")


class IncidentApi:
    """Routes over one source and one records file. `token` is what other machines must bear; None = none is configured."""

    def __init__(
        self, source: Source, settings: Settings, incidents: Incidents, *, token: str | None = None, version: str = ""
    ) -> None:
        from prometheus_client import CollectorRegistry, Counter, Histogram

        self._source = source
        self._settings = settings
        self._incidents = incidents
        self._token = token
        self._version = version
        self._working = threading.Lock()
        self.registry: CollectorRegistry = CollectorRegistry()
        self._deliveries = Counter(
            "pagewatch_webhook_deliveries", "Webhook deliveries by result", ["result"], registry=self.registry
        )
        self._opened = Counter("pagewatch_incidents_opened", "Incidents opened by webhooks", registry=self.registry)
        self._seconds = Histogram(
            "pagewatch_diagnosis_seconds",
            "Time that a diagnosis took",
            registry=self.registry,
            buckets=(0.1, 0.3, 1, 3, 10, 30),
        )

    def routes(self) -> list[Route]:
        """Starlette routes, to be served alone or beside the console's own."""
        return [
            Route("/api/v1/alerts", self._guarded(self._alerts), methods=["POST"]),
            Route("/api/v1/incidents", self._guarded(self._list), methods=["GET"]),
            Route("/api/v1/incidents/{id}", self._guarded(self._one), methods=["GET"]),
            Route("/api/v1/diagnose", self._guarded(self._diagnose_now), methods=["GET"]),
            Route("/openapi.json", self._openapi, methods=["GET"]),
            Route("/healthz", self._health, methods=["GET"]),
            Route("/metrics", self._metrics, methods=["GET"]),
        ]

    def diagnose_pending(self) -> None:
        """Diagnoses every stored incident that has no diagnosis yet, one at a time, whatever process stored it.

        One thread works at a time: in a storm of deliveries the others leave their incidents to it.
        """
        while self._working.acquire(blocking=False):
            try:
                while pending := self._incidents.pending():
                    self._incidents.diagnose(pending, self._diagnosed)
            finally:
                self._working.release()
            if not self._incidents.pending():  # one that came between the last look and the release
                return

    def record_into(self, folder: Path) -> AutoRecorder:
        """Starts to record incidents on their own into `folder`; ended by its `stop`, or with the process."""
        recorder = AutoRecorder(
            self._source, self._settings, self._incidents.records, self._incidents.clock, folder
        ).start()
        atexit.register(recorder.stop)
        return recorder

    def _guarded(self, endpoint: Endpoint) -> Endpoint:
        async def guarded(request: Request) -> Response:
            reason = refusal(request, self._token)
            if reason:
                return problem(reason, 401)
            try:
                return await endpoint(request)
            except sqlite3.Error as why:
                return problem(f"the file of incidents cannot be used: {why}", 503)

        return guarded

    def _diagnosed(self, at_ms: int) -> dict[str, Any]:
        from runbooks.diagnosis import diagnose

        began = time.perf_counter()
        found = diagnose(self._source, at_ms, self._settings).to_json()
        self._seconds.observe(time.perf_counter() - began)
        return found

    async def _alerts(self, request: Request) -> Response:
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media != "application/json":
            self._deliveries.labels("refused").inc()
            return problem("the body must be application/json", 415)
        body = await _limited_body(request)
        if body is None:
            self._deliveries.labels("refused").inc()
            return problem(f"the body is larger than {MAX_BODY_BYTES} bytes", 413)
        try:
            message = read_message(body)
        except WebhookRefused as why:
            self._deliveries.labels("refused").inc()
            return problem(str(why), 400)
        opened = await run_in_threadpool(self._incidents.receive, message)
        self._deliveries.labels("stored").inc()
        self._opened.inc(len(opened))
        response = answer({"opened": list(opened), "known": len(message.alerts) - len(opened)})
        response.background = BackgroundTask(self.diagnose_pending)
        return response

    async def _list(self, request: Request) -> Response:
        status = request.query_params.get("status")
        try:
            if status not in (None, "firing", "resolved"):
                raise ValueError("status is firing or resolved")
            limit = _whole(request.query_params.get("limit", "50"), "limit")
            before = _whole(request.query_params["before"], "before") if "before" in request.query_params else None
            if not 1 <= limit <= 500 or (before is not None and not 0 <= before < 2**63):
                raise ValueError("limit is 1 to 500, before the id of an incident")
        except ValueError as why:
            return problem(f"a parameter is wrong: {why}", 400)
        found = await run_in_threadpool(self._incidents.list, status, limit, before)  # type: ignore[arg-type]
        return answer({"schema": 1, "incidents": [incident.summary_json() for incident in found]})

    async def _one(self, request: Request) -> Response:
        text = request.path_params["id"]
        if not (text.isascii() and text.isdigit() and len(text) < 19):
            return problem("an incident's id is a number", 404)
        try:
            return answer((await run_in_threadpool(self._incidents.get, int(text))).to_json())
        except NoSuchIncident as why:
            return problem(str(why), 404)

    async def _diagnose_now(self, request: Request) -> Response:
        try:
            at = request.query_params.get("at")
            at_ms = parse_instant_ms(at) if at is not None else self._source.now_ms()
        except ValueError as why:
            return problem(f"at: {why}", 400)
        try:
            return answer(await run_in_threadpool(self._diagnosed, at_ms))
        except SourceError as why:
            return problem(str(why), 502)

    async def _openapi(self, request: Request) -> Response:
        return answer(description(self._version))

    async def _health(self, request: Request) -> Response:
        try:
            await run_in_threadpool(self._incidents.list, None, 1)
        except sqlite3.Error as why:
            return problem(f"the file of incidents cannot be used: {why}", 503)
        return answer({"status": "ok"})

    async def _metrics(self, request: Request) -> Response:
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        return Response(generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST)


def _whole(text: str, name: str) -> int:
    """A whole number of a query. Raises ValueError with the parameter's name, and not with what was given."""
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ValueError(f"{name} is a whole number")
    return int(text)


async def _in_words(request: Request, why: Exception) -> Response:
    """What no route answers - no such path, no such method - as JSON like every other refusal."""
    status = why.status_code if isinstance(why, HTTPException) else 500
    response = problem(
        {404: "there is no such path; see /openapi.json", 405: "this path takes another method"}.get(status, "refused"),
        status,
    )
    for name, value in (why.headers or {}).items() if isinstance(why, HTTPException) else ():
        response.headers[name] = value
    return response


async def _limited_body(request: Request) -> bytes | None:
    """The body, None when it is over the limit; no more than the limit is ever held."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > MAX_BODY_BYTES:
        return None
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY_BYTES:
            return None
        parts.append(part)
    return b"".join(parts)


def api_app(
    source: Source, settings: Settings, records: Records, clock: Callable[[], int], *, token: str | None = None
) -> Starlette:
    """The API as an application of its own."""
    api = IncidentApi(source, settings, Incidents(records, clock), token=token)
    app = Starlette(routes=list(api.routes()), exception_handlers={HTTPException: _in_words})
    app.state.api = api
    return app


def serve_api(
    settings: Settings,
    host: str = "127.0.0.1",
    port: int = 8502,
    source_spec: str | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Serves until it is interrupted; `environment` names folder and file where the configuration's are not meant, as for the console.

    Raises SourceError without a source, OSError when the port is taken.
    """
    import uvicorn

    from collectors.sources import open_source

    spec = source_spec or (settings.source[0].name if settings.source else None)
    if spec is None:
        raise SourceError("no source to diagnose", "Give --source, or a [[source]] in the config file")
    source = open_source(spec, settings)
    try:
        records = Records(records_path(settings, environment))
    except RecordsError as error:
        raise SourceError(str(error)) from None
    try:
        token = settings.api_token()
    except SettingsError as error:
        raise SourceError(str(error)) from None
    listening = _listen(host, port)
    app = api_app(source, settings, records, _now_ms, token=token.get_secret_value() if token else None)
    app.state.api.diagnose_pending()
    print(f"pagewatch API on http://{host}:{port} (webhook: /api/v1/alerts)", file=sys.stderr, flush=True)
    config = uvicorn.Config(app, log_level="warning", access_log=False, proxy_headers=False, server_header=False)
    recorder = app.state.api.record_into(incidents_folder(settings, environment))
    try:
        uvicorn.Server(config).run(sockets=[listening])
    finally:
        recorder.stop()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise OSError(error.errno, error.strerror, f"{host}:{port}") from None
    return listening


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
