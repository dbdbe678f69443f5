"""Incident files as sources: one recorded incident, opened lazily, seen as of a cursor.

A question about three metrics reads three metrics. `CapsuleSource` has its own clock, the cursor, and uses no sample after it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from collectors.capsule.body_reader import BodyReader
from collectors.capsule.file import SUFFIX as SUFFIX
from collectors.capsule.file import open_parts
from collectors.capsule.file import write_capsule as write_capsule
from collectors.capsule.manifest import Manifest
from collectors.model import Labels, MetricMeta, Samples, SourceInfo, Window
from collectors.progress import Progress, listener
from collectors.promql_text import selectors_of
from collectors.source import QueryRejected, SourceBroken
from collectors.store.blocks import Blocks
from collectors.store.embedded import EmbeddedSource
from collectors.store.promql import Result
from collectors.store.promql.evaluator import Semantics
from collectors.strips import Strips

MAX_MEMORY_BYTES = 1536 * 1024**2
"""What the samples in memory may take; they are packed, so a day of 64 replicas fits."""
BATCH_SAMPLES = 10_000_000
QUERIES_KNOWN = 4096
QUERY_CHARACTERS = 8192
"""Longer queries are not remembered."""


class Capsule:
    """An opened incident file. Series are read when first asked for and kept in `blocks`. Thread-safe."""

    def __init__(self, manifest: Manifest, reader: BodyReader | None, path: Path | None = None) -> None:
        self.manifest = manifest
        self.path = path
        self._reader = reader
        self._blocks = Blocks()
        for name, meta in manifest.metadata().items():
            self._blocks.set_metadata(name, meta)
        self._loaded: set[str] = set()
        self._names = reader.metric_names() if reader is not None else frozenset()
        self._complete = reader is None
        self.loaded_for: set[str] = set()
        """Queries whose metrics are in memory: what is there once stays."""
        self._lock = threading.Lock()

    @property
    def title(self) -> str:
        return self.manifest.title or (self.path.stem if self.path is not None else "incident")

    @property
    def blocks(self) -> Blocks:
        """All series in memory."""
        self.load(None)
        return self._blocks

    @property
    def lazy_blocks(self) -> Blocks:
        """Only what `load` has read so far."""
        return self._blocks

    def metric_names(self) -> frozenset[str]:
        """Every metric name in the file."""
        if self._names is None:
            self.load(None)
        return self._names or frozenset()

    def load(self, wanted: Collection[str] | None, progress: Progress | None = None) -> None:
        """Read the wanted metrics (None: all) unless they are in memory already. Raises SourceBroken."""
        with self._lock:
            if self._complete or self._reader is None:
                return
            if self._names is None or wanted is None:
                missing = None if self._names is None else self._names - self._loaded
            else:
                missing = (self._names & frozenset(wanted)) - self._loaded
            if missing is not None and not missing:
                return
            for batch in _batches(self._reader.read(missing, progress or listener())):
                self._check_window(batch)
                self._blocks.load(batch)
                if missing is None:
                    self._loaded.update(each.labels.get("__name__", "") for each in batch)
                if self._blocks.nbytes > MAX_MEMORY_BYTES:
                    raise QueryRejected(
                        f"{self.path or self.title} needs more than {MAX_MEMORY_BYTES >> 20} MiB of memory for this question",
                        "Ask for fewer metrics, or cut the recording shorter",
                    )
            if missing is None:
                self._names = frozenset(self._loaded)
            else:
                self._loaded |= missing
            self._complete = self._loaded >= (self._names or frozenset())

    def _check_window(self, series: Sequence[Samples]) -> None:
        start_ms, end_ms = self.manifest.window.start_ms, self.manifest.window.end_ms
        for each in series:
            if each.times_ms.size and not (start_ms <= each.times_ms[0] and each.times_ms[-1] <= end_ms):
                raise SourceBroken(
                    f"{self.path or self.title}: series {dict(each.labels)} has samples outside the window of the manifest",
                    "Were seconds and milliseconds mixed up?",
                )

    def samples(self, wanted: Collection[str] | None = None) -> Iterable[Samples]:
        """The series of the wanted metrics (None: all) in the order of the file, read anew each time, one at a time."""
        if self._reader is None:
            return iter(())
        return self._reader.read(wanted)


def _batches(series: Iterable[Samples]) -> Iterator[list[Samples]]:
    """Series in lists of about BATCH_SAMPLES samples: what is read is packed before more is read."""
    batch: list[Samples] = []
    samples = 0
    for each in series:
        batch.append(each)
        samples += each.times_ms.size
        if samples >= BATCH_SAMPLES:
            yield batch
            batch, samples = [], 0
    if batch:
        yield batch


def read_capsule(path: Path | str, *, progress: Progress | None = None) -> Capsule:
    """Open an incident file or an unpacked folder; its hash is checked (telling `progress`), its series are read when asked for.

    Raises SourceBroken with one line that says what is wrong with it.
    """
    manifest, reader = open_parts(Path(path))
    reader.verify(progress or listener())
    return Capsule(manifest, reader, Path(path))


class CapsuleSource(EmbeddedSource):
    """A capsule as of a cursor: its `now_ms` is the cursor, and no sample after the cursor is ever used.

    `cursor` is an instant, or a function that gives one anew for each question; None is the end of the recording.
    """

    def __init__(
        self, capsule: Capsule, cursor: int | Callable[[], int] | None = None, *, semantics: Semantics = "3.x"
    ) -> None:
        self.capsule = capsule
        end_ms = capsule.manifest.window.end_ms
        fixed_ms = end_ms if cursor is None else cursor
        clock = fixed_ms if callable(fixed_ms) else lambda: fixed_ms
        super().__init__(
            capsule.lazy_blocks, name=capsule.title, kind="capsule", clock=clock, until=clock, semantics=semantics
        )

    def info(self) -> SourceInfo:
        origin = self.capsule.manifest.source
        return SourceInfo(self.capsule.title, "capsule", origin.backend, origin.version, origin.url)

    def extent_ms(self) -> tuple[int, int] | None:
        window = self.capsule.manifest.window
        return window.start_ms, max(window.start_ms, min(window.end_ms, self.now_ms()))

    def query(self, promql: str, at_ms: int) -> Result:
        self._load(promql)
        return super().query(promql, at_ms)

    def query_range(self, promql: str, window: Window) -> Result:
        self._load(promql)
        return super().query_range(promql, window)

    def samples(self, selector: str, start_ms: int, end_ms: int) -> list[Samples]:
        self._load(selector)
        return super().samples(selector, start_ms, end_ms)

    def strips(self, selector: str, start_ms: int, end_ms: int) -> Strips:
        self._load(selector)
        return super().strips(selector, start_ms, end_ms)

    def series(self, matchers: Sequence[str], start_ms: int, end_ms: int) -> list[Labels]:
        for matcher in matchers:
            self._load(matcher)
        return super().series(matchers, start_ms, end_ms)

    def metadata(self) -> Mapping[str, MetricMeta]:
        return self.capsule.manifest.metadata()

    def _load(self, promql: str) -> None:
        """Read the metrics that the query can touch."""
        if promql in self.capsule.loaded_for:
            return
        names = self.capsule.metric_names()
        wanted: set[str] = set()
        try:
            selectors = selectors_of(promql)
        except QueryRejected:
            return self.capsule.load(None)  # the engine reads more than the parser; it will say what is wrong, too
        for selector in selectors:
            if selector.name:
                wanted.add(selector.name)
            else:
                wanted.update(name for name in names if selector.may_select(name))
        self.capsule.load(wanted)
        if len(self.capsule.loaded_for) < QUERIES_KNOWN and len(promql) < QUERY_CHARACTERS:
            self.capsule.loaded_for.add(promql)
