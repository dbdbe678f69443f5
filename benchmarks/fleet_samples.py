"""The synthetic vLLM fleet of the shared folder as scrapes in memory, into our blocks or, by remote write, into a Prometheus.

Run as a program it serves such a fleet from our engine over HTTP and prints one line when it is ready:

    python benchmarks/fleet_samples.py --port 19700 --replicas 16 --hours 6 --only time_to_first_token
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import struct
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from collectors.model import Floats, Int64s  # noqa: E402
from collectors.store.blocks import Blocks  # noqa: E402

SHARED = Path(os.environ.get("PAGEWATCH_SHARED") or ROOT.parent / "shared").resolve()
END_SECONDS = 1_763_424_000
"""A two-hour boundary, so that runs are comparable."""
INTERVAL_SECONDS = 5
WRITE_SLICE_MS = 20 * 60_000
"""Samples go to Prometheus in slices of time: its head takes no sample more than an hour behind its newest."""

Replica = tuple[str, Int64s, list[dict[str, str]], Floats]


def shared_module(name: str) -> ModuleType:
    """A script of shared/bench as a module."""
    path = SHARED / "bench" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.exists():
        raise SystemExit(f"{path} not found; set PAGEWATCH_SHARED to the folder that holds bench/")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fleet(replicas: int, hours: float, only: str = "") -> Iterator[Replica]:
    """(target, times ms, labels, values (series, rows)) of each replica; `only`: metric names that contain it."""
    module = shared_module("make_fleet_data")
    options = argparse.Namespace(
        replicas=replicas, hours=hours, interval=float(INTERVAL_SECONDS), end=float(END_SECONDS), rps=5.0,
        models=["demo/model-8b"], max_model_len=32768, seed=1, spec_decode=False, lora=False, created=True, restarts=True,
        facts=SHARED / "facts" / "vllm-0.11.0-metrics.csv",
    )  # fmt: skip
    made = module.Fleet(options)
    for i in range(replicas):
        phase = int(np.random.default_rng([1, 7, i]).integers(0, INTERVAL_SECONDS * 1000))
        times = int(made.start * 1000) + phase + np.arange(made.T, dtype=np.int64) * INTERVAL_SECONDS * 1000
        rows = [({"__name__": n, **labels}, v) for _, _, n, labels, v in made.replica(i) if only in n]
        yield f"replica-{i}", times, [r[0] for r in rows], np.array([r[1] for r in rows], dtype=np.float64)


def blocks_of(replicas: int, hours: float, only: str = "") -> Blocks:
    """The fleet appended scrape by scrape."""
    blocks = Blocks()
    for target, times, labels, values in fleet(replicas, hours, only):
        layout = blocks.layout(target, labels)
        for t, row in zip(times.tolist(), np.ascontiguousarray(values.T), strict=True):
            blocks.append_layout(layout, t, row)
    return blocks


def write_to_prometheus(url: str, replicas: int, hours: float, only: str = "") -> int:
    """The same samples by remote write, in slices of time; the number of samples."""
    held = list(fleet(replicas, hours, only))
    start, end = min(int(r[1][0]) for r in held), max(int(r[1][-1]) for r in held)
    count = 0
    for low in range(start, end + 1, WRITE_SLICE_MS):
        body = bytearray()
        for _, times, labels, values in held:
            a, b = np.searchsorted(times, [low, low + WRITE_SLICE_MS])
            for one, row in zip(labels, values, strict=True):
                message = _labels(one) + _points(times[a:b], row[a:b])
                body += b"\x0a" + _varint(len(message)) + message
                count += b - a
                if len(body) > 16 << 20:
                    _post(url, bytes(body))
                    body.clear()
        _post(url, bytes(body))
    return int(count)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def _labels(labels: dict[str, str]) -> bytes:
    out = bytearray()
    for name, value in sorted(labels.items()):
        pair = b"\x0a" + _varint(len(name)) + name.encode() + b"\x12" + _varint(len(value.encode())) + value.encode()
        out += b"\x0a" + _varint(len(pair)) + pair
    return bytes(out)


def _points(times: Int64s, values: Floats) -> bytes:
    """Samples as protobuf, all of one size: an epoch-ms varint has six bytes until the year 2109."""
    out = np.empty((len(times), 18), dtype=np.uint8)
    out[:, :3] = (0x12, 16, 0x09)
    out[:, 3:11] = np.ascontiguousarray(values, dtype="<f8").view(np.uint8).reshape(-1, 8)
    out[:, 11] = 0x10
    for i in range(6):
        out[:, 12 + i] = (times >> (7 * i)) & 127 | (128 if i < 5 else 0)
    return out.tobytes()


def _post(url: str, raw: bytes) -> None:
    if not raw:
        return
    body = bytearray(_varint(len(raw)))
    for at in range(0, len(raw), 1 << 16):
        part = raw[at : at + (1 << 16)]
        body += b"\xf4" + struct.pack("<H", len(part) - 1) + part
    headers = {
        "Content-Encoding": "snappy",
        "Content-Type": "application/x-protobuf",
        "X-Prometheus-Remote-Write-Version": "0.1.0",
    }
    urllib.request.urlopen(urllib.request.Request(f"{url}/api/v1/write", bytes(body), headers), timeout=120).read()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--replicas", type=int, default=16)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    from collectors.store.api import build_app
    from collectors.store.api_status import ServedData
    from collectors.store.promql import Engine
    from collectors.store.server import bound_socket, serve_app

    blocks = blocks_of(options.replicas, options.hours, options.only)
    app = build_app(ServedData(blocks, Engine(blocks), lambda: time.time_ns() // 1_000_000))
    listening = bound_socket("127.0.0.1", options.port)
    print(f"ready {blocks.sample_count} {blocks.nbytes}", flush=True)
    serve_app(app, listening)


if __name__ == "__main__":
    main()
