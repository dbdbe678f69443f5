"""Which series are one process: the same one scraped twice, several behind one name, or a router's echo of others."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from collectors.figures import Finding
from collectors.model import Labels
from collectors.promql_text import quote_label_value
from collectors.scraped import (
    HA_LABELS,
    MODEL,
    PID,
    SAME_START_SECONDS,
    SCOPE_LABELS,
    SECOND_JOB_LABELS,
    WIDE_LABELS,
    Key,
    Series,
    Target,
    key_of,
    key_text,
)
from collectors.settings import Settings


def own_labels(settings: Settings) -> frozenset[str]:
    return frozenset((settings.identity.rank, MODEL, PID, "__name__", "engine", "le"))


def target_labels(labels: Labels, own: frozenset[str]) -> dict[str, str]:
    return {name: value for name, value in labels.items() if name not in own}


def _address(value: str) -> str:
    """host:port of an address, whatever stands around it."""
    return re.sub(r"^[a-z][a-z0-9+.-]*://", "", value, flags=re.IGNORECASE).rstrip("/").split("/")[0]


def router_echoes(gauges: Sequence[Series], targets: Sequence[Target], settings: Settings) -> tuple[list[Series], str]:
    """Series in which a label names another scraped target, and that label.

    A router's exposition has one running gauge per backend, told apart by a label such as `server`; nothing else puts another
    target's address into a label of its own series.
    """
    own = own_labels(settings)
    instances = {series.labels.get("instance", "") for series in gauges} | {
        t.labels.get("instance", "") for t in targets
    }
    instances.discard("")
    counts: Counter[str] = Counter()
    pointing: dict[str, list[Series]] = defaultdict(list)
    for series in gauges:
        for name, value in target_labels(series.labels, own).items():
            address = _address(value)
            if name != "instance" and address in instances and address != series.labels.get("instance", ""):
                counts[name] += 1
                pointing[name].append(series)
    if not counts:
        return [], ""
    label = counts.most_common(1)[0][0]
    router_instances = {series.labels.get("instance", "") for series in pointing[label]}
    directly = {series.labels.get("instance", "") for series in gauges} - router_instances
    echoed = {_address(series.labels[label]) for series in pointing[label]}
    if not echoed & directly:
        return [], ""
    return [s for s in gauges if s.labels.get(label) and s.labels.get("instance", "") in router_instances], label


def echoed(series: Series, echoes: Sequence[Series], label: str) -> bool:
    return (
        bool(echoes)
        and bool(series.labels.get(label))
        and any(series.labels.get("instance") == echo.labels.get("instance") for echo in echoes)
    )


def exclusions(gauges: Sequence[Series], echoes: Sequence[Series], label: str) -> tuple[str, ...]:
    if not echoes:
        return ()
    kept = [series for series in gauges if all(series is not echo for echo in echoes)]
    if not any(series.labels.get(label) for series in kept):
        return (f'{label}=""',)
    instances = sorted({re.escape(echo.labels.get("instance", "")) for echo in echoes})
    return (f"instance!~{quote_label_value('|'.join(instances))}",)


def starts(targets: Iterable[Target]) -> dict[frozenset[tuple[str, str]], float]:
    return {frozenset(t.labels.items()): t.started_seconds for t in targets if t.started_seconds is not None}


def identity_labels(
    gauges: Sequence[Series], starts: Mapping[frozenset[tuple[str, str]], float], settings: Settings
) -> tuple[tuple[str, ...], bool, list[Finding]]:
    """The identity labels, lengthened where they do not tell processes apart; whether any process is counted twice; findings."""
    own = own_labels(settings)
    labels = settings.identity.replica
    findings: list[Finding] = []
    apart, twice = _doubles(gauges, labels, own, starts, settings)
    while added := tuple(
        sorted(apart - set(labels), key=lambda name: (SCOPE_LABELS.index(name) if name in SCOPE_LABELS else 99, name))
    ):  # a longer identity may still hold the same process twice: an HA pair in each of two clusters
        findings.append(
            Finding(
                "identity_ambiguous",
                tuple(sorted(key_text(key) for key in _ambiguous(gauges, labels, own, settings))),
                f"The same {', '.join(labels)} stands for several processes; {', '.join(added)} tells them apart and was added to the identity.",
            )
        )
        labels = (*labels, *added)
        apart, twice = _doubles(gauges, labels, own, starts, settings)
    if twice:
        by = ", ".join(sorted(set().union(*twice.values())))
        where = tuple(sorted(key_text(key) for key in twice))
        findings.append(
            Finding(
                "counted_twice",
                where,
                f"Scraped more than once (series differ only in {by}); each process is counted once here.",
            )
        )
    return labels, bool(twice), findings


def _by_identity(
    gauges: Sequence[Series], labels: tuple[str, ...], own: frozenset[str], settings: Settings
) -> dict[tuple[Key, str, str], list[dict[str, str]]]:
    """The label sets that share one identity, rank and model."""
    groups: dict[tuple[Key, str, str], dict[frozenset[tuple[str, str]], dict[str, str]]] = defaultdict(dict)
    for series in gauges:
        rank, model = series.labels.get(settings.identity.rank, ""), series.labels.get(MODEL, "")
        one = target_labels(series.labels, own)
        groups[key_of(series.labels, labels), rank, model].setdefault(frozenset(one.items()), one)
    return {place: list(seen.values()) for place, seen in groups.items() if len(seen) > 1}


def _ambiguous(gauges: Sequence[Series], labels: tuple[str, ...], own: frozenset[str], settings: Settings) -> set[Key]:
    return {key for key, _, _ in _by_identity(gauges, labels, own, settings)}


def _doubles(
    gauges: Sequence[Series],
    labels: tuple[str, ...],
    own: frozenset[str],
    starts: Mapping[frozenset[tuple[str, str]], float],
    settings: Settings,
) -> tuple[set[str], dict[Key, set[str]]]:
    """(labels that tell apart what shares an identity, identity -> labels in which scrapes of one process differ)."""
    apart: set[str] = set()
    twice: dict[Key, set[str]] = defaultdict(set)
    for (key, _, _), distinct in _by_identity(gauges, labels, own, settings).items():
        differing = {name for one in distinct for name in one if any(one.get(name) != o.get(name) for o in distinct)}
        if one_process(distinct, starts):
            twice[key] |= differing
        else:
            apart |= _telling(differing)
    return apart, twice


def one_process(distinct: Sequence[Mapping[str, str]], starts: Mapping[frozenset[tuple[str, str]], float]) -> bool:
    """Whether target labels of one address are scrapes of the same process: by its start time where all tell one, else by which
    labels differ. A label that one side lacks contradicts nothing, unless it says where the replica lives."""
    times = [starts.get(frozenset(one.items())) for one in distinct]
    known = [time for time in times if time is not None]
    if len(known) == len(times):
        return max(known) - min(known) <= SAME_START_SECONDS
    differing = {
        name
        for one in distinct
        for name, value in one.items()
        if any(other.get(name, value if name not in WIDE_LABELS else "") != value for other in distinct)
    }
    return differing <= HA_LABELS | SECOND_JOB_LABELS


def _telling(differing: Collection[str]) -> set[str]:
    """Of the labels in which processes differ, the ones to add to the identity: a scope label when there is one."""
    scope = [name for name in SCOPE_LABELS if name in differing]
    return set(scope[:1]) if scope else set(differing)
