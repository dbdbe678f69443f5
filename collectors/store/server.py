"""The embedded store as a server: `pagewatch store serve`, and any engine (an incident file, say) behind the same API."""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from starlette.types import ASGIApp

from collectors.source import SourceError
from collectors.store.api import build_app
from collectors.store.api_status import ServedData
from collectors.store.blocks import Blocks
from collectors.store.fetch import ScrapeLimits
from collectors.store.hosts import HostCheck
from collectors.store.own_metrics import own_metrics_route
from collectors.store.promql import Engine
from collectors.store.scrape import ScrapeSettings
from collectors.store.store import DEFAULT_RETENTION_SECONDS, Store

log = logging.getLogger(__name__)

LONGEST_TIMEOUT_SECONDS = 10.0
GRACE_SECONDS = 3
SWITCH_SECONDS = 0.0005
"""A query at work gives the interpreter to the scrape loop this often; with Python's own 5 ms every step of every scrape waits that long."""


class ServerError(SourceError):
    """The server cannot start; the message says why and what to try."""


def store_app(store: Store, *, host: str = "127.0.0.1", allowed_hosts: Sequence[str] = ()) -> ASGIApp:
    """The API of a store as an ASGI application."""
    settings = store.scrape_settings
    served = ServedData(
        blocks=store.blocks,
        engine=store.engine(),
        now_ms=store.clock.now_ms,
        statuses=store.statuses,
        scrape_settings=settings,
        # A disk that refuses writes is no reason to be restarted: what waits in memory would be lost.
        problem=lambda: store.problem if store.failed else "",
        flags=store.flags(),
        retention=f"{store.retention_ms / 1000:g}s",
        started_ms=store.started_ms,
    )
    app = build_app(served, [own_metrics_route(store)])
    return HostCheck(app, bound_to=host, allowed=allowed_hosts)


def samples_app(blocks: Blocks, now_ms: Callable[[], int], *, host: str = "127.0.0.1") -> ASGIApp:
    """The same API over samples that nothing is added to, an opened incident file for example; `now_ms` is its clock."""
    return HostCheck(build_app(ServedData(blocks=blocks, engine=Engine(blocks), now_ms=now_ms)), bound_to=host)


def bound_socket(host: str, port: int) -> socket.socket:
    """A listening socket, so that a taken port is known before anything is scraped. Raises ServerError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named because asyncio turns Nagle's algorithm off only then: else small answers wait 40 ms for an ACK.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(1024)
    except OSError as error:
        listening.close()
        raise ServerError(f"cannot listen on {host}:{port}: {error.strerror}; choose another with --port") from None
    return listening


def serve(store: Store, host: str = "127.0.0.1", port: int = 9090, *, allowed_hosts: Sequence[str] = ()) -> None:
    """Answer the HTTP API of a store until SIGINT or SIGTERM; raises ServerError when it cannot listen."""
    serve_app(store_app(store, host=host, allowed_hosts=allowed_hosts), bound_socket(host, port), store)


def serve_app(app: ASGIApp, listening: socket.socket, store: Store | None = None) -> None:
    """Run an ASGI application on a bound socket until a signal, or until the store's scraping has failed."""
    import uvicorn

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
        timeout_keep_alive=75,
    )
    server = uvicorn.Server(config)
    ended = threading.Event()

    def watch() -> None:
        while store is not None and not ended.wait(1.0):
            if store.failed:
                server.should_exit = True

    threading.Thread(target=watch, name="store-watch", daemon=True).start()
    try:
        with _signals_end_the_server():
            server.run(sockets=[listening])
    finally:
        ended.set()
        listening.close()
    if store is not None and store.failed:
        raise ServerError(store.problem)


@contextlib.contextmanager
def _signals_end_the_server() -> Iterator[None]:
    """uvicorn raises the signal that stopped it once more, which would end the process before the log is closed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def serve_store(
    targets: Sequence[str] | str | Path,
    host: str = "127.0.0.1",
    port: int = 9090,
    data_dir: Path | None = None,
    interval_seconds: float = 5.0,
    retention_seconds: float = DEFAULT_RETENTION_SECONDS,
    retention_bytes: int | None = None,
    job: str = "vllm",
    allowed_hosts: Sequence[str] = (),
) -> None:
    """Scrape targets and answer the API until a signal. Raises ServerError, TargetsError or StoreError with one line."""
    sys.setswitchinterval(SWITCH_SECONDS)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    listening = bound_socket(host, port)
    try:
        store = Store.open(data_dir, retention_seconds=retention_seconds, retention_bytes=retention_bytes)
    except BaseException:
        listening.close()
        raise
    try:
        limits = ScrapeLimits(timeout_seconds=min(interval_seconds, LONGEST_TIMEOUT_SECONDS))
        store.start(targets, ScrapeSettings(interval_seconds, limits), job=job)
        log.info("store on http://%s:%d, scraping every %g s", host, listening.getsockname()[1], interval_seconds)
        serve_app(store_app(store, host=host, allowed_hosts=allowed_hosts), listening, store)
    finally:
        listening.close()
        store.stop()
