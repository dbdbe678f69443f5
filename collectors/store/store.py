"""The embedded store: scraping, the samples in memory, what is kept on disk, and the source that reads them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from collectors.model import MetricMeta
from collectors.store.blocks import Blocks, Layout
from collectors.store.disk import SPAN_MS, Disk
from collectors.store.log import RowGroup
from collectors.store.log_writer import DiskCalls
from collectors.store.rows import Row
from collectors.store.scrape import Clock, Scraper, ScrapeSettings, TargetStatus, WallClock
from collectors.store.series import LabelSet
from collectors.store.targets import TargetList, open_targets

if TYPE_CHECKING:
    from collectors.store.embedded import EmbeddedSource
    from collectors.store.promql.engine import Engine

log = logging.getLogger(__name__)

DEFAULT_RETENTION_SECONDS = 6 * 3600.0
UPKEEP_SECONDS = 15.0
MAX_METADATA = 20_000
"""Metric families whose TYPE and HELP are kept; a target that invents names cannot fill the memory with them."""
BULK_ROWS = 64
"""Rows of one layout from which on reading back packs them at once."""


class Store:
    """Samples of scraped targets, in memory and (with a data folder) on disk. Made by `Store.open`."""

    def __init__(
        self, blocks: Blocks, clock: Clock, retention_ms: int, disk: Disk | None, retention_bytes: int | None
    ) -> None:
        self.blocks = blocks
        self.clock = clock
        self.retention_ms = retention_ms
        self.disk = disk
        self.started_ms = clock.now_ms()
        self.rows_appended = 0
        self.samples_appended = 0
        self._retention_bytes = retention_bytes
        self._layouts: dict[str, tuple[tuple[LabelSet, ...], Layout]] = {}
        self._metadata_seen: dict[str, Mapping[str, MetricMeta]] = {}
        self._append_lock = threading.Lock()
        self._scraper: Scraper | None = None
        self._upkeep: threading.Thread | None = None
        self._stopping = threading.Event()
        self._stopped = False
        self._failure = ""

    @classmethod
    def open(
        cls,
        data_dir: Path | None,
        *,
        retention_seconds: float = DEFAULT_RETENTION_SECONDS,
        retention_bytes: int | None = None,
        clock: Clock | None = None,
        disk_calls: DiskCalls | None = None,
    ) -> Store:
        """A store over `data_dir` (its samples are read back), or in memory only when that is None.

        Samples older than `retention_seconds` are dropped; `retention_bytes` bounds the data folder (the memory, without a folder).
        Raises StoreError when the folder cannot be used or another store has it.
        """
        retention_ms = round(retention_seconds * 1000)
        span_ms = max(60_000, min(SPAN_MS, retention_ms // 4))
        disk = (
            Disk(data_dir, span_ms=span_ms, retention_bytes=retention_bytes, calls=disk_calls)
            if data_dir is not None
            else None
        )
        store = cls(Blocks(), clock or WallClock(), retention_ms, disk, retention_bytes)
        if disk is not None:
            store._read_back(disk)
        return store

    def _read_back(self, disk: Disk) -> None:
        since_ms = self.clock.now_ms() - self.retention_ms
        disk.replay(since_ms, lambda group: self._keep_group(group, since_ms), self.blocks.load)
        for name, meta in disk.read_metadata().items():
            self.blocks.set_metadata(name, meta)
        self.blocks.drop_before(since_ms)
        if self.blocks.extent_ms() is not None:
            log.info("%d samples of %d series read back", self.blocks.sample_count, len(self.blocks.index))

    def _keep_group(self, group: RowGroup, since_ms: int) -> None:
        wanted = group.times_ms >= since_ms
        if len(group.times_ms) < BULK_ROWS:
            for place in np.flatnonzero(wanted):
                values = np.ascontiguousarray(group.values[:, place])
                self._keep(Row(group.target, int(group.times_ms[place]), group.series, values))
        elif wanted.all():
            self.blocks.extend(group.target, group.times_ms, group.series, group.values)
        elif wanted.any():
            self.blocks.extend(group.target, group.times_ms[wanted], group.series, group.values[:, wanted])

    def append(self, rows: Sequence[Row], metadata: Mapping[str, MetricMeta]) -> None:
        """Take the rows of one scrape: to the log first, so that what a query has shown is there after a restart."""
        with self._append_lock:
            for row in rows:
                if self.disk is not None:
                    self.disk.write(row)
                self._keep(row)
                self.rows_appended += 1
                self.samples_appended += len(row.values)
            if rows and metadata and self._metadata_seen.get(rows[0].target) is not metadata:
                self._metadata_seen[rows[0].target] = metadata
                self._keep_metadata(metadata)

    def _keep_metadata(self, metadata: Mapping[str, MetricMeta]) -> None:
        known = self.blocks.metadata()
        fresh = {name: meta for name, meta in metadata.items() if known.get(name) != meta}
        if len(known) + len(fresh) > MAX_METADATA:
            fresh = {name: meta for name, meta in fresh.items() if name in known}
        for name, meta in fresh.items():
            self.blocks.set_metadata(name, meta)
        if fresh and self.disk is not None:
            self.disk.write_metadata(self.blocks.metadata())

    def _keep(self, row: Row) -> None:
        series, layout = self._layouts.get(row.target, ((), None))
        if layout is not None and series is row.series:
            try:
                self.blocks.append_layout(layout, row.time_ms, row.values)
                return
            except ValueError:
                pass  # series were dropped since it was prepared
        layout = self.blocks.layout(row.target, row.series)
        self._layouts[row.target] = (row.series, layout)
        self.blocks.append_layout(layout, row.time_ms, row.values)

    def start(
        self,
        targets: Sequence[str] | str | Path | TargetList,
        settings: ScrapeSettings | None = None,
        *,
        job: str = "vllm",
    ) -> None:
        """Begin to scrape, and to seal and drop what is due. Raises TargetsError."""
        listed = open_targets(targets, job) if isinstance(targets, str | Path | Sequence) else targets
        self._scraper = Scraper(listed, self.append, settings or ScrapeSettings(), self.clock)
        self._scraper.start()
        self._upkeep = threading.Thread(target=self._keep_up, name="store-upkeep", daemon=True)
        self._upkeep.start()

    def stop(self) -> None:
        """End scraping and close what is open. May be called twice."""
        self._stopping.set()
        if self.disk is not None:
            self.disk.stop_sealing()
        if self._scraper is not None:
            self._scraper.stop()
        if self._upkeep is not None:
            self._upkeep.join()
        if self.disk is not None and not self._stopped:
            self.disk.close()
        self._stopped = True

    def source(self, name: str = "store") -> EmbeddedSource:
        """The store as a source of the console."""
        from collectors.store.embedded import EmbeddedSource

        return EmbeddedSource(self.blocks, name=name, kind="store", clock=self.clock.now_ms)

    def engine(self) -> Engine:
        """An evaluator of PromQL over the store's samples."""
        from collectors.store.promql.engine import Engine

        return Engine(self.blocks)

    def statuses(self) -> list[TargetStatus]:
        """The targets and how their last scrape went."""
        return self._scraper.statuses() if self._scraper is not None else []

    @property
    def scrape_settings(self) -> ScrapeSettings | None:
        return self._scraper.settings if self._scraper is not None else None

    @property
    def failed(self) -> bool:
        """Whether scraping or upkeep has ended by itself: the store has to be started anew."""
        return bool(self._failure or (self._scraper is not None and self._scraper.failure))

    @property
    def problem(self) -> str:
        """Why the store is not doing its work; empty when it is. A disk that refuses writes is one: a restart would lose samples."""
        if self.failed:
            return self._failure or (self._scraper.failure if self._scraper is not None else "")
        if self.disk is not None and self.disk.failure:
            return f"the data folder refuses writes: {self.disk.failure}; samples wait in memory"
        return ""

    def flags(self) -> dict[str, str]:
        """The settings in Prometheus's flag names, for `status/flags`."""
        return {
            "storage.tsdb.retention.time": f"{self.retention_ms // 1000}s",
            "storage.tsdb.retention.size": f"{self._retention_bytes or 0}B",
            "query.lookback-delta": "5m",
        }

    def upkeep(self) -> None:
        """Seal, sync and drop what is due; runs every few seconds while scraping."""
        cutoff_ms = self.clock.now_ms() - self.retention_ms
        if self.disk is not None:
            cutoff_ms = self.disk.upkeep(self.blocks, cutoff_ms)
        elif self._retention_bytes is not None:
            extent = self.blocks.extent_ms()
            if extent is not None and self.blocks.nbytes > self._retention_bytes:
                cutoff_ms = max(cutoff_ms, extent[0] + (extent[1] - extent[0]) // 8)
        with self._append_lock:  # a series must not expire between being looked up and being written
            self.blocks.drop_before(cutoff_ms)

    def _keep_up(self) -> None:
        try:
            while not self._stopping.wait(UPKEEP_SECONDS):
                self.upkeep()
        except Exception as error:  # without upkeep nothing would ever be dropped: the store has to say so and end
            self._failure = f"upkeep stopped: {type(error).__name__}: {error}"
            log.exception("upkeep stopped; restart the store")
