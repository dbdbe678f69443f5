"""A walk as something to attach or paste: one Markdown file with its pictures inside, or a zip with the pictures beside it."""

from __future__ import annotations

import base64
import io
import zipfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from collectors.source import Source
from runbooks.findings import Walk
from runbooks.walk_charts import StepChart, charts_of
from runbooks.walk_export import to_markdown
from runbooks.walks import Event, RecordedWalk

ZIP_TIME = (1980, 1, 1, 0, 0, 0)
"""The same walk gives the same bytes."""


def unrecorded(walk: Walk, who: str, now_ms: int) -> RecordedWalk:
    """A walk that nobody recorded, in the form that is exported (number 0)."""
    event = Event(1, now_ms, who, "walked", "", asdict(walk))
    place = walk.where.places[0] if walk.where.scope != "fleet" and walk.where.places else None
    return RecordedWalk(
        id=0,
        runbook=walk.runbook,
        source=walk.source,
        at_ms=walk.at_ms,
        instance=place.instance if place else None,
        engine=place.engine if place else None,
        started_by=who,
        started_ms=now_ms,
        events=(event,),
    )


def markdown_with_charts(recorded: RecordedWalk, charts: Sequence[StepChart]) -> str:
    """One file: the pictures stand in it as data URIs, which Markdown viewers and wikis show without a second file."""
    inside = {
        chart.name: f"data:image/png;base64,{base64.b64encode(chart.png).decode()}" for chart in charts if chart.png
    }
    return to_markdown(recorded, charts, inside)


def zipped(recorded: RecordedWalk, charts: Sequence[StepChart]) -> bytes:
    """`walk.md` and `charts/*.png`, for a ticket system that takes attachments and no data URIs."""
    beside = {chart.name: f"charts/{chart.name}" for chart in charts if chart.png}
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo("walk.md", ZIP_TIME), to_markdown(recorded, charts, beside))
        for chart in charts:
            if chart.png:
                archive.writestr(zipfile.ZipInfo(beside[chart.name], ZIP_TIME), chart.png)
    return out.getvalue()


def export_walk(recorded: RecordedWalk, source: Source, out: Path) -> int:
    """Writes a walk with its charts to `out`: `.zip`, or Markdown whatever else the name ends in. Returns how many charts it holds.

    Raises OSError when the file cannot be written, SourceError when the source cannot be asked at all.
    """
    charts = charts_of(recorded.walk, source) if recorded.walk is not None else ()
    if out.suffix.lower() == ".zip":
        out.write_bytes(zipped(recorded, charts))
    else:
        out.write_text(markdown_with_charts(recorded, charts), encoding="utf-8")
    return sum(bool(chart.png) for chart in charts)
