"""The Prometheus HTTP API over an engine and its blocks: a live store, or an opened incident file for Grafana."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from collectors.model import MetricMeta
from collectors.store.api_params import EARLIEST_MS, LATEST_MS, BadParameter, Parameters
from collectors.store.api_status import ServedData, status_routes
from collectors.store.formatting import formatted
from collectors.store.matchers import Matcher
from collectors.store.promql import Limits, PromQLError, Result, parse_selector
from collectors.store.series import LabelSet

log = logging.getLogger(__name__)

STATUS_OF = {"bad_data": 400, "execution": 422, "timeout": 503, "not_found": 404, "internal": 500}
MAX_FORM_BYTES = 10 * 1024 * 1024
TRUNCATED = "results truncated due to limit"
_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")

Answer = tuple[Any, Sequence[str], Sequence[str]]
"""data (JSON text when it is bytes), warnings, infos"""


class ApiError(Exception):
    """An answer with status "error": errorType and message."""

    def __init__(self, kind: str, message: str) -> None:
        self.kind, self.message = kind, message
        super().__init__(message)


def build_app(served: ServedData, extra_routes: Iterable[Route] = ()) -> Starlette:
    """The API as an ASGI application."""
    api = _Api(served)
    endpoints: dict[str, Callable[[Parameters, Request], Answer]] = {
        "query": api.query,
        "query_range": api.query_range,
        "query_exemplars": api.query_exemplars,
        "format_query": api.format_query,
        "series": api.series,
        "labels": api.labels,
        "label/{name}/values": api.label_values,
        "metadata": api.metadata,
    }
    routes = [
        Route(f"/api/v1/{path}", _endpoint(answer), methods=["GET", "POST"]) for path, answer in endpoints.items()
    ]
    routes += [
        Route(f"/api/v1/{path}", _endpoint(answer), methods=["GET"]) for path, answer in status_routes(served).items()
    ]
    routes += [
        Route("/", _front_page, methods=["GET", "HEAD"]),
        Route("/-/healthy", _plain(served, "healthy"), methods=["GET", "HEAD"]),
        Route("/-/ready", _plain(served, "ready"), methods=["GET", "HEAD"]),
        *extra_routes,
    ]
    return Starlette(routes=routes)


async def _front_page(request: Request) -> Response:
    """Some clients ask for it to see whether a server is there."""
    return PlainTextResponse("pagewatch store: the Prometheus HTTP API is below /api/v1/, own metrics at /metrics\n")


def _plain(served: ServedData, word: str) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        problem = served.problem()
        if problem:
            return PlainTextResponse(f"pagewatch store is not {word}: {problem}\n", status_code=503)
        return PlainTextResponse(f"pagewatch store is {word}.\n")

    return answer


def _endpoint(answer: Callable[[Parameters, Request], Answer]) -> Callable[[Request], Awaitable[Response]]:
    async def respond(request: Request) -> Response:
        try:
            parameters = Parameters.parse(request.scope["query_string"], await _form(request))
            return await run_in_threadpool(_encoded, answer, parameters, request)
        except BadParameter as error:
            return _error("bad_data", str(error))
        except ApiError as error:
            return _error(error.kind, error.message)
        except PromQLError as error:
            return _error("execution" if error.kind == "unsupported" else error.kind, error.message)
        except ClientDisconnect:
            return Response(status_code=499)
        except RecursionError:
            return _error("bad_data", 'invalid parameter "query": parse error: the expression is nested too deeply')
        except Exception as error:  # a defect of ours: said as such, in the form that clients can read
            log.exception("%s failed", request.url.path)
            return _error("internal", f"{type(error).__name__}: {error}")

    return respond


def _encoded(answer: Callable[[Parameters, Request], Answer], parameters: Parameters, request: Request) -> Response:
    """Runs in a worker thread, the JSON included: a big matrix must not hold up the event loop."""
    data, warnings, infos = answer(parameters, request)
    body: dict[str, Any] = {"status": "success", "data": orjson.Fragment(data) if isinstance(data, bytes) else data}
    if warnings:
        body["warnings"] = list(warnings)
    if infos:
        body["infos"] = list(infos)
    return Response(orjson.dumps(body), media_type="application/json")


def _error(kind: str, message: str) -> Response:
    body = orjson.dumps({"status": "error", "errorType": kind, "error": message})
    return Response(body, status_code=STATUS_OF.get(kind, 500), media_type="application/json")


async def _form(request: Request) -> bytes:
    if request.method != "POST":
        return b""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/x-www-form-urlencoded":
        return b""
    parts, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > MAX_FORM_BYTES:
            raise BadParameter("error parsing form values: http: POST too large")
        parts.append(chunk)
    return b"".join(parts)


class _Api:
    """One method per endpoint; each runs in a worker thread."""

    def __init__(self, served: ServedData) -> None:
        self._served = served
        self._engine = served.engine
        self._blocks = served.blocks

    def query(self, parameters: Parameters, request: Request) -> Answer:
        at_ms = parameters.instant_ms("time", self._served.now_ms())
        limit, limits, lookback_ms = self._bounds(parameters)
        with _naming("query"):
            result = self._engine.instant(parameters.text("query"), at_ms, limits=limits, lookback_ms=lookback_ms)
        return self._limited(result, limit)

    def query_range(self, parameters: Parameters, request: Request) -> Answer:
        window = parameters.window()
        limit, limits, lookback_ms = self._bounds(parameters)
        with _naming("query"):
            result = self._engine.range(parameters.text("query"), window, limits=limits, lookback_ms=lookback_ms)
        return self._limited(result, limit)

    def query_exemplars(self, parameters: Parameters, request: Request) -> Answer:
        parameters.instant_ms("start", EARLIEST_MS)
        parameters.instant_ms("end", LATEST_MS)
        return [], (), ()

    def format_query(self, parameters: Parameters, request: Request) -> Answer:
        with _naming("query"):
            return formatted(parameters.text("query")), (), ()

    def series(self, parameters: Parameters, request: Request) -> Answer:
        found = self._matching(parameters, required=True)
        return self._cut([labels.as_dict() for labels in found], parameters.limit())

    def labels(self, parameters: Parameters, request: Request) -> Answer:
        names = {name for labels in self._matching(parameters) for name in labels}
        return self._cut(sorted(names), parameters.limit())

    def label_values(self, parameters: Parameters, request: Request) -> Answer:
        name = request.path_params["name"]
        if not _LABEL_NAME.fullmatch(name):
            raise ApiError("bad_data", f'invalid label name: "{name}"')
        values = {value for labels in self._matching(parameters) if (value := labels.get(name))}
        return self._cut(sorted(values), parameters.limit())

    def metadata(self, parameters: Parameters, request: Request) -> Answer:
        limit, wanted = parameters.limit(), parameters.text("metric")
        known: Mapping[str, MetricMeta] = self._blocks.metadata()
        names = [name for name in sorted(known) if not wanted or name == wanted]
        listed = {
            name: [{"type": known[name].type, "help": known[name].help, "unit": known[name].unit}]
            for name in (names[:limit] if limit else names)
        }
        return listed, (), ()

    def _bounds(self, parameters: Parameters) -> tuple[int, Limits | None, int | None]:
        """limit=, the engine's limits with timeout= (never more than the engine's own), and lookback_delta=."""
        limit, limits, lookback_ms = parameters.limit(), None, None
        if parameters.text("timeout"):
            own = self._engine.limits
            seconds = min(own.timeout_seconds, parameters.duration_ms("timeout") / 1000)
            limits = replace(own, timeout_seconds=max(0.0, seconds))
        if parameters.text("lookback_delta"):
            lookback_ms = parameters.duration_ms("lookback_delta")
        return limit, limits, lookback_ms

    @staticmethod
    def _limited(result: Result, limit: int) -> Answer:
        if 0 < limit < len(result) and result.type in ("vector", "matrix"):
            data = result.data()
            return data | {"result": data["result"][:limit]}, (*result.warnings, TRUNCATED), result.infos
        return result.data_json(), result.warnings, result.infos

    @staticmethod
    def _cut(found: list[Any], limit: int) -> Answer:
        return (found[:limit], (TRUNCATED,), ()) if 0 < limit < len(found) else (found, (), ())

    def _matching(self, parameters: Parameters, *, required: bool = False) -> list[LabelSet]:
        selectors = parameters.texts("match[]")
        if required and not selectors:
            raise ApiError("bad_data", "no match[] parameter provided")
        start_ms = parameters.instant_ms("start", EARLIEST_MS)
        end_ms = parameters.instant_ms("end", LATEST_MS)
        if end_ms < start_ms:
            raise ApiError("bad_data", 'invalid parameter "end": end timestamp must not be before start time')
        wanted = [_matchers(selector) for selector in selectors] or [()]
        found = {labels for matchers in wanted for labels in self._blocks.series(matchers, start_ms, end_ms)}
        return sorted(found)


@contextlib.contextmanager
def _naming(parameter: str) -> Iterator[None]:
    """A query that is malformed is a bad parameter, and the message says which."""
    try:
        yield
    except PromQLError as error:
        if error.kind == "bad_data":
            raise ApiError("bad_data", f'invalid parameter "{parameter}": {error.message}') from None
        raise


def _matchers(selector: str) -> tuple[Matcher, ...]:
    try:
        matchers = parse_selector(selector)
    except PromQLError as error:
        raise ApiError("bad_data", f'invalid parameter "match[]": {error.message}') from None
    if all(matcher.matches_empty() for matcher in matchers):
        raise ApiError("bad_data", "match[] must contain at least one non-empty matcher")
    return matchers
