"""What one scrape of a target becomes: a row of values at one instant, with the series that Prometheus would write beside them.

Target labels win over exposed ones (`exported_` prefix), a series that was there and is gone gets a staleness marker, and every scrape, failed or not,
reports `up`, `scrape_duration_seconds`, `scrape_samples_scraped`, `scrape_samples_post_metric_relabeling` and `scrape_series_added`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collectors.model import STALE, Floats, Labels
from collectors.store.line_memory import Exposition, Layout
from collectors.store.series import LabelSet
from collectors.store.targets import Target

REPORTED = (
    "up",
    "scrape_duration_seconds",
    "scrape_samples_scraped",
    "scrape_samples_post_metric_relabeling",
    "scrape_series_added",
)
MAX_AHEAD_MS = 600_000
"""Samples whose own timestamp lies further in the future are dropped (Prometheus: scrape.maxAheadTime, 10 minutes)."""
MAX_BEHIND_MS = 3_600_000
"""Samples whose own timestamp is older are dropped (Prometheus's head is out of bounds half a chunk range, 1 h, behind)."""
HOUR_MS = 3_600_000


class TooManyNewSeries(Exception):
    """A target whose series keep changing; taking them all would fill the memory."""


@dataclass(frozen=True, eq=False)
class Row:
    """Values of one target at one instant. `series` is the same object from scrape to scrape as long as nothing changes."""

    target: str
    time_ms: int
    series: tuple[LabelSet, ...]
    values: Floats


class TargetRows:
    """Turns the scrapes of one target into rows; remembers which series need a marker when they end."""

    def __init__(self, target: Target, *, new_series_an_hour: int = 200_000) -> None:
        self._new_series_an_hour = new_series_an_hour
        self._allowance = float(new_series_an_hour)
        self._allowed_at_ms: int | None = None
        self._target_labels: Labels = target.labels
        self._key = target.key
        self._reported = tuple(LabelSet({"__name__": name} | dict(target.labels)) for name in REPORTED)
        self._made: dict[int, tuple[Labels, LabelSet]] = {}
        """By the identity of exposed labels, which are held here so that none is given to others meanwhile."""
        self._layout: Layout | None = None
        self._select: npt.NDArray[np.intp] | None = None
        self._row_series: tuple[LabelSet, ...] = self._reported
        self._present: tuple[LabelSet, ...] = ()
        self._known: frozenset[LabelSet] = frozenset()

    def scraped(self, exposition: Exposition, time_ms: int, duration_seconds: float) -> list[Row]:
        """The rows of a successful scrape; more than one when the target gave timestamps of its own. Raises TooManyNewSeries."""
        samples = exposition.layout.samples
        if exposition.layout is self._layout and exposition.times_ms is None and len(self._present) > 0:
            values = exposition.values if self._select is None else exposition.values[self._select]
            return [self._row(time_ms, self._row_series, values, (1.0, duration_seconds, samples, samples, 0))]
        return self._relearned(exposition, time_ms, duration_seconds)

    def failed(self, time_ms: int, duration_seconds: float, samples: int = 0, samples_kept: int = 0) -> list[Row]:
        """The row of a failed scrape: `up` 0 and a marker for every series that was there.

        `samples` were read before a text broke off, `samples_kept` of them with valid labels.
        """
        gone, self._present = self._present, ()
        self._layout = None
        report = (0.0, duration_seconds, samples, samples_kept, 0)
        return [self._row(time_ms, gone + self._reported, np.full(len(gone), STALE), report)]

    def ended(self, time_ms: int) -> list[Row]:
        """The row of a target that is no longer scraped: markers for everything, the reports included."""
        gone, self._present = self._present + self._reported, ()
        self._layout = None
        return [Row(self._key, time_ms, gone, np.full(len(gone), STALE))]

    def _row(self, time_ms: int, series: tuple[LabelSet, ...], values: Floats, report: Sequence[float]) -> Row:
        return Row(self._key, time_ms, series, np.concatenate((values, np.array(report, dtype=np.float64))))

    def _relearned(self, exposition: Exposition, time_ms: int, duration_seconds: float) -> list[Row]:
        labelled = self._labelled(exposition.layout.series)
        times = exposition.times_ms or (None,) * len(labelled)
        taken: set[LabelSet] = set(self._reported)
        places: list[int] = []
        own_times: dict[int, list[int]] = {}
        for place, (series, own_ms) in enumerate(zip(labelled, times, strict=True)):
            if series in taken:
                continue
            taken.add(series)
            if own_ms is None:
                places.append(place)
            elif time_ms - MAX_BEHIND_MS <= own_ms <= time_ms + MAX_AHEAD_MS:
                own_times.setdefault(own_ms, []).append(place)
        present = tuple(labelled[place] for place in places)
        gone = self._vanished(present)
        added = len((taken - self._known) - set(self._reported))
        self._allow(added, time_ms)
        select = np.array(places, dtype=np.intp)
        values = np.concatenate((exposition.values[select], np.full(len(gone), STALE)))
        samples = exposition.layout.samples
        if samples or exposition.metadata:  # an empty answer is not taken as the end of every series
            self._known = frozenset(taken)
        self._layout, self._present = exposition.layout, present
        self._select = None if len(places) == len(labelled) else select
        self._row_series = present + self._reported
        row_series = present + gone + self._reported if gone else self._row_series
        row = self._row(time_ms, row_series, values, (1.0, duration_seconds, samples, samples, added))
        return [row] + [
            Row(f"{self._key} own timestamps", own_ms, tuple(labelled[p] for p in chosen), exposition.values[chosen])
            for own_ms, chosen in sorted(own_times.items())
        ]

    def _labelled(self, exposed: Sequence[Labels]) -> list[LabelSet]:
        """The series with the target's labels; those whose exposed labels are the same object as before are not made anew."""
        known = self._made
        self._made = {
            id(labels): known.get(id(labels)) or (labels, labelled_series(labels, self._target_labels))
            for labels in exposed
        }
        return [self._made[id(labels)][1] for labels in exposed]

    def _allow(self, added: int, time_ms: int) -> None:
        """Take new series from an allowance that fills up again over an hour."""
        passed_ms = max(0, time_ms - self._allowed_at_ms) if self._allowed_at_ms is not None else 0
        self._allowed_at_ms = time_ms
        refill = passed_ms / HOUR_MS * self._new_series_an_hour
        self._allowance = min(float(self._new_series_an_hour), self._allowance + refill)
        if added > self._allowance:
            raise TooManyNewSeries(
                f"{added} new series on top of those before are more than {self._new_series_an_hour} an hour; does a label change with every scrape?"
            )
        self._allowance -= added

    def _vanished(self, present: tuple[LabelSet, ...]) -> tuple[LabelSet, ...]:
        here = set(present)
        return tuple(series for series in self._present if series not in here)


def labelled_series(exposed: Labels, target: Mapping[str, str]) -> LabelSet:
    """Exposed labels with the target's own; an exposed label of the same name moves to `exported_<name>` (honor_labels: false).

    Source: Prometheus scrape.resolveConflictingExposedLabels.
    """
    pairs = {name: value for name, value in exposed.items() if value}
    clashes = sorted((name for name in target if name in pairs), key=len)
    if not clashes:
        return LabelSet(pairs | dict(target))
    moved: dict[str, str] = {}
    for name in clashes:
        renamed = f"exported_{name}"
        while renamed in exposed or renamed in target or renamed in moved:
            renamed = f"exported_{renamed}"
        moved[renamed] = pairs[name]
    return LabelSet(pairs | moved | dict(target))
