"""What the samples of an incident say about themselves: replicas, ranks, scrape intervals, restarts, configuration, metric types."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from collectors.capsule.manifest import EngineFacts, Extent, Mark, Meta, Replica
from collectors.capsule.staleness import target_of
from collectors.detection import detect
from collectors.dialect import load_dialect
from collectors.model import Int64s, MetricMeta, Samples, is_stale
from collectors.settings import Engine

START_TIME = "process_start_time_seconds"
CACHE_CONFIG = "cache_config_info"
_TARGET_LABELS = frozenset(("__name__", "job", "instance"))


class FactCollector:
    """Sees every series once, in any order, and keeps only what the manifest needs."""

    def __init__(self) -> None:
        self._targets: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._scrapes: dict[tuple[str, str], Int64s] = {}
        self._names: set[str] = set()
        self._marks: list[Mark] = []
        self._cache_config: dict[str, dict[str, str]] = {}
        self._start_ms: int | None = None
        self._end_ms = 0

    def see(self, series: Samples) -> None:
        """Take notice of one series."""
        labels, times = series.labels, series.times_ms
        name = labels.get("__name__", "")
        if times.size:
            self._start_ms = int(times[0]) if self._start_ms is None else min(self._start_ms, int(times[0]))
            self._end_ms = max(self._end_ms, int(times[-1]))
        self._names.add(name)
        target = target_of(labels)
        if target[1]:
            engines = self._targets[target]
            if name.partition(":")[2] and labels.get("engine", ""):
                engines.add(labels["engine"])
        if name == "up" and times.size:
            self._scrapes[target] = times
        elif name == START_TIME:
            self._marks += _restarts(series, target[1])
        elif name.endswith(CACHE_CONFIG):
            engine = labels.get("engine", "")
            key = target[1] + (f"/{engine}" if engine else "")
            self._cache_config[key] = {key: labels[key] for key in sorted(labels) if key not in _TARGET_LABELS}

    def fields(self, known: Mapping[str, MetricMeta] | None = None) -> dict[str, Any]:
        """Manifest fields: window, replicas, cache_config, marks, metrics (TYPE and HELP of `known`, else of the dialect), engine."""
        return {
            "window": Extent(start_ms=self._start_ms or 0, end_ms=self._end_ms),
            "replicas": tuple(
                Replica(
                    instance=instance,
                    job=job,
                    engines=tuple(sorted(engines)),
                    scrape_interval_ms=scrape_interval_ms(self._scrapes.get((job, instance))),
                )
                for (job, instance), engines in sorted(self._targets.items())
            ),
            "cache_config": dict(sorted(self._cache_config.items())),
            "marks": tuple(sorted(self._marks, key=lambda mark: (mark.at_ms, mark.instance))),
            "metrics": metric_types(self._names, known or {}),
        }


def facts_of(series: Iterable[Samples], known: Mapping[str, MetricMeta] | None = None) -> dict[str, Any]:
    """Manifest fields that the samples themselves tell."""
    collector = FactCollector()
    for each in series:
        collector.see(each)
    return collector.fields(known)


def scrape_interval_ms(scrapes_ms: Int64s | None) -> int:
    """The usual distance of scrapes, to the nearest half second above two seconds; 0 when it cannot be told."""
    if scrapes_ms is None or scrapes_ms.size < 2:
        return 0
    median = float(np.median(np.diff(scrapes_ms)))
    return round(median / 500) * 500 if median >= 2000 else round(median / 100) * 100 or round(median)


def _restarts(series: Samples, instance: str) -> list[Mark]:
    """A mark at each sample whose start time differs from the one before it (by a second or more: the clock may be slewed)."""
    real = ~is_stale(series.values) & np.isfinite(series.values)
    times, started = series.times_ms[real], series.values[real]
    changed = np.flatnonzero(np.abs(np.diff(started)) >= 1.0) + 1
    return [
        Mark(at_ms=int(times[at]), kind="restart", text=f"process started again ({instance})", instance=instance)
        for at in changed.tolist()
    ]


def metric_types(names: Iterable[str], known: Mapping[str, MetricMeta]) -> dict[str, Meta]:
    """TYPE and HELP of the families behind sample names: as the data gave them, else as the dialect has them."""
    dialect = load_dialect("vllm")
    told = dialect.metadata()
    found: dict[str, Meta] = {}
    for name in sorted(names):
        family = next((base for base in family_names(name) if base in known), "")
        if family:
            meta: MetricMeta | None = known[family]
            if known[family].type == "counter" and name == family + "_total":
                family = name  # OpenMetrics names a counter's family without it; we always do as the text format does
        else:
            canonical = dialect.canonical(name)
            if canonical is None:
                continue
            family = dialect.respell(*canonical)
            meta = told.get(canonical[0])
        if meta is not None:
            found[family] = Meta(type=meta.type, help=meta.help, unit=meta.unit)
    return found


def family_names(sample_name: str) -> tuple[str, ...]:
    """Families that a sample name may belong to, the likeliest first."""
    bases = [sample_name]
    for suffix in ("_bucket", "_count", "_sum", "_total", "_created", "_info"):
        if sample_name.endswith(suffix):
            bases.append(sample_name.removesuffix(suffix))
            if suffix == "_created":
                bases.append(sample_name.removesuffix(suffix) + "_total")
    return tuple(bases)


def engine_facts(text: str, names: Collection[str] = ()) -> EngineFacts:
    """Engine of a free text such as 'vLLM 0.11.0 (CPU build)'; without one, as far as the metric names tell."""
    found = re.match(r"\s*([A-Za-z][\w.-]*)\s+v?(\d+(?:\.\d+)+\S*)", text)
    if found:
        return EngineFacts(name=found[1], version=found[2], dialect=found[1].lower())
    dialect = load_dialect("vllm")
    known = [canonical for canonical in map(dialect.canonical, names) if canonical is not None and canonical[1]]
    if not known:
        return EngineFacts(name=text.strip())
    engine = detect([family for family, _ in known], Engine(), prefix=known[0][1])
    return EngineFacts(
        name=dialect.title, version=engine.text.removeprefix(dialect.title).strip(), dialect=dialect.engine
    )
