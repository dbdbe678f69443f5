"""The incident files that are shipped, and their stories."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from collectors.capsule import SUFFIX, Capsule, CapsuleSource, read_capsule
from runbooks.shipped import FOLDER as FOLDER
from runbooks.shipped import STORIES as STORIES
from runbooks.shipped import shipped_incidents

NAMES = [each.name for each in shipped_incidents()]


@cache
def shipped(name: str) -> Capsule:
    return read_capsule(FOLDER / f"{name}{SUFFIX}")


def as_of(name: str, at_ms: int) -> CapsuleSource:
    return CapsuleSource(shipped(name), at_ms)


def story(name: str) -> str:
    return (STORIES / f"{name}.md").read_text(encoding="utf-8")


def rows(name: str, first_heading: str) -> list[list[str]]:
    """Cells of the table of a story whose first column and second column are headed so."""
    lines = story(name).splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith(first_heading))
    found = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.strip("|").split(" | ")])
    return found


def offset_ms(cell: str) -> int:
    """'+90 s' -> 90000."""
    matched = re.fullmatch(r"\+(\d+) s", cell)
    assert matched is not None, cell
    return int(matched[1]) * 1000


def path_of(name: str) -> Path:
    return FOLDER / f"{name}{SUFFIX}"
