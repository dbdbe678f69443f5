"""Time charts as values, and how they reach the browser: packed bytes on a regular grid, not a Plotly figure.

The browser builds the figure (`browser/live_chart.js`), so a refresh costs about a millisecond and a few kB.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from collectors.model import Floats
from pages.ui.assets import component, plotly_url

_CHART = component("live_chart")

Tone = int | str
"""A palette slot, or a name: text, muted, faint, accent, warn, bad, ok, quiet."""


@dataclass(frozen=True)
class Line:
    """One value per instant; NaN is a gap and stays one."""

    kind: ClassVar[str] = "line"
    name: str
    values: Floats
    tone: Tone
    width: float = 1.6
    legend: bool = True
    dash: bool = False

    def rows(self) -> list[Floats]:
        return [self.values]


@dataclass(frozen=True)
class Band:
    """The room between two lines, without a readout of its own."""

    kind: ClassVar[str] = "band"
    name: str
    low: Floats
    high: Floats
    tone: Tone
    alpha: float = 0.16
    legend: bool = False

    def rows(self) -> list[Floats]:
        return [self.low, self.high]


@dataclass(frozen=True)
class Quantile:
    """The bucket that must hold the quantile, drawn as steps, and the estimate inside it. `high` is infinite in the last bucket."""

    kind: ClassVar[str] = "quantile"
    name: str
    low: Floats
    high: Floats
    estimate: Floats
    tone: Tone
    width: float = 1.6
    alpha: float = 0.16
    legend: bool = True

    def rows(self) -> list[Floats]:
        return [self.low, self.high, self.estimate]


@dataclass(frozen=True)
class Heat:
    """Rates per bucket over time; `buckets` names them ('250-500 ms'), `edges` are the short tick texts, both lowest first."""

    kind: ClassVar[str] = "heat"
    name: str
    rates: Floats
    buckets: tuple[str, ...]
    edges: tuple[str, ...]
    rate_unit: str = "/s"
    limit_row: float | None = None
    """Where the limit lies between the rows, in rows from the bottom."""
    tone: Tone = "accent"
    legend: bool = False

    def rows(self) -> list[Floats]:
        return list(self.rates)


Series = Line | Band | Quantile | Heat


@dataclass(frozen=True)
class Mark:
    """An incident or a detector window (a band), or a restart (a line); with an address it is a link."""

    label: str
    from_ms: int
    to_ms: int | None = None
    tone: str = "warn"
    line: bool = False
    href: str = ""


@dataclass(frozen=True)
class Limit:
    label: str
    value: float


@dataclass(frozen=True)
class Panel:
    """One chart. The window holds even when there is nothing to draw in it."""

    title: str
    unit: str
    """'s', 'ratio', or the word that follows a plain number."""
    start_ms: int
    step_ms: int
    points: int
    series: tuple[Series, ...]
    axis: tuple[int, int] | None = None
    """What the time axis spans, when that is more than the data."""
    unit_label: str = ""
    marks: tuple[Mark, ...] = ()
    limits: tuple[Limit, ...] = ()
    y_max: float | None = None
    height: int = 172
    margin_left: int | None = None
    promql: tuple[str, ...] = ()
    runbook: str = ""
    taints: tuple[str, ...] = ()
    """Why these numbers are not to be trusted."""
    notice: str = ""
    """The word for having nothing to draw: no data, not scraped, not in this engine version."""
    aside: str = ""
    """A remark behind the legend, such as '12 more in grey'."""
    zeros: tuple[tuple[str, int], ...] = ()
    """Time counts from a common zero: the name of each side and its instant (ms) at zero. Empty: time is UTC."""
    cursor_ms: int | None = None
    """The page's cursor inside the picture: what comes after it is drawn pale. None: the picture ends with it."""


def _look(series: Series) -> dict[str, Any]:
    fields = ("width", "alpha", "dash", "buckets", "edges", "rate_unit", "limit_row")
    return {name: getattr(series, name) for name in fields if getattr(series, name, None) is not None}


def pack(panel: Panel, *, group: str = "page", dim: bool = False) -> bytes:
    """u32 header length, JSON header padded to 4, then one float32 row of `points` values per line, edge or bucket.

    Raises ValueError for rows that do not fit the panel's grid.
    """
    rows: list[Floats] = []
    series = []
    for each in panel.series:
        named = {"kind": each.kind, "row": len(rows), "name": each.name, "tone": each.tone, "legend": each.legend}
        series.append({**named, **_look(each)})
        rows += each.rows()
    if any(len(row) != panel.points for row in rows):
        raise ValueError(f"{panel.title}: rows of {sorted({len(r) for r in rows})} points on a grid of {panel.points}")
    end_ms = panel.start_ms + (panel.points - 1) * panel.step_ms
    header = {
        "title": panel.title, "unit": panel.unit, "unit_label": panel.unit_label, "start_ms": panel.start_ms,
        "step_ms": panel.step_ms, "points": panel.points, "series": series, "axis": panel.axis or (panel.start_ms, end_ms),
        "marks": [asdict(mark) for mark in panel.marks], "limits": [asdict(limit) for limit in panel.limits if math.isfinite(limit.value)],
        "y_max": panel.y_max, "height": panel.height, "margin_left": panel.margin_left, "promql": panel.promql,
        "runbook": panel.runbook, "taints": panel.taints, "notice": panel.notice, "aside": panel.aside, "zeros": panel.zeros, "cursor_ms": panel.cursor_ms,
        "group": group, "dim": dim, "plotly_url": plotly_url(),
    }  # fmt: skip
    head = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    head += b" " * (-len(head) % 4)
    body = np.asarray(rows, dtype="<f4").tobytes() if rows else b""
    return struct.pack("<I", len(head)) + head + body


def unpack(payload: bytes) -> tuple[dict[str, Any], np.ndarray[Any, Any]]:
    """The header and the rows of a packed panel, as the browser reads them."""
    length = struct.unpack_from("<I", payload)[0]
    header = json.loads(payload[4 : 4 + length])
    return header, np.frombuffer(payload, dtype="<f4", offset=4 + length).reshape(-1, header["points"])


def _nothing() -> None:
    pass


def live_chart(payload: bytes, *, key: str, on_picked: Callable[[], None] = _nothing) -> Any:
    """Draws a packed panel. The key must not change while the panel lives: it is what keeps the browser's node.

    Returns `picked` ({"at_ms"}: a click or Enter), `zoomed` ({"from_ms", "to_ms"}: a drag) and `opened` (an address), each None
    except in the run that the gesture caused.
    """
    return _CHART(
        key=key, data=payload, on_picked_change=on_picked, on_zoomed_change=_nothing, on_opened_change=_nothing
    )
