"""The HTTP face of one replica: what vLLM 0.11.0's API server answers, on loopback."""

from __future__ import annotations

import hmac
import json
import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_fastapi_instrumentator import Instrumentator
from prometheus_fastapi_instrumentator.metrics import Info
from starlette.types import ASGIApp, Receive, Scope, Send

from sim_backend.exposition import Page, PageSource, registry_of
from sim_backend.faults import ScrapeLost
from sim_backend.http_metrics import EXCLUDED
from sim_backend.live import LiveFleet
from sim_backend.openai_protocol import Refused
from sim_backend.openai_routes import openai_router

VERSION = "0.11.0"
CONTROL_PATH = "/simulator"
log = logging.getLogger(__name__)


class SeenPages(PageSource):
    """The pages of one scrape."""

    def __init__(self) -> None:
        self.current: tuple[Page, ...] = ()

    def pages(self) -> tuple[Page, ...]:
        return self.current


class KeyCheck:
    """Outside the instrumentator, as in the real server: a 401 reaches no metric. The key decides the tenant, never the body."""

    def __init__(self, app: ASGIApp, keys: dict[str, str]) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._keys or not scope["path"].startswith("/v1"):
            await self._app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(b"authorization", b"")
        tenant = None
        for key, owner in self._keys.items():
            if hmac.compare_digest(given, f"Bearer {key}".encode()):
                tenant = owner
        if scope["method"] != "OPTIONS" and tenant is None:
            await JSONResponse({"error": "Unauthorized"}, status_code=401)(scope, receive, send)
            return
        await self._app({**scope, "tenant": tenant or ""}, receive, send)


def replica_app(live: LiveFleet, index: int, *, control_url: str = "", keys: dict[str, str] | None = None) -> FastAPI:
    """The application of replica `index`. `keys` maps API keys to tenants; empty: no key is needed."""
    replica = live.cluster.replicas[index]
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    seen = SeenPages()
    registry = registry_of(seen)

    @app.get("/metrics")
    @app.get("/metrics/", include_in_schema=False)
    async def metrics() -> Response:
        live.catch_up()
        try:
            seen.current = tuple(live.cluster.scrape(index))
        except ScrapeLost as lost:
            return Response(str(lost), status_code=503)
        # Text whatever the scraper would take, as the real server answers. The client library's OpenMetrics form
        # writes `vllm:` as `vllm_`, and no rule or dashboard would find its series.
        return Response(generate_latest(registry), headers={"content-type": CONTENT_TYPE_LATEST})

    @app.get("/health")
    @app.get("/ping")
    @app.post("/ping")
    async def health() -> Response:
        live.catch_up()
        return Response(status_code=503 if replica.state == "engine_dead" else 200)

    @app.get("/version")
    async def version() -> JSONResponse:
        return JSONResponse({"version": VERSION})

    @app.get("/load")
    async def load() -> JSONResponse:
        live.catch_up()
        return JSONResponse({"server_load": len(replica.in_flight())})

    @app.get(CONTROL_PATH)
    async def simulator() -> JSONResponse:
        """Not a route of vLLM: where this simulator is controlled."""
        return JSONResponse({"simulator": "pagewatch", "control": control_url, "instance": replica.instance})

    app.include_router(openai_router(live, index))
    _answer_errors(app)
    # Recorded into the replica's own books, where the load that is generated in process is counted too.
    instrumentator = Instrumentator(excluded_handlers=[*EXCLUDED, CONTROL_PATH])
    instrumentator.add(_recorder(live, index)).instrument(app)
    if keys:
        app.add_middleware(KeyCheck, keys=keys)
    return app


def _recorder(live: LiveFleet, index: int) -> Any:
    replica = live.cluster.replicas[index]

    def record(info: Info) -> None:
        replica.http.record(
            replica.epoch_seconds + live.now(),
            info.modified_handler,
            info.modified_status,
            info.modified_duration,
            method=info.method,
            request_bytes=_length(info.request.headers),
            response_bytes=_length(info.response.headers) if info.response is not None else 0,
        )

    return record


def _length(headers: Any) -> int:
    text = headers.get("content-length", "0")
    return int(text) if text.isdigit() else 0


def _answer_errors(app: FastAPI) -> None:
    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> JSONResponse:
        return JSONResponse(error.body(), status_code=error.status)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        body = Refused(json.dumps(error.errors(), default=str), "Bad Request").body()
        return JSONResponse(body, status_code=400)
