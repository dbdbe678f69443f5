"""Tables whose rows are links, with a reason behind every number that needs one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pages.ui.assets import component

_TABLE = component("table")


@dataclass(frozen=True)
class Column:
    text: str
    align: str = ""
    hint: str = ""
    width: str = ""
    """CSS width; with one, columns keep their places from table to table."""


@dataclass(frozen=True)
class Cell:
    """One value. `note` is the reason behind it; with `doubt` it says why not to trust it."""

    text: str
    tone: str = ""
    icon: str = ""
    note: str = ""
    doubt: bool = False


@dataclass(frozen=True)
class Row:
    """One line; `slot` -1 = no colour of its own, None = grey."""

    name: str
    cells: tuple[Cell, ...]
    href: str = ""
    slot: int | None = -1


def rows_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [
        {
            "name": row.name,
            "href": row.href,
            "cells": [{key: value for key, value in vars(cell).items() if value} | {"text": cell.text} for cell in row.cells],
            **({} if row.slot == -1 else {"slot": row.slot}),
        }
        for row in rows
    ]  # fmt: skip


def table(columns: Sequence[Column], rows: Sequence[Row], *, key: str, dim: bool = False) -> str | None:
    """Draws it; the address of the row that was just opened, else None."""
    data = {"columns": [vars(column) for column in columns], "rows": rows_json(rows), "dim": dim}
    opened: str | None = _TABLE(key=key, data=data, on_opened_change=lambda: None).opened
    return opened
