"""The only place where pages meet collectors and runbooks: sources held once per process, answers shared between sessions."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from collectors.aligned import AlignedSide, Side, aligned
from collectors.capsule import Capsule, CapsuleSource
from collectors.capsule.manifest import Manifest
from collectors.figures import Line, Panel
from collectors.fleet import fleet_picture
from collectors.fleet_picture import FleetPicture
from collectors.instants import parse_instant_ms
from collectors.latency import latency_picture
from collectors.latency_picture import LatencyPicture
from collectors.refresh import PictureCache, quantised_ms
from collectors.scope import ScopedSource
from collectors.settings import Settings
from collectors.source import Source, SourceBroken, SourceError
from collectors.sources import capsule_of, open_source
from pages.ui import library, simulator_client
from pages.ui.console import console
from pages.ui.theme import SlotMemory
from pages.ui.view import SPANS_MS, YOUNG_MS, Extent, View, read
from runbooks.diagnosis import diagnose
from runbooks.engine import Answer, verify, walk
from runbooks.findings import Finding, Walk
from runbooks.recording import first_sample_ms
from runbooks.timeline import Timeline, fold
from runbooks.verdicts import Diagnosis

MOST_JUDGED = 720
"""An hour at the fastest refresh."""
SLOWEST_REFRESH_MS, FASTEST_REFRESH_MS = 30_000, 5_000


@dataclass
class Held:
    """A source that was opened, once for the whole process."""

    key: str
    source: Source
    capsule: Capsule | None
    slots: SlotMemory = field(default_factory=SlotMemory)
    scrape_ms: int = FASTEST_REFRESH_MS
    judged: deque[Diagnosis] = field(default_factory=lambda: deque(maxlen=MOST_JUDGED))
    began_ms: int | None = None
    """The first scrape that a live source holds, as far back as a new viewer would see; None: not asked yet, or it does not answer."""

    @property
    def extent(self) -> Extent | None:
        return extent_of(self.capsule) if self.capsule is not None else None

    @property
    def refresh_ms(self) -> int:
        """How often a live page looks again: with the scrapes, within bounds."""
        return max(FASTEST_REFRESH_MS, min(SLOWEST_REFRESH_MS, self.scrape_ms))


def extent_of(capsule: Capsule) -> Extent:
    """First and last instant of a recording, and the time between its scrapes."""
    manifest = capsule.manifest
    intervals = [replica.scrape_interval_ms for replica in manifest.replicas if replica.scrape_interval_ms > 0]
    return Extent(
        manifest.window.start_ms, manifest.window.end_ms, min(intervals, default=15_000), _judged_at_ms(manifest)
    )


def _judged_at_ms(manifest: Manifest) -> int | None:
    """Where a judged recording opens: in the middle of what was said longest. A manifest comes from outside, so a wrong instant is none."""
    judged = manifest.diagnosis.get("at")
    verdicts = manifest.diagnosis.get("verdicts")
    if not isinstance(judged, str) or not isinstance(verdicts, list) or not verdicts:
        return None
    try:
        return parse_instant_ms(judged)
    except ValueError:
        return None


MOST_HELD = 16
_held: OrderedDict[str, Held] = OrderedDict()
_opening = threading.Lock()
T = TypeVar("T")


@dataclass(frozen=True)
class Seen(Generic[T]):
    """What a page gets: a value (fresh, or the last good one) and, when the source failed, why, since when, and when it is asked next."""

    value: T | None
    error: SourceError | None = None
    failing_since_ms: int | None = None
    retry_ms: int | None = None


def settings_clock_ms() -> int:
    """The console's clock."""
    return console().clock()


def _now_ms() -> int:
    return console().clock()


@dataclass(frozen=True)
class Simulated:
    """The simulator's own account of itself, and when it was given."""

    at_ms: int
    told: dict[str, Any]


class Pictures:
    """Everything that sessions share; bounded."""

    def __init__(self) -> None:
        self.fleets: PictureCache[FleetPicture] = PictureCache(_now_ms, size=48)
        self.latencies: PictureCache[LatencyPicture] = PictureCache(_now_ms, size=24)
        self.diagnoses: PictureCache[Diagnosis] = PictureCache(_now_ms, size=160)
        self.sides: PictureCache[AlignedSide] = PictureCache(_now_ms, size=24)
        self.beginnings: PictureCache[int | None] = PictureCache(_now_ms, size=4)
        self.panels: PictureCache[Panel] = PictureCache(_now_ms, size=96)
        self.walks: PictureCache[Walk] = PictureCache(_now_ms, size=64)
        self.simulators: PictureCache[Simulated] = PictureCache(_now_ms, size=2)


_pictures = Pictures()


def forget_all() -> None:
    """Drop every source and picture; for tests and after the console was configured anew."""
    global _pictures
    with _opening:
        _held.clear()
    _pictures = Pictures()


def _seen(cache: PictureCache[T], subject: Hashable, version: Hashable, make: Callable[[], T]) -> Seen[T]:
    try:
        shown = cache.get(subject, version, make)
    except SourceError as error:
        return Seen(None, error)
    return Seen(shown.picture, shown.failure, shown.failed_since_ms, shown.retry_ms)


def settings() -> Settings:
    return console().settings


def held(key: str = "") -> Held:
    """The opened source of that name ('' = the console's own). Raises SourceError; a failure is tried again at the next call."""
    with _opening:
        if key in _held:
            _held.move_to_end(key)
            return _held[key]
        here = console()
        if key:
            spec = str(library.path_of(key))
        elif here.source_spec:
            spec = here.source_spec
        else:
            raise SourceBroken(
                "no source was given", "Start with: pagewatch ui --source URL_OR_INCIDENT_FILE, or try: pagewatch demo"
            )
        source = open_source(spec, here.settings, here.scope)
        _held[key] = Held(key, source, capsule_of(source))
        while len(_held) > MOST_HELD:
            del _held[next(other for other in _held if other not in ("", key))]
        return _held[key]


def drop(key: str) -> None:
    """Forget an opened recording of the library: its file is gone or another one."""
    with _opening:
        if key:
            _held.pop(key, None)


def capsule_path(key: str) -> Path | None:
    """The file behind a recording, None for a live source."""
    capsule = held(key).capsule
    return capsule.path if capsule is not None else None


def view_of(params: Mapping[str, str], play: Mapping[str, Any] | None, speed: int = 10) -> View:
    """The view that an address asks for, on the clock of its source; live instants stand on the refresh grid."""
    source = held(params.get("source", "")[:200])
    now_ms = _now_ms()
    young = source.extent is None and now_ms - _began_ms(source, now_ms) < YOUNG_MS
    view = read(params, now_ms, source.extent, play, speed, young=young)
    if view.mode == "live":
        return replace(view, at_ms=quantised_ms(view.at_ms, source.refresh_ms))
    return view


def _began_ms(source: Held, now_ms: int) -> int:
    """Since when a live source holds samples; long ago where it does not say. It is asked until it has answered once with something."""
    far_ms = now_ms - SPANS_MS["15m"]
    if source.began_ms is None:
        ask = partial(first_sample_ms, source.source, far_ms, now_ms)
        seen = _seen(_pictures.beginnings, source.key, now_ms // FASTEST_REFRESH_MS, ask)
        source.began_ms = seen.value if seen.error is None else None
    return far_ms if source.began_ms is None else source.began_ms


def source_at(view: View) -> Source:
    """The source as of the view's instant and inside its scope: a replay knows nothing after its cursor."""
    source = held(view.source_key)
    seen: Source = source.source
    if source.capsule is not None:
        seen = CapsuleSource(source.capsule, view.at_ms)
        if isinstance(source.source, ScopedSource):
            seen = ScopedSource(seen, source.source.scope)
    return ScopedSource(seen, dict(view.scope)) if view.scope else seen


def _subject(view: View, *more: object) -> tuple[object, ...]:
    return (view.source_key, view.scope, view.mode == "live", view.span_ms, *more)


def fleet(view: View) -> Seen[FleetPicture]:
    """The Fleet page's picture; the last good one when the source does not answer."""

    def compute() -> FleetPicture:
        picture = fleet_picture(source_at(view), view.window, settings())
        if picture.scrape_interval_seconds:
            held(view.source_key).scrape_ms = round(picture.scrape_interval_seconds * 1000)
        return picture

    return _seen(_pictures.fleets, _subject(view), (view.at_ms, view.window.start_ms), compute)


def of_replica(view: View, labels: Mapping[str, str]) -> Seen[FleetPicture]:
    """The picture of one replica alone: flow and quantiles of it by itself."""
    return fleet(replace(view, scope=tuple(sorted({**dict(view.scope), **labels}.items()))))


def diagnosis(view: View) -> Seen[Diagnosis]:
    """What is wrong at the view's instant, computed once per source and instant."""
    subject = (view.source_key, view.scope, view.mode == "live")

    def compute() -> Diagnosis:
        found = diagnose(source_at(view), view.at_ms, settings())
        if view.mode == "live" and not view.scope:
            held(view.source_key).judged.append(found)
        return found

    return _seen(_pictures.diagnoses, subject, view.at_ms, compute)


def lived(view: View) -> Timeline:
    """What was concluded while somebody watched this live source."""
    judged = sorted(held(view.source_key).judged.copy(), key=lambda found: found.at_ms)
    return fold([found for found in judged if found.at_ms <= view.at_ms])


def beside(view: View, zero_ms: int, before_ms: int, after_ms: int, step_ms: int) -> Seen[AlignedSide]:
    """A source laid on a common zero: a recording whole, whatever its cursor (the page draws that); a live one up to the view's instant."""
    whole = replace(view, at_ms=view.extent.end_ms) if view.extent is not None else view

    def compute() -> AlignedSide:
        grid = {"before_ms": before_ms, "after_ms": after_ms, "step_ms": step_ms}
        return aligned([Side(source_at(whole), zero_ms)], settings(), **grid).sides[0]

    subject = (view.source_key, view.scope, whole.mode == "live", before_ms, after_ms, step_ms)
    return _seen(_pictures.sides, subject, (whole.at_ms, zero_ms), compute)


def latency(view: View, signal: str) -> Seen[LatencyPicture]:
    """The Latency page's picture; `signal` is the histogram of heat map, ranking and comparison."""

    def compute() -> LatencyPicture:
        return latency_picture(source_at(view), view.window, settings(), signal)

    return _seen(_pictures.latencies, _subject(view, signal), (view.at_ms, view.window.start_ms), compute)


def walked(
    view: View, runbook_id: str, instance: str | None, engine: str | None, answers: Mapping[str, Answer]
) -> Seen[Walk]:
    """A walk of the runbook at the view's instant. Raises RunbookError for an unknown runbook or place."""
    answered = tuple(sorted((step, answer.value, answer.log) for step, answer in answers.items()))

    def compute() -> Walk:
        found = diagnosis(view)
        return walk(
            runbook_id, source_at(view), view.at_ms, settings(), instance, engine,
            answers=answers, diagnosis=found.value if found.error is None else None,
        )  # fmt: skip

    subject = (view.source_key, view.scope, view.mode == "live", runbook_id, instance, engine)
    return _seen(_pictures.walks, subject, (view.at_ms, answered), compute)


def simulator() -> Seen[Simulated]:
    """What the bundled simulator says of itself, asked at most once a second; the last answer when it is gone."""

    def compute() -> Simulated:
        return Simulated(_now_ms(), simulator_client.state())

    return _seen(_pictures.simulators, "simulator", (_now_ms() // 1000, simulator_client.orders()), compute)


def scope_choices(view: View) -> dict[str, list[str]]:
    """Scope labels with several values in this source, whatever the viewer has chosen."""
    whole = fleet(replace(view, scope=())).value
    found: dict[str, set[str]] = {}
    for row in whole.replicas if whole is not None else ():
        for label, value in row.scope.items():
            found.setdefault(label, set()).add(value)
    chosen = dict(view.scope)
    return {label: sorted(values) for label, values in sorted(found.items()) if len(values) > 1 or label in chosen}


def slots_of(view: View, names: Sequence[str]) -> dict[str, int | None]:
    """The colour slot of each replica, worst first; the same on every page."""
    return held(view.source_key).slots.of(names, names)


def drawn(view: View, promql: str, unit: str) -> Seen[Panel]:
    """A runbook's own query over the view's window, as a panel; one line per series."""
    window = view.window

    def compute() -> Panel:
        frame = source_at(view).range(promql, window)
        lines = tuple(
            Line(_series_name(labels), values) for labels, values in zip(frame.labels, frame.values, strict=True)
        )
        status: Any = "value" if lines else "no_data"
        return Panel("evidence", unit, window, lines, (promql,), status, tainted=frame.warnings)

    return _seen(_pictures.panels, _subject(view, promql), (view.at_ms, window.start_ms), compute)


def _series_name(labels: Mapping[str, str]) -> str:
    kept = {name: value for name, value in labels.items() if name not in ("__name__", "job", "model_name")}
    if set(kept) <= {"instance", "engine"}:
        return " rank ".join(value for name in ("instance", "engine") if (value := kept.get(name))) or "value"
    return ", ".join(f"{name}={value}" for name, value in sorted(kept.items()))


def newest_age_seconds(picture: FleetPicture) -> float | None:
    """Age of the newest sample of any replica at the picture's instant; None when none has come yet."""
    return min((row.age_seconds for row in picture.replicas if row.age_seconds is not None), default=None)


def verified(view: View, runbook_id: str, verify_id: str, instance: str | None, engine: str | None) -> Finding:
    """The runbook's check of a change, at the view's instant. Raises RunbookError, SourceError."""
    return verify(runbook_id, verify_id, source_at(view), view.at_ms, settings(), instance, engine)
