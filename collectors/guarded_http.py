"""HTTP to a Prometheus API, guarded: a deadline over everything, one retry at most, bounded answers, redirects only within the same server,
and every failure one of the SourceError family.

`GuardedSession` is handed to prometheus-api-client as its session. What the client leaves out happens here: long queries travel in the body of a
POST, and the decoded answer - warnings and result type included - is passed through the client as its result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urljoin, urlsplit, urlunsplit

import orjson
import requests
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase
from requests.utils import get_environ_proxies
from urllib3.exceptions import HTTPError, ReadTimeoutError
from urllib3.util.retry import Retry

from collectors.api_answers import Answer, answer_of, refusal_of
from collectors.source import SourceBroken, SourceError, SourceRefused, SourceUnreachable

POST_ABOVE_BYTES = 1800
"""Parameters longer than this go into a body: proxies cut request lines at 2 to 8 KB."""
POOL_SIZE = 64
CONNECT_SECONDS = 5.0
_RETRIED_STATUS = frozenset((502, 503, 504))
_REDIRECTS = frozenset((301, 302, 303, 307, 308))
_CHUNK_BYTES = 256 * 1024


def shown_address(url: str) -> str:
    """An address fit to be shown: without user, password, query and fragment."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        port = f":{parts.port}" if parts.port is not None else ""
    except ValueError:
        return "(an address that cannot be read)"
    host = f"[{host}]" if ":" in host else host
    return urlunsplit((parts.scheme, host + port, parts.path.rstrip("/"), "", ""))


@dataclass(frozen=True)
class Limits:
    """Deadline of one question and the largest answer that is read."""

    timeout_seconds: float = 10.0
    max_response_bytes: int = 256_000_000


class _Answered(requests.Response):
    """A response whose JSON is the decoded answer, in the shape the client takes apart."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.status_code = 200
        self._answer = answer

    def json(self, **_: Any) -> Any:
        return {"data": {"result": self._answer}}


class GuardedSession(requests.Session):
    """A requests session that only talks to one server. Thread-safe for `request` and `ask`."""

    def __init__(
        self,
        address: str,
        limits: Limits,
        *,
        headers: Mapping[str, str] | None = None,
        secret_headers: Mapping[str, Callable[[], str]] | None = None,
        authorise: AuthBase | None = None,
        ca_file: str | None = None,
    ) -> None:
        super().__init__()
        self._address = address
        self._shown = shown_address(address)
        self._limits = limits
        self._secret_headers = dict(secret_headers or {})
        self._authorise = authorise
        self.trust_env = False  # a ~/.netrc entry would replace the configured credentials
        self.headers.update({"Accept": "application/json", "User-Agent": "pagewatch", **(headers or {})})
        self.cookies.set_policy(_NoCookies())
        if ca_file is not None:
            self.verify = ca_file
        host = urlsplit(address).hostname or ""
        if host not in ("localhost", "::1") and not host.startswith("127."):
            self.proxies = dict(get_environ_proxies(address))
        self.mount_pool()

    def mount_pool(self) -> None:
        """Connections for many threads, without urllib3's own retries (ours know the deadline)."""
        adapter = HTTPAdapter(pool_maxsize=POOL_SIZE, max_retries=Retry(0, read=False))
        for prefix in ("http://", "https://", self._address):
            self.mount(prefix, adapter)

    def request(self, method: Any, url: Any, params: Any = None, **_: Any) -> requests.Response:  # type: ignore[override]
        """What the client calls; its own timeout, auth and retry are not needed here. Raises SourceError."""
        return _Answered(self.ask(str(url), params or {}))

    def ask(self, url: str, params: Mapping[str, Any], timeout_seconds: float | None = None) -> Answer:
        """One question to an API endpoint, decoded. Raises SourceError."""
        deadline = time.monotonic() + (timeout_seconds or self._limits.timeout_seconds)
        encoded = urlencode(params, doseq=True)
        for attempt in (1, 2):
            try:
                status, content_type, retry_after, body = self._fetch(url, encoded, deadline)
            except (requests.exceptions.Timeout, TimeoutError):
                raise self._late() from None
            except requests.exceptions.SSLError as error:
                raise SourceUnreachable(
                    f"{self._shown}: no secure connection: {_reason(error)}",
                    "Name its certificate authority in ca_file",
                ) from None
            except requests.exceptions.RequestException as error:
                if attempt == 1 and time.monotonic() < deadline:
                    continue
                raise SourceUnreachable(
                    f"{self._shown} cannot be reached: {_reason(error)}", "Check the address, and that the server runs"
                ) from None
            if status in _RETRIED_STATUS and attempt == 1 and not body.lstrip().startswith(b"{"):
                continue
            return self._decoded(status, content_type, retry_after, body)
        raise AssertionError("unreachable")

    def _late(self) -> SourceUnreachable:
        return SourceUnreachable(
            f"{self._shown} gave no answer within {self._limits.timeout_seconds:g} s",
            "Raise timeout_seconds of the source, or ask for less",
        )

    def _fetch(self, url: str, encoded: str, deadline: float) -> tuple[int, str, str, bytes]:
        for _ in range(4):
            response = self._send(url, encoded, deadline)
            with response:
                if response.status_code in _REDIRECTS and response.headers.get("Location"):
                    url = self._redirected(url, response.headers["Location"])
                    continue
                return (
                    response.status_code,
                    response.headers.get("Content-Type", ""),
                    response.headers.get("Retry-After", ""),
                    self._read(response, deadline),
                )
        raise SourceBroken(f"{self._shown} redirects in a circle", "Check the address")

    def _send(self, url: str, encoded: str, deadline: float) -> requests.Response:
        remaining = max(0.05, deadline - time.monotonic())
        posted = len(encoded) > POST_ABOVE_BYTES
        request = requests.Request(
            "POST" if posted else "GET",
            url if posted or not encoded else f"{url}?{encoded}",
            data=encoded if posted else None,
            headers={
                **({"Content-Type": "application/x-www-form-urlencoded"} if posted else {}),
                **{name: read() for name, read in self._secret_headers.items()},
            },
            auth=self._authorise,
        )
        return self.send(
            self.prepare_request(request),
            stream=True,
            allow_redirects=False,
            timeout=(min(CONNECT_SECONDS, remaining), remaining),
            verify=self.verify,
            proxies=self.proxies,
        )

    def _redirected(self, url: str, location: str) -> str:
        """Where a redirect leads, when that is the same server (or its https side); credentials go nowhere else."""
        target = urlsplit(urljoin(url, location))
        origin = urlsplit(url)
        same_port = (target.port or _port(target.scheme)) == (origin.port or _port(origin.scheme))
        upgraded = (origin.scheme, target.scheme) == ("http", "https")
        if target.hostname != origin.hostname or not (same_port and target.scheme == origin.scheme or upgraded):
            raise SourceRefused(
                f"{self._shown} redirects to {shown_address(target.geturl())}, which is another server",
                "Give the address of the API itself, or the credentials it wants",
            )
        return urlunsplit((target.scheme, target.netloc.rpartition("@")[2], target.path, "", ""))

    def _read(self, response: requests.Response, deadline: float) -> bytes:
        pieces: list[bytes] = []
        size = 0
        while piece := self._piece(response):
            size += len(piece)
            if size > self._limits.max_response_bytes:
                raise SourceBroken(
                    f"{self._shown} answers with more than {self._limits.max_response_bytes} bytes",
                    "Ask for less, or raise max_response_bytes of the source",
                )
            if time.monotonic() > deadline:
                raise TimeoutError
            pieces.append(piece)
        return b"".join(pieces)

    def _piece(self, response: requests.Response) -> bytes:
        """What has arrived by now; `iter_content` would wait for a full piece, however slowly it drips in."""
        try:
            return bytes(response.raw.read1(_CHUNK_BYTES, decode_content=True))
        except ReadTimeoutError:
            raise TimeoutError from None
        except HTTPError as error:
            raise requests.exceptions.ConnectionError(error) from None

    def _decoded(self, status: int, content_type: str, retry_after: str, body: bytes) -> Answer:
        parsed: Any = None
        with suppress(orjson.JSONDecodeError):
            parsed = orjson.loads(body)
        if status == 200 and isinstance(parsed, dict) and parsed.get("status") == "success":
            return answer_of(parsed, self._shown)
        error: SourceError = refusal_of(status, content_type, retry_after, body, parsed, self._shown)
        raise error


class _NoCookies(requests.cookies.cookielib.DefaultCookiePolicy):  # type: ignore[name-defined,misc]
    """Takes no cookies: a shared jar is neither wanted nor safe between threads."""

    def set_ok(self, cookie: Any, request: Any) -> bool:
        return False

    def return_ok(self, cookie: Any, request: Any) -> bool:
        return False


def _port(scheme: str) -> int:
    return 443 if scheme == "https" else 80


def _reason(error: BaseException) -> str:
    """The innermost cause in a few words; never the message itself, which may hold the whole request."""
    seen: set[int] = set()
    texts: list[str] = []
    pending: list[BaseException] = [error]
    while pending:
        each = pending.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, OSError) and each.strerror and not isinstance(each, requests.exceptions.RequestException):
            texts.append(each.strerror)
        pending += [part for part in (*each.args, getattr(each, "reason", None), each.__cause__, each.__context__)
                    if isinstance(part, BaseException)]  # fmt: skip
        name = type(each).__name__
        if name == "NameResolutionError":
            return "its name is not known"
        if name in ("InvalidURL", "LocationParseError", "InvalidSchema", "MissingSchema"):
            return "the address cannot be read"
    return texts[0].lower() if texts else "the connection broke off"
