"""The library of incident files as a page shows it: the list with a search, upload, deletion and its undo."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from collectors.source import SourceError
from pages.ui import data, library, nav, states, story
from pages.ui.compare import QUIET_MS
from pages.ui.library import Entry
from pages.ui.story_view import places_text
from pages.ui.table import Cell, Column, Row, table
from pages.ui.words import cause_text, day_and_clock, digits, duration
from runbooks.timeline import Timeline

UPLOAD_MB = 64
FEW = 5
"""So many files are seen at a glance: no search."""
COLUMNS = (Column("incident file"), Column("recorded"), Column("length", "right"), Column("replicas", "right"), Column("engine"), Column("what was found", "wrap"), Column("size", "right"))  # fmt: skip


def listing() -> str | None:
    """The list and what can be done with it; the address that was opened."""
    opened: str | None = None
    with states.section("The library"):
        entries = library.entries()
        names = library.names(entries)
        if len(entries) > FEW:
            words = st.text_input(
                "Search", key="library_search", placeholder="search: a cause, a title, a replica, an engine", label_visibility="collapsed",
                max_chars=200, width=420,
            )  # fmt: skip
            entries = library.matching(entries, words, lambda entry: _found(entry).text)
            if not entries:
                states.note(f"No incident file holds all of: {words}")
        if entries:
            opened = table(COLUMNS, [_row(entry, names[entry.key]) for entry in entries], key="library")
        elif not library.entries():
            states.empty(
                "No incident file yet",
                "Drop a recording below, or record one from the Diagnose page.",
                "On the command line: pagewatch record, pagewatch import",
            )
    with states.section("The upload"):
        _upload()
    with states.section("What can be deleted"):
        _deletion()
    return opened


def _row(entry: Entry, name: str) -> Row:
    size = f"{digits(entry.size_bytes / 1e6)} MB" if entry.size_bytes >= 1e6 else f"{digits(entry.size_bytes / 1e3)} kB"
    if entry.manifest is None:
        empty = (Cell(""), Cell(""), Cell(""), Cell(""), Cell(entry.problem, "bad", "bad"), Cell(size, "muted"))
        return Row(name, empty)
    manifest = entry.manifest
    window = manifest.window
    engine = f"{manifest.engine.name} {manifest.engine.version}".strip()
    cells = (
        Cell(f"{day_and_clock(window.start_ms)} UTC", "muted"),
        Cell(duration((window.end_ms - window.start_ms) / 1000)),
        Cell(str(len(manifest.replicas))),
        Cell(engine, "muted"),
        _found(entry),
        Cell(size, "muted"),
    )
    return Row(name, cells, nav.link("fleet", source=entry.key))


def _found(entry: Entry) -> Cell:
    """What the diagnosis said along the recording, where that is known already; else what its manifest carries."""
    told = story.told(entry.key, first=False)
    if isinstance(told, Timeline):
        bands = sorted(
            told.bands(told.at_ms[-1] if told.at_ms else 0, QUIET_MS), key=lambda band: band.shown_ms - band.to_ms
        )
        causes = list(dict.fromkeys(f"{cause_text(band.id)} on {places_text(band.places)}" for band in bands))
        return Cell("; ".join(causes[:3]) or "nothing wrong", "" if causes else "muted", "warn" if causes else "ok")
    verdicts = (entry.manifest.diagnosis.get("verdicts") or []) if entry.manifest is not None else []
    if verdicts and isinstance(verdicts[0], dict):
        return Cell(cause_text(str(verdicts[0].get("cause", ""))), icon="warn")
    return Cell("being judged", "muted")


def _upload() -> None:
    with st.expander(
        "Add a recording: an incident file, Prometheus JSON, OpenMetrics, VictoriaMetrics lines or Parquet"
    ):
        dropped = st.file_uploader(
            f"At most {UPLOAD_MB} MB; it stays on this machine", key="upload", max_upload_size=UPLOAD_MB
        )
        if dropped is not None and st.button("Add it to the library", type="primary"):
            try:
                key = library.take_in(dropped.name, dropped.getvalue())
            except SourceError as error:
                states.trouble(f"{dropped.name} was not added.", error.cause, error.next_step)
            except OSError as error:
                states.trouble(
                    f"{dropped.name} was not added.", f"{error.filename}: {error.strerror}", "Is the folder writable?"
                )
            else:
                states.line("ok", f"Added as {key}.")
                nav.follow(nav.link("fleet", source=key))


def _deletion() -> None:
    """Delete a recording of the console's own folder, and bring it back."""
    own, gone = library.own_keys(), library.deleted()
    if not own and not gone:
        return
    with st.expander("Delete a recording, or bring one back"):
        if own:
            with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
                key = st.selectbox(
                    "In this console's folder", own, index=None, placeholder="a recording", key="delete_key", width=340
                )
                if st.button("Delete it", disabled=key is None) and key is not None:
                    _tried(library.delete, key)
        for key in gone[:8]:
            with st.container(horizontal=True, vertical_alignment="center", gap="small"):
                states.line("unknown", f"{key} was deleted; it is kept for {library.KEPT_DAYS} days.")
                if st.button("Undo", key=f"undo_{key}"):
                    _tried(library.bring_back, key)


def _tried(act: Callable[[str], object], key: str) -> None:
    try:
        act(key)
        data.drop(key)
    except SourceError as error:
        states.trouble("Nothing was changed.", error.cause, error.next_step)
    except OSError as error:
        states.trouble("Nothing was changed.", f"{error.filename}: {error.strerror}", "Is the folder writable?")
    else:
        st.rerun()
