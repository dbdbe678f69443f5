"""What this process was started with: the source, the settings, the folders. Set once by the launcher (or a test), read by every page."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from collectors.settings import Settings


def wall_clock_ms() -> int:
    """Epoch milliseconds now."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class Console:
    """One console: what it looks at and where it keeps things. `source_spec` '' = none was given."""

    source_spec: str
    settings: Settings
    scope: Mapping[str, str] = field(default_factory=dict)
    incidents_folder: Path = Path("incidents")
    shipped_folder: Path | None = None
    """Incident files that come with the program, read only; their stories lie in `stories_folder`."""
    stories_folder: Path | None = None
    records_file: Path | None = None
    """Where walks and incidents are kept; None = where the settings say."""
    simulator_url: str = ""
    """Control address of the bundled simulator, '' when this console does not look at it."""
    clock: Callable[[], int] = wall_clock_ms


_current: Console | None = None


def configure(console: Console) -> None:
    """Put the console that every page of this process shows."""
    global _current
    _current = console


def console() -> Console:
    """The console of this process. Raises RuntimeError when the pages were started without the launcher."""
    if _current is None:
        raise RuntimeError("pages were started without the launcher; start them with: pagewatch ui --source URL")
    return _current
