"""The small incident files that come with the program, and their stories. Read-only: a library lists them beside its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "incidents"
STORIES = ROOT / "docs" / "incidents"


@dataclass(frozen=True)
class Shipped:
    """One of them; `story` is Markdown of our own, None where the docs were left out of the installation."""

    name: str
    path: Path
    story: Path | None


def shipped_incidents() -> tuple[Shipped, ...]:
    """All of them by name; none where the folder was left out of the installation."""
    return tuple(
        Shipped(path.stem, path, story if (story := STORIES / f"{path.stem}.md").is_file() else None)
        for path in sorted(FOLDER.glob("*.capsule"))
    )
