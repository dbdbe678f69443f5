"""What is there to be watched: two instant queries that tell the replicas, their engines' versions and the scrape interval."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from collectors.asked_versions import shared_versions
from collectors.asking import Answers, Question
from collectors.detection import telling_samples
from collectors.dialect import Dialect, load_dialect, split_dialect_name
from collectors.identity import FleetTree, fleet_tree
from collectors.model import Vector
from collectors.promql_text import quote_label_value
from collectors.scraped import Key, Series, Target
from collectors.settings import Settings
from collectors.signals import SIGNAL, Plan, duration_text, plan_for, scrape_interval_seconds

LOOKBACK_MS = 900_000
"""How far back a job is remembered whose replicas are all down."""
LONGEST_LOOKBACK_MS = 3_600_000
SPANS_SECONDS = (60, 120, 300)
"""Over these the samples of `up` are counted, to tell the interval; an engine gauge stands in where there is no `up`."""


@dataclass(frozen=True)
class Discovery:
    """What discovery learned; the tree is made once the window's own series are known too."""

    dialect: Dialect
    engine_series: tuple[Series, ...]
    targets: tuple[Target, ...]
    scrape_interval_seconds: float | None
    settings: Settings = field(repr=False)

    def tree(self, known_keys: Sequence[Key] = ()) -> FleetTree:
        return fleet_tree(self.engine_series, self.targets, self.settings, known_keys=known_keys, dialect=self.dialect)

    def plan(self) -> Plan:
        return plan_for(self.tree(), self.dialect)


def dialect_of(settings: Settings) -> Dialect:
    """The dialect that the configuration names, else vLLM's. Raises ValueError for one that does not exist."""
    return load_dialect(split_dialect_name(settings.engine.dialect)[0] if settings.engine.dialect else "vllm")


def questions(dialect: Dialect, at_ms: int, lookback_ms: int = LOOKBACK_MS) -> tuple[Question, Question]:
    """The two queries of discovery: engine series now, and what the scraper says of targets in the same jobs."""
    prefixes = "|".join(re.escape(prefix) for prefix in (dialect.prefix, *dialect.other_prefixes))
    engine = f"(?:{prefixes})(?:{'|'.join(map(re.escape, telling_samples(dialect)))})"
    running = quote_label_value(f"(?:{prefixes}){re.escape(telling_samples(dialect)[0])}")
    lookback = duration_text(min(max(lookback_ms, 300_000), LONGEST_LOOKBACK_MS))
    jobs = f"count by (job) (count_over_time({{__name__=~{running}}}[{lookback}]))"
    of_jobs = [
        f'label_replace(up, "{SIGNAL}", "up", "", "")',
        f'label_replace(process_start_time_seconds, "{SIGNAL}", "start", "", "")',
        *(
            f'label_replace(count_over_time(up[{duration_text(span * 1000)}]), "{SIGNAL}", "in_{span}", "", "")'
            for span in SPANS_SECONDS
        ),
    ]
    longest = SPANS_SECONDS[-1]
    of_engines = [
        f'label_replace(timestamp({{__name__=~{running}}}), "{SIGNAL}", "sampled", "", "")',
        f"label_replace(count_over_time({{__name__=~{running}}}[{duration_text(longest * 1000)}]), "
        f'"{SIGNAL}", "engine_in_{longest}", "", "")',
    ]
    told = " or ".join([f"(({' or '.join(of_jobs)}) and on (job) {jobs})", *of_engines])
    return (
        Question("engines", f"{{__name__=~{quote_label_value(engine)}}}", at_ms=at_ms),
        Question("targets", told, at_ms=at_ms),
    )


def discover(answers: Answers, settings: Settings, at_ms: int, lookback_ms: int = LOOKBACK_MS) -> Discovery:
    """Ask and read both queries. Raises SourceError."""
    dialect = dialect_of(settings)
    engines, targets = questions(dialect, at_ms, lookback_ms)
    answers.ask((engines, targets))
    found = read(answers.vector("engines"), answers.vector("targets"), settings, dialect)
    if not settings.engine.ask_version or settings.engine.version:
        return found
    return replace(found, targets=shared_versions().told(answers.source, found.targets, at_ms))


def read(engines: Vector, targets: Vector, settings: Settings, dialect: Dialect) -> Discovery:
    """Discovery's two answers as series, targets and the scrape interval."""
    series = []
    for labels, value in zip(engines.labels, engines.values.tolist(), strict=True):
        known = dialect.canonical(labels.get("__name__", ""))
        if known is not None:
            series.append(Series(known[0], known[1], labels, value))
    own = {SIGNAL, "__name__", settings.identity.rank, "engine", "model_name", "pid"}
    facts: dict[frozenset[tuple[str, str]], dict[str, float]] = defaultdict(dict)
    counts: dict[str, list[float]] = defaultdict(list)
    for labels, value in zip(targets.labels, targets.values.tolist(), strict=True):
        what = labels.get(SIGNAL, "")
        if what.startswith(("in_", "engine_in_")):
            counts[what].append(value)
            continue
        target = frozenset((name, text) for name, text in labels.items() if name not in own)
        facts[target][what] = max(value, facts[target].get(what, value))
    seen = {span: counts[f"in_{span}"] for span in SPANS_SECONDS}
    longest = SPANS_SECONDS[-1]
    interval = scrape_interval_seconds(seen if seen[longest] else {longest: counts[f"engine_in_{longest}"]})
    found = [
        Target(dict(labels), told.get("up"), told.get("start"), told.get("sampled")) for labels, told in facts.items()
    ]
    return Discovery(dialect, tuple(series), tuple(found), interval, settings)
