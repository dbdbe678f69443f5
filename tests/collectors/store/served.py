"""A small store behind its API, in this process: for requests without a network, or on a loopback port for real clients."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import numpy as np
import uvicorn

from collectors.model import STALE, MetricMeta, Samples
from collectors.store.blocks import Blocks
from collectors.store.server import bound_socket, store_app
from collectors.store.store import Store

BASE_MS = 1_796_000_000_000
NOW_MS = BASE_MS + 600_000


class Clock:
    def now_ms(self) -> int:
        return NOW_MS

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing is scraped here")


def samples() -> list[Samples]:
    """Ten minutes at 15 s: a counter and a gauge of two replicas, a series that ended, odd values and labels."""
    times = BASE_MS + 15_000 * np.arange(41)
    out = []
    for number, instance in enumerate(("a:1", "b:1")):
        base = {"job": "vllm", "instance": instance}
        out.append(Samples({"__name__": "requests_total", **base}, times, np.cumsum(np.full(41, 1.5 + number))))
        out.append(Samples({"__name__": "waiting", **base}, times, (np.arange(41.0) * 7 % 11) / 3))
        for le, scale in (("0.1", 1.0), ("1.0", 2.0), ("+Inf", 3.0)):
            out.append(Samples({"__name__": "ttft_bucket", "le": le, **base}, times, scale * np.arange(41.0)))
    ended = np.full(41, 5.0)
    ended[20:] = np.nan
    out.append(
        Samples({"__name__": "ended", "job": "vllm", "instance": "a:1"}, times[:21], np.append(ended[:20], STALE))
    )
    odd = {"__name__": "odd", "job": 'q"\\\n', "instance": "é"}
    out.append(Samples(odd, times[:5], np.array([np.nan, np.inf, -np.inf, 1e-300, 123456789.125])))
    return out


def store() -> Store:
    """A store that holds `samples`, at a clock that stands still."""
    made = Store.open(None, clock=Clock(), retention_seconds=10**9)
    blocks: Blocks = made.blocks
    blocks.load(samples())
    blocks.set_metadata("requests_total", MetricMeta("counter", "All requests."))
    blocks.set_metadata("waiting", MetricMeta("gauge", "Waiting now.", "requests"))
    return made


@contextlib.contextmanager
def on_a_port(served: Store) -> Iterator[str]:
    """The API of a store at an address, until the block ends."""
    listening = bound_socket("127.0.0.1", 0)
    port = listening.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(store_app(served), log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    deadline = time.monotonic() + 15
    while not server.started:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(15)
        listening.close()
