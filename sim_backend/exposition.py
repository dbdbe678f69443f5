"""A page of samples with a fixed layout: labels once, then one vector of values per scrape; and its text through prometheus_client."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, repeat
from math import frexp, ldexp

from prometheus_client.core import Metric
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.utils import floatToGoString

LabelPairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Family:
    """One metric family as a row of a page: `samples` are (sample name, labels), in the order of its values."""

    name: str
    kind: str
    help: str
    samples: tuple[tuple[str, LabelPairs], ...]


@dataclass(frozen=True, slots=True)
class Page:
    """Families and, in the same order, the value of each of their samples."""

    families: tuple[Family, ...]
    values: Sequence[float]

    def rows(self) -> Iterator[tuple[str, LabelPairs, float]]:
        index = 0
        for family in self.families:
            for name, labels in family.samples:
                yield name, labels, self.values[index]
                index += 1


def added(total: float, value: float, times: int) -> float:
    """`total` after `times` additions of `value` one by one, rounding included: n x value rounds otherwise.

    Between two powers of two the spacing of floats is constant, so every addition there adds the same rounded step - from the second one on, when
    a tie has been rounded to even - and whole stretches of steps are exact.
    """
    if times < 8 or value <= 0 or total < 0:
        for _ in repeat(None, times):
            total += value
        return total
    exponent = None
    while times:
        total += value
        times -= 1
        before, exponent = exponent, frexp(total)[1]
        if before == exponent:
            step = (total + value) - total
            if not step:
                return total
            whole = min(times, int((ldexp(1.0, exponent) - total) / step) - 1)
            if whole > 0:
                total += step * whole
                times -= whole
    return total


class Histogram:
    """Counts by bucket and the sum, as prometheus_client keeps them; `observe` takes `count` equal observations at once, the sum is that of one by one."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(float(bound) for bound in bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum = self.sum + value if count == 1 else added(self.sum, value, count)

    @property
    def count(self) -> int:
        return sum(self.counts)

    def values(self, created_seconds: float) -> list[float]:
        """Cumulative buckets, count, sum, creation time: the order of `histogram_samples`."""
        cumulative = list(accumulate(self.counts))
        return [*cumulative, cumulative[-1], self.sum, created_seconds]


def histogram_samples(name: str, labels: LabelPairs, bounds: Iterable[float]) -> list[tuple[str, LabelPairs]]:
    """Sample names and labels of one histogram, in the order of `Histogram.values`."""
    edges = [*(_edge(bound) for bound in bounds), "+Inf"]
    samples = [(f"{name}_bucket", (*labels, ("le", edge))) for edge in edges]
    return [*samples, (f"{name}_count", labels), (f"{name}_sum", labels), (f"{name}_created", labels)]


def _edge(bound: float) -> str:
    text: str = floatToGoString(float(bound))  # type: ignore[no-untyped-call]
    return text


class PageCollector(Collector):
    """Shows the pages of `sources` (callables, asked anew at each scrape) to a prometheus_client registry."""

    def __init__(self, source: PageSource) -> None:
        self._source = source

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        for page in self._source.pages():
            index = 0
            for family in page.families:
                metric = Metric(family.name, family.help, family.kind)
                for name, labels in family.samples:
                    metric.add_sample(name, dict(labels), page.values[index])
                    index += 1
                yield metric


class PageSource:
    """What a replica shows when it is asked: its pages, in order."""

    def pages(self) -> Sequence[Page]:
        raise NotImplementedError


def registry_of(source: PageSource) -> CollectorRegistry:
    """A registry of its own for one replica."""
    registry = CollectorRegistry()
    registry.register(PageCollector(source))
    return registry
