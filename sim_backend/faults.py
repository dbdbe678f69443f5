"""What goes wrong: faults of serving act on replicas, faults of metrics act on what a scraper reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from sim_backend.exposition import Family, Page
from sim_backend.replica import Replica
from sim_backend.scenario import Cause, Fault, FaultKind

CAUSE_OF: dict[FaultKind, Cause] = {
    "slow": "engine_slow",
    "halt": "engine_stalled",
    "crash": "replica_down",
    "cold_start": "engine_slow",
    "engine_dead": "replica_down",
    "mass_abort": "client_aborts",
    "reset_prefix_cache": "cold_prefix_cache",
    "oom_at_start": "oom_at_start",
    "frozen_gauges": "stale_gauges",
    "missing_rank": "metrics_missing",
    "interleaved_servers": "metrics_untrustworthy",
    "flat_buckets": "metrics_untrustworthy",
    "hits_above_queries": "metrics_untrustworthy",
    "removed_metric": "metrics_missing",
    "missing_scrape": "metrics_missing",
}

SAYS: dict[FaultKind, str] = {
    "slow": "Every step takes longer: a throttled device or a noisy neighbour.",
    "halt": "The worker hangs: the server answers /metrics and /health, no step ends.",
    "crash": "The processes are gone; with a restart, every counter begins at 0 again.",
    "cold_start": "Steps are slow after a start and get faster: compilation and warm-up.",
    "engine_dead": "The engine core died: 500 for everyone, /health 503, the API server exits soon.",
    "mass_abort": "Every client hangs up at the same moment.",
    "reset_prefix_cache": "The prefix cache is emptied as soon as no block is owned, or thrown away with a restart of the pool.",
    "oom_at_start": "The replica does not come up: the device has no memory left for the KV cache.",
    "frozen_gauges": "Gauges keep their last value whatever happens.",
    "missing_rank": "One data-parallel rank is not exported.",
    "interleaved_servers": "Several API servers answer one address in turn: counters jump up and down.",
    "flat_buckets": "All buckets of the time to first token show the same count.",
    "hits_above_queries": "The prefix cache reports more hits than queries.",
    "removed_metric": "A metric name has disappeared.",
    "missing_scrape": "Some scrapes get no answer in time.",
}

SERVING: frozenset[FaultKind] = frozenset(
    ("slow", "halt", "crash", "cold_start", "engine_dead", "mass_abort", "reset_prefix_cache", "oom_at_start")
)
MOMENTARY: frozenset[FaultKind] = frozenset(("mass_abort", "reset_prefix_cache"))
"""Over as soon as they happened, however long they were ordered for."""
GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
SERVER_SHARES = (0.62, 0.38)
WARM_UP_STAGES = 4


class ScrapeLost(Exception):
    """This scrape gets no answer in time."""


def slowdown(faults: Sequence[Fault], rank: int, now: float) -> float:
    """The factor on step times of one rank under the faults that are active on its replica."""
    factor = 1.0
    for fault in faults:
        if fault.rank is not None and fault.rank != rank:
            continue
        if fault.kind == "slow":
            factor *= fault.factor
        elif fault.warm_up_seconds and fault.kind in ("cold_start", "crash"):
            began = fault.start_seconds + (fault.restart_after_seconds or 0.0 if fault.kind == "crash" else 0.0)
            share = (now - began) / fault.warm_up_seconds
            if 0 <= share < 1:
                stage = int(share * WARM_UP_STAGES)
                factor *= 1 + (fault.factor - 1) * (1 - stage / WARM_UP_STAGES)
    return factor


def set_slowdown(replica: Replica, faults: Sequence[Fault], now: float) -> None:
    for rank, cost in enumerate(replica.costs):
        cost.slowdown = slowdown(faults, rank, now)


@dataclass(slots=True)
class Lens:
    """What a scraper sees of one replica: its pages through the metric faults that are active. Keeps what a frozen gauge showed."""

    random: Random
    scrapes: int = 0
    _frozen: dict[int, dict[tuple[str, str], float]] = field(default_factory=dict)

    def freeze(self, pages: Sequence[Page], fault: Fault) -> None:
        """A gauge freezes: what it shows at this moment is what every later scrape sees."""
        for page in pages:
            self._freeze(page, fault)

    def look(self, pages: Sequence[Page], faults: Sequence[Fault]) -> Sequence[Page]:
        """The pages as scraped. Raises ScrapeLost when this scrape gets no answer."""
        self.scrapes += 1
        active = {id(fault) for fault in faults}
        self._frozen = {key: values for key, values in self._frozen.items() if key in active}
        for fault in faults:
            if fault.kind == "missing_scrape" and self.random.random() < fault.ratio:
                raise ScrapeLost("no answer in time")
            if fault.kind not in SERVING:
                pages = [page for page in (self._through(page, fault) for page in pages) if page.families]
        return pages

    def _through(self, page: Page, fault: Fault) -> Page:
        match fault.kind:
            case "frozen_gauges":
                return self._freeze(page, fault)
            case "missing_rank":
                gone = str(fault.rank if fault.rank is not None else 0)
                return _filtered(page, lambda family, name, labels: labels.get("engine") != gone)
            case "removed_metric":
                return _filtered(page, lambda family, name, labels: family.name != fault.metric)
            case "flat_buckets":
                return _mapped(page, _flatten)
            case "hits_above_queries":
                return _more_hits(page)
            case "interleaved_servers":
                return _one_server(page, self.scrapes % len(SERVER_SHARES))
            case _:
                return page

    def _freeze(self, page: Page, fault: Fault) -> Page:
        names = (fault.metric,) if fault.metric else GAUGES
        kept = self._frozen.setdefault(id(fault), {})

        def value(family: Family, name: str, labels: str, current: float) -> float:
            return kept.setdefault((name, labels), current) if family.name in names else current

        values = []
        index = 0
        for family in page.families:
            for name, labels in family.samples:
                values.append(value(family, name, str(labels), page.values[index]))
                index += 1
        return Page(page.families, values)


def _filtered(page: Page, keep: Callable[[Family, str, dict[str, str]], bool]) -> Page:
    """The samples that `keep` (family, sample name, labels) wants; a family that loses all of them is gone."""
    families: list[Family] = []
    values: list[float] = []
    index = 0
    for family in page.families:
        samples = []
        for name, labels in family.samples:
            if keep(family, name, dict(labels)):
                samples.append((name, labels))
                values.append(page.values[index])
            index += 1
        if samples or not family.samples:
            families.append(Family(family.name, family.kind, family.help, tuple(samples)))
    return Page(tuple(families), values)


def _mapped(page: Page, change: Callable[[Family, list[float]], list[float]]) -> Page:
    """The page with the values of each family as `change` gives them back."""
    values: list[float] = []
    index = 0
    for family in page.families:
        end = index + len(family.samples)
        values += change(family, list(page.values[index:end]))
        index = end
    return Page(page.families, values)


def _flatten(family: Family, values: list[float]) -> list[float]:
    if family.name != "vllm:time_to_first_token_seconds":
        return values
    counts = [value for (name, _), value in zip(family.samples, values, strict=True) if name.endswith("_count")]
    flat, engine = [], 0
    for (name, _), value in zip(family.samples, values, strict=True):
        flat.append(counts[engine] if name.endswith("_bucket") else value)
        engine += name.endswith("_created")
    return flat


def _more_hits(page: Page) -> Page:
    queries: list[float] = []

    def change(family: Family, values: list[float]) -> list[float]:
        if family.name == "vllm:prefix_cache_queries":
            queries[:] = values
        if family.name == "vllm:prefix_cache_hits" and queries:
            return [
                1.25 * queries[index] + 64 if name.endswith("_total") else value
                for index, ((name, _), value) in enumerate(zip(family.samples, values, strict=True))
            ]
        return values

    return _mapped(page, change)


def _one_server(page: Page, server: int) -> Page:
    """The share of one of several API servers behind the same address; process and creation series are not exported then."""
    share = SERVER_SHARES[server]

    def change(family: Family, values: list[float]) -> list[float]:
        if family.kind == "gauge" or not family.name.startswith(("vllm:", "http_")):
            return values
        return [
            value * share if name.endswith("_sum") else float(int(value * share))
            for (name, _), value in zip(family.samples, values, strict=True)
        ]

    return _filtered(
        _mapped(page, change),
        lambda family, name, labels: not name.endswith("_created") and not name.startswith(("process_", "python_")),
    )
