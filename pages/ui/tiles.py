"""Stat tiles and the status strip: value, unit, change against a named period, sparkline; never colour alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import streamlit as st

from collectors.model import Floats
from pages.ui.markup import Markup, icon, tag
from pages.ui.states import reason

SPARK_WIDTH, SPARK_HEIGHT = 120, 28


@dataclass(frozen=True)
class Tile:
    label: str
    value: str
    unit: str
    change: str
    history: Floats
    tone: str = ""
    kind: str = ""
    """Kind of evidence, when it is not measured."""
    note: str = ""
    """Why there is no value, or what to know before trusting it."""
    doubt: str = ""


@dataclass(frozen=True)
class Answer:
    """One of the four questions that the first screen answers. Level: ok, warn, bad, unknown."""

    question: str
    word: str
    detail: str
    level: str
    doubt: str = ""


def spark(history: Floats) -> Markup:
    """A line from zero; a gap breaks it. st.html removes inline SVG, so the line is a mask and its colour a theme colour."""
    values = np.asarray(history, dtype=float)[-90:]
    finite = values[np.isfinite(values)]
    if finite.size < 2:
        return tag("span", class_="pw-spark-none")
    top = max(float(finite.max()), 1e-9)
    x = np.linspace(1, SPARK_WIDTH - 2, len(values))
    y = SPARK_HEIGHT - 2 - values / top * (SPARK_HEIGHT - 4)
    moves, pen = [], "M"
    for across, down in zip(x, y, strict=True):
        there = bool(np.isfinite(down))
        if there:
            moves.append(f"{pen}{across:.0f} {down:.1f}")
        pen = "L" if there else "M"
    svg = (
        f"%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {SPARK_WIDTH} {SPARK_HEIGHT}' preserveAspectRatio='none'%3E"
        f"%3Cpath d='{''.join(moves)}' fill='none' stroke='%23000' stroke-width='1.4' vector-effect='non-scaling-stroke'/%3E%3C/svg%3E"
    )
    return tag("span", class_="pw-spark", style=f'--pw-line-shape: url("data:image/svg+xml,{svg}")', aria_hidden="true")


def tile_row(tiles: Sequence[Tile], *, dim: bool = False) -> None:
    """The tiles side by side; on a phone the first one is as wide as two."""
    st.html(
        tag(
            "div",
            *(
                tag(
                    "div",
                    tag("span", tile.label, tag("small", tile.kind) if tile.kind else None, class_="pw-tile-label"),
                    tag(
                        "span",
                        tag("b", tile.value),
                        tag("span", tile.unit),
                        reason("!", tile.doubt, "pw-why pw-doubtful", f"tile {tile.label}") if tile.doubt else None,
                        reason("i", tile.note, "pw-why", f"tile {tile.label}")
                        if tile.note and not tile.doubt
                        else None,
                        class_="pw-tile-value",
                        data_tone=tile.tone,
                    ),
                    tag("span", tile.change, class_="pw-tile-change"),
                    spark(tile.history),
                    class_="pw-tile",
                )
                for tile in tiles
            ),
            class_="pw-tiles pw-dim" if dim else "pw-tiles",
        )
    )


def _answer(answer: Answer) -> Markup:
    level = "unknown" if answer.doubt else answer.level  # a number that is not trusted is never shown as fine
    return tag(
        "div",
        icon(level),
        tag("span", answer.question, class_="pw-question"),
        tag("strong", answer.word),
        tag(
            "span",
            answer.detail,
            reason("! not trusted", answer.doubt, "pw-why pw-doubtful", f"answer {answer.question}")
            if answer.doubt
            else None,
            class_="pw-detail",
        ),
        class_="pw-answer",
        data_tone=level,
    )


def status_strip(answers: Sequence[Answer], *, dim: bool = False) -> None:
    """Serving, late, full, worse: four answers side by side."""
    st.html(tag("div", *map(_answer, answers), class_="pw-status pw-dim" if dim else "pw-status"))
