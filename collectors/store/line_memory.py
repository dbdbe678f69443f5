"""Parsing the expositions of one target, remembering the lines seen before.

Between two scrapes most lines of a target are the same bytes, and the others differ in their value only. So a line is compared with the line that
stood at its place before; a changed line is cut at its last space, and when the part before is the remembered one, only a number has to be read.
Anything else goes through the grammar of `exposition`, which alone decides what is valid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import compress
from operator import ne

import numpy as np

from collectors.model import Floats, Labels, MetricMeta
from collectors.store.exposition import (
    EOF,
    ExpositionError,
    LabelsError,
    LineError,
    MetaLine,
    SampleLine,
    parse_meta,
    parse_openmetrics_meta,
    parse_openmetrics_sample,
    parse_sample,
    parse_value,
)

NO_SAMPLE = -1
REPEATED = -2
LARGEST = 1.7976931348623157e308


@dataclass(frozen=True, eq=False)
class Layout:
    """The distinct series of an exposition in order of appearance; the same object as long as they stay the same."""

    series: tuple[Labels, ...]
    samples: int
    """Sample lines in the exposition, repeated series included (what `scrape_samples_scraped` tells)."""


@dataclass(frozen=True, eq=False)
class Exposition:
    """One parsed exposition: `values[i]` belongs to `layout.series[i]`."""

    layout: Layout
    values: Floats
    times_ms: tuple[int | None, ...] | None
    """Timestamps that the target gave, by series; None when it gave none at all."""
    metadata: Mapping[str, MetricMeta]
    """The same object as long as no HELP, TYPE or UNIT line changes."""


class LineMemory:
    """Parser of one target's expositions. Not thread-safe: one target is scraped by one task at a time."""

    def __init__(self) -> None:
        self._openmetrics = False
        self._lines: list[bytes] = []
        self._heads: list[bytes] = []
        self._slots: list[int] = []
        self._known: dict[bytes, Labels] = {}
        self._latest: Exposition | None = None

    def parse(self, body: bytes, *, openmetrics: bool, sample_limit: int = 0) -> Exposition:
        """The samples of one exposition. Raises ExpositionError; what was remembered then stays as it was.

        `sample_limit` > 0 refuses an exposition with more sample lines.
        """
        lines = body.split(b"\n")
        if openmetrics == self._openmetrics and len(lines) == len(self._lines):
            exposition = self._steady(lines)
            if exposition is not None and not 0 < sample_limit < exposition.layout.samples:
                return exposition
        return self._learn(lines, openmetrics, sample_limit)

    def _steady(self, lines: list[bytes]) -> Exposition | None:
        """The exposition when only values differ from the one before; None when the grammar has to look at it."""
        latest = self._latest
        if latest is None or latest.times_ms is not None:
            return None
        slots, heads = self._slots, self._heads
        changed: list[int] = []
        fresh: list[float] = []
        for at in compress(range(len(lines)), map(ne, lines, self._lines)):
            slot = slots[at]
            head, _, token = lines[at].rpartition(b" ")
            if slot == NO_SAMPLE or head != heads[at] or not token:
                return None
            try:
                value = float(token)
                if b"_" in token or token[0] < 33 or token[-1] < 33 or not -LARGEST <= value <= LARGEST:
                    value = parse_value(token)
            except ValueError:
                return None
            if slot >= 0:
                changed.append(slot)
                fresh.append(value)
        values = latest.values.copy()
        values[changed] = fresh
        self._lines = lines
        self._latest = replace(latest, values=values)
        return self._latest

    def _learn(self, lines: list[bytes], openmetrics: bool, sample_limit: int) -> Exposition:
        reading = _Reading(self._known if openmetrics == self._openmetrics else {}, openmetrics, sample_limit)
        reading.read(lines)
        exposition = reading.exposition(self._latest)
        self._openmetrics = openmetrics
        self._lines, self._heads, self._slots = lines, reading.heads, reading.slots
        self._known = reading.known
        self._latest = exposition
        return exposition


class _Reading:
    """One pass of the grammar over all lines, with the lines known from before as a short cut."""

    def __init__(self, seen: Mapping[bytes, Labels], openmetrics: bool, sample_limit: int) -> None:
        self._seen = seen
        self._openmetrics = openmetrics
        self._parse_sample = parse_openmetrics_sample if openmetrics else parse_sample
        self._sample_limit = sample_limit
        self._places: dict[frozenset[tuple[str, str]], int] = {}
        self._series: list[Labels] = []
        self._values: list[float] = []
        self._times: list[int | None] = []
        self._samples = 0
        self._metadata: dict[str, dict[str, str]] = {}
        self.known: dict[bytes, Labels] = {}
        self.heads: list[bytes] = []
        self.slots: list[int] = []

    def read(self, lines: list[bytes]) -> None:
        last = len(lines) - 1
        for number, line in enumerate(lines, 1):
            try:
                if self._openmetrics:
                    self._openmetrics_line(line, at_end=number - 1 == last, last=lines[-1])
                else:
                    self._text_line(line)
            except LineError as error:
                counted = self._samples + isinstance(error, LabelsError)
                raise ExpositionError(str(error), number, line, counted, self._samples) from None
        if self._openmetrics and (lines[-2:] != [EOF, b""] and lines[-1] != EOF):
            raise ExpositionError("data does not end with # EOF", len(lines), b"", self._samples)
        if 0 < self._sample_limit < self._samples:
            raise ExpositionError(
                f"{self._samples} samples are more than the limit of {self._sample_limit}", 1, b"", self._samples
            )

    def _text_line(self, line: bytes) -> None:
        if line[:1] == b"#" or (line[:1] in (b" ", b"\t") and line.lstrip(b" \t")[:1] == b"#"):
            self._meta(parse_meta(line))
        elif not line.strip(b" \t"):
            self._other()
        else:
            self._sample(line)

    def _openmetrics_line(self, line: bytes, *, at_end: bool, last: bytes) -> None:
        if self.heads and self.heads[-1] == EOF and not (at_end and line == b""):
            raise LineError("unexpected data after # EOF")
        if line == EOF:
            self.heads.append(EOF)
            self.slots.append(NO_SAMPLE)
        elif line[:1] == b"#":
            self._meta(parse_openmetrics_meta(line))
        elif line == b"" and at_end:
            self._other()
        elif line == b"":
            raise LineError("a blank line is not allowed in OpenMetrics")
        else:
            self._sample(line)

    def _other(self) -> None:
        self.heads.append(b"")
        self.slots.append(NO_SAMPLE)

    def _meta(self, meta: MetaLine | None) -> None:
        self._other()
        if meta is not None:
            self._metadata.setdefault(meta.name, {})[meta.kind] = meta.text

    def _sample(self, line: bytes) -> None:
        sample = self._remembered(line) or self._parse_sample(line)
        self._samples += 1
        self.heads.append(sample.head)
        if sample.head:
            self.known[sample.head] = sample.labels
        key = frozenset(sample.labels.items())
        place = self._places.setdefault(key, len(self._series))
        if place < len(self._series):
            self.slots.append(REPEATED)
            return
        self.slots.append(place)
        self._series.append(sample.labels)
        self._values.append(sample.value)
        self._times.append(sample.time_ms)

    def _remembered(self, line: bytes) -> SampleLine | None:
        """A line of which all but the value was seen before; None when the grammar has to look at it."""
        head, _, token = line.rpartition(b" ")
        labels = self._seen.get(head)
        if labels is None or not token or token != token.strip():
            return None
        try:
            return SampleLine(labels, parse_value(token), None, head)
        except LineError:
            return None

    def exposition(self, before: Exposition | None) -> Exposition:
        layout = Layout(tuple(self._series), self._samples)
        if before is not None and before.layout.samples == layout.samples and before.layout.series == layout.series:
            layout = before.layout
        metadata = {
            name: MetricMeta(said.get("TYPE", "unknown"), said.get("HELP", ""), said.get("UNIT", ""))
            for name, said in self._metadata.items()
        }
        return Exposition(
            layout,
            np.array(self._values, dtype=np.float64),
            None if all(time_ms is None for time_ms in self._times) else tuple(self._times),
            before.metadata if before is not None and before.metadata == metadata else metadata,
        )
