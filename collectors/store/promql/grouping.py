"""Which series belong together under by(...) and without(...)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collectors.remembered import of_labels
from collectors.store.series import EMPTY, METRIC_NAME, LabelSet


@dataclass(frozen=True)
class Groups:
    """`of[s]` is the group of series s; `order` lists the series group by group, `starts` where each group begins."""

    labels: tuple[LabelSet, ...]
    of: npt.NDArray[np.intp]
    order: npt.NDArray[np.intp]
    starts: npt.NDArray[np.intp]

    @property
    def sizes(self) -> npt.NDArray[np.intp]:
        return np.diff(self.starts, append=len(self.order))

    def members(self, group: int) -> npt.NDArray[np.intp]:
        """The series of a group, in order."""
        end = self.starts[group + 1] if group + 1 < len(self.starts) else len(self.order)
        return self.order[self.starts[group] : end]


def group(series: tuple[LabelSet, ...], *, without: bool, names: tuple[str, ...]) -> Groups:
    """Groups of an aggregation, in order of their first series."""
    return of_labels(series, ("group", without, names), lambda: _grouped(series, without, names))


def _grouped(series: tuple[LabelSet, ...], without: bool, names: tuple[str, ...]) -> Groups:
    of = np.zeros(len(series), dtype=np.intp)
    labels: list[LabelSet] = []
    if not without and not names:
        labels = [EMPTY] if series else []
    elif without:
        dropped = frozenset((*names, METRIC_NAME))
        known: dict[tuple[tuple[str, str], ...], int] = {}
        for i, one in enumerate(series):
            pairs = tuple(p for p in one.pairs if p[0] not in dropped)
            found = known.get(pairs)
            if found is None:
                found = known[pairs] = len(labels)
                labels.append(LabelSet(pairs))
            of[i] = found
    else:
        kept = tuple(sorted(set(names)))
        keys: dict[tuple[str, ...], int] = {}
        for i, one in enumerate(series):
            key = tuple(one.get(name) for name in kept)
            found = keys.get(key)
            if found is None:
                found = keys[key] = len(labels)
                labels.append(LabelSet(zip(kept, key, strict=True)))
            of[i] = found
    order = np.argsort(of, kind="stable")
    sizes = np.bincount(of, minlength=len(labels)) if len(series) else np.zeros(0, dtype=np.intp)
    starts = np.concatenate(([0], np.cumsum(sizes)[:-1])).astype(np.intp) if len(labels) else np.zeros(0, dtype=np.intp)
    return Groups(tuple(labels), of, order, starts)
