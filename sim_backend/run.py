"""Virtual time: the samples that a scraper would have taken from a scenario's fleet, without waiting for them."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim_backend.cluster import Cluster
from sim_backend.exposition import Family, LabelPairs, Page
from sim_backend.faults import ScrapeLost
from sim_backend.scenario import Scenario, load_scenario

JOB = "vllm"
SCRAPE_ROWS = (
    "scrape_duration_seconds",
    "scrape_samples_scraped",
    "scrape_samples_post_metric_relabeling",
    "scrape_series_added",
)
TIMEOUT_SECONDS = 1.9


@dataclass(frozen=True, slots=True)
class Layout:
    """Series of one target in the order of its values: metric name and labels (`job` and `instance` included, no `__name__`)."""

    instance: str
    names: tuple[str, ...]
    labels: tuple[dict[str, str], ...]
    kinds: tuple[str, ...]
    helps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Scrape:
    """One scrape of one target. `layout` is the same object as long as its series stay the same; a failed scrape has only `up` = 0 and scrape_*."""

    t_ms: int
    instance: str
    layout: Layout
    values: NDArray[np.float64]


class Run:
    """An iterator over the scrapes of a run, in order of time; `ground_truth` is complete when it is exhausted."""

    def __init__(
        self, cluster: Cluster, *, start_ms: int, duration_seconds: float, scrape_interval_seconds: float
    ) -> None:
        self.cluster = cluster
        self.start_ms = start_ms
        self.duration_seconds = duration_seconds
        self.scrape_interval_seconds = scrape_interval_seconds
        self._layouts: dict[int, tuple[tuple[tuple[Family, ...], ...], Layout]] = {}
        self._failed: dict[int, Layout] = {}
        self._known: dict[int, Layout | None] = {}
        self._scrapes = self._generate()

    def __iter__(self) -> Iterator[Scrape]:
        return self._scrapes

    @property
    def ground_truth(self) -> dict[str, Any]:
        """What was really wrong, where and when, so far; plain data."""
        truth = self.cluster.ground_truth()
        truth["start_ms"] = self.start_ms
        truth["end_ms"] = self.start_ms + round(self.duration_seconds * 1000)
        truth["scrape_interval_seconds"] = self.scrape_interval_seconds
        truth["engine_steps"] = self.engine_steps
        truth["calls"] = self.cluster.calls
        return truth

    @property
    def engine_steps(self) -> int:
        return sum(engine.steps for replica in self.cluster.replicas for engine in replica.engines)

    def _generate(self) -> Iterator[Scrape]:
        interval = self.scrape_interval_seconds
        count = len(self.cluster.replicas)
        due = [(interval * (index + 1) / (count + 1), index) for index in range(count)]
        heapq.heapify(due)
        while due and due[0][0] <= self.duration_seconds:
            at, index = heapq.heappop(due)
            self.cluster.advance(at, only=index)
            yield self._scrape(index, at)
            heapq.heappush(due, (at + interval, index))
        self.cluster.advance(self.duration_seconds)

    def _scrape(self, index: int, at: float) -> Scrape:
        t_ms = self.start_ms + round(at * 1000)
        replica = self.cluster.replicas[index]
        pages = None
        lost = False
        if replica.state != "down":
            try:
                pages = self.cluster.scrape(index)
            except ScrapeLost:
                lost = True
        if pages is None:
            layout = self._failed.get(index)
            if layout is None:
                layout = self._failed[index] = _layout(replica.instance, ())
            self._known[index] = layout
            values = np.array([0.0, TIMEOUT_SECONDS if lost else 0.0004, 0.0, 0.0, 0.0])
            return Scrape(t_ms, replica.instance, layout, values)
        layout = self._layout_of(index, pages)
        samples = len(layout.names) - 1 - len(SCRAPE_ROWS)
        before = self._known.get(index)
        added = 0 if before is layout else len(layout.names) - (len(before.names) if before is not None else 0)
        self._known[index] = layout
        duration = 0.0031 + 1.2e-6 * samples + 1e-6 * (t_ms % 997)
        rows = [value for page in pages for value in page.values]
        rows += (1.0, duration, float(samples), float(samples), float(max(added, 0)))
        return Scrape(t_ms, replica.instance, layout, np.array(rows))

    def _layout_of(self, index: int, pages: Sequence[Page]) -> Layout:
        families = tuple(page.families for page in pages)
        known = self._layouts.get(index)
        if known is not None and len(known[0]) == len(families):
            if all(a is b for a, b in zip(known[0], families, strict=True)):
                return known[1]
            if known[0] == families:
                return known[1]
        layout = _layout(self.cluster.replicas[index].instance, families)
        self._layouts[index] = (families, layout)
        return layout


def _layout(instance: str, pages: tuple[tuple[Family, ...], ...]) -> Layout:
    target: LabelPairs = (("instance", instance), ("job", JOB))
    names: list[str] = []
    labels: list[dict[str, str]] = []
    kinds: list[str] = []
    helps: list[str] = []
    for families in pages:
        for family in families:
            for name, pairs in family.samples:
                names.append(name)
                labels.append(dict((*pairs, *target)))
                kinds.append("gauge" if name.endswith("_created") else family.kind)
                helps.append(family.help)
    for name in ("up", *SCRAPE_ROWS):
        names.append(name)
        labels.append(dict(target))
        kinds.append("")
        helps.append("")
    return Layout(instance, tuple(names), tuple(labels), tuple(kinds), tuple(helps))


def run(
    scenario: str | Scenario,
    duration_seconds: float | None = None,
    seed: int = 1,
    replicas: int | None = None,
    scrape_interval_seconds: float = 5.0,
    start_ms: int = 0,
    *,
    glide: bool = True,
) -> Run:
    """Simulate `scenario` (name, path or object) for `duration_seconds` from `start_ms` (epoch). Iterate the result for the scrapes, then read
    `ground_truth`. Same scenario and seed, same samples. Raises ScenarioError. `glide=False` takes every engine step by itself."""
    chosen = scenario if isinstance(scenario, Scenario) else load_scenario(scenario)
    duration = duration_seconds if duration_seconds is not None else chosen.duration_seconds
    cluster = Cluster(chosen, seed=seed, replicas=replicas, epoch_seconds=start_ms / 1000, glide=glide)
    return Run(cluster, start_ms=start_ms, duration_seconds=duration, scrape_interval_seconds=scrape_interval_seconds)
