"""What replicas themselves answer to `GET /version`: asked directly, only where the configuration allows it, never while a picture waits.

The addresses are those that the scraper names (`scrapeUrl` of its active targets). Answers are remembered per process, failures for a while.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol, runtime_checkable
from urllib.parse import urlsplit

from collectors.dialect import parse_version
from collectors.model import Labels
from collectors.scraped import Target
from collectors.source import Source, SourceError

TIMEOUT_SECONDS = 2.0
MOST_BYTES = 4096
MOST_LENGTH = 64
"""A version is short; what is longer is none."""
MOST_REPLICAS = 1024
AT_ONCE = 8
ASK_AGAIN_SECONDS = 300.0
"""After a failure, and for targets whose list may have changed."""
FAR_PAST_MS = 900_000
"""What runs now says nothing about windows that ended longer ago, unless the process is known to be the same."""


@runtime_checkable
class NamesTargets(Protocol):
    """A source that can tell where its targets are scraped."""

    def scrape_targets(self) -> Sequence[tuple[Labels, str]]:
        """(labels, scrape URL) of every active target; empty where the backend does not tell. Raises SourceError."""
        ...


@dataclass(frozen=True)
class _Told:
    version: str
    """'' = it did not tell."""
    at_seconds: float


class Urls:
    """Where each target answers. A backend in front of several scrapers adds labels, so job and instance are looked up and the
    other labels, where both sides have them, must agree; what is left ambiguous has no address."""

    def __init__(self, named: Iterable[tuple[Labels, str]]) -> None:
        self._by_place: dict[tuple[str, str], list[tuple[Labels, str]]] = {}
        for labels, url in named:
            if url:
                self._by_place.setdefault(_place(labels), []).append((labels, url))

    def of(self, labels: Labels) -> str:
        """The URL of the target with these labels, '' when there is none or more than one."""
        fitting = {
            url
            for known, url in self._by_place.get(_place(labels), ())
            if all(labels.get(name, value) == value for name, value in known.items())
        }
        return fitting.pop() if len(fitting) == 1 else ""


def _place(labels: Labels) -> tuple[str, str]:
    return labels.get("job", ""), labels.get("instance", "")


def version_url(scrape_url: str) -> str:
    """`/version` beside `/metrics` of a scrape URL, without user, password and query; '' when it is no http(s) address."""
    try:
        parts = urlsplit(scrape_url)
        port = parts.port
    except ValueError:
        return ""
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return ""
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    folder = parts.path.rpartition("/")[0]
    return f"{parts.scheme}://{host}{f':{port}' if port else ''}{folder}/version"


def ask_version(url: str, timeout_seconds: float = TIMEOUT_SECONDS) -> str:
    """The version that a server tells at this URL, '' when it does not answer in time with a short JSON object that holds one.

    No redirect is followed, no credential and no cookie is sent, no proxy is used.
    """
    import http.client
    import json

    parts = urlsplit(url)
    connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    deadline = time.monotonic() + timeout_seconds
    connection = connect(parts.hostname or "", parts.port, timeout=timeout_seconds)
    try:
        connection.request("GET", parts.path, headers={"Accept": "application/json", "User-Agent": "pagewatch"})
        answer = connection.getresponse()
        if answer.status != 200:
            return ""
        body = b""
        while len(body) <= MOST_BYTES and time.monotonic() < deadline:
            piece = answer.read1(MOST_BYTES + 1 - len(body))
            if not piece:
                return _version_in(json.loads(body))
            body += piece
    except (OSError, http.client.HTTPException, ValueError):
        return ""
    finally:
        connection.close()
    return ""


def _version_in(answer: object) -> str:
    told = answer.get("version") if isinstance(answer, dict) else None
    if not isinstance(told, str) or len(told) > MOST_LENGTH:
        return ""
    parse_version(told)  # ValueError when it is none
    return told.strip()


class AskedVersions:
    """Versions by replica process. Thread-safe; asking happens in threads of its own."""

    def __init__(
        self,
        ask: Callable[[str], str] = ask_version,
        clock: Callable[[], float] = time.monotonic,
        at_once: int = AT_ONCE,
    ) -> None:
        self._ask, self._clock, self._at_once = ask, clock, at_once
        self._lock = threading.Lock()
        self._told: dict[tuple[str, float | None], _Told] = {}
        self._targets: dict[str, tuple[float, Urls]] = {}
        self._busy: set[str] = set()

    def told(self, source: Source, targets: Sequence[Target], at_ms: int) -> tuple[Target, ...]:
        """The targets with the versions that are known by now; what is missing is being asked for the next time."""
        inner = source
        while hasattr(inner, "inner"):
            inner = inner.inner
        if not isinstance(inner, NamesTargets) or not targets:
            return tuple(targets)
        name = source.info().url or source.info().name
        with self._lock:
            asked_at, urls = self._targets.get(name, (float("-inf"), Urls(())))
            due = self._wanted(urls, targets) or self._clock() - asked_at > ASK_AGAIN_SECONDS
            if due and name not in self._busy:
                self._busy.add(name)
                threading.Thread(
                    target=self._look, args=(name, inner, tuple(targets)), name="ask-versions", daemon=True
                ).start()
            past = source.now_ms() - at_ms > FAR_PAST_MS
            return tuple(self._with_version(target, urls, past) for target in targets)

    def _with_version(self, target: Target, urls: Urls, past: bool) -> Target:
        url = urls.of(target.labels)
        known = self._told.get((url, target.started_seconds))
        if known is None or not known.version or (past and target.started_seconds is None):
            return target
        return replace(target, version=known.version)

    def _wanted(self, urls: Urls, targets: Iterable[Target]) -> list[tuple[str, float | None]]:
        """What is not known of these targets, and not known to be silent for the time being."""
        wanted = []
        for target in targets:
            url = urls.of(target.labels)
            known = self._told.get((url, target.started_seconds))
            old = known is not None and (
                self._clock() - known.at_seconds > ASK_AGAIN_SECONDS
                and (not known.version or target.started_seconds is None)
            )
            if url and target.up and (known is None or old):
                wanted.append((url, target.started_seconds))
        return wanted[:MOST_REPLICAS]

    def _look(self, name: str, source: NamesTargets, targets: Sequence[Target]) -> None:
        try:
            urls = Urls((labels, version_url(scrape_url)) for labels, scrape_url in source.scrape_targets())
            with self._lock:
                self._targets[name] = (self._clock(), urls)
                wanted = self._wanted(urls, targets)
            with ThreadPoolExecutor(self._at_once, thread_name_prefix="ask-version") as pool:
                answers = list(pool.map(self._ask, [url for url, _ in wanted]))
            with self._lock:
                if len(self._told) > 4 * MOST_REPLICAS:
                    self._told.clear()
                self._told.update(
                    {key: _Told(version, self._clock()) for key, version in zip(wanted, answers, strict=True)}
                )
        except SourceError:
            with self._lock:
                self._targets[name] = (self._clock(), Urls(()))
        finally:
            with self._lock:
                self._busy.discard(name)


@lru_cache(maxsize=1)
def shared_versions() -> AskedVersions:
    """One memory for all pictures of this process."""
    return AskedVersions()
