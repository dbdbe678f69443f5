"""Scrape targets for tests: raw sockets on loopback, so that a target can also misbehave in any way."""

from __future__ import annotations

import contextlib
import gzip
import socket
import threading
import time
from collections.abc import Callable, Iterator

Behaviour = Callable[[socket.socket, str], None]


def answer(
    body: bytes,
    content_type: str = "text/plain; version=0.0.4; charset=utf-8",
    status: str = "200 OK",
    headers: str = "",
) -> bytes:
    """A whole HTTP answer."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    return head.encode() + body


class Exposing:
    """A target whose answer can be changed between scrapes; `body` may also be a function of the request's path."""

    def __init__(self, body: bytes = b"", *, content_type: str = "text/plain; version=0.0.4") -> None:
        self.body = body
        self.content_type = content_type
        self.status = "200 OK"
        self.headers = ""
        self.compress = False
        self.behaviour: Behaviour | None = None
        self.requests: list[str] = []
        self.close_after_answer = False

    def answer_to(self, connection: socket.socket, request: str) -> None:
        if self.behaviour is not None:
            self.behaviour(connection, request)
            return
        body, headers = self.body, self.headers
        if self.compress:
            body, headers = gzip.compress(body, mtime=0), headers + "Content-Encoding: gzip\r\n"
        connection.sendall(answer(body, self.content_type, self.status, headers))


@contextlib.contextmanager
def listening(target: Exposing) -> Iterator[str]:
    """Serve a target until the block ends; gives `host:port`."""
    server = socket.create_server(("127.0.0.1", 0))
    open_connections: list[socket.socket] = []

    def converse(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            while request := _request(connection):
                target.requests.append(request)
                target.answer_to(connection, request)
                if target.close_after_answer:
                    return

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                open_connections.append(connection)
                threading.Thread(target=converse, args=(connection,), daemon=True).start()

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    try:
        yield f"127.0.0.1:{server.getsockname()[1]}"
    finally:
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        server.close()
        for connection in open_connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        accepting.join(5)


def _request(connection: socket.socket) -> str:
    received = b""
    while b"\r\n\r\n" not in received:
        part = connection.recv(65536)
        if not part:
            return ""
        received += part
    return received.decode()


def eventually(holds: Callable[[], bool], seconds: float = 15.0, what: str = "the condition") -> None:
    """Poll until it holds; AssertionError when the time is up."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"{what} did not come true within {seconds} s"
        time.sleep(0.02)
