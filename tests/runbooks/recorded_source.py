"""A Source over the recordings' raw JSON, for tests: answers `samples` (and `series`) only, nothing else."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from collectors.model import Frame, Labels, MetricMeta, Samples, SourceInfo, Vector, Window
from collectors.source import QueryRejected

_MATCHER = re.compile(r'\s*([A-Za-z_]\w*)\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"\s*,?')


def _matchers(selector: str) -> list[tuple[str, str, str]]:
    name, brace, rest = selector.partition("{")
    found = [("__name__", "=", name.strip())] if name.strip() else []
    if brace:
        body = rest.rstrip()[:-1]
        position = 0
        while position < len(body):
            matched = _MATCHER.match(body, position)
            if matched is None:
                raise QueryRejected(f"cannot read the selector {selector!r}")
            found.append((matched[1], matched[2], json.loads(f'"{matched[3]}"')))
            position = matched.end()
    return found


def _accepts(labels: Labels, matchers: list[tuple[str, str, str]]) -> bool:
    for name, operator, wanted in matchers:
        value = labels.get(name, "")
        hit = value == wanted if operator in ("=", "!=") else re.fullmatch(wanted, value) is not None
        if hit == operator.startswith("!"):
            return False
    return True


def _samples(series: Mapping[str, Any]) -> Samples:
    times, values = zip(*series["values"], strict=True)
    instants = np.rint(np.array(times, dtype=np.float64) * 1000).astype(np.int64)
    return Samples(series["metric"], instants, np.array([float(value) for value in values]))


class RecordedSource:
    """Raw samples in memory; counts the queries it answered."""

    def __init__(self, samples: Sequence[Samples], name: str = "recorded") -> None:
        self._samples = list(samples)
        self.name = name
        self.queries = 0
        self._matching: dict[str, list[Samples]] = {}

    @staticmethod
    def read(path: Path) -> RecordedSource:
        with gzip.open(path) as file:
            recording = json.load(file)
        return RecordedSource([_samples(series) for series in recording["result"]], path.name.removesuffix(".json.gz"))

    def all_samples(self) -> list[Samples]:
        return self._samples

    def info(self) -> SourceInfo:
        return SourceInfo(self.name, "capsule", "recording", "")

    def now_ms(self) -> int:
        return max(int(s.times_ms[-1]) for s in self._samples)

    def extent_ms(self) -> tuple[int, int] | None:
        return min(int(s.times_ms[0]) for s in self._samples), self.now_ms()

    def samples(self, selector: str, start_ms: int, end_ms: int) -> list[Samples]:
        self.queries += 1
        if selector not in self._matching:
            matchers = _matchers(selector)
            self._matching[selector] = [s for s in self._samples if _accepts(s.labels, matchers)]
        answer = []
        for series in self._matching[selector]:
            lo, hi = np.searchsorted(series.times_ms, [start_ms, end_ms], side="right")
            if hi > lo:
                answer.append(Samples(series.labels, series.times_ms[lo:hi], series.values[lo:hi]))
        return answer

    def series(self, matchers: Sequence[str], start_ms: int, end_ms: int) -> list[Labels]:
        return [s.labels for matcher in matchers for s in self.samples(matcher, start_ms, end_ms)]

    def instant(self, promql: str, at_ms: int) -> Vector:
        raise NotImplementedError

    def range(self, promql: str, window: Window) -> Frame:
        raise NotImplementedError

    def metadata(self) -> Mapping[str, MetricMeta]:
        return {}
