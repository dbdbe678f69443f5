"""One fetch of everything a diagnosis needs, in a number of queries that does not grow with the fleet.

Gauges, counters, histogram sums and counts come whole; buckets only near the two ends of the window, because bucket
laws need two instants and buckets are nine tenths of the samples.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from collectors.doubles import one_process
from collectors.echoes import without_echoes
from collectors.model import Labels
from collectors.observed import Observations, Replica
from collectors.observed_layout import COUNTERS, GAUGES, HISTOGRAMS, Names, names_of
from collectors.observed_target import Target, median_gap_ms, replica_of
from collectors.settings import Settings
from collectors.sheets import Sheet, TargetKey, sheets_of
from collectors.source import Source
from collectors.strips import strips_of

LOOKBACK_MS = 900_000
BUCKET_SCRAPES = 4
USUAL_INTERVAL_MS = 15_000
"""Assumed where no target was scraped twice: Prometheus operators' usual setting; only widens windows."""
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
    engine = asked.sheets(names.selector((*GAUGES, *COUNTERS)), start_ms, at_ms)
    engine += asked.sheets(names.selector(HISTOGRAMS, ("_sum", "_count")), start_ms, at_ms)
    jobs = sorted({_job(sheet) for sheet in engine})
    of_jobs = ",job=~" + _quoted("|".join(re.escape(job) for job in jobs)) if jobs else ""
    web = asked.sheets(f'{{__name__="http_requests_total"{of_jobs}}}', start_ms, at_ms)
    if not jobs:  # every engine series is gone: vLLM's own routes still tell which targets are meant
        jobs = sorted({_job(sheet) for sheet in web if _has_own_route(sheet)})
        of_jobs = ",job=~" + _quoted("|".join(re.escape(job) for job in jobs))
    if not jobs:
        return Observations(at_ms, start_ms, 0, (), query_count=asked.count, source_name=source.info().name)
    own = asked.sheets(
        f'{{__name__=~"up|scrape_duration_seconds|process_start_time_seconds"{of_jobs}}}', start_ms, at_ms
    )
    info = asked.sheets(names.selector(("cache_config",)), start_ms, at_ms, _place, "place")
    targets = without_echoes(_grouped(engine, [sheet for sheet in web if _job(sheet) in jobs], own, info), settings)
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

    def sheets(
        self,
        selector: str,
        start_ms: int,
        end_ms: int,
        key_of: Callable[[Labels], TargetKey] | None = None,
        kind: str = "target",
        turn: int = 0,
    ) -> list[Sheet]:
        """`turn`: several answers with the same turn share what is kept of equal series; by default every question has its own."""
        self.count += 1
        answer = strips_of(self._source, selector, start_ms, end_ms)
        return sheets_of(answer, key_of or _key, f"observed {kind}", turn or self.count)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _key(labels: Labels) -> TargetKey:
    return tuple(sorted([pair for pair in labels.items() if pair[0] not in _SERIES_LABELS]))


def _name(labels: Labels, settings: Settings) -> str:
    parts = [labels.get(label, "") for label in settings.identity.replica]
    if all(parts):
        return "/".join(parts)
    return labels.get("instance") or ",".join(f"{k}={v}" for k, v in sorted(labels.items()))


def _place(labels: Labels) -> TargetKey:
    """Job and instance: what stands beside them in a series of configuration facts is not the target's."""
    return ("job", labels.get("job", "")), ("instance", labels.get("instance", ""))


def _job(sheet: Sheet) -> str:
    return dict(sheet.share.key).get("job", "")


def _has_own_route(sheet: Sheet) -> bool:
    return any(labels.get("handler", "").startswith("/v1/") for labels in sheet.share.labels)


def _grouped(
    engine: Sequence[Sheet], web: Sequence[Sheet], own: Sequence[Sheet], info: Sequence[Sheet]
) -> dict[TargetKey, Target]:
    targets: dict[TargetKey, Target] = {}

    def target(sheet: Sheet) -> Target:
        found = targets.get(sheet.share.key)
        if found is None:
            found = targets[sheet.share.key] = Target(sheet.share.key)
        return found

    for sheet in engine:
        target(sheet).engine.append(sheet)
    for sheet in own:
        target(sheet).own.append(sheet)
    for sheet in web:
        target(sheet).web.append(sheet)
    by_place = {_place(dict(key)): target for key, target in targets.items()}
    for sheet in info:
        if sheet.share.key in by_place:
            by_place[sheet.share.key].info.append(sheet)
    return targets


def _interval_ms(targets: Iterable[Target]) -> int:
    """Median distance of scrapes over all targets."""
    gaps = [np.diff(target.times_ms()) for target in targets]
    joined = np.concatenate(gaps) if gaps else np.empty(0, dtype=np.int64)
    return median_gap_ms(joined) if len(joined) else USUAL_INTERVAL_MS


def _add_buckets(
    asked: _Asked, targets: dict[TargetKey, Target], names: Names, interval_ms: int, start_ms: int, at_ms: int
) -> None:
    """Buckets at the first and the last few scrapes of the window."""
    selector = names.selector(HISTOGRAMS, ("_bucket",))
    near_ms = BUCKET_SCRAPES * interval_ms + interval_ms // 2
    firsts = (t.engine[sheet].times_ms[0] for t in targets.values() for sheet in t.plan(names).first_sheets)
    oldest_ms = int(min(firsts, default=start_ms + 1))
    head_end_ms = oldest_ms - 1 + near_ms
    tail_start_ms = max(head_end_ms, at_ms - near_ms)
    for lo, hi in ((oldest_ms - 1, min(head_end_ms, at_ms)), (tail_start_ms, at_ms)):
        if hi > lo:
            for sheet in asked.sheets(selector, lo, hi, turn=1):
                found = targets.get(sheet.share.key)
                if found is not None:
                    found.buckets.append(sheet)


def _named_once(replicas: Sequence[Replica]) -> list[Replica]:
    """Fold a process that is scraped twice into one replica that remembers the rest; give others of one name their own.

    The same address under two jobs or an HA pair is one process (equal start time, or by the labels where none is told); the same address in two clusters
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
    if not len(starts[0]) or not len(starts[1]):
        return one_process([one.labels, other.labels], {})
    return abs(float(starts[0][-1] - starts[1][-1])) < 0.5


def _longer_name(replica: Replica) -> Replica:
    rest = ",".join(f"{k}={v}" for k, v in sorted(replica.labels.items()) if k != "instance")
    name = f"{replica.instance} ({rest})"
    return replace(replica, instance=name, ranks=tuple(replace(rank, instance=name) for rank in replica.ranks))
