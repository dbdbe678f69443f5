"""What pagewatch says all along a recorded incident, as the fields of its manifest: moments, marks, the verdict that held longest.

Each instant is judged with no later sample. The number of instants is bounded, so a large fleet is looked at less often.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from collectors.capsule import Capsule, CapsuleSource, read_capsule
from collectors.capsule.file import amend_manifest
from collectors.capsule.manifest import Manifest, Mark
from collectors.capsule.record import Progress
from collectors.settings import Settings
from collectors.source import Source
from runbooks.diagnosis import diagnose
from runbooks.timeline import instants
from runbooks.verdicts import Diagnosis

MOST_INSTANTS = 90
LEAST_INSTANTS = 12
RANK_INSTANTS = 1500
"""Judgements of one rank at one instant that a recording may cost."""
MOST_MOMENTS = 12
MOST_MARKS = 200


@dataclass(frozen=True)
class Spell:
    """A cause (or a detector that no cause explains) that was said without a break of more than one judged instant."""

    kind: str
    id: str
    from_ms: int
    to_ms: int
    where: str
    confidence: str
    instances: tuple[str, ...]


def judged_instants(manifest: Manifest) -> tuple[int, ...]:
    """The instants of a recording to judge: every scrape if there are few, thinned to the bound, the end included."""
    ranks = sum(max(1, len(replica.engines)) for replica in manifest.replicas) or 1
    scrape_ms = min((r.scrape_interval_ms for r in manifest.replicas if r.scrape_interval_ms), default=15_000)
    most = max(LEAST_INSTANTS, min(MOST_INSTANTS, RANK_INSTANTS // ranks))
    window = manifest.window
    if window.end_ms <= window.start_ms:
        return (window.end_ms,)
    return instants(window.start_ms, window.end_ms, scrape_ms, most)


def judged(capsule: Capsule, settings: Settings, progress: Progress | None = None) -> list[Diagnosis]:
    """The diagnosis at each of `judged_instants`. Raises SourceError."""
    found = []
    at_all = judged_instants(capsule.manifest)
    for number, at_ms in enumerate(at_all):
        if progress is not None:
            progress(number / len(at_all), "judging")
        source: Source = CapsuleSource(capsule, at_ms)
        found.append(diagnose(source, at_ms, settings))
    return found


def spells(diagnoses: Sequence[Diagnosis]) -> tuple[Spell, ...]:
    """Causes and lone detectors with the time they were said, wherever; one instant without is bridged."""
    running: dict[tuple[str, str], tuple[Spell, int]] = {}
    done: list[Spell] = []
    for index, diagnosis in enumerate(diagnoses):
        for kind, name, where, confidence, places in _said(diagnosis):
            before = running.get((kind, name))
            if before is not None and index - before[1] <= 2:
                old = before[0]
                surest = "likely" if "likely" in (old.confidence, confidence) else old.confidence
                everywhere = tuple(dict.fromkeys((*old.instances, *places)))
                spell = Spell(kind, name, old.from_ms, diagnosis.at_ms, old.where, surest, everywhere)
            else:
                if before is not None:
                    done.append(before[0])
                spell = Spell(kind, name, diagnosis.at_ms, diagnosis.at_ms, where, confidence, places)
            running[kind, name] = (spell, index)
    done += [spell for spell, _ in running.values()]
    return tuple(sorted(done, key=lambda spell: (spell.from_ms, spell.kind, spell.id)))


def _said(diagnosis: Diagnosis) -> Iterable[tuple[str, str, str, str, tuple[str, ...]]]:
    for verdict in diagnosis.verdicts:
        if verdict.cause != "healthy":
            yield (
                "verdict",
                verdict.cause,
                str(verdict.where),
                verdict.confidence,
                tuple(p.instance for p in verdict.where.places),
            )
    for anomaly in diagnosis.anomalies:
        if not anomaly.cause:
            yield (
                "anomaly",
                anomaly.id,
                str(anomaly.where),
                anomaly.severity,
                tuple(p.instance for p in anomaly.where.places),
            )


def marks_of(found: Sequence[Spell]) -> tuple[Mark, ...]:
    """A mark where each spell begins; one instance on it when it is about one replica."""
    marks = []
    for spell in found[:MOST_MARKS]:
        kind = "cause" if spell.kind == "verdict" else "detector"
        seconds = (spell.to_ms - spell.from_ms) / 1000
        text = f"{kind} {spell.id} ({spell.confidence}) on {spell.where}, said for {seconds:.0f} s"
        alone = spell.instances[0] if len(set(spell.instances)) == 1 else ""
        marks.append(Mark(at_ms=spell.from_ms, kind=spell.kind, text=text, instance=alone))
    return tuple(marks)


def said(diagnoses: Sequence[Diagnosis], source_name: str = "") -> dict[str, Any]:
    """The manifest's `diagnosis`: the headline moment as `diagnose --json` has it, `moments` where something new was said, and the `end`.

    The headline is the middle of the likely cause that was said longest; the end when none was. Of checks only broken ones are kept.
    `source_name` takes the place of the name under which the file happened to be opened.
    """
    if not diagnoses:
        return {}
    diagnoses = [replace(diagnosis, source=source_name) for diagnosis in diagnoses]
    found = [spell for spell in spells(diagnoses) if spell.kind == "verdict"]
    by_instant = {diagnosis.at_ms: diagnosis for diagnosis in diagnoses}
    longest = max(found, key=lambda s: (s.confidence == "likely", s.to_ms - s.from_ms), default=None)
    headline = diagnoses[-1]
    if longest is not None:
        held = [
            d
            for d in diagnoses
            if longest.from_ms <= d.at_ms <= longest.to_ms and any(v.cause == longest.id for v in d.verdicts)
        ]
        headline = held[len(held) // 2]
    starts = list(dict.fromkeys(spell.from_ms for spell in found))[:MOST_MOMENTS]
    return {
        **told(headline),
        "moments": [told(by_instant[at_ms]) for at_ms in starts],
        "end": told(diagnoses[-1]),
        "instants": len(diagnoses),
    }


def told(diagnosis: Diagnosis) -> dict[str, Any]:
    """`diagnose --json` without the checks that are kept or cannot be decided: their numbers are in `checks`."""
    full = diagnosis.to_json()
    counts = {word: sum(law.status == word for law in diagnosis.laws) for word in ("kept", "broken", "unknown")}
    return {**full, "laws": [law for law in full["laws"] if law["status"] == "broken"], "checks": counts}


def tell(
    path: Path,
    settings: Settings,
    *,
    extra: dict[str, Any] | None = None,
    notes: Sequence[Mark] = (),
    progress: Progress | None = None,
) -> Manifest:
    """Judge an incident file and write what is said into its manifest: `diagnosis` and marks; `extra` fields go in beside.

    Marks that were there and are no judgement (restarts, notes) stay. The samples stay byte for byte. Raises SourceError.
    """
    capsule = read_capsule(path)
    diagnoses = judged(capsule, settings, progress)
    own = marks_of(spells(diagnoses))

    def change(manifest: Manifest) -> Manifest:
        kept = [mark for mark in manifest.marks if mark.kind not in ("verdict", "anomaly")]
        marks = sorted((*kept, *own, *notes), key=lambda mark: (mark.at_ms, mark.kind, mark.instance, mark.text))
        unique = tuple({mark.model_dump_json(): mark for mark in marks}.values())
        return Manifest.model_validate(
            {
                **manifest.model_dump(by_alias=True),
                **(extra or {}),
                "notes": list(dict.fromkeys((*manifest.notes, *(extra or {}).get("notes", ())))),
                "diagnosis": said(diagnoses, (extra or {}).get("title") or manifest.title or manifest.source.name),
                "marks": [mark.model_dump() for mark in unique],
            }
        )

    return amend_manifest(path, change)
