"""The threshold lab: what another threshold would have done to recorded incidents - detection delay, missed incidents, false pages a week.

Two kinds of choice: a value of thresholds.toml, tried by the whole diagnosis at instants along each recording; or the threshold and hold
time of one exported detector, tried by its PromQL. Ground truth is the yardstick here; it never reaches what is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from collectors.capsule import Capsule, CapsuleSource
from collectors.model import Int64s, Window
from collectors.observations import observe
from collectors.settings import Settings
from collectors.source import QueryRejected
from runbooks.diagnosis import judge
from runbooks.lab_truth import Incident, healthy_ms, incidents_of, is_healthy
from runbooks.library import library
from runbooks.naming import settings_dialect
from runbooks.rules import Rule, rules
from runbooks.thresholds import Thresholds, has_threshold
from runbooks.timeline import instants
from runbooks.verdicts import RUNBOOK_OF_CAUSE

MOST_VALUES = 20
MOST_INSTANTS = 120
"""Instants of one recording that are judged."""
MOST_RANK_INSTANTS = 12_000
"""Rank-instants over all recordings: looking at more recordings means looking at each less often."""
LEAST_INSTANTS = 10
ONE_ALARM_MS = 60_000
"""Firings of one place with a shorter silence between them are one alarm."""
WEEK_MS = 7 * 24 * 3_600_000


@dataclass(frozen=True)
class Choice:
    """What is tried: `table.name` of thresholds.toml, or a detector `runbook.name` of the exported rules.

    `hold_seconds` belongs to detectors only; None is the detector's own.
    """

    table: str
    name: str
    value: float
    hold_seconds: int | None = None
    kind: str = "threshold"


@dataclass(frozen=True)
class Detection:
    """One incident of one recording: how long after its start the first alarm at its place came; None = missed."""

    recording: str
    causes: tuple[str, ...]
    delay_seconds: float | None
    resolution_seconds: float
    """Distance of the instants that were looked at: the delay is known to this."""


@dataclass(frozen=True)
class Tried:
    """What one choice would have done."""

    choice: Choice
    detections: tuple[Detection, ...]
    false_alarms: int
    healthy_seconds: float

    @property
    def missed(self) -> int:
        return sum(found.delay_seconds is None for found in self.detections)

    @property
    def median_delay_seconds(self) -> float | None:
        """Over the incidents that were detected."""
        delays = [found.delay_seconds for found in self.detections if found.delay_seconds is not None]
        return float(np.median(delays)) if delays else None

    @property
    def false_per_week(self) -> float | None:
        """Alarms outside of incidents, scaled to a week; None without any healthy time."""
        return self.false_alarms * WEEK_MS / 1000 / self.healthy_seconds if self.healthy_seconds else None

    @property
    def false_per_week_at_most(self) -> float | None:
        """Upper end of the 95 % interval: a quarter of an hour without a false alarm proves little."""
        if not self.healthy_seconds:
            return None
        return poisson_upper(self.false_alarms) * WEEK_MS / 1000 / self.healthy_seconds

    def to_json(self) -> dict[str, Any]:
        """Plain data, schema 1."""
        return {
            "schema": 1,
            "table": self.choice.table,
            "name": self.choice.name,
            "value": self.choice.value,
            "hold_seconds": self.choice.hold_seconds,
            "missed": self.missed,
            "median_delay_seconds": self.median_delay_seconds,
            "false_alarms": self.false_alarms,
            "healthy_hours": self.healthy_seconds / 3600,
            "false_per_week": self.false_per_week,
            "false_per_week_at_most": self.false_per_week_at_most,
            "incidents": [
                {
                    "recording": found.recording,
                    "causes": list(found.causes),
                    "delay_seconds": found.delay_seconds,
                    "resolution_seconds": found.resolution_seconds,
                }
                for found in self.detections
            ],
        }


@dataclass(frozen=True)
class Recording:
    """A recording with its incidents: those of its ground truth, or those that the operator marked."""

    name: str
    capsule: Capsule
    incidents: tuple[Incident, ...]

    @staticmethod
    def of(capsule: Capsule, incidents: Sequence[Incident] | None = None) -> Recording:
        """A capsule; `incidents` of the operator take the place of what its manifest tells."""
        name = capsule.path.stem if capsule.path is not None else capsule.title
        known = incidents_of(capsule.manifest) if incidents is None else tuple(incidents)
        return Recording(name, capsule, known)

    @property
    def scrape_ms(self) -> int:
        known = (r.scrape_interval_ms for r in self.capsule.manifest.replicas if r.scrape_interval_ms)
        return min(known, default=15_000)

    @property
    def ranks(self) -> int:
        return sum(max(1, len(replica.engines)) for replica in self.capsule.manifest.replicas) or 1


@dataclass(frozen=True)
class _Alarms:
    """Firing of the watched detectors at the instants of one recording, by instance ('' = the fleet)."""

    at_ms: Int64s
    firing: dict[str, npt.NDArray[np.bool_]]


def threshold_names() -> tuple[tuple[str, str], ...]:
    """Every (table, name) of thresholds.toml."""
    return tuple((table, name) for table, values in Thresholds.of(Settings()).values.items() for name in values)


def try_threshold(
    table: str,
    name: str,
    values: Sequence[float],
    recordings: Sequence[Recording],
    settings: Settings,
    *,
    progress: Callable[[float], None] | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> tuple[Tried, ...]:
    """Each value of a threshold over all recordings, in the order given; fewer recordings count when `stopped` says so.

    An alarm is an anomaly of the detector named like the table; for a table that is no detector (`pace`) any anomaly.
    Incidents whose cause the watched detectors cannot show are left out. Raises QueryRejected for an unknown name or too many values.
    """
    if not has_threshold(table, name):
        raise QueryRejected(f"thresholds.toml has no {table}.{name}", "See `threshold_names()` for those there are")
    choices = [Choice(table, name, value) for value in _bounded(values)]
    tuned = [_with(settings, choice) for choice in choices]
    watched = frozenset((table,)) if table in library() else frozenset(library())
    found: list[list[tuple[Recording, _Alarms]]] = [[] for _ in choices]
    share = MOST_RANK_INSTANTS // max(1, sum(recording.ranks for recording in recordings))
    for number, recording in enumerate(recordings):
        if stopped():
            break
        if progress is not None:
            progress(number / len(recordings))
        most = max(LEAST_INSTANTS, min(MOST_INSTANTS, share))
        window = recording.capsule.manifest.window
        at_all = instants(window.start_ms, window.end_ms, recording.scrape_ms, most)
        fired: list[dict[str, set[int]]] = [{} for _ in choices]
        for index, at_ms in enumerate(at_all):
            seen = observe(CapsuleSource(recording.capsule, at_ms), at_ms, settings)
            for which, each in enumerate(tuned):
                for anomaly in judge(seen, each).anomalies:
                    if anomaly.id in watched:
                        for place in anomaly.where.places:
                            fired[which].setdefault(place.instance, set()).add(index)
        for which in range(len(choices)):
            found[which].append((recording, _Alarms(np.array(at_all), _flags(fired[which], len(at_all)))))
    return tuple(_tried(choice, told, watched) for choice, told in zip(choices, found, strict=True))


def try_detector(
    detector: str,
    values: Sequence[float],
    recordings: Sequence[Recording],
    settings: Settings,
    *,
    holds_seconds: Sequence[int | None] = (None,),
    progress: Callable[[float], None] | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> tuple[Tried, ...]:
    """Every pair of threshold and hold time of an exported detector (`runbook.name`) over all recordings.

    Conditions inside of its PromQL stay as they are: a threshold looser than they are changes nothing. Raises QueryRejected.
    """
    known = {f"{rule.runbook.id}.{rule.detector.name}": rule for rule in rules(settings, settings_dialect(settings))}
    if detector not in known:
        raise QueryRejected(f"no detector {detector!r}", f"There are: {', '.join(sorted(known))}")
    rule = known[detector]
    pairs = [(value, hold) for value in _bounded(values) for hold in holds_seconds]
    if len(pairs) > MOST_VALUES:
        raise QueryRejected(f"{len(pairs)} pairs of threshold and hold time", f"Try at most {MOST_VALUES} at once")
    choices = [Choice(rule.runbook.id, rule.detector.name, value, hold, "detector") for value, hold in pairs]
    found: list[list[tuple[Recording, _Alarms]]] = [[] for _ in choices]
    for number, recording in enumerate(recordings):
        if stopped():
            break
        if progress is not None:
            progress(number / len(recordings))
        at_ms, series = _values(rule, recording)
        for which, (value, hold) in enumerate(pairs):
            seconds = rule.detector.hold_seconds if hold is None else hold
            above = rule.detector.comparison == "above"
            firing = {
                instance: held(row > value if above else row < value, at_ms, seconds * 1000)
                for instance, row in series.items()
            }
            found[which].append((recording, _Alarms(at_ms, firing)))
    watched = frozenset((rule.runbook.id,))
    return tuple(_tried(choice, told, watched) for choice, told in zip(choices, found, strict=True))


def held(condition: npt.NDArray[np.bool_], at_ms: Int64s, hold_ms: int) -> npt.NDArray[np.bool_]:
    """Where a condition has been true at every instant for at least `hold_ms`; an alert's `for`."""
    firing = np.zeros(len(condition), dtype=bool)
    since: int | None = None
    for index, true in enumerate(condition):
        if not true:
            since = None
            continue
        since = int(at_ms[index]) if since is None else since
        firing[index] = int(at_ms[index]) - since >= hold_ms
    return firing


def poisson_upper(count: int, level: float = 0.95) -> float:
    """Largest mean under which `count` or fewer events are no rarer than 1 - level; 3.0 for none (the rule of three)."""
    low, high = float(count), 10.0 + 3.0 * count
    for _ in range(60):
        middle = (low + high) / 2
        term = cumulative = float(np.exp(-middle))
        for event in range(1, count + 1):
            term *= middle / event
            cumulative += term
        low, high = (middle, high) if cumulative > 1 - level else (low, middle)
    return high


def config_lines(choice: Choice) -> str:
    """The choice as lines of pagewatch.toml, to be pasted or appended where those tables do not stand yet."""
    if choice.kind == "threshold":
        return f"[alerts.thresholds.{choice.table}]\n{choice.name} = {choice.value!r}\n"
    key = f'"{choice.table}.{choice.name}"'
    lines = f"[alerts.thresholds.rules]\n{key} = {choice.value!r}\n"
    if choice.hold_seconds is not None:
        lines += f"\n[alerts.hold_seconds]\n{key} = {choice.hold_seconds}\n"
    return lines


def _bounded(values: Sequence[float]) -> list[float]:
    if not values or len(values) > MOST_VALUES or not all(np.isfinite(value) for value in values):
        raise QueryRejected(f"{len(values)} values to try", f"Give 1 to {MOST_VALUES} finite numbers")
    return [float(value) for value in values]


def _with(settings: Settings, choice: Choice) -> Settings:
    old = settings.alerts.thresholds
    changed = {**old, choice.table: {**old.get(choice.table, {}), choice.name: choice.value}}
    return settings.model_copy(update={"alerts": settings.alerts.model_copy(update={"thresholds": changed})})


def _flags(fired: dict[str, set[int]], count: int) -> dict[str, npt.NDArray[np.bool_]]:
    flags = {}
    for instance, indices in fired.items():
        flags[instance] = np.zeros(count, dtype=bool)
        flags[instance][list(indices)] = True
    return flags


def _values(rule: Rule, recording: Recording) -> tuple[Int64s, dict[str, npt.NDArray[np.float64]]]:
    """The detector's value by instance along a recording, on a grid of its scrapes; the worst of several series."""
    window = recording.capsule.manifest.window
    above = rule.detector.comparison == "above"
    bare = rule.expr.removesuffix(f" {'>' if above else '<'} {rule.threshold:g}")
    step = recording.scrape_ms
    end_ms = window.start_ms + max(1, (window.end_ms - window.start_ms) // step) * step
    frame = CapsuleSource(recording.capsule).range(bare, Window(window.start_ms, end_ms, step))
    worst: dict[str, npt.NDArray[np.float64]] = {}
    for labels, row in zip(frame.labels, frame.values, strict=True):
        instance = labels.get("instance", "")
        known = worst.get(instance, row)
        worst[instance] = np.fmax(known, row) if above else np.fmin(known, row)
    return np.asarray(frame.times_ms, dtype=np.int64), worst


def _tried(choice: Choice, told: Iterable[tuple[Recording, _Alarms]], watched: frozenset[str]) -> Tried:
    detections: list[Detection] = []
    false = 0
    healthy = 0
    for recording, alarms in told:
        window = recording.capsule.manifest.window
        healthy += healthy_ms(window.start_ms, window.end_ms, recording.incidents)
        gaps = np.diff(alarms.at_ms)
        resolution = float(np.median(gaps)) / 1000 if gaps.size else 0.0
        for incident in recording.incidents:
            if not watched & {RUNBOOK_OF_CAUSE.get(cause, "") for cause in incident.causes}:
                continue
            delay = _delay_ms(incident, alarms)
            seconds = None if delay is None else delay / 1000
            detections.append(Detection(recording.name, tuple(sorted(incident.causes)), seconds, resolution))
        false += sum(
            is_healthy(start_ms, recording.incidents)
            for flags in alarms.firing.values()
            for start_ms in _beginnings(flags, alarms.at_ms)
        )
    return Tried(choice, tuple(detections), false, healthy / 1000)


def _delay_ms(incident: Incident, alarms: _Alarms) -> int | None:
    inside = (alarms.at_ms >= incident.from_ms) & (alarms.at_ms <= incident.over_ms)
    first: int | None = None
    for instance, flags in alarms.firing.items():
        if instance and incident.instances and instance not in incident.instances:
            continue
        hits = np.flatnonzero(flags & inside)
        if hits.size:
            delay = int(alarms.at_ms[hits[0]]) - incident.from_ms
            first = delay if first is None else min(first, delay)
    return first


def _beginnings(flags: npt.NDArray[np.bool_], at_ms: Int64s) -> list[int]:
    """When each alarm began; short silences do not end one."""
    begun: list[int] = []
    last: int | None = None
    for at in at_ms[flags].tolist():
        if last is None or at - last > ONE_ALARM_MS:
            begun.append(at)
        last = at
    return begun
