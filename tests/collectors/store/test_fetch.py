"""Fetching from targets that misbehave: every one ends in time, in bounded memory, with a reason."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gzip
import socket
import time
import tracemalloc

import pytest

from collectors.store.fetch import Fetched, Fetcher, ScrapeFailed, ScrapeLimits
from tests.collectors.store.exposing import Behaviour, Exposing, answer, listening

LIMITS = ScrapeLimits(timeout_seconds=0.6, body_bytes=100_000)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"


def fetched(target: Exposing, *, times: int = 1, limits: ScrapeLimits = LIMITS) -> list[Fetched]:
    async def fetch(address: str) -> list[Fetched]:
        fetcher = Fetcher(f"http://{address}/metrics", limits)
        try:
            return [await fetcher.fetch() for _ in range(times)]
        finally:
            await fetcher.aclose()

    with listening(target) as address:
        return asyncio.run(fetch(address))


def streams_forever(connection: socket.socket, request: str) -> None:
    connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
    while True:
        connection.sendall(b"2000\r\n" + b"#" * 8191 + b"\n" + b"\r\n")


def trickles(connection: socket.socket, request: str) -> None:
    connection.sendall(HEAD + b"Content-Length: 1000\r\n\r\n")
    while True:
        connection.sendall(b"#")
        time.sleep(0.05)


def trickles_its_head(connection: socket.socket, request: str) -> None:
    connection.sendall(HEAD)
    while True:
        connection.sendall(b"X-A: b\r\n")
        time.sleep(0.05)


def says_nothing(connection: socket.socket, request: str) -> None:
    connection.recv(1)


def closes_early(connection: socket.socket, request: str) -> None:
    connection.sendall(HEAD + b"Content-Length: 1000\r\n\r\na 1\n")
    connection.shutdown(socket.SHUT_RDWR)


def resets(connection: socket.socket, request: str) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    connection.close()


def speaks_no_http(connection: socket.socket, request: str) -> None:
    connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
    connection.shutdown(socket.SHUT_RDWR)


def endless_head(connection: socket.socket, request: str) -> None:
    connection.sendall(HEAD)
    while True:
        connection.sendall(b"X-A: " + b"b" * 8192 + b"\r\n")


def endless_continues(connection: socket.socket, request: str) -> None:
    while True:
        connection.sendall(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 100)


def redirects_with_endless_body(connection: socket.socket, request: str) -> None:
    connection.sendall(b"HTTP/1.1 302 Found\r\nLocation: /again\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        connection.sendall(b"2000\r\n" + b"#" * 8192 + b"\r\n")


@functools.cache
def zipped_bomb() -> bytes:
    return gzip.compress(b"# bomb\n" * 15_000_000, 9)


def bomb(connection: socket.socket, request: str) -> None:
    connection.sendall(answer(zipped_bomb(), headers="Content-Encoding: gzip\r\n"))


def damaged_gzip(connection: socket.socket, request: str) -> None:
    connection.sendall(answer(b"\x1f\x8b\x08nonsense" * 10, headers="Content-Encoding: gzip\r\n"))


def gzip_cut_short(connection: socket.socket, request: str) -> None:
    connection.sendall(answer(gzip.compress(b"a 1\n" * 1000)[:-20], headers="Content-Encoding: gzip\r\n"))


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (streams_forever, "body is larger than the limit of 100000 bytes"),
        (trickles, "no complete answer within 0.6 s"),
        (trickles_its_head, "no complete answer within 0.6 s"),
        (says_nothing, "no complete answer within 0.6 s"),
        (closes_early, "the answer ends early"),
        (resets, "ReadError|the answer ends early"),
        (speaks_no_http, "not HTTP"),
        (endless_head, "not HTTP|within 0.6 s"),
        (endless_continues, "not HTTP|within 0.6 s"),
        (redirects_with_endless_body, "more than 5 redirects"),
        (bomb, "body is larger than the limit of 100000 bytes"),
        (damaged_gzip, "the gzip body is damaged"),
        (gzip_cut_short, "the gzip body ends early"),
    ],
)
def test_a_hostile_target_ends_in_time_and_bounded_memory(behaviour: Behaviour, reason: str) -> None:
    def guarded(connection: socket.socket, request: str) -> None:
        with contextlib.suppress(OSError):
            behaviour(connection, request)

    target = Exposing()
    target.behaviour = guarded
    zipped_bomb()
    tracemalloc.start()
    began = time.monotonic()
    try:
        with pytest.raises(ScrapeFailed, match=reason):
            fetched(target)
        assert tracemalloc.get_traced_memory()[1] < 8_000_000
    finally:
        tracemalloc.stop()
    assert time.monotonic() - began < 6.0


@pytest.mark.parametrize(
    ("status", "reason"),
    [("500 Internal Server Error", "HTTP status 500"), ("404 Not Found", "404"), ("401 Unauthorized", "401"), ("204 No Content", "204")],
)  # fmt: skip
def test_only_200_is_an_answer(status: str, reason: str) -> None:
    target = Exposing(b"a 1\n")
    target.status = status
    with pytest.raises(ScrapeFailed, match=reason):
        fetched(target)


def test_a_refused_connection_says_so() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}/metrics"
        with pytest.raises(ScrapeFailed, match="cannot connect"):
            asyncio.run(Fetcher(address, LIMITS).fetch())


def test_the_body_comes_plain_or_gzipped_over_one_connection() -> None:
    target = Exposing(b"a 1\n" * 1000, content_type="application/openmetrics-text; version=1.0.0")
    target.compress = True
    answers = fetched(target, times=3)
    assert all(one.body == target.body and one.openmetrics for one in answers)
    assert "accept-encoding: gzip" in target.requests[0].lower()
    assert "x-prometheus-scrape-timeout-seconds: 0.6" in target.requests[0].lower()


def test_a_kept_connection_that_the_target_closed_is_opened_anew() -> None:
    target = Exposing(b"a 1\n")
    target.close_after_answer = True
    assert len(fetched(target, times=5)) == 5


def test_a_connection_that_dies_as_the_next_request_arrives_is_tried_once_more() -> None:
    answered = 0

    def every_second_connection_dies(connection: socket.socket, request: str) -> None:
        nonlocal answered
        answered += 1
        if answered == 2:
            connection.shutdown(socket.SHUT_RDWR)
        else:
            connection.sendall(answer(b"a 1\n"))

    target = Exposing()
    target.behaviour = every_second_connection_dies
    assert len(fetched(target, times=2)) == 2
    assert answered == 3


def test_redirects_are_followed() -> None:
    def redirects(connection: socket.socket, request: str) -> None:
        if " /metrics " in request:
            connection.sendall(answer(b"", status="307 Temporary Redirect", headers="Location: /other\r\n"))
        else:
            connection.sendall(answer(b"a 1\n"))

    target = Exposing()
    target.behaviour = redirects
    assert fetched(target)[0].body == b"a 1\n"


def test_a_redirect_to_a_file_is_refused() -> None:
    target = Exposing(b"")
    target.status, target.headers = "302 Found", "Location: file:///etc/passwd\r\n"
    with pytest.raises(ScrapeFailed, match="not http"):
        fetched(target)
