"""One fetch of everything a diagnosis needs, in a number of queries that does not grow with the fleet.

Gauges, counters, histogram sums and counts come whole; buckets only near the two ends of the window, because bucket
laws need two instants and buckets are nine tenths of the samples.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from collectors.model import Labels, Samples
from collectors.observed import Observations, Replica
from collectors.observed_layout import COUNTERS, GAUGES, HISTOGRAMS, Names, Target, names_of, replica_of
from collectors.settings import Settings
from collectors.source import Source

LOOKBACK_MS = 900_000
BUCKET_SCRAPES = 4
USUAL_INTERVAL_MS = 15_000
"""Assumed where no target was scraped twice: Prometheus operators' usual setting; only widens windows."""
TargetKey = tuple[tuple[str, str], ...]
_SERIES_LABELS = frozenset(
    ("__name__", "engine", "model_name", "le", "finished_reason", "reason", "pid", "handler", "method", "status")
)


def observe(source: Source, at_ms: int, settings: Settings, lookback_ms: int = LOOKBACK_MS) -> Observations:
    """Fetch the window (at - lookback, at] of every vLLM target that the source knows. Raises SourceError.

    Targets are found by their engine series; a target of the same jobs that has only `up` (down for the whole window)
    is kept. A window longer than the data is cut to the data by construction.
    """
    start_ms = at_ms - lookback_ms
    names = names_of()
    asked = _Asked(source)
    engine = asked.samples(names.selector((*GAUGES, *COUNTERS)), start_ms, at_ms)
    engine += asked.samples(names.selector(HISTOGRAMS, ("_sum", "_count")), start_ms, at_ms)
    jobs = sorted({s.labels.get("job", "") for s in engine})
    of_jobs = ",job=~" + _quoted("|".join(re.escape(job) for job in jobs)) if jobs else ""
    web = asked.samples(f'{{__name__="http_requests_total"{of_jobs}}}', start_ms, at_ms)
    if not jobs:  # every engine series is gone: vLLM's own routes still tell which targets are meant
        jobs = sorted({s.labels.get("job", "") for s in web if s.labels.get("handler", "").startswith("/v1/")})
        of_jobs = ",job=~" + _quoted("|".join(re.escape(job) for job in jobs))
    if not jobs:
        return Observations(at_ms, start_ms, 0, (), query_count=asked.count, source_name=source.info().name)
    own = asked.samples(
        f'{{__name__=~"up|scrape_duration_seconds|process_start_time_seconds"{of_jobs}}}', start_ms, at_ms
    )
    info = asked.samples(names.selector(("cache_config",)), start_ms, at_ms)
    targets = _grouped(engine, [s for s in web if s.labels.get("job", "") in jobs], own, info)
    interval_ms = _interval_ms(targets.values())
    _add_buckets(asked, targets, names, interval_ms, start_ms, at_ms)
    replicas = _named_once(
        [replica_of(t, _name(t.labels, settings), names, interval_ms) for t in targets.values() if t.own or t.engine]
    )
    return Observations(
        at_ms=at_ms,
        start_ms=min((int(r.times_ms[0]) for r in replicas if len(r.times_ms)), default=start_ms),
        interval_ms=interval_ms,
        replicas=tuple(sorted(replicas, key=lambda r: r.instance)),
        engine_version=settings.engine.version,
        query_count=asked.count,
        source_name=source.info().name,
    )


class _Asked:
    """A source that counts the queries put to it."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.count = 0

    def samples(self, selector: str, start_ms: int, end_ms: int) -> list[Samples]:
        self.count += 1
        return self._source.samples(selector, start_ms, end_ms)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _key(labels: Labels) -> TargetKey:
    return tuple(sorted([pair for pair in labels.items() if pair[0] not in _SERIES_LABELS]))


def _name(labels: Labels, settings: Settings) -> str:
    parts = [labels.get(label, "") for label in settings.identity.replica]
    if all(parts):
        return "/".join(parts)
    return labels.get("instance") or ",".join(f"{k}={v}" for k, v in sorted(labels.items()))


def _grouped(
    engine: Sequence[Samples], web: Sequence[Samples], own: Sequence[Samples], info: Sequence[Samples]
) -> dict[TargetKey, Target]:
    targets: dict[TargetKey, Target] = {}

    def target(labels: Labels) -> Target:
        key = _key(labels)
        if key not in targets:
            targets[key] = Target(dict(key))
        return targets[key]

    for series in engine:
        target(series.labels).engine.append(series)
    for series in own:
        target(series.labels).own.append(series)
    for series in web:
        target(series.labels).web.append(series)
    by_place = {(t.labels.get("job", ""), t.labels.get("instance", "")): t for t in targets.values()}
    for series in info:  # its configuration labels are not the target's
        found = by_place.get((series.labels.get("job", ""), series.labels.get("instance", "")))
        if found is not None:
            found.info.append(series)
    return targets


def _interval_ms(targets: Iterable[Target]) -> int:
    """Median distance of scrapes over all targets."""
    gaps = [np.diff(target.times_ms()) for target in targets]
    joined = np.concatenate(gaps) if gaps else np.empty(0)
    return int(np.median(joined)) if len(joined) else USUAL_INTERVAL_MS


def _add_buckets(
    asked: _Asked, targets: dict[TargetKey, Target], names: Names, interval_ms: int, start_ms: int, at_ms: int
) -> None:
    """Buckets at the first and the last few scrapes of the window."""
    selector = names.selector(HISTOGRAMS, ("_bucket",))
    near_ms = BUCKET_SCRAPES * interval_ms + interval_ms // 2
    oldest_ms = min((int(s.times_ms[0]) for t in targets.values() for s in t.engine[:4]), default=start_ms + 1)
    head_end_ms = oldest_ms - 1 + near_ms
    tail_start_ms = max(head_end_ms, at_ms - near_ms)
    for lo, hi in ((oldest_ms - 1, min(head_end_ms, at_ms)), (tail_start_ms, at_ms)):
        if hi > lo:
            for series in asked.samples(selector, lo, hi):
                found = targets.get(_key(series.labels))
                if found is not None:
                    found.buckets.append(series)


def _named_once(replicas: Sequence[Replica]) -> list[Replica]:
    """Fold a process that is scraped twice into one replica that remembers the rest; give others of one name their own.

    The same address under two jobs or an HA pair is one process (equal start time); the same address in two clusters
    is two, and each gets its remaining labels added to its name.
    """
    by_name: dict[str, list[Replica]] = defaultdict(list)
    for replica in replicas:
        by_name[replica.instance].append(replica)
    kept: list[Replica] = []
    for group in by_name.values():
        group.sort(key=lambda r: (-len(r.ranks), -len(r.times_ms), sorted(r.labels.items())))
        chosen: list[Replica] = []
        for replica in group:
            twin = next((i for i, other in enumerate(chosen) if _same_process(other, replica)), None)
            if twin is None:
                chosen.append(replica)
            else:
                chosen[twin] = replace(chosen[twin], duplicates=(*chosen[twin].duplicates, replica.labels))
        kept += chosen if len(chosen) == 1 else [_longer_name(r) for r in chosen]
    return kept


def _same_process(one: Replica, other: Replica) -> bool:
    if not other.ranks or not one.ranks:
        return True  # the same address with nothing but `up`: nothing contradicts
    starts = [r.process_start_seconds[~np.isnan(r.process_start_seconds)] for r in (one, other)]
    return bool(len(starts[0]) and len(starts[1]) and abs(float(starts[0][-1] - starts[1][-1])) < 0.5)


def _longer_name(replica: Replica) -> Replica:
    rest = ",".join(f"{k}={v}" for k, v in sorted(replica.labels.items()) if k != "instance")
    name = f"{replica.instance} ({rest})"
    return replace(replica, instance=name, ranks=tuple(replace(rank, instance=name) for rank in replica.ranks))
