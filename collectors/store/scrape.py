"""The scrape loop: one task per target on one event loop in one thread, each with its own phase, deadline and connection.

Scrapes of a target stand on a grid: its phase (a hash of the target) plus a multiple of the interval. A scrape that starts within the tolerance of its
place gets exactly that instant as timestamp, a later one its real start, as in Prometheus (scrape.ScrapeTimestampTolerance).
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from collectors.model import MetricMeta
from collectors.store.exposition import ExpositionError
from collectors.store.fetch import Fetcher, ScrapeFailed, ScrapeLimits
from collectors.store.line_memory import Exposition, LineMemory
from collectors.store.rows import Row, TargetRows, TooManyNewSeries
from collectors.store.targets import Target, TargetList

log = logging.getLogger(__name__)

TOLERANCE_MS = 2
"""Prometheus's ScrapeTimestampTolerance; never more than 1 % of the interval."""
LIST_SECONDS = 1.0
"""How often the target list is looked at."""
BIG_BODY_BYTES = 512 * 1024
"""Bodies beyond this are parsed in a thread of their own, so that the other targets keep their phase."""

Health = Literal["up", "down", "unknown"]
Deliver = Callable[[Sequence[Row], Mapping[str, MetricMeta]], None]


class Clock(Protocol):
    """Wall time and waiting; tests pass one that they step by hand."""

    def now_ms(self) -> int: ...

    async def sleep(self, seconds: float) -> None: ...


class WallClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@dataclass(frozen=True)
class TargetStatus:
    """How the last scrape of a target went."""

    target: Target
    health: Health = "unknown"
    error: str = ""
    at_ms: int = 0
    duration_seconds: float = 0.0


@dataclass(frozen=True)
class ScrapeSettings:
    """How often, and how much one scrape may cost."""

    interval_seconds: float = 5.0
    limits: ScrapeLimits = ScrapeLimits()

    @property
    def interval_ms(self) -> int:
        return max(1, round(self.interval_seconds * 1000))


class Scraper:
    """Scrapes every target of a list in a thread of its own and delivers rows, until stopped."""

    def __init__(self, targets: TargetList, deliver: Deliver, settings: ScrapeSettings, clock: Clock) -> None:
        self._targets, self._deliver, self._settings, self._clock = targets, deliver, settings, clock
        self._statuses: dict[Target, TargetStatus] = {}
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self.failure = ""
        """Why the loop ended by itself; empty as long as it runs."""

    @property
    def settings(self) -> ScrapeSettings:
        return self._settings

    def start(self) -> None:
        """Begin to scrape; returns once the loop runs."""
        running = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(running,), name="scraper", daemon=True)
        self._thread.start()
        running.wait()

    def stop(self) -> None:
        """End all scrapes and wait for the thread. No staleness markers are written: the targets are still there."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        if self._loop is not None and self._stopping is not None and thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
        thread.join()

    def statuses(self) -> list[TargetStatus]:
        """The targets of the list with their last scrape, in the list's order."""
        return [self._statuses.get(target, TargetStatus(target)) for target in self._targets.current()]

    def _run(self, running: threading.Event) -> None:
        try:
            asyncio.run(self._follow(running))
        except Exception as error:
            self.failure = f"scraping stopped: {type(error).__name__}: {error}"
            log.exception("scraping stopped; restart the store")
        finally:
            running.set()

    async def _follow(self, running: threading.Event) -> None:
        """Keep one task per target of the list."""
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        tasks: dict[Target, asyncio.Task[None]] = {}
        running.set()
        try:
            while not self._stopping.is_set():
                wanted = {target: None for target in self._targets.current()}
                for target in [target for target in tasks if target not in wanted]:
                    tasks.pop(target).cancel()
                for target in wanted:
                    if target not in tasks:
                        tasks[target] = asyncio.create_task(self._scrape_forever(target))
                    elif tasks[target].done():
                        tasks[target].result()
                try:
                    await asyncio.wait_for(self._stopping.wait(), LIST_SECONDS)
                except TimeoutError:
                    continue
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)

    async def _scrape_forever(self, target: Target) -> None:
        scraped = TargetScrape(target, self._settings)
        grid = Grid(target, self._settings.interval_ms)
        try:
            while True:
                now_ms = self._clock.now_ms()
                due_ms = grid.next_ms(now_ms)
                await self._clock.sleep(max(0, due_ms - now_ms) / 1000)
                at_ms = grid.stamp_ms(due_ms, self._clock.now_ms())
                rows = await scraped.scrape(at_ms)
                self._statuses[target] = scraped.status
                self._deliver(rows, scraped.metadata)
        except asyncio.CancelledError:
            if self._stopping is not None and not self._stopping.is_set():
                self._statuses.pop(target, None)
                self._deliver(scraped.rows.ended(self._clock.now_ms()), {})
            raise
        finally:
            await scraped.aclose()


class Grid:
    """The instants at which a target is due. Holds its place when the wall clock steps."""

    def __init__(self, target: Target, interval_ms: int) -> None:
        digest = hashlib.blake2b(repr(target.identity).encode(), digest_size=8).digest()
        self._phase_ms = int.from_bytes(digest, "big") % interval_ms
        self._interval_ms = interval_ms
        self._last_ms: int | None = None

    def next_ms(self, now_ms: int) -> int:
        """The next due instant: on the grid after `now_ms`, never twice the same.

        A place that a slow scrape has overrun by less than half an interval is still taken, at once: a target that times out is tried every
        interval, as in Prometheus.
        """
        due_ms = now_ms + (self._phase_ms - now_ms) % self._interval_ms
        if self._last_ms is not None:
            following_ms = self._last_ms + self._interval_ms
            overrun = 0 < now_ms - following_ms <= self._interval_ms // 2
            due_ms = following_ms if overrun or due_ms == self._last_ms else due_ms
        self._last_ms = due_ms
        return due_ms

    def stamp_ms(self, due_ms: int, now_ms: int) -> int:
        """The timestamp of a scrape that was due at `due_ms` and starts at `now_ms`."""
        return due_ms if abs(now_ms - due_ms) <= min(TOLERANCE_MS, self._interval_ms // 100) else now_ms


class TargetScrape:
    """Everything about scraping one target, apart from when."""

    def __init__(self, target: Target, settings: ScrapeSettings) -> None:
        self._settings = settings
        self._fetcher = Fetcher(target.url, settings.limits)
        self._memory = LineMemory()
        self._metadata: Mapping[str, MetricMeta] = {}
        self.rows = TargetRows(target, new_series_an_hour=settings.limits.new_series_an_hour)
        self.status = TargetStatus(target)

    @property
    def metadata(self) -> Mapping[str, MetricMeta]:
        """TYPE and HELP of the last good exposition; the same object while they stay the same."""
        return self._metadata

    async def scrape(self, at_ms: int) -> list[Row]:
        """The rows of one scrape at `at_ms`. Whatever the target does, this is an answer and not an exception."""
        began = time.perf_counter()
        samples = kept = 0
        try:
            exposition = await self._exposition()
            rows = self.rows.scraped(exposition, at_ms, time.perf_counter() - began)
            self._metadata = exposition.metadata
            self._note("", at_ms, time.perf_counter() - began)
            return rows
        except (ScrapeFailed, TooManyNewSeries) as error:
            problem = str(error)
        except ExpositionError as error:
            problem, samples, kept = str(error), error.samples, error.samples_kept
        except Exception as error:  # the wall between one strange target and all others: it is down, with the reason
            problem = f"{type(error).__name__}: {error}"
            log.exception("scraping %s failed in an unforeseen way", self.status.target.url)
        seconds = time.perf_counter() - began
        self._note(problem, at_ms, seconds)
        return self.rows.failed(at_ms, seconds, samples, kept)

    async def aclose(self) -> None:
        await self._fetcher.aclose()

    async def _exposition(self) -> Exposition:
        fetched = await self._fetcher.fetch()
        limit = self._settings.limits.samples
        if len(fetched.body) > BIG_BODY_BYTES:
            return await asyncio.to_thread(
                self._memory.parse, fetched.body, openmetrics=fetched.openmetrics, sample_limit=limit
            )
        return self._memory.parse(fetched.body, openmetrics=fetched.openmetrics, sample_limit=limit)

    def _note(self, problem: str, at_ms: int, seconds: float) -> None:
        before = self.status
        self.status = TargetStatus(before.target, "down" if problem else "up", problem, at_ms, seconds)
        if problem and problem != before.error:
            log.warning("%s is down: %s", before.target.url, problem)
        elif not problem and before.health == "down":
            log.info("%s is up again", before.target.url)
