"""A small HTTP server that answers as told, and remembers what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass
class Asked:
    method: str
    path: str
    params: dict[str, list[str]]
    query: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Reply:
    status: int = 200
    body: bytes | str | dict[str, Any] = b""
    headers: dict[str, str] = field(default_factory=dict)
    write: Callable[[Any, threading.Event], None] | None = None
    """Writes the answer itself; the event is set when the server stops."""


class Server:
    def __init__(self, reply: Callable[[Asked], Reply]) -> None:
        self.asked: list[Asked] = []
        self.stopping = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 20

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                parts = urlsplit(self.path)
                form = body.decode() if "form" in self.headers.get("Content-Type", "") else ""
                params = parse_qs(parts.query or form, keep_blank_values=True)
                asked = Asked(self.command, parts.path, params, parts.query, dict(self.headers), body)
                outer.asked.append(asked)
                said = reply(asked)
                if said.write is not None:
                    self.close_connection = True
                    with suppress(OSError):
                        said.write(self.wfile, outer.stopping)
                    return
                data = said.body
                if isinstance(data, dict):
                    data = json.dumps(data)
                    said.headers.setdefault("Content-Type", "application/json")
                data = data.encode() if isinstance(data, str) else data
                self.send_response(said.status)
                for name, value in said.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                with suppress(OSError):
                    self.wfile.write(data)

            do_GET = do_POST = answer

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self.stopping.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


@contextmanager
def serving(reply: Callable[[Asked], Reply] | Reply) -> Iterator[Server]:
    server = Server(reply if callable(reply) else lambda _: reply)
    try:
        yield server
    finally:
        server.stop()


def success(type_: str, result: Any, **more: Any) -> dict[str, Any]:
    return {"status": "success", "data": {"resultType": type_, "result": result}, **more}
