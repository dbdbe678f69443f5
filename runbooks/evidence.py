"""The numbers of a walk: every query resolved for its place and asked once, and what the predicates may see of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from collectors.observed import Observations
from collectors.scope import ScopedSource, scope_matchers
from collectors.settings import Settings
from collectors.signals import rate_window_ms
from collectors.source import Source, SourceError
from runbooks.diagnosis import scene_of
from runbooks.findings import Number
from runbooks.laws import GRAVE
from runbooks.naming import parameters
from runbooks.place import covers, matchers, verdicts_at
from runbooks.predicates import Facts
from runbooks.reading import Reading
from runbooks.runbook import Query
from runbooks.spelling import names_at
from runbooks.template import Binding, TemplateError, resolve
from runbooks.thresholds import Thresholds
from runbooks.verdicts import Diagnosis, Place, Where

LOOKBACK_MS = 900_000
AT_ONCE = 6
"""Questions that a remote server gets at the same time."""
FAILED = "query failed: "
"""Begins the note of a number whose query the source did not answer."""


@dataclass(frozen=True)
class Scene:
    """One instant and place: what every step of a walk shares."""

    source: Source
    at_ms: int
    where: Where
    bindings: Mapping[str, Binding]
    diagnosis: Diagnosis
    readings: Mapping[Place, Reading]
    settings: Settings
    asked: dict[str, tuple[float | None, Mapping[str, str], str]]
    """Memory of this walk: PromQL and reduction -> value, labels, note."""


UNITS_OF_NAMES = (("_gib", "GiB"), ("_mib", "MiB"), ("_tokens", "tokens"), ("_seconds", "seconds"))
OPTIONS = frozenset({"max_tokens", "max_num_batched_tokens", "max_num_seqs", "gpu_memory_utilization"})
CAPITALS = {"kv": "KV", "gpu": "GPU", "cpu": "CPU", "pytorch": "PyTorch", "torch": "PyTorch"}


def scene_at(
    source: Source, at_ms: int, settings: Settings, seen: Observations, judged: Diagnosis, where: Where
) -> Scene:
    names, exclude = names_at(source, at_ms, settings, where)
    place, rank = matchers(where, seen, settings.identity.rank)
    everywhere = exclude
    if isinstance(source, ScopedSource) and source.scope:  # so that a copied query means the same elsewhere
        everywhere = (*exclude, scope_matchers(source.scope))
    interval_seconds = seen.interval_ms / 1000 if seen.interval_ms else None
    values = parameters(settings, rate_window_ms=rate_window_ms(interval_seconds), lookback_ms=LOOKBACK_MS, names=names)
    bindings = {
        "place": Binding(names, values, place + everywhere, rank),
        "replica": Binding(names, values, place + everywhere),
        "fleet": Binding(names, values, everywhere),
    }
    return Scene(source, at_ms, where, bindings, judged, scene_of(seen, settings).readings, settings, {})


def number_of(query: Query, scene: Scene) -> Number:
    if query.limit:
        table, _, name = query.limit.partition(".")
        return _asnumber_of(query, "", Thresholds.of(scene.settings)(table, name), {}, "")
    if query.reading:
        return _asnumber_of(query, "", *_read(query, scene))
    try:
        promql = resolve(query.promql, scene.bindings[query.across])
    except TemplateError as error:
        return _asnumber_of(query, "", None, {}, f"not in this engine version: {error}")
    key = f"{query.of}:{promql}"
    if key not in scene.asked:
        scene.asked[key] = _ask(scene.source, promql, scene.at_ms, query.of)
    return _asnumber_of(query, promql, *scene.asked[key])


def ask_ahead(scene: Scene, queries: Sequence[Query]) -> None:
    """Puts every question of a walk to a remote server at the same time; a local source answers faster one by one."""
    if scene.source.info().kind != "remote":
        return
    wanted: dict[str, tuple[str, str]] = {}
    for query in queries:
        if query.promql:
            with suppress(TemplateError):  # said where the number is shown
                promql = resolve(query.promql, scene.bindings[query.across])
                wanted[f"{query.of}:{promql}"] = (promql, query.of)
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="walk") as pool:
        answers = pool.map(lambda each: _ask(scene.source, each[0], scene.at_ms, each[1]), wanted.values())
        scene.asked.update(zip(wanted, answers, strict=True))


def _read(query: Query, scene: Scene) -> tuple[float | None, Mapping[str, str], str]:
    """A quantity of the diagnosis's reading of the ranks at this place: the worst, or the sum."""
    assert query.reading is not None
    here = {
        place: float(getattr(reading, query.reading))
        for place, reading in scene.readings.items()
        if covers(scene.where, Where("rank", (place,)))
    }
    if query.of == "busiest" and here:
        longest = max(here, key=lambda each: _queue(scene.readings[each]))
        here = {longest: here[longest]}
    known = {place: value for place, value in here.items() if not math.isnan(value)}
    if not known:
        return None, {}, "not enough samples" if here else "no rank is read here"
    if query.of == "sum":
        return sum(known.values()), {}, ""
    place = (min if query.of == "min" else max)(known, key=lambda each: known[each])
    return known[place], {"instance": place.instance, "engine": place.engine}, ""


def _queue(reading: Reading) -> tuple[float, float]:
    """What makes a rank the busiest: how many wait, then how many run."""
    return tuple(0.0 if math.isnan(value) else value for value in (reading.waiting, reading.running))  # type: ignore[return-value]


def _asnumber_of(query: Query, promql: str, value: float | None, labels: Mapping[str, str], note: str) -> Number:
    label = query.label or query.name.replace("_", " ")
    return Number(query.name, label, value, query.unit, query.kind, promql, labels, note)


def _ask(source: Source, promql: str, at_ms: int, of: str) -> tuple[float | None, Mapping[str, str], str]:
    try:
        vector = source.instant(promql, at_ms)
    except SourceError as error:
        return None, {}, f"{FAILED}{error}"
    known = np.flatnonzero(~np.isnan(vector.values))
    note = "; ".join(vector.warnings)
    if not len(known):
        return None, {}, note or ("not a number" if len(vector) else "no sample")
    values = vector.values[known]
    if of == "sum":
        return float(values.sum()), {}, note
    chosen = int(values.argmax() if of == "max" else values.argmin())
    return float(values[chosen]), dict(vector.labels[int(known[chosen])]), note


def facts_of(numbers: tuple[Number, ...], scene: Scene, log_class: str | None) -> Facts:
    """What the predicates may see at this place."""
    laws: dict[str, str] = {}
    order = {"kept": 0, "unknown": 1, "broken": 2}
    for law in scene.diagnosis.laws:
        if covers(scene.where, law.where) and order[law.status] >= order.get(laws.get(law.id, ""), -1):
            laws[law.id] = law.status
    states = tuple(
        state.state for state in scene.diagnosis.replicas if covers(scene.where, Where("rank", (state.place,)))
    )
    return Facts(
        numbers={number.name: number.value for number in numbers},
        verdicts={v.cause: v.confidence for v in reversed(verdicts_at(scene.where, scene.diagnosis))},
        states=states,
        laws=laws,
        grave_laws=GRAVE,
        log_class=log_class,
    )


def read_log(reader: str, text: str) -> Mapping[str, Any]:
    from runbooks import memory

    return (memory.ledger if reader == "ledger" else memory.admission)(text.splitlines())


def log_numbers(read: Mapping[str, Any]) -> tuple[Number, ...]:
    """The figures that a log gave, as numbers of the step; a name that ends in its unit gives it."""
    return tuple(
        Number(str(name), label, float(value), unit, "measured", "", note="read from the pasted log")
        for name, value in read.get("numbers", {}).items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        for label, unit in (label_and_unit(str(name)),)
    )


def label_and_unit(name: str) -> tuple[str, str]:
    """'available_kv_gib' -> ('available KV', 'GiB'); an option of the engine keeps its whole name: 'max_num_batched_tokens'."""
    if name in OPTIONS:
        return name, ""
    suffix, unit = next(((end, unit) for end, unit in UNITS_OF_NAMES if name.endswith(end)), ("", ""))
    return " ".join(CAPITALS.get(word, word) for word in name.removesuffix(suffix).split("_")), unit
