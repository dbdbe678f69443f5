"""From scraped series to one tree of scope, model, replica and rank - each real engine once.

Labels are the only witness: a pod's address changes on rollout, an instance name can repeat across clusters, an HA pair or a second job
scrapes the same process twice, a router repeats the metrics of what stands behind it. What cannot be told apart is said.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from collectors.detection import EngineVersion, detect, engines_text
from collectors.dialect import Dialect
from collectors.doubles import echoed, exclusions, identity_labels, router_echoes, starts
from collectors.figures import Finding
from collectors.model import Labels
from collectors.scraped import MODEL, PID, SCOPE_LABELS, Key, Series, Target, key_of, key_text
from collectors.settings import Settings


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
        return tuple([labels.get(label, "") for label in self.replica_labels])

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
    echoes, echo_label = router_echoes(gauges, targets, settings)
    exclude = exclusions(gauges, echoes, echo_label)
    is_echo = {id(series.labels) for series in echoes}
    direct = [s for s in engine_series if id(s.labels) not in is_echo and not echoed(s, echoes, echo_label)]
    findings = []
    if echoes:
        routers = sorted({key_text(key_of(s.labels, settings.identity.replica)) for s in echoes})
        findings.append(
            Finding(
                "router_echo",
                tuple(routers),
                "A router repeats the metrics of scraped replicas; it is left out of every number.",
            )
        )
    started = starts(targets)
    labels, twice, more = identity_labels([g for g in gauges if id(g.labels) not in is_echo], started, settings)
    findings += more
    replicas, rest = _replicas(
        direct, targets, labels, settings, known_keys, dialect, {key_of(e.labels, labels) for e in echoes}
    )
    findings += rest
    findings += rank_findings(replicas)
    return FleetTree(labels, settings.identity.rank, tuple(replicas), exclude, twice, tuple(findings))


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
            told_version = teller.version if teller else ""
            engine = detect(families[key], settings.engine, prefix=prefix, ranked=ranked.get(key), told=told_version)
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
        left.version or right.version,
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
