"""Which signal each series of a target is: the names in every version of a dialect, and a plan of rows made of label sets alone."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from collectors.dialect import Dialect, load_dialect
from collectors.model import Floats
from collectors.sheets import Row, Share, kept, rows_of

GAUGES = ("requests_running", "requests_waiting", "kv_cache_usage")
COUNTERS = (
    "preemptions",
    "prompt_tokens",
    "generation_tokens",
    "requests_finished",
    "prefix_cache_queries",
    "prefix_cache_hits",
)
HISTOGRAMS = (
    "time_to_first_token",
    "inter_token_latency",
    "e2e_request_latency",
    "request_queue_time",
    "request_prefill_time",
    "request_decode_time",
    "request_inference_time",
    "request_prompt_tokens",
    "request_generation_tokens",
    "iteration_tokens",
)
"""Canonical signals that a diagnosis reads; the dialect knows their names."""


@dataclass(frozen=True)
class Names:
    """The names of the wanted signals in every version of a dialect, without prefix, the preferred one first."""

    by_signal: Mapping[str, tuple[str, ...]]
    prefixes: tuple[str, ...]

    def strip(self, name: str) -> str:
        """A scraped name without the engine's (or a gateway's) prefix."""
        for prefix in self.prefixes:
            if name.startswith(prefix):
                return name[len(prefix) :]
        return name

    def selector(self, signals: Sequence[str], suffixes: Sequence[str] = ("",)) -> str:
        """A vector selector that finds the signals under every prefix; `suffixes` are appended to each name."""
        names = [name + suffix for signal in signals for name in self.by_signal[signal] for suffix in suffixes]
        prefix = "|".join(re.escape(p) for p in self.prefixes)
        return f'{{__name__=~"(?:{prefix})(?:{"|".join(names)})"}}'


@lru_cache(maxsize=4)
def names_of(engine: str = "vllm") -> Names:
    """Names of the signals of this module in the dialect of an engine. Raises ValueError for an unknown engine."""
    dialect: Dialect = load_dialect(engine)
    found: dict[str, list[str]] = {signal: [] for signal in (*GAUGES, *COUNTERS, *HISTOGRAMS, "cache_config")}
    for entry in dialect.entries:
        names = found.get(entry.signal)
        plain = entry.name.removeprefix(dialect.prefix)
        if names is not None and plain not in names:
            names.append(plain)
    prefixes = sorted({dialect.prefix, *dialect.other_prefixes}, key=len, reverse=True)
    return Names({signal: tuple(names) for signal, names in found.items()}, tuple(prefixes))


Places = npt.NDArray[np.intp]
"""Rows of the sheets of a target, one above the other."""
ANSWERING = 8
"""Engine series that stand for the process where it exports no start time."""


@dataclass(frozen=True)
class RankRows:
    """The rows of one engine by signal. Children of one signal (finished reasons, API server processes) are several rows.

    gauges, counters: rows; histograms: (name, rows of the sum, rows of the count).
    """

    engine: str
    model: str
    gauges: Mapping[str, tuple[int, ...]]
    counters: Mapping[str, tuple[int, ...]]
    histograms: Mapping[str, tuple[str, tuple[int, ...], tuple[int, ...]]]


@dataclass(frozen=True)
class EngineRows:
    """What the engine series of one target are. `counting`: rows that are counters; `answering`: see ANSWERING."""

    ranks: tuple[RankRows, ...]
    counting: Places
    answering: Places
    first_sheets: tuple[int, ...]
    """Sheets of the first few series."""


def engine_rows(shares: tuple[Share, ...], names: Names) -> EngineRows:
    """The plan of a target's engine series, ranks ordered by engine number; kept with the shares."""

    def make() -> EngineRows:
        rows = rows_of(shares)
        engines: dict[str, list[Row]] = defaultdict(list)
        for row in rows:
            engines[row.labels.get("engine", "0")].append(row)
        ranks = tuple(_rank_rows(engine, engines[engine], names) for engine in sorted(engines, key=_by_number))
        counting = {row for rank in ranks for found in rank.counters.values() for row in found}
        counting |= {row for rank in ranks for _, *both in rank.histograms.values() for found in both for row in found}
        return EngineRows(
            ranks,
            np.array(sorted(counting), dtype=np.intp),
            np.array([row.row for row in rows[:ANSWERING]], dtype=np.intp),
            tuple(sorted({row.sheet for row in rows[:4]})),
        )

    return kept(shares, "engine", make)


def _by_number(engine: str) -> tuple[int, str]:
    return len(engine), engine


def _rank_rows(engine: str, rows: Sequence[Row], names: Names) -> RankRows:
    named: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        named[names.strip(row.labels["__name__"])].append(row.row)

    def spelled(signal: str, suffix: str = "") -> str | None:
        return next((name for name in names.by_signal[signal] if name + suffix in named), None)

    gauges, counters, histograms = {}, {}, {}
    for signal in GAUGES:
        if (name := spelled(signal)) is not None:
            gauges[signal] = tuple(named[name])
    for signal in COUNTERS:
        if (name := spelled(signal)) is not None:
            counters[signal] = tuple(named[name])
    for signal in HISTOGRAMS:
        name = spelled(signal, "_count")
        if name is not None and name + "_sum" in named:
            histograms[signal] = name, tuple(named[name + "_sum"]), tuple(named[name + "_count"])
    model = next((row.labels["model_name"] for row in rows if "model_name" in row.labels), "")
    return RankRows(engine, model, gauges, counters, histograms)


@dataclass(frozen=True)
class BucketRows:
    """The buckets of one histogram: upper bounds ascending, and the rows of each bound (several API server processes: several)."""

    edges: Floats
    rows: tuple[tuple[int, ...], ...]
    single: Places | None
    """One row for each bound, where every bound has just one."""


def bucket_rows(shares: tuple[Share, ...], names: Names) -> Mapping[tuple[str, str], BucketRows]:
    """Bucket rows by engine and name of the histogram without prefix and suffix; kept with the shares. A bound that is no number is left out."""

    def make() -> Mapping[tuple[str, str], BucketRows]:
        found: dict[tuple[str, str], dict[float, list[int]]] = defaultdict(lambda: defaultdict(list))
        for row in rows_of(shares):
            bound = _bound(row.labels.get("le", ""))
            if bound == bound:
                name = names.strip(row.labels["__name__"]).removesuffix("_bucket")
                found[row.labels.get("engine", "0"), name][bound].append(row.row)
        return {place: _bucket_rows(children) for place, children in found.items()}

    return kept(shares, "buckets", make)


def _bucket_rows(children: Mapping[float, Sequence[int]]) -> BucketRows:
    edges = np.array(sorted(children))
    rows = tuple(tuple(children[edge]) for edge in edges.tolist())
    single = np.array([row[0] for row in rows], dtype=np.intp) if all(len(row) == 1 for row in rows) else None
    return BucketRows(edges, rows, single)


def _bound(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")
