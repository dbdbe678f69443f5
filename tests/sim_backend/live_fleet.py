"""A live fleet for tests, asked over HTTP only."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from sim_backend.fleet import Addresses, running_fleet
from sim_backend.live import LiveFleet
from sim_backend.scenario import Scenario, parse_scenario

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class Fleet:
    """A live fleet in a thread of its own, asked over HTTP only."""

    def __init__(self, scenario: Scenario, replicas: int, keys: dict[str, str]) -> None:
        self._scenario, self._replicas, self._keys = scenario, replicas, keys
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._error: BaseException | None = None
        self.where = Addresses((), "")
        self.live: LiveFleet | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        if not self._ready.wait(30) or self._error is not None:
            raise RuntimeError(f"the fleet did not start: {self._error}")

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            self._error = error
            self._ready.set()

    async def _main(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with running_fleet(self._scenario, self._replicas, 0, keys=self._keys) as (live, where):
            self.live, self.where = live, where
            self._ready.set()
            await self._stop.wait()

    def close(self) -> None:
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(20)
        assert not self._thread.is_alive()

    def url(self, index: int = 0) -> str:
        return f"http://{self.where.replicas[index]}"

    @property
    def control(self) -> str:
        return f"http://{self.where.control}"

    def samples(self, index: int = 0) -> Samples:
        text = httpx.get(f"{self.url(index)}/metrics").text
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def value(self, name: str, index: int = 0, **labels: str) -> float:
        return sum(
            value
            for (known, pairs), value in self.samples(index).items()
            if known == name and labels.items() <= dict(pairs).items()
        )


def until(check: Callable[[], Any], seconds: float = 10.0) -> Any:
    """Poll until `check` is true; fails when the time is up."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.HTTPError):
            found = check()
            if found:
                return found
        time.sleep(0.02)
    raise AssertionError("did not happen in time")


def quiet(**parts: object) -> Scenario:
    return parse_scenario("test", {"what": "a test", "expect": {"outcome": "silent", "cause": "healthy"}, **parts})
