"""A simulated run as an incident file, with the ground truth in its manifest. Knows the run by its shape only: scrapes with layouts, then a truth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from collectors.capsule.convert import Contents, Summary, write_contents
from collectors.capsule.manifest import Origin
from collectors.model import STALE, Floats, MetricMeta, Samples


class Layout(Protocol):
    """The series of one target, in the order of a scrape's values."""

    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def labels(self) -> tuple[dict[str, str], ...]: ...
    @property
    def kinds(self) -> tuple[str, ...]: ...
    @property
    def helps(self) -> tuple[str, ...]: ...


class Scrape(Protocol):
    """One scrape of one target."""

    @property
    def t_ms(self) -> int: ...
    @property
    def instance(self) -> str: ...
    @property
    def layout(self) -> Any: ...
    @property
    def values(self) -> Floats: ...


class Simulation(Protocol):
    """An iterator over scrapes; `ground_truth` is complete when it is exhausted."""

    def __iter__(self) -> Iterator[Any]: ...
    @property
    def ground_truth(self) -> Mapping[str, Any]: ...


Key = tuple[str, tuple[tuple[str, str], ...]]


def write_simulated(simulation: Simulation, out: Path) -> Summary:
    """Drains the simulation into an incident file. A series that is missing from a scrape of its target ends with a staleness marker, as a scraper would write it."""
    series: dict[Key, tuple[list[int], list[float]]] = {}
    types: dict[str, MetricMeta] = {}
    keys: dict[int, list[Key]] = {}
    layouts: dict[int, Any] = {}
    last: dict[str, Any] = {}
    for scrape in simulation:
        layout = scrape.layout
        if id(layout) not in keys:
            layouts[id(layout)] = layout  # held, so that its id stays its own
            keys[id(layout)] = [
                (name, tuple(sorted(labels.items()))) for name, labels in zip(layout.names, layout.labels, strict=True)
            ]
            for name, kind, text in zip(layout.names, layout.kinds, layout.helps, strict=True):
                if kind:
                    types.setdefault(name, MetricMeta(kind, text))
        present = keys[id(layout)]
        before = last.get(scrape.instance)
        if before is not None and before is not layout:
            for key in set(keys[id(before)]) - set(present):
                times, values = series[key]
                times.append(scrape.t_ms)
                values.append(STALE)
        last[scrape.instance] = layout
        for key, value in zip(present, scrape.values.tolist(), strict=True):
            times, values = series.setdefault(key, ([], []))
            times.append(scrape.t_ms)
            values.append(value)
    truth = dict(simulation.ground_truth)
    contents = Contents(
        series=[
            Samples(
                {"__name__": name, **dict(labels)},
                np.asarray(times, dtype=np.int64),
                np.asarray(values, dtype=np.float64),
            )
            for (name, labels), (times, values) in series.items()
        ],
        origin=Origin(kind="simulated"),
        types=types,
        wrapper={"scenario": truth.get("scenario", ""), "ground_truth": truth},
        tells_staleness=True,
    )
    return write_contents(contents, out, title=str(truth.get("scenario", "simulated")))
