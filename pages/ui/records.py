"""Walks that people record and incidents that alerts opened, out of the records file."""

from __future__ import annotations

import threading
from typing import Any

import streamlit as st

from pages.ui.console import console
from runbooks.incidents import Incident, Incidents
from runbooks.records import Records, RecordsError, records_path
from runbooks.walks import RecordedWalk, Walks

_opened: dict[str, Records] = {}
_lock = threading.Lock()


def records() -> Records:
    """The records file of this console, opened once. Raises RecordsError."""
    here = console()
    path = here.records_file or records_path(here.settings)
    with _lock:
        if str(path) not in _opened:
            _opened[str(path)] = Records(path)
        return _opened[str(path)]


def walks() -> Walks:
    return Walks(records(), console().clock)


def history(runbook: str | None = None, limit: int = 50) -> tuple[RecordedWalk, ...]:
    """Recorded walks, newest first; () when the file cannot be used (which the walk itself then says)."""
    try:
        return walks().history(runbook, limit)
    except RecordsError:
        return ()


def opened_incidents(limit: int = 50) -> tuple[Incident, ...]:
    """Incidents that alerts opened, newest first; () when the file cannot be used."""
    try:
        return tuple(Incidents(records(), console().clock).list(limit=limit))
    except RecordsError:
        return ()


def who() -> str:
    """The name under which this session answers: from the login, else as typed, else 'operator'."""
    user: Any = st.user
    told = user.get("email") or user.get("name") if user.get("is_logged_in") else None
    return str(told or st.session_state.get("pw_who") or "operator")[:80]
