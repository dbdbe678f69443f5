"""A remote Prometheus, Thanos, Mimir or VictoriaMetrics as a source: prometheus-api-client's queries over our guarded session.

The client (0.7.2) rounds start and end to whole seconds, waits without limit, drops warnings and result type and raises six kinds of exception; none of
that leaves this module.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

from collectors.api_answers import Answer, frame_of, on_grid, samples_of, vector_of
from collectors.model import ApiAnswer, Frame, Labels, MetricMeta, Samples, SourceInfo, Vector, Window
from collectors.promql_text import selectors_of
from collectors.settings import SettingsError, SourceSettings
from collectors.source import QueryRejected, SourceBroken, SourceError, SourceRefused

if TYPE_CHECKING:
    from prometheus_api_client import PrometheusConnect
    from requests.auth import AuthBase

    from collectors.guarded_http import GuardedSession

MAX_STEPS = 10_000
"""Prometheus refuses more than 11,000 points a series; longer windows are asked in parts."""
RECENT_MS = 120_000
INFO_SECONDS = 3.0
FAILED_INFO_KEPT_SECONDS = 15.0
_UNUSED = datetime(2000, 1, 1, tzinfo=UTC)


def wall_clock_ms() -> int:
    """The time of this machine, epoch milliseconds."""
    return time.time_ns() // 1_000_000


class RemoteSource:
    """Implements Source over HTTP. Nothing is asked before the first question. Thread-safe."""

    def __init__(
        self,
        url: str,
        *,
        name: str = "",
        session: GuardedSession,
        params: Mapping[str, Any] | None = None,
        timeout_seconds: float = 10.0,
        clock: Callable[[], int] = wall_clock_ms,
    ) -> None:
        from prometheus_api_client import PrometheusConnect

        from collectors.guarded_http import shown_address

        self._url = url.rstrip("/")
        self._shown = shown_address(url)
        self._name = name.rstrip("/") or self._shown
        self._session = session
        self._params = {key: _param(value) for key, value in (params or {}).items()}
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._client: PrometheusConnect = PrometheusConnect(url=self._url, session=session)
        session.mount_pool()  # the client mounts an adapter of its own, with ten connections
        self._moves_the_grid = False
        self._info: SourceInfo | None = None
        self._info_failed_at = float("-inf")
        self._info_lock = threading.Lock()

    @classmethod
    def from_settings(cls, settings: SourceSettings, clock: Callable[[], int] = wall_clock_ms) -> Self:
        """A source as configured. Raises SettingsError when a secret is missing, SourceBroken for an address that is none."""
        from urllib.parse import urlsplit

        from collectors.guarded_http import GuardedSession, Limits

        try:
            parts = urlsplit(settings.url)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
            raise SourceBroken(f"source {settings.name}: its address is no http or https URL", "Write http://host:9090")
        if settings.ca_file is not None and not settings.ca_file.expanduser().is_file():
            raise SettingsError(f"source {settings.name}: ca_file {settings.ca_file} does not exist")
        session = GuardedSession(
            settings.url.rstrip("/"),
            Limits(settings.timeout_seconds, settings.max_response_bytes),
            headers=settings.headers,
            secret_headers=_secret_headers(settings),
            authorise=_authorisation(settings),
            ca_file=str(settings.ca_file.expanduser()) if settings.ca_file is not None else None,
        )
        return cls(
            settings.url,
            name=settings.name,
            session=session,
            params=settings.params,
            timeout_seconds=settings.timeout_seconds,
            clock=clock,
        )

    def close(self) -> None:
        """Give the connections back."""
        self._session.close()

    def now_ms(self) -> int:
        return self._clock()

    def extent_ms(self) -> tuple[int, int] | None:
        return None

    def info(self) -> SourceInfo:
        with self._info_lock:
            if self._info is not None:
                return self._info
            unknown = SourceInfo(self._name, "remote", "", "", self._shown)
            if time.monotonic() - self._info_failed_at < FAILED_INFO_KEPT_SECONDS:
                return unknown
            try:
                backend, version = self._build()
            except SourceError:
                self._info_failed_at = time.monotonic()
                return unknown
            self._info = SourceInfo(self._name, "remote", backend, version, self._shown)
            return self._info

    def check(self) -> None:
        """Ask `1`, which every Prometheus API answers. Raises SourceError."""
        vector = self.instant("1", self.now_ms() - 10 * RECENT_MS)
        if len(vector) != 1 or vector.values[0] != 1.0:
            raise SourceBroken(f"{self._shown} does not answer 1 when asked 1", "Is it a Prometheus query API?")

    def instant(self, promql: str, at_ms: int) -> Vector:
        return vector_of(self._query(promql, at_ms), at_ms, self._shown)

    def range(self, promql: str, window: Window) -> Frame:
        return frame_of(self._range(promql, window), window, self._shown)

    def answer(self, promql: str, at: int | Window) -> ApiAnswer:
        answers = self._range(promql, at) if isinstance(at, Window) else [self._query(promql, at)]
        warnings = tuple(dict.fromkeys(warning for answer in answers for warning in answer.warnings))
        if len(answers) == 1:
            return ApiAnswer({"resultType": answers[0].type, "result": answers[0].result}, warnings)
        joined: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
        for answer in answers:
            for series in answer.result:
                kept = joined.setdefault(
                    tuple(sorted(series["metric"].items())), {"metric": series["metric"], "values": []}
                )
                kept["values"] += series.get("values", [])
        return ApiAnswer({"resultType": "matrix", "result": list(joined.values())}, warnings)

    def _range(self, promql: str, window: Window) -> list[Answer]:
        """The answers over the window, in parts where it is long, at exactly the instants asked for.

        VictoriaMetrics moves start and end to multiples of the step, unless its cache is left aside; that is noticed once and remembered.
        """
        aligned = window.start_ms % window.step_ms == 0
        if self._moves_the_grid and not aligned:
            return self._parts(promql, window, nocache="1")
        answers = self._parts(promql, window)
        if aligned or on_grid(answers, window):
            return answers
        self._moves_the_grid = True
        return self._parts(promql, window, nocache="1")

    def _parts(self, promql: str, window: Window, **more: str) -> list[Answer]:
        answers: list[Answer] = []
        for first in range(0, window.steps, MAX_STEPS):
            last = min(first + MAX_STEPS, window.steps) - 1
            params = {
                **self._common(),
                **more,
                "start": _seconds(window.start_ms + first * window.step_ms),
                "end": _seconds(window.start_ms + last * window.step_ms),
            }
            # start and end stand in params, because the client rounds its own to whole seconds
            answer = self._client.custom_query_range(promql, _UNUSED, _UNUSED, _seconds(window.step_ms), params)
            answers.append(_checked(answer, "matrix", self._shown))
        return answers

    def samples(self, selector: str, start_ms: int, end_ms: int) -> list[Samples]:
        if len(selectors_of(selector)) != 1:
            raise QueryRejected(f"{selector!r} is not one selector")
        if end_ms <= start_ms:
            return []
        separator = "\n" if "#" in selector else ""
        answer = self._query(f"{selector}{separator}[{end_ms - start_ms}ms]", end_ms)
        return samples_of(answer, start_ms, end_ms, self._shown)

    def series(self, matchers: Sequence[str], start_ms: int, end_ms: int) -> list[Labels]:
        if not matchers:
            return []
        answer = self._session.ask(
            f"{self._url}/api/v1/series",
            {**self._params, "match[]": list(matchers), "start": _seconds(start_ms), "end": _seconds(end_ms)},
        )
        if not isinstance(answer.result, list) or not all(isinstance(labels, dict) for labels in answer.result):
            raise SourceBroken(f"{self._shown}: the answer is not of the Prometheus API's form")
        return list(answer.result)

    def metadata(self) -> Mapping[str, MetricMeta]:
        try:
            answer = self._session.ask(f"{self._url}/api/v1/metadata", self._params)
        except (QueryRejected, SourceBroken):
            return {}  # managed backends lack the endpoint
        if not isinstance(answer.result, dict):
            return {}
        return {
            name: MetricMeta(str(entries[0].get("type", "unknown")), str(entries[0].get("help", "")), str(entries[0].get("unit", "")))
            for name, entries in answer.result.items()
            if isinstance(entries, list) and entries and isinstance(entries[0], dict)
        }  # fmt: skip

    def rules(self) -> list[dict[str, Any]]:
        """Every rule of the backend with its state as of now; empty where it keeps none. Raises SourceError."""
        try:
            answer = self._session.ask(f"{self._url}/api/v1/rules", self._params)
        except (QueryRejected, SourceBroken):
            return []
        groups = answer.result.get("groups", []) if isinstance(answer.result, dict) else []
        kept = ("type", "name", "query", "duration", "labels", "state", "health", "alerts")
        return [
            {"group": str(group.get("name", "")), **{key: rule[key] for key in kept if key in rule}}
            for group in groups
            for rule in group.get("rules", [])
        ]

    def scrape_targets(self) -> list[tuple[Labels, str]]:
        """(labels, scrape URL) of every active target; empty where the backend does not tell. Raises SourceError."""
        try:
            answer = self._session.ask(f"{self._url}/api/v1/targets", {**self._params, "state": "active"})
        except (QueryRejected, SourceBroken):
            return []  # managed backends lack the endpoint
        active = answer.result.get("activeTargets") if isinstance(answer.result, dict) else None
        return [
            ({str(name): str(value) for name, value in target["labels"].items()}, str(target.get("scrapeUrl", "")))
            for target in active or ()
            if isinstance(target, dict) and isinstance(target.get("labels"), dict)
        ]

    def _query(self, promql: str, at_ms: int) -> Answer:
        recent = {"nocache": "1", "latency_offset": "1ms"} if self._hides_the_latest(at_ms) else {}
        answer = self._client.custom_query(promql, {**self._common(), **recent, "time": _seconds(at_ms)})
        return _checked(answer, "", self._shown)

    def _hides_the_latest(self, at_ms: int) -> bool:
        """VictoriaMetrics answers instant queries as of 30 s ago (-search.latencyOffset) unless its cache is left aside."""
        return abs(self.now_ms() - at_ms) < RECENT_MS and self.info().backend == "victoria-metrics"

    def _common(self) -> dict[str, Any]:
        return {"timeout": f"{self._timeout_seconds:g}s", **self._params}

    def _build(self) -> tuple[str, str]:
        """Backend and version. VictoriaMetrics tells nothing (1.79) or the constant of a Grafana release (later)."""
        url = f"{self._url}/api/v1/status/buildinfo"
        answer = self._session.ask(url, self._params, min(INFO_SECONDS, self._timeout_seconds))
        data = answer.result if isinstance(answer.result, dict) else {}
        version = str(data.get("version", ""))
        if not version or set(data) <= {"version"}:
            return "victoria-metrics", ""
        application = str(data.get("application", "")).lower()
        if "mimir" in application:
            return "mimir", version
        return ("thanos" if "thanos" in str(data).lower() else "prometheus"), version


def _checked(answer: Any, wanted: str, where: str) -> Answer:
    if not isinstance(answer, Answer) or (wanted and answer.type != wanted):
        raise SourceBroken(f"{where}: the answer is not of the Prometheus API's form")
    return answer


def _seconds(ms: int) -> str:
    """Milliseconds as exact seconds."""
    sign, ms = ("-", -ms) if ms < 0 else ("", ms)
    return f"{sign}{ms // 1000}.{ms % 1000:03d}"


def _param(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def _secret_headers(settings: SourceSettings) -> dict[str, Callable[[], str]]:
    """Header values, read at each request: a token file may be renewed while we run. Missing ones are named at once."""
    readers: dict[str, Callable[[], str]] = {}
    for name, env in settings.headers_env.items():
        readers[name] = lambda env=env: _told(settings, env, None, "headers")  # type: ignore[misc]
    for name, file in settings.headers_file.items():
        readers[name] = lambda file=file: _told(settings, "", file, "headers")  # type: ignore[misc]
    for read in readers.values():
        read()
    return readers


def _told(settings: SourceSettings, env: str, file: Any, field: str) -> str:
    try:
        secret = settings.secret(env, file, field)
    except SettingsError as error:
        raise SourceRefused(str(error)) from None
    return secret.get_secret_value() if secret is not None else ""


def _authorisation(settings: SourceSettings) -> AuthBase | None:
    import base64

    from requests.auth import AuthBase

    auth = settings.auth

    def header() -> str:
        bearer = settings.secret(auth.bearer_env, auth.bearer_file, "bearer")
        if bearer is not None:
            return f"Bearer {bearer.get_secret_value()}"
        password = settings.secret(auth.password_env, auth.password_file, "password") or settings.address_password
        if password is None:
            return ""
        pair = f"{auth.username or settings.address_user}:{password.get_secret_value()}"
        return "Basic " + base64.b64encode(pair.encode("utf-8")).decode("ascii")

    if not header():
        return None

    class Authorise(AuthBase):
        def __call__(self, request: Any) -> Any:
            try:
                request.headers["Authorization"] = header()
            except SettingsError as error:
                raise SourceRefused(str(error)) from None
            return request

    return Authorise()
