"""A line chart as PNG without a browser: lines over time, units on the axis, the instant marked. Pillow draws it.

Colours are of one palette that colour-blind readers can tell apart, on white: the picture goes into tickets and mails.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np

from collectors.model import Floats, Int64s
from runbooks.wording import worded

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw
    from PIL.ImageFont import FreeTypeFont, ImageFont

WIDTH, HEIGHT = 960, 360
SCALE = 2
"""Drawn larger and reduced, so that slanted lines are smooth."""
LEFT, RIGHT, TOP, BOTTOM = 92, 24, 54, 62
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#5b4b8a", "#8c6d31")
INK, MUTED, GRID, MARK = "#1f2328", "#57606a", "#d8dee4", "#a40e26"
LABEL_CHARACTERS = 46
DRAWABLE = 1e18
"""Beyond it lies nothing that was measured: no point is drawn there, as for an infinity."""


@dataclass(frozen=True)
class Line:
    """One series: epoch milliseconds and values, NaN where there is no sample."""

    label: str
    times_ms: Int64s
    values: Floats


@dataclass(frozen=True)
class Chart:
    """What one picture shows; `left_out` counts series for which there was no room."""

    title: str
    unit: str
    start_ms: int
    end_ms: int
    at_ms: int
    lines: Sequence[Line]
    left_out: int = 0


def chart_png(chart: Chart) -> bytes:
    """The PNG of a chart; the same chart gives the same bytes."""
    from PIL import Image, ImageDraw

    picture = Image.new("RGB", (WIDTH * SCALE, HEIGHT * SCALE), "white")
    _Drawing(ImageDraw.Draw(picture), chart).draw()
    small = picture.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS)
    out = io.BytesIO()
    small.quantize(256, dither=Image.Dither.NONE).save(out, "PNG", optimize=True)
    return out.getvalue()


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers from the first at or below `low` to the first at or above `high`."""
    span = high - low
    if not span > 1e-300:
        return [low]
    raw = span / max(count, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [step * number for number in range(first, last + 1)]


def time_ticks(start_ms: int, end_ms: int, count: int = 6) -> list[int]:
    """Round instants inside a window, at most about `count`."""
    steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400]
    wanted = (end_ms - start_ms) / 1000 / count
    step = 1000 * next((each for each in steps if each >= wanted), 86400 * max(1, math.ceil(wanted / 86400)))
    return list(range(-(-start_ms // step) * step, end_ms + 1, step))


class _Drawing:
    def __init__(self, draw: ImageDraw, chart: Chart) -> None:
        self.draw_on = draw
        self.chart = chart
        known = [line.values[np.abs(line.values) < DRAWABLE] for line in chart.lines]
        values = np.concatenate(known) if known else np.empty(0)
        top = float(values.max()) if len(values) else 1.0
        low = min(0.0, float(values.min())) if len(values) else 0.0
        self.ticks = ticks(low, top if top > low else low + 1.0)
        self.low, self.high = self.ticks[0], self.ticks[-1]

    def draw(self) -> None:
        self._text((LEFT, 12), _shown(self.chart.title, 100), INK, 17)
        self._grid()
        for number, line in enumerate(self.chart.lines):
            self._line(line, PALETTE[number % len(PALETTE)])
        self._instant()
        self._legend()

    def x(self, t_ms: float) -> float:
        share = (t_ms - self.chart.start_ms) / max(self.chart.end_ms - self.chart.start_ms, 1)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        share = (value - self.low) / max(self.high - self.low, 1e-300)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    def _grid(self) -> None:
        for value in self.ticks:
            y = self.y(value)
            self._stroke([(LEFT, y), (WIDTH - RIGHT, y)], GRID, 1)
            self._text((LEFT - 8, y), worded(value, self.chart.unit), MUTED, 12, "rm")
        marks = time_ticks(self.chart.start_ms, self.chart.end_ms)
        seconds = any(mark % 60_000 for mark in marks)
        for mark in marks:
            self._stroke([(self.x(mark), HEIGHT - BOTTOM), (self.x(mark), HEIGHT - BOTTOM + 5)], MUTED, 1)
            when = datetime.fromtimestamp(mark / 1000, UTC)
            self._text(
                (self.x(mark), HEIGHT - BOTTOM + 8), when.strftime("%H:%M:%S" if seconds else "%H:%M"), MUTED, 12, "mt"
            )
        day = datetime.fromtimestamp(self.chart.start_ms / 1000, UTC).strftime("%Y-%m-%d, UTC")
        self._text((WIDTH - RIGHT, HEIGHT - 6), day, MUTED, 11, "rb")

    def _line(self, line: Line, colour: str) -> None:
        run: list[tuple[float, float]] = []
        for t, value in zip(line.times_ms.tolist(), line.values.tolist(), strict=True):
            if abs(value) < DRAWABLE:
                run.append((self.x(t), self.y(value)))
                continue
            self._run(run, colour)
            run = []
        self._run(run, colour)

    def _run(self, run: list[tuple[float, float]], colour: str) -> None:
        """A stretch without gaps; a lone sample is a dot."""
        if len(run) > 1:
            self._stroke(run, colour, 2)
        elif run:
            (x, y) = run[0]
            box = [(x - 2.5) * SCALE, (y - 2.5) * SCALE, (x + 2.5) * SCALE, (y + 2.5) * SCALE]
            self.draw_on.ellipse(box, fill=colour)

    def _instant(self) -> None:
        x = self.x(self.chart.at_ms)
        for y in range(TOP, HEIGHT - BOTTOM, 8):
            self._stroke([(x, y), (x, min(y + 4, HEIGHT - BOTTOM))], MARK, 1)
        when = datetime.fromtimestamp(self.chart.at_ms / 1000, UTC).strftime("%H:%M:%S")
        near_end = x > WIDTH - 150
        self._text((x - 5 if near_end else x + 5, TOP - 16), f"instant {when}", MARK, 12, "ra" if near_end else "la")

    def _legend(self) -> None:
        x = float(LEFT)
        y = HEIGHT - 20
        for number, line in enumerate(self.chart.lines):
            text = _shown(line.label, LABEL_CHARACTERS)
            width = self._width(text, 12) + 34
            if x + width > WIDTH - RIGHT - 110:
                left = len(self.chart.lines) - number + self.chart.left_out
                self._text((x, y), f"and {left} more", MUTED, 12, "lm")
                return
            self._stroke([(x, y), (x + 16, y)], PALETTE[number % len(PALETTE)], 3)
            self._text((x + 20, y), text, INK, 12, "lm")
            x += width
        if self.chart.left_out:
            self._text((x, y), f"and {self.chart.left_out} more", MUTED, 12, "lm")

    def _stroke(self, points: Sequence[tuple[float, float]], colour: str, width: int) -> None:
        self.draw_on.line([(x * SCALE, y * SCALE) for x, y in points], fill=colour, width=width * SCALE, joint="curve")

    def _text(self, at: tuple[float, float], text: str, colour: str, size: int, anchor: str = "la") -> None:
        self.draw_on.text((at[0] * SCALE, at[1] * SCALE), text, fill=colour, font=_font(size), anchor=anchor)

    def _width(self, text: str, size: int) -> float:
        return self.draw_on.textlength(text, font=_font(size)) / SCALE


def _font(size: int) -> FreeTypeFont | ImageFont:
    from PIL import ImageFont as fonts

    return fonts.load_default(size * SCALE)


def _shown(text: str, characters: int) -> str:
    """Text from outside on one line: what the font cannot draw becomes a visible escape, long values are cut."""
    plain = "".join(c if " " <= c <= "~" else c.encode("unicode_escape").decode() for c in text)
    return plain if len(plain) <= characters else plain[: characters - 3] + "..."
