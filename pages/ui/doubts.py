"""Why numbers are not to be trusted: broken checks of the diagnosis, looked up by signal, by place or by the query of a number. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache

from collectors.dialect import load_dialect
from pages.ui.words import clock
from runbooks.laws.model import all_laws
from runbooks.timeline import Timeline
from runbooks.verdicts import Diagnosis, LawFinding, Where

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
Doubts = Mapping[str, tuple[str, ...]]
"""Canonical signal -> reasons."""


def anywhere(where: Where) -> bool:
    return True


def at_one_of(names: Iterable[str]) -> Callable[[Where], bool]:
    """Whether a check concerns a replica that goes by one of these names; one of the fleet concerns all."""
    known = frozenset(names)
    return lambda where: where.scope == "fleet" or any(place.instance in known for place in where.places)


def near(where: Where) -> Callable[[Where], bool]:
    """Whether a check concerns a place of a verdict, an anomaly or a walk; what is said of the fleet rests on all of them."""
    return anywhere if where.scope == "fleet" else at_one_of(place.instance for place in where.places)


def broken(found: Diagnosis | None) -> tuple[LawFinding, ...]:
    """The few that matter here, of thousands in a large fleet."""
    return tuple(law for law in found.laws if law.status == "broken") if found is not None else ()


def by_signal(laws: Iterable[LawFinding], concerns: Callable[[Where], bool] = anywhere) -> Doubts:
    """What broken checks say against each signal, where they concern the place."""
    told: dict[str, list[str]] = {}
    for law in laws:
        if concerns(law.where):
            for signal in law.taints:
                told.setdefault(signal, []).append(f"{law.where}: {law.evidence} (check {law.id})")
    return {signal: tuple(dict.fromkeys(reasons)) for signal, reasons in told.items()}


def at_place(laws: Iterable[LawFinding], where: Where, reads: Collection[str] = ()) -> tuple[str, ...]:
    """Reasons against numbers of a place, each with the signals that it puts in doubt.

    `reads` are the signals that a judgement rests on: doubts of others are none of its own. Empty = it is not known on which.
    """
    signals: dict[str, list[str]] = {}
    for signal, reasons in by_signal(laws, near(where)).items():
        if reads and signal not in reads:
            continue
        for reason in reasons:
            signals.setdefault(reason, []).append(signal.replace("_", " "))
    return tuple(f"{', '.join(names)}: {reason}" for reason, names in signals.items())


def of_timeline(told: Timeline) -> Doubts:
    """The same for a whole recording: each signal's checks that were broken at some time of it, where and when."""
    known = all_laws()
    found: dict[str, list[str]] = {}
    for episode in told.of("check"):
        law = known.get(episode.id)
        if law is None:
            continue
        when = f"{clock(episode.from_ms)} to {clock(episode.to_ms)} UTC"
        for signal in law.taints:
            found.setdefault(signal, []).append(f"{episode.place}, {when}: {law.statement}: broken (check {law.id})")
    return {signal: tuple(dict.fromkeys(reasons)) for signal, reasons in found.items()}


def of_query(doubts: Doubts, promql: str) -> tuple[str, ...]:
    """Reasons against the answer of a query, by the metrics that it reads."""
    return tuple(dict.fromkeys(reason for signal in sorted(signals_of(promql)) for reason in doubts.get(signal, ())))


@lru_cache(maxsize=512)
def signals_of(promql: str) -> frozenset[str]:
    """Canonical signals whose metrics a query names, in whatever spelling a deployment uses."""
    dialect = load_dialect()
    signal_of = {entry.name: entry.signal for entry in dialect.entries}
    families = (dialect.canonical(name) for name in _NAME.findall(promql))
    return frozenset(signal_of[family[0]] for family in families if family is not None and family[0] in signal_of)
