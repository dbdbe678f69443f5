"""Two incidents side by side, or one beside what happens now: the same panels on time that counts from a common zero."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from collectors.figures import Figure, Line, Panel, QuantilePanel
from collectors.fleet import fleet_picture
from collectors.fleet_picture import FleetPicture
from collectors.model import Floats, Int64s, Window
from collectors.quantile_values import QuantileSeries
from collectors.settings import Settings
from collectors.source import QueryRejected, Source


@dataclass(frozen=True)
class Side:
    """A source, and the instant of it that is laid on zero: when the incident began, when the alert fired."""

    source: Source
    zero_ms: int


@dataclass(frozen=True)
class AlignedSide:
    """One side's panels, all as long as the common grid; NaN after `known_steps` (the cursor of a replay, or now)."""

    name: str
    zero_ms: int
    known_steps: int
    panels: tuple[Panel, ...]
    quantile_panels: tuple[QuantilePanel, ...]
    fleet: tuple[Panel, ...]
    """One line for the whole fleet each: waiting, running, kv_cache_usage (the fullest rank), preemptions."""
    picture: FleetPicture | None
    """The side at its last known step; None where nothing of the window has happened yet."""

    def panel(self, panel_id: str) -> Panel | None:
        return next((panel for panel in self.panels if panel.id == panel_id), None)

    def of_fleet(self, panel_id: str) -> Panel | None:
        return next((panel for panel in self.fleet if panel.id == panel_id), None)

    def quantiles(self, panel_id: str) -> QuantilePanel | None:
        return next((panel for panel in self.quantile_panels if panel.id == panel_id), None)


@dataclass(frozen=True)
class Aligned:
    """All sides on one grid: column i of every panel is `offsets_ms[i]` after that side's zero."""

    offsets_ms: Int64s
    sides: tuple[AlignedSide, ...]


def aligned(
    sides: Sequence[Side], settings: Settings, *, before_ms: int, after_ms: int, step_ms: int = 15_000
) -> Aligned:
    """The Fleet page's panels of every side from `before_ms` before its zero to `after_ms` after it.

    No side uses a sample after its source's own now, so a replay shows no more than it would by itself. `before_ms` is cut to whole
    steps, so that zero lies on the grid. Raises QueryRejected for a window without a step, SourceError of a source that cannot answer.
    """
    if step_ms <= 0 or before_ms < 0 or after_ms < 0 or before_ms // step_ms + after_ms // step_ms < 1:
        raise QueryRejected("the window around zero is shorter than a step", "Show more before or after it")
    offsets_ms = step_ms * np.arange(-(before_ms // step_ms), after_ms // step_ms + 1, dtype=np.int64)
    return Aligned(offsets_ms, tuple(_side(side, settings, offsets_ms, step_ms) for side in sides))


def _side(side: Side, settings: Settings, offsets_ms: Int64s, step_ms: int) -> AlignedSide:
    name = side.source.info().name
    whole = Window(side.zero_ms + int(offsets_ms[0]), side.zero_ms + int(offsets_ms[-1]), step_ms)
    known = int((whole.times_ms() <= side.source.now_ms()).sum())
    if known < 2:
        return AlignedSide(name, side.zero_ms, 0, (), (), (), None)
    seen = Window(whole.start_ms, whole.start_ms + (known - 1) * step_ms, step_ms)
    picture = fleet_picture(side.source, seen, settings)
    gauges = (picture.waiting, picture.running, picture.kv_cache_usage, picture.flow)
    quantiles = (picture.time_to_first_token, picture.inter_token_latency)
    return AlignedSide(
        name,
        side.zero_ms,
        known,
        tuple(_longer(panel, whole) for panel in gauges),
        tuple(replace(panel, window=whole, series=_longer_series(panel.series, whole.steps)) for panel in quantiles),
        _fleet_panels(picture, whole),
        picture,
    )


def _fleet_panels(picture: FleetPicture, whole: Window) -> tuple[Panel, ...]:
    totals = picture.totals
    return tuple(
        _fleet_panel(panel_id, figure, whole, rate_window_ms)
        for panel_id, figure, rate_window_ms in (
            ("waiting", totals.waiting, 0),
            ("running", totals.running, 0),
            ("kv_cache_usage", totals.worst_kv_cache_usage, 0),
            ("preemptions", totals.preemptions, picture.flow.rate_window_ms),
        )
    )


def _fleet_panel(panel_id: str, told: Figure, whole: Window, rate_window_ms: int) -> Panel:
    history = told.history
    if history is None or not np.isfinite(history).any():
        status = told.status if told.status != "value" else "no_data"
        return Panel(panel_id, told.unit, whole, (), told.promql, status, told.note, told.tainted, rate_window_ms)
    line = Line("fleet", _padded(history, whole.steps), told.evidence)
    return Panel(panel_id, told.unit, whole, (line,), told.promql, tainted=told.tainted, rate_window_ms=rate_window_ms)


def _longer(panel: Panel, whole: Window) -> Panel:
    lines = tuple(replace(line, values=_padded(line.values, whole.steps)) for line in panel.lines)
    return replace(panel, window=whole, lines=lines)


def _longer_series(series: QuantileSeries, steps: int) -> QuantileSeries:
    return replace(
        series,
        estimate=_padded(series.estimate, steps),
        lo=_padded(series.lo, steps),
        hi=_padded(series.hi, steps),
        observations=_padded(series.observations, steps),
        mean=_padded(series.mean, steps),
        repaired_share=_padded(series.repaired_share, steps),
        flags={
            flag: np.pad(there, [(0, 0)] * (there.ndim - 1) + [(0, steps - there.shape[-1])])
            for flag, there in series.flags.items()
        },
    )


def _padded(values: Floats, steps: int) -> Floats:
    """NaN appended along the last axis up to so many steps."""
    padded: Floats = np.full((*values.shape[:-1], steps), np.nan)
    padded[..., : values.shape[-1]] = values
    return padded
