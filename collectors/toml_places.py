"""Where in a TOML text a field stands, so that a mistake in it can be named with its line."""

from __future__ import annotations

import re
from collections.abc import Sequence

_HEADER = re.compile(r"^\s*(\[\[?)\s*([^\]]+?)\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(r"^\s*((?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*'))*)\s*=")
_PART = re.compile(r"[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*'")


def line_of(text: str, place: Sequence[str | int]) -> int:
    """Line (from 1) of the field at `place` (keys and list positions, outermost first), else of what encloses it.

    Reads table headers, array-of-table headers and keys at line starts; a field inside an inline table is found on the
    line of that table.
    """
    lines: dict[tuple[str | int, ...], int] = {}
    counts: dict[tuple[str | int, ...], int] = {}
    table: tuple[str | int, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = _resolved(_parts(header[2]), counts, array=header[1] == "[[")
            lines.setdefault(table, number)
        elif key := _KEY.match(line):
            keys = (*table, *_parts(key[1]))
            for length in range(len(table) + 1, len(keys) + 1):
                lines.setdefault(keys[:length], number)
    wanted = tuple(place)
    while wanted and wanted not in lines:
        wanted = wanted[:-1]
    return lines.get(wanted, 1)


def _parts(text: str) -> list[str]:
    return [part.strip("\"'") for part in _PART.findall(text)]


def _resolved(parts: list[str], counts: dict[tuple[str | int, ...], int], *, array: bool) -> tuple[str | int, ...]:
    """The full place of a header: tables inside an array of tables belong to its latest element."""
    place: tuple[str | int, ...] = ()
    for position, part in enumerate(parts):
        place = (*place, part)
        if array and position == len(parts) - 1:
            counts[place] = counts.get(place, -1) + 1
        if place in counts:
            place = (*place, counts[place])
    return place
