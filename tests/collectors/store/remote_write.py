"""Samples into a real Prometheus: a minimal remote-write body (protobuf in literal snappy), staleness markers included."""

from __future__ import annotations

import struct
import urllib.request
from collections.abc import Iterable

from collectors.model import Samples


def _varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _field(number: int, body: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(body)) + body


def _snappy(raw: bytes) -> bytes:
    """Snappy without compression: literals of at most 64 KiB."""
    out = bytearray(_varint(len(raw)))
    for start in range(0, len(raw), 1 << 16):
        part = raw[start : start + (1 << 16)]
        out += b"\xf4" + struct.pack("<H", len(part) - 1) + part
    return bytes(out)


def write_request(series: Iterable[Samples]) -> bytes:
    """The body of one remote-write request."""
    body = bytearray()
    for one in series:
        message = bytearray()
        for name, value in sorted(one.labels.items()):
            message += _field(1, _field(1, name.encode()) + _field(2, value.encode()))
        for t_ms, bits in zip(one.times_ms.tolist(), one.values.view("u8").tolist(), strict=True):
            message += _field(2, b"\x09" + struct.pack("<Q", bits) + b"\x10" + _varint(t_ms))
        body += _field(1, bytes(message))
    return _snappy(bytes(body))


def send(base_url: str, series: Iterable[Samples]) -> None:
    """Write series to a Prometheus that runs with --web.enable-remote-write-receiver."""
    headers = {
        "Content-Encoding": "snappy",
        "Content-Type": "application/x-protobuf",
        "X-Prometheus-Remote-Write-Version": "0.1.0",
    }
    request = urllib.request.Request(f"{base_url}/api/v1/write", write_request(series), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()
