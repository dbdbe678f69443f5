"""Recording an incident with everything that is known about it: raw samples, and what pagewatch said and judged by.

Samples come from the source; the diagnosis is made from the file that was written, so it holds nothing that was redacted, costs
the source nothing in the middle of an incident, and is what any reader of the file can see again. Only what a file of some
minutes cannot tell is asked of the source: the state of detectors and burn rates over hours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from collectors.capsule.convert import Summary
from collectors.capsule.manifest import Manifest, Mark
from collectors.capsule.record import Progress, record
from collectors.model import Window
from collectors.settings import Settings
from collectors.source import Source
from collectors.sources import capsule_of
from runbooks.in_force import burn_rates, config_facts, detector_states, detector_versions, rules_in_force
from runbooks.rules import RulesError
from runbooks.said import tell
from runbooks.walk_export import to_record
from runbooks.walks import RecordedWalk, Walks

SAMPLES_SHARE = 0.7
"""Of the progress that is reported; judging takes the rest."""
BEFORE_MS = 30 * 60_000
AFTER_MS = 15 * 60_000
"""An incident that an alert opened is recorded from so long before it began to so long after it cleared."""


@dataclass(frozen=True)
class Note:
    """An operator's words at an instant."""

    at_ms: int
    text: str
    instance: str = ""


def record_incident(
    source: Source,
    start_ms: int,
    end_ms: int,
    out: Path,
    settings: Settings,
    *,
    progress: Progress | None = None,
    match: Sequence[str] | None = None,
    redact: Mapping[str, str] | None = None,
    notes: Sequence[Note] = (),
    walks: Sequence[RecordedWalk] = (),
    title: str = "",
) -> Summary:
    """Record start <= t <= end into `out` with detectors, states, burn rates, diagnosis, marks, notes and walks in the manifest.

    With `redact`, walks, PromQL and labels of detectors are left out (they may hold what is to be hidden), and the patterns
    are taken out of notes. A recording of a recording keeps its ground truth, title and notes (without the truth when redacting).
    An interrupted call goes on when repeated. Raises SourceError.
    """
    hidden = bool(redact)
    extra: dict[str, Any] = {
        "title": title,
        "config": config_facts(settings, redacted=hidden),
        "detectors": detector_versions(),
    }
    try:
        extra["rules"] = rules_in_force(settings, redacted=hidden)
        extra["detector_states"] = detector_states(source, end_ms, settings, redacted=hidden)
        extra["burn_rates"] = burn_rates(source, end_ms, settings)
    except RulesError as error:
        extra["notes"] = [f"detectors cannot be expressed for this engine: {error}"]
    marks = [_mark(note, redact or {}) for note in notes if start_ms <= note.at_ms <= end_ms]
    inherited = _inherited(source, start_ms, end_ms, hidden=hidden)
    marks += inherited.pop("marks", [])
    if not hidden:
        told = [to_record(walk) for walk in walks if start_ms <= walk.at_ms <= end_ms]
        extra["walks"] = [*inherited.pop("walks", ()), *told]
    extra["notes"] = [*inherited.pop("notes", ()), *extra.get("notes", ())]
    extra |= {name: value for name, value in inherited.items() if value not in (None, "", ()) and not extra.get(name)}
    written = record(
        source,
        start_ms,
        end_ms,
        out,
        match=match,
        redact=redact,
        progress=_share(progress, 0.0, SAMPLES_SHARE),
    )
    manifest = tell(
        out,
        settings,
        extra=extra,
        notes=marks,
        progress=_share(progress, SAMPLES_SHARE, 1.0),
    )
    if progress is not None:
        progress(1.0, "written")
    return replace(written, notes=manifest.notes)


def record_last(source: Source, minutes: float, out: Path, settings: Settings, **options: Any) -> Summary:
    """The last minutes of a source, up to its now; options as of `record_incident`."""
    now_ms = source.now_ms()
    return record_incident(source, now_ms - round(minutes * 60_000), now_ms, out, settings, **options)


def first_sample_ms(source: Source, start_ms: int, end_ms: int, steps: int = 240) -> int | None:
    """A step before the first scrape in start..end that the source holds, `start_ms` at the earliest.

    None where nothing tells: nothing was scraped yet, or the source keeps no `up`. Raises SourceError.
    """
    step_ms = max(1000, (end_ms - start_ms) // steps)
    seen = source.range("count(up)", Window(start_ms, end_ms, step_ms)).values
    known = np.flatnonzero(np.isfinite(seen).any(axis=0)) if len(seen) else np.empty(0, dtype=np.int64)
    return max(start_ms, start_ms + (int(known[0]) - 1) * step_ms) if len(known) else None


def since_first_sample(source: Source, start_ms: int, end_ms: int) -> int:
    """`start_ms`, or just before the first scrape that the source holds after it: a recording has no empty beginning."""
    found = first_sample_ms(source, start_ms, end_ms)
    return start_ms if found is None else found


def incident_window(began_ms: int, cleared_ms: int | None, now_ms: int) -> tuple[int, int] | None:
    """The window to record for an incident that an alert opened; None while it is too early (not cleared, or the time after is not over)."""
    if cleared_ms is None or now_ms < cleared_ms + AFTER_MS:
        return None
    return began_ms - BEFORE_MS, cleared_ms + AFTER_MS


def walks_in(walks: Walks, source_name: str, start_ms: int, end_ms: int, limit: int = 200) -> tuple[RecordedWalk, ...]:
    """Recorded walks about this source whose instant lies in the window, oldest first."""
    found = [w for w in walks.history(limit=limit) if w.source == source_name and start_ms <= w.at_ms <= end_ms]
    return tuple(reversed(found))


def _mark(note: Note, redact: Mapping[str, str]) -> Mark:
    text, instance = note.text, note.instance
    for pattern in redact.values():
        text, instance = re.sub(pattern, "redacted", text), re.sub(pattern, "redacted", instance)
    return Mark(at_ms=note.at_ms, kind="note", text=text, instance=instance)


def _inherited(source: Source, start_ms: int, end_ms: int, *, hidden: bool) -> dict[str, Any]:
    """What a recording that is recorded again hands on: it cannot be found in the samples."""
    capsule = capsule_of(source)
    if capsule is None:
        return {}
    old: Manifest = capsule.manifest
    handed: dict[str, Any] = {"staleness": old.staleness, "engine": old.engine.model_dump()}
    if hidden:
        return handed
    return {
        **handed,
        "title": old.title,
        "notes": list(old.notes),
        "ground_truth": old.ground_truth,
        "server_flags": old.server_flags,
        "original": old.original,
        "source": old.source.model_dump(),
        "walks": [walk for walk in old.walks if start_ms <= walk.get("at_ms", start_ms) <= end_ms],
        "marks": [mark for mark in old.marks if mark.kind == "note" and start_ms <= mark.at_ms <= end_ms],
    }


def _share(progress: Progress | None, low: float, high: float) -> Progress | None:
    if progress is None:
        return None
    return lambda done, words: progress(low + done * (high - low), words)
