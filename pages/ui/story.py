"""What the diagnosis said all along a recording: computed once per incident file in the background, for the player's track and the lanes."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from pathlib import Path

from collectors.capsule import CapsuleSource, read_capsule
from collectors.scope import ScopedSource
from collectors.source import Source, SourceBroken, SourceError
from pages.ui import data, library
from pages.ui.charts import Mark
from pages.ui.console import console
from pages.ui.story_view import places_text, single_places
from pages.ui.words import cause_text
from runbooks.timeline import Band, Timeline, instants, timeline

LOG = logging.getLogger("pagewatch.pages")
KEPT = 256

_told: OrderedDict[str, Timeline | str] = OrderedDict()
_wanted: list[str] = []
_worker: threading.Thread | None = None
_stopping = threading.Event()
_lock = threading.Lock()


def told(key: str, *, first: bool = True) -> Timeline | str | None:
    """The timeline of a recording; text says why there is none; None while it is being made (the first call begins).

    Recordings are judged one after the other; `first` puts this one before those that merely stand in a list.
    """
    global _worker
    name = str(_path(key))
    with _lock:
        if name in _told:
            _told.move_to_end(name)
            return _told[name]
        if name in _wanted:
            _wanted.remove(name)
        _wanted.insert(0 if first else len(_wanted), name)
        if _worker is None and not _stopping.is_set():
            _worker = threading.Thread(target=_work, name="timelines", daemon=True)
            _worker.start()
    return None


def _path(key: str) -> Path:
    held = data.held(key) if not key else None
    if held is None:
        return library.path_of(key)
    if held.capsule is None or held.capsule.path is None:
        raise SourceBroken("a live source has no end", "Open a recording")
    return held.capsule.path


def known(key: str) -> Timeline | str | None:
    """What has been made already; begins nothing."""
    with _lock:
        return _told.get(str(_path(key)))


def _work() -> None:
    """One recording after the other, until none is wanted."""
    global _worker
    while True:
        with _lock:
            if not _wanted or _stopping.is_set():
                _worker = None
                return
            name = _wanted[0]
        found = _tell(name)
        with _lock:
            if _stopping.is_set():
                continue
            _told[name] = found
            while len(_told) > KEPT:
                _told.popitem(last=False)
            if name in _wanted:
                _wanted.remove(name)


def _tell(name: str) -> Timeline | str:
    here = console()
    scope = {**here.settings.scope, **here.scope}
    try:
        capsule = read_capsule(name)
        extent = data.extent_of(capsule)

        def source_at(at_ms: int) -> Source:
            source: Source = CapsuleSource(capsule, at_ms)
            return ScopedSource(source, scope) if scope else source

        return timeline(
            source_at,
            instants(extent.start_ms, extent.end_ms, extent.scrape_ms),
            here.settings,
            stopped=_stopping.is_set,
        )
    except SourceError as error:
        return str(error)
    except Exception:
        LOG.exception("the timeline of %s could not be made", name)
        return "the timeline could not be made; the log has the details"


def stop() -> None:
    """End the work that is going on and forget what was told: a thread must not outlive the process that it judges for."""
    _stopping.set()
    worker = _worker
    if worker is not None:
        worker.join(10)
    with _lock:
        _told.clear()
        _wanted.clear()
    _stopping.clear()


def marks(key: str) -> tuple[Mark, ...]:
    """Marks of the player's track: what the recording carries, and each cause while it was shown: a jump lands where it is seen."""
    capsule = data.held(key).capsule
    if capsule is None:
        return ()
    found = told(key)
    said = ("verdict", "anomaly") if isinstance(found, Timeline) else ()  # judged anew, these would stand there twice
    carried = tuple(
        Mark(mark.text or mark.kind, mark.at_ms, tone="text")
        for mark in capsule.manifest.marks
        if mark.kind not in said
    )
    if not isinstance(found, Timeline):
        return carried
    severe = [episode for episode in found.of("anomaly") if episode.severity == "page"]

    def tone(band: Band) -> str:
        there = single_places(band.places)
        at_once = (e for e in severe if e.from_ms <= band.to_ms and e.to_ms >= band.shown_ms)
        return "bad" if any("the fleet" in there or e.place in there for e in at_once) else "warn"

    scrape_ms = data.extent_of(capsule).scrape_ms
    return carried + tuple(
        Mark(f"{cause_text(band.id)} on {places_text(band.places)}", band.shown_ms, band.to_ms, tone(band))
        for band in found.bands(found.at_ms[-1] if found.at_ms else 0, max(30_000, 2 * scrape_ms))
    )
