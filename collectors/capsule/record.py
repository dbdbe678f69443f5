"""Recording: raw samples from any source into an incident file - no resampling, no sample twice, resumable, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from collectors.capsule.convert import WRITER, Summary
from collectors.capsule.facts import FactCollector, engine_facts
from collectors.capsule.file import write_capsule
from collectors.capsule.manifest import Manifest, Origin, Redaction
from collectors.capsule.record_plan import SHORTEST_CHUNK_MS, PartialFolder, Plan, make_plan, selector_of
from collectors.capsule.redaction import Redactor
from collectors.capsule.staleness import marked, scrape_times, target_of
from collectors.model import Samples
from collectors.promql_text import selectors_of
from collectors.series_lines import sort_key
from collectors.source import QueryRejected, Source, SourceBroken, SourceError, SourceUnreachable

Progress = Callable[[float, str], None]


def record(
    source: Source,
    start_ms: int,
    end_ms: int,
    out: Path,
    *,
    match: Sequence[str] | None = None,
    redact: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Summary:
    """Record start <= t <= end into `out`. `extra` are further manifest fields (rules, diagnosis, marks of an operator).

    Pieces are kept in `OUT.partial` until the end; the same call after an interruption goes on from there. Raises SourceError.
    """
    out = Path(out)
    if end_ms <= start_ms:
        raise QueryRejected("the recording ends before it starts")
    if not out.parent.is_dir():
        raise SourceBroken(f"{out.parent}: no such folder", "Create it, or choose another --out")
    folder = PartialFolder(out)
    plan = folder.open(None)
    if plan is None:
        Redactor(redact, b"")
        plan = make_plan(source, start_ms, end_ms, match, redact)
        folder.open(plan)
    else:
        _same_wish(plan, source, start_ms, end_ms, redact, folder)
    redactor = Redactor(plan.redact, bytes.fromhex(plan.secret))
    _fetch(source, plan, folder, redactor, progress)
    manifest = _manifest(source, plan, extra or {})
    facts = FactCollector()
    scrapes = scrape_times(_series(plan, folder, only="up"))
    restore = source.info().kind == "remote"

    def passing() -> Iterator[Samples]:
        for each in _series(plan, folder):
            whole = marked(each, scrapes.get(target_of(each.labels))) if restore else each
            facts.see(whole)
            redactor.note(whole.labels)
            yield whole

    def finish(manifest: Manifest) -> Manifest:
        fields = facts.fields(source.metadata())
        marks = tuple(sorted((*fields["marks"], *manifest.marks), key=lambda mark: (mark.at_ms, mark.instance)))
        redactions = tuple(Redaction(label=label, values=count) for label, count in redactor.counts().items())
        return manifest.model_copy(
            update={
                **fields,
                "marks": marks,
                "window": manifest.window,
                "redactions": redactions,
                "staleness": ("reconstructed" if scrapes else "absent") if restore else "kept",
            }
        )

    if progress is not None:
        progress(1.0, "writing")
    written = write_capsule(out, manifest, passing(), presorted=True, finish=finish)
    folder.remove()
    return Summary(
        out, written.body.series, written.body.samples, len(written.replicas), end_ms - start_ms, written.notes
    )


def _same_wish(
    plan: Plan, source: Source, start_ms: int, end_ms: int, redact: Mapping[str, str] | None, folder: PartialFolder
) -> None:
    where = source.info()
    if (plan.source, plan.start_ms, plan.end_ms, dict(plan.redact)) != (
        where.url or where.name,
        start_ms,
        end_ms,
        dict(redact or {}),
    ):
        raise SourceBroken(
            f"{folder.path} holds another unfinished recording",
            "Give the same source and window to go on, or remove it",
        )


def _fetch(source: Source, plan: Plan, folder: PartialFolder, redactor: Redactor, progress: Progress | None) -> None:
    pieces = plan.pieces()
    for done, piece in enumerate(pieces):
        if progress is not None:
            progress(done / len(pieces), plan.groups[piece[0]].names[0])
        if folder.has(piece):
            continue
        series: list[Samples] = []
        for match in plan.matches:
            (wanted,) = selectors_of(match)
            names = tuple(name for name in plan.groups[piece[0]].names if wanted.may_select(name))
            if names:
                series += _asked(source, names, match, piece[1], piece[2])
        folder.keep(piece, map(redactor.series, _joined(series)))


def _asked(source: Source, names: tuple[str, ...], match: str, begin_ms: int, end_ms: int) -> list[Samples]:
    """Samples with begin < t <= end; what the backend finds too much is asked in halves: of the names, then of the time."""
    try:
        return source.samples(selector_of(names, match), begin_ms, end_ms)
    except (QueryRejected, SourceUnreachable, SourceBroken):
        if len(names) == 1 and end_ms - begin_ms <= 2 * SHORTEST_CHUNK_MS:
            raise
        source.instant("1", end_ms)  # does it answer at all? then the question was too big
        if len(names) > 1:
            half = len(names) // 2
            parts = [(names[:half], begin_ms, end_ms), (names[half:], begin_ms, end_ms)]
        else:
            middle = (begin_ms + end_ms) // 2
            parts = [(names, begin_ms, middle), (names, middle, end_ms)]
        return _joined(each for some, begin, end in parts for each in _asked(source, some, match, begin, end))


def _joined(series: Iterable[Samples]) -> list[Samples]:
    """Pieces of a series in order of time as one; what two overlapping selectors both gave stands once. Sorted."""
    pieces: dict[object, list[Samples]] = {}
    for each in series:
        pieces.setdefault(sort_key(each.labels), []).append(each)
    whole: list[Samples] = []
    for key in sorted(pieces):  # type: ignore[type-var]
        parts = pieces[key]
        if len(parts) == 1:
            whole.append(parts[0])
            continue
        times = np.concatenate([part.times_ms for part in parts])
        values = np.concatenate([part.values for part in parts])
        times, first = np.unique(times, return_index=True)
        whole.append(Samples(parts[0].labels, times, values[first]))
    return whole


def _series(plan: Plan, folder: PartialFolder, only: str | None = None) -> Iterator[Samples]:
    """All series sorted by `sort_key`, one group in memory at a time."""
    by_group: dict[int, list[tuple[int, int, int]]] = {}
    for piece in plan.pieces():
        by_group.setdefault(piece[0], []).append(piece)
    for number, pieces in sorted(by_group.items()):
        if only is not None and only not in plan.groups[number].names:
            continue
        for each in _joined(series for piece in pieces for series in folder.read(piece)):
            if only is None or each.labels.get("__name__") == only:
                yield each


def _told_rule(rule: dict[str, Any], *, redacted: bool) -> dict[str, Any]:
    """A rule's state; where labels are redacted, without its query, labels and alerts, any of which may hold what is to be hidden."""
    if not redacted:
        return rule
    kept: dict[str, Any] = {key: rule[key] for key in ("group", "type", "name", "state", "health") if key in rule}
    return {**kept, "alerts": len(rule.get("alerts") or ())}


def _manifest(source: Source, plan: Plan, extra: Mapping[str, Any]) -> Manifest:
    where = source.info()
    names = frozenset(name for group in plan.groups for name in group.names)
    rules: tuple[dict[str, Any], ...] = ()
    asked = getattr(source, "rules", None)
    notes: list[str] = []
    if callable(asked):
        try:
            rules = tuple(_told_rule(rule, redacted=bool(plan.redact)) for rule in asked())
        except SourceError as error:
            notes.append(f"the state of the backend's rules is not known: {error.cause}")
    return Manifest.model_validate(
        {
            "title": "",
            "written_by": WRITER,
            "window": {"start_ms": plan.start_ms, "end_ms": plan.end_ms},
            "source": Origin(
                name=where.name, kind=where.kind, backend=where.backend, version=where.version, url=where.url
            ).model_dump(),
            "engine": engine_facts("", names).model_dump(),
            "rule_states": rules,
            "notes": notes,
            **extra,
        }
    )
