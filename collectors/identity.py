"""From scraped series to one tree of scope, model, replica and rank - each real engine once.

Labels are the only witness: a pod's address changes on rollout, an instance name can repeat across clusters, an HA pair or a second job
scrapes the same process twice, a router repeats the metrics of what stands behind it. What cannot be told apart is said.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from collectors.detection import EngineVersion, detect, engines_text
from collectors.dialect import Dialect
from collectors.figures import Finding
from collectors.model import Labels
from collectors.promql_text import quote_label_value
from collectors.settings import Settings

Key = tuple[str, ...]

SCOPE_LABELS = ("cluster", "region", "environment", "env", "datacenter", "namespace", "job")
"""Labels that say where a replica lives, widest first."""
HA_LABELS = frozenset(
    (
        "prometheus",
        "prometheus_replica",
        "prometheus_group",
        "replica",
        "__replica__",
        "monitor",
        "receive",
        "tenant_id",
    )
    + ("thanos_replica", "ha_replica", "agent", "agent_hostname", "collector")
)
"""Labels that say who scraped, not what was scraped."""
SECOND_JOB_LABELS = frozenset(("job", "scrape_job", "service", "endpoint", "container", "scrape_config"))
SAME_START_SECONDS = 2.0
"""Two scrapes of one process agree on process_start_time_seconds to the digit; exporters may round."""
MODEL = "model_name"
PID = "pid"


@dataclass(frozen=True)
class Rank:
    """One engine inside a replica."""

    engine: str
    model: str


@dataclass(frozen=True)
class Replica:
    """One scraped serving process group."""

    key: Key
    labels: Labels
    scope: Labels
    ranks: tuple[Rank, ...]
    engine: EngineVersion | None
    """None when it exports no engine metric now."""
    up: bool | None
    """Whether the last scrape worked; None when the source keeps no `up` for it."""
    started_ms: int | None
    sampled_ms: int | None
    """Time of its newest engine sample."""

    @property
    def text(self) -> str:
        return key_text(self.key)

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(rank.model for rank in self.ranks if rank.model))


@dataclass(frozen=True)
class FleetTree:
    """The replicas of a fleet and the labels that tell them apart in queries."""

    replica_labels: tuple[str, ...]
    rank_label: str
    replicas: tuple[Replica, ...]
    exclude: tuple[str, ...]
    """PromQL matchers that keep router echoes out of every selector."""
    duplicated: bool
    """Whether some process is scraped more than once, so that sums need a `max by` first."""
    findings: tuple[Finding, ...]
    engines: tuple[EngineVersion, ...] = field(init=False, repr=False, compare=False)
    """The distinct engine versions among the replicas."""
    _by_key: Mapping[Key, Replica] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        found = dict.fromkeys(replica.engine for replica in self.replicas if replica.engine is not None)
        object.__setattr__(self, "engines", tuple(found))
        object.__setattr__(self, "_by_key", {replica.key: replica for replica in self.replicas})

    def replica(self, key: Key) -> Replica | None:
        return self._by_key.get(key)

    def key_of(self, labels: Labels) -> Key:
        return tuple(labels.get(label, "") for label in self.replica_labels)

    @property
    def engine_text(self) -> str:
        counts = Counter(replica.engine.text for replica in self.replicas if replica.engine is not None)
        return engines_text(counts) if counts else ""

    def branches(self) -> dict[str, dict[str, dict[str, tuple[Rank, ...]]]]:
        """Scope -> model -> replica -> ranks, as texts, sorted: the tree that a scope selector shows."""
        tree: dict[str, dict[str, dict[str, tuple[Rank, ...]]]] = {}
        for replica in sorted(self.replicas, key=lambda r: r.key):
            scope = " / ".join(replica.scope.values()) or "everywhere"
            for model in replica.models or ("",):
                ranks = tuple(rank for rank in replica.ranks if rank.model == model or not rank.model)
                tree.setdefault(scope, {}).setdefault(model, {})[replica.text] = ranks
        return tree


def key_text(key: Key) -> str:
    return "/".join(part for part in key if part) or "(no identity label)"


@dataclass(frozen=True)
class Series:
    """One scraped series as discovery saw it: canonical family, the prefix it came with, its labels and value."""

    family: str
    prefix: str
    labels: Labels
    value: float


@dataclass(frozen=True)
class Target:
    """What the scraper itself tells of one target."""

    labels: Labels
    up: float | None = None
    started_seconds: float | None = None
    sampled_seconds: float | None = None


def fleet_tree(
    engine_series: Sequence[Series],
    targets: Sequence[Target],
    settings: Settings,
    *,
    known_keys: Collection[Key] = (),
    dialect: Dialect,
) -> FleetTree:
    """The tree of everything that was seen.

    `engine_series` are engine metrics now (several families each); `targets` what the scraper says of targets in the same jobs;
    `known_keys` replicas seen earlier in the window, so that one that is down or gone is still named.
    """
    running = dialect.signal("requests_running", dialect.default)[0].name
    gauges = [series for series in engine_series if series.family == running]
    echoes, echo_label = _router_echoes(gauges, targets, settings)
    exclude = _exclusions(gauges, echoes, echo_label)
    is_echo = {id(series.labels) for series in echoes}
    direct = [s for s in engine_series if id(s.labels) not in is_echo and not _echoed(s, echoes, echo_label)]
    findings = []
    if echoes:
        routers = sorted({key_text(_key(s.labels, settings.identity.replica)) for s in echoes})
        findings.append(
            Finding(
                "router_echo",
                tuple(routers),
                "A router repeats the metrics of scraped replicas; it is left out of every number.",
            )
        )
    starts = _starts(targets)
    labels, twice, more = _identity_labels([g for g in gauges if id(g.labels) not in is_echo], starts, settings)
    findings += more
    replicas, rest = _replicas(
        direct, targets, labels, settings, known_keys, dialect, {key_of(e.labels, labels) for e in echoes}
    )
    findings += rest
    findings += rank_findings(replicas)
    return FleetTree(labels, settings.identity.rank, tuple(replicas), exclude, twice, tuple(findings))


def key_of(labels: Labels, replica_labels: Sequence[str]) -> Key:
    return tuple(labels.get(label, "") for label in replica_labels)


_key = key_of


def _own_labels(settings: Settings) -> frozenset[str]:
    return frozenset((settings.identity.rank, MODEL, PID, "__name__", "engine", "le"))


def _target_labels(labels: Labels, own: frozenset[str]) -> dict[str, str]:
    return {name: value for name, value in labels.items() if name not in own}


def _address(value: str) -> str:
    """host:port of an address, whatever stands around it."""
    return re.sub(r"^[a-z][a-z0-9+.-]*://", "", value, flags=re.IGNORECASE).rstrip("/").split("/")[0]


def _router_echoes(gauges: Sequence[Series], targets: Sequence[Target], settings: Settings) -> tuple[list[Series], str]:
    """Series in which a label names another scraped target, and that label.

    A router's exposition has one running gauge per backend, told apart by a label such as `server`; nothing else puts another
    target's address into a label of its own series.
    """
    own = _own_labels(settings)
    instances = {series.labels.get("instance", "") for series in gauges} | {
        t.labels.get("instance", "") for t in targets
    }
    instances.discard("")
    counts: Counter[str] = Counter()
    pointing: dict[str, list[Series]] = defaultdict(list)
    for series in gauges:
        for name, value in _target_labels(series.labels, own).items():
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


def _echoed(series: Series, echoes: Sequence[Series], label: str) -> bool:
    return (
        bool(echoes)
        and bool(series.labels.get(label))
        and any(series.labels.get("instance") == echo.labels.get("instance") for echo in echoes)
    )


def _exclusions(gauges: Sequence[Series], echoes: Sequence[Series], label: str) -> tuple[str, ...]:
    if not echoes:
        return ()
    kept = [series for series in gauges if all(series is not echo for echo in echoes)]
    if not any(series.labels.get(label) for series in kept):
        return (f'{label}=""',)
    instances = sorted({re.escape(echo.labels.get("instance", "")) for echo in echoes})
    return (f"instance!~{quote_label_value('|'.join(instances))}",)


def _starts(targets: Iterable[Target]) -> dict[frozenset[tuple[str, str]], float]:
    return {frozenset(t.labels.items()): t.started_seconds for t in targets if t.started_seconds is not None}


def _identity_labels(
    gauges: Sequence[Series], starts: Mapping[frozenset[tuple[str, str]], float], settings: Settings
) -> tuple[tuple[str, ...], bool, list[Finding]]:
    """The identity labels, lengthened where they do not tell processes apart; whether any process is counted twice; findings."""
    own = _own_labels(settings)
    labels = settings.identity.replica
    groups: dict[tuple[Key, str, str], list[dict[str, str]]] = defaultdict(list)
    for series in gauges:
        rank, model = series.labels.get(settings.identity.rank, ""), series.labels.get(MODEL, "")
        groups[key_of(series.labels, labels), rank, model].append(_target_labels(series.labels, own))
    apart: set[str] = set()
    twice: dict[Key, set[str]] = defaultdict(set)
    for (key, _, _), seen in groups.items():
        distinct = list({frozenset(one.items()): one for one in seen}.values())
        if len(distinct) < 2:
            continue
        differing = {name for one in distinct for name in one if any(one.get(name) != o.get(name) for o in distinct)}
        if _one_process(distinct, differing, starts):
            twice[key] |= differing
        else:
            apart |= _telling(differing)
    findings: list[Finding] = []
    if apart:
        added = tuple(sorted(apart, key=lambda name: (SCOPE_LABELS.index(name) if name in SCOPE_LABELS else 99, name)))
        findings.append(
            Finding(
                "identity_ambiguous",
                tuple(sorted({key_text(key) for (key, _, _), seen in groups.items() if len(seen) > 1})),
                f"The same {', '.join(labels)} stands for several processes; {', '.join(added)} tells them apart and was added to the identity.",
            )
        )
        labels = (*labels, *added)
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


def _one_process(
    distinct: Sequence[Mapping[str, str]],
    differing: Collection[str],
    starts: Mapping[frozenset[tuple[str, str]], float],
) -> bool:
    """Whether series that differ in these labels are the same process, scraped more than once."""
    times = [starts.get(frozenset(one.items())) for one in distinct]
    known = [time for time in times if time is not None]
    if len(known) == len(times):
        return max(known) - min(known) <= SAME_START_SECONDS
    return set(differing) <= HA_LABELS | SECOND_JOB_LABELS


def _telling(differing: Collection[str]) -> set[str]:
    """Of the labels in which processes differ, the ones to add to the identity: a scope label when there is one."""
    scope = [name for name in SCOPE_LABELS if name in differing]
    return set(scope[:1]) if scope else set(differing)


def _replicas(
    direct: Sequence[Series],
    targets: Sequence[Target],
    labels: tuple[str, ...],
    settings: Settings,
    known_keys: Collection[Key],
    dialect: Dialect,
    routers: Collection[Key],
) -> tuple[list[Replica], list[Finding]]:
    families: dict[Key, set[str]] = defaultdict(set)
    prefixes: dict[Key, Counter[str]] = defaultdict(Counter)
    ranks: dict[Key, dict[Rank, None]] = defaultdict(dict)
    first: dict[Key, Labels] = {}
    pids: dict[Key, set[str]] = defaultdict(set)
    ranked: dict[Key, bool] = {}
    running = dialect.signal("requests_running", dialect.default)[0].name
    for series in direct:
        key = key_of(series.labels, labels)
        families[key].add(series.family)
        if series.prefix:
            prefixes[key][series.prefix] += 1
        first.setdefault(key, series.labels)
        if series.labels.get(PID):
            pids[key].add(series.labels[PID])
        if series.family == running:
            ranked[key] = settings.identity.rank in series.labels
            ranks[key][Rank(series.labels.get(settings.identity.rank, ""), series.labels.get(MODEL, ""))] = None
    told: dict[Key, Target] = {}
    for target in targets:
        key = key_of(target.labels, labels)
        told[key] = _better(told.get(key), target)
    findings, wanted = _targets_that_count(families, told, known_keys, routers)
    if pids:
        several = tuple(sorted(key_text(key) for key, seen in pids.items() if len(seen) > 1))
        if several:
            findings.append(
                Finding(
                    "several_api_servers",
                    several,
                    "Several API servers answer: KV usage stands once per process and http metrics are per process.",
                )
            )
    replicas = []
    for key in wanted:
        teller = told.get(key)
        seen = first.get(key) or (teller.labels if teller else {})
        engine = None
        if families.get(key):
            prefix = prefixes[key].most_common(1)[0][0] if prefixes[key] else ""
            engine = detect(families[key], settings.engine, prefix=prefix, ranked=ranked.get(key))
        replicas.append(
            Replica(
                key=key,
                labels=dict(zip(labels, key, strict=True)),
                scope={name: seen[name] for name in SCOPE_LABELS if seen.get(name) and name not in labels},
                ranks=tuple(sorted(ranks[key], key=_rank_order)) if key in ranks else (),
                engine=engine,
                up=None if teller is None or teller.up is None else teller.up > 0,
                started_ms=_ms(teller.started_seconds if teller else None),
                sampled_ms=_ms(teller.sampled_seconds if teller else None),
            )
        )
    return replicas, findings


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


def _better(left: Target | None, right: Target) -> Target:
    """Of two scrapes of one replica, what is known: up if any is up, the newest sample."""
    if left is None:
        return right

    def newest(a: float | None, b: float | None) -> float | None:
        return max((x for x in (a, b) if x is not None), default=None)

    return Target(
        left.labels,
        newest(left.up, right.up),
        newest(left.started_seconds, right.started_seconds),
        newest(left.sampled_seconds, right.sampled_seconds),
    )


def _targets_that_count(
    families: Mapping[Key, Collection[str]],
    told: Mapping[Key, Target],
    known_keys: Collection[Key],
    routers: Collection[Key],
) -> tuple[list[Finding], list[Key]]:
    """Keys that are replicas. A target without engine metrics counts when it had some in the window, or when it is down in a job whose
    other targets are engines; one that answers without any is named instead."""
    silent = [key for key, t in told.items() if key not in families and key not in known_keys and key not in routers]
    answering = [key for key, target in told.items() if target.up]
    engines = [key for key in answering if key in families]
    mostly_engines = len(engines) * 2 >= len([key for key in answering if key not in routers])
    down = [key for key in silent if mostly_engines and told[key].up is not None and not told[key].up]
    mute = [key for key in told if told[key].up and key not in families and key not in routers]
    mute = [key for key in mute if key in known_keys or mostly_engines]
    findings = []
    if mute:
        where = tuple(sorted(key_text(key) for key in mute))
        findings.append(
            Finding(
                "no_engine_metrics",
                where,
                "Answers scrapes but exports no engine metric: log statistics are off, or it is no engine.",
            )
        )
    return findings, sorted({*families, *known_keys, *down})


def _rank_order(rank: Rank) -> tuple[int, str, str]:
    return (int(rank.engine) if rank.engine.isdigit() else -1, rank.engine, rank.model)


def rank_findings(replicas: Iterable[Replica]) -> list[Finding]:
    """'rank_missing' for every replica whose numbered ranks have a hole."""
    found = []
    for replica in replicas:
        numbers = sorted({int(rank.engine) for rank in replica.ranks if rank.engine.isdigit()})
        holes = sorted(set(range(numbers[-1] + 1)) - set(numbers)) if numbers else []
        if holes:
            names = ", ".join(map(str, holes))
            found.append(
                Finding(
                    "rank_missing",
                    (replica.text,),
                    f"Rank {names} exports nothing while higher ranks do; sums are too low.",
                )
            )
    return found


def vanished_ranks(replica: Replica, seen: Iterable[Rank]) -> list[Rank]:
    """Ranks of a replica that had samples in the window and have none now, while others of it do."""
    if not replica.ranks:
        return []
    now = {rank.engine for rank in replica.ranks}
    return sorted({rank for rank in seen if rank.engine not in now}, key=_rank_order)
