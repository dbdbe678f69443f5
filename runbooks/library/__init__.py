"""The runbooks that ship: one folder each with runbook.toml (detector and steps), runbook.md and cases.toml."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from runbooks.runbook import Runbook, RunbookError, read_runbook

FOLDER = Path(__file__).resolve().parent


def runbook_ids() -> tuple[str, ...]:
    """Ids of every runbook in the library, sorted."""
    return tuple(sorted(file.parent.name for file in FOLDER.glob("*/runbook.toml")))


@lru_cache(maxsize=64)
def load(runbook_id: str) -> Runbook:
    """One runbook, read once. Raises RunbookError that names the known ids."""
    known = runbook_ids()
    if runbook_id not in known:
        shown = runbook_id if len(runbook_id) <= 60 else runbook_id[:57] + "..."
        raise RunbookError(f"no runbook {shown!r}; there are: {', '.join(known)}")
    return read_runbook(FOLDER / runbook_id)


def library() -> dict[str, Runbook]:
    """Every runbook by id. Raises RunbookError for the first that is not whole."""
    return {runbook_id: load(runbook_id) for runbook_id in runbook_ids()}
