"""The pictures of a walk: what its steps looked at, over the time around the instant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from collectors.model import Frame, Window
from collectors.source import Source, SourceError
from runbooks.chart_png import PALETTE, Chart, Line, chart_png
from runbooks.findings import Number, Walk

BEFORE_MS = 900_000
AFTER_MS = 300_000
POINTS = 240
MOST_CHARTS = 16
ENVIRONMENT = frozenset({"job", "__name__"})
"""Labels that say nothing to tell the lines of one chart apart."""


@dataclass(frozen=True)
class StepChart:
    """One picture of one step. `name` is a file name; `problem` says why there is no picture."""

    step_id: str
    name: str
    title: str
    png: bytes
    problem: str = ""


def charts_of(walk: Walk, source: Source) -> tuple[StepChart, ...]:
    """A picture for each step of the path that asked PromQL, numbers of one unit together. A query that fails is said.

    All pictures have one time axis: from a quarter of an hour before the instant, or from where the data begin.
    """
    window = _window(walk.at_ms, source.now_ms())
    wanted = [
        (finding.step_id, unit, numbers) for finding in walk.path for unit, numbers in _by_unit(finding.numbers).items()
    ][:MOST_CHARTS]
    queries = dict.fromkeys(number.promql for _, _, numbers in wanted for number in numbers)
    answers = {promql: _ask(source, promql, window) for promql in queries}
    start_ms = _data_begin(answers.values(), window, walk.at_ms)
    return tuple(
        _chart(step_id, unit, numbers, f"{place:02d}-{step_id}.png", answers, (start_ms, window.end_ms), walk.at_ms)
        for place, (step_id, unit, numbers) in enumerate(wanted, start=1)
    )


def _window(at_ms: int, now_ms: int) -> Window:
    end_ms = min(at_ms + AFTER_MS, max(now_ms, at_ms))
    step_ms = max(1000, (end_ms - (at_ms - BEFORE_MS)) // POINTS // 1000 * 1000)
    return Window(at_ms - BEFORE_MS, end_ms, step_ms)


def _data_begin(answers: Iterable[Frame | SourceError], window: Window, at_ms: int) -> int:
    """The first instant at which any query has a value, one step before it; never less than a minute before the instant."""
    begins = [
        int(frame.times_ms[known[0]])
        for frame in answers
        if isinstance(frame, Frame) and len(known := np.flatnonzero(np.isfinite(frame.values).any(axis=0)))
    ]
    return max(window.start_ms, min(min(begins, default=window.start_ms) - window.step_ms, at_ms - 60_000))


def _by_unit(numbers: Iterable[Number]) -> Mapping[str, list[Number]]:
    """The numbers that were asked by PromQL, by unit; each query once."""
    units: dict[str, list[Number]] = {}
    seen = set()
    for number in numbers:
        if number.promql and number.kind != "configured" and number.promql not in seen:
            seen.add(number.promql)
            units.setdefault(number.unit, []).append(number)
    return units


def _chart(
    step_id: str,
    unit: str,
    numbers: Sequence[Number],
    name: str,
    answers: Mapping[str, Frame | SourceError],
    span: tuple[int, int],
    at_ms: int,
) -> StepChart:
    title = f"{', '.join(number.label for number in numbers)} ({unit})"
    lines: list[Line] = []
    problems = []
    for number in numbers:
        frame = answers[number.promql]
        if isinstance(frame, SourceError):
            problems.append(f"{number.label}: {frame}")
            continue
        lines += _lines(number, frame, span[0])
    if not any(np.isfinite(line.values).any() for line in lines):
        return StepChart(step_id, name, title, b"", "; ".join(problems) or "no data in the window")
    shown = lines[: len(PALETTE)]
    chart = Chart(title, unit, *span, at_ms, shown, len(lines) - len(shown))
    return StepChart(step_id, name, title, chart_png(chart), "; ".join(problems))


def _ask(source: Source, promql: str, window: Window) -> Frame | SourceError:
    try:
        return source.range(promql, window)
    except SourceError as error:
        return error


def _lines(number: Number, frame: Frame, start_ms: int) -> list[Line]:
    """The series of one query, the highest first; labels only where they tell lines apart."""
    inside = frame.times_ms >= start_ms
    order = sorted(range(len(frame.labels)), key=lambda i: (-_peak(frame, i), sorted(frame.labels[i].items())))
    telling = {
        key
        for key in {key for labels in frame.labels for key in labels} - ENVIRONMENT
        if len({labels.get(key) for labels in frame.labels}) > 1
    }
    lines = []
    for i in order:
        which = ", ".join(f"{key}={frame.labels[i][key]}" for key in sorted(telling) if key in frame.labels[i])
        label = f"{number.label} {which}" if which else number.label
        lines.append(Line(label, frame.times_ms[inside], frame.values[i][inside]))
    return lines


def _peak(frame: Frame, i: int) -> float:
    values = frame.values[i]
    known = values[np.isfinite(values)]
    return float(known.max()) if len(known) else float("-inf")
