"""What the diagnosis said all along a recording: computed once per incident file in the background, for the player's track and the lanes."""

from __future__ import annotations

import logging
import threading

from collectors.capsule import CapsuleSource
from collectors.scope import ScopedSource
from collectors.source import Source, SourceError
from pages.ui import data
from pages.ui.charts import Mark
from pages.ui.data import Held
from pages.ui.words import cause_text
from runbooks.timeline import Episode, Timeline, instants, timeline

LOG = logging.getLogger("pagewatch.pages")
KEPT = 12

_told: dict[str, Timeline | str] = {}
_telling: set[str] = set()
_lock = threading.Lock()


def told(key: str) -> Timeline | str | None:
    """The timeline of a recording; text says why there is none; None while it is being made (the first call begins)."""
    held = data.held(key)
    if held.capsule is None:
        return "a live source has no end; open a recording"
    with _lock:
        if key in _told:
            return _told[key]
        if key not in _telling:
            _telling.add(key)
            threading.Thread(target=_tell, args=(key, held), name=f"story {key}", daemon=True).start()
    return None


def known(key: str) -> Timeline | str | None:
    """What has been made already; begins nothing."""
    with _lock:
        return _told.get(key)


def _tell(key: str, held: Held) -> None:
    capsule, extent = held.capsule, held.extent
    assert capsule is not None
    assert extent is not None
    scope = held.source.scope if isinstance(held.source, ScopedSource) else {}

    def source_at(at_ms: int) -> Source:
        source: Source = CapsuleSource(capsule, at_ms)
        return ScopedSource(source, scope) if scope else source

    found: Timeline | str
    try:
        found = timeline(source_at, instants(extent.start_ms, extent.end_ms, extent.scrape_ms), data.settings())
    except SourceError as error:
        found = str(error)
    except Exception:
        LOG.exception("the timeline of %s could not be made", key)
        found = "the timeline could not be made; the log has the details"
    with _lock:
        while len(_told) >= KEPT:
            del _told[next(iter(_told))]
        _told[key] = found
        _telling.discard(key)


def forget_all() -> None:
    """Drop every timeline; for tests."""
    with _lock:
        _told.clear()


def marks(key: str) -> tuple[Mark, ...]:
    """Marks of the player's track: what the recording carries, and each verdict while it held."""
    capsule = data.held(key).capsule
    if capsule is None:
        return ()
    carried = tuple(Mark(mark.text or mark.kind, mark.at_ms, tone="text") for mark in capsule.manifest.marks)
    found = told(key)
    if not isinstance(found, Timeline):
        return carried
    severe = [episode for episode in found.of("anomaly") if episode.severity == "page"]

    def tone(verdict: Episode) -> str:
        at_once = (
            e for e in severe if e.place == verdict.place and e.from_ms <= verdict.to_ms and e.to_ms >= verdict.from_ms
        )
        return "bad" if any(at_once) else "warn"

    return carried + tuple(
        Mark(f"{cause_text(episode.id)} on {episode.place}", episode.from_ms, episode.to_ms, tone(episode))
        for episode in found.of("verdict")
    )
