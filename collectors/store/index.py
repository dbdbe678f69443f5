"""The label index: which series carry a label value, and which series satisfy a list of matchers."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence

from collectors.store.matchers import Matcher
from collectors.store.series import LabelSet


class SeriesIndex:
    """Series ids by label set and by label value. Additions are locked; readers see either the old or the new state."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ids: dict[LabelSet, int] = {}
        self._labels: dict[int, LabelSet] = {}
        self._postings: dict[str, dict[str, set[int]]] = {}
        self._pairs: dict[tuple[str, str], tuple[str, str]] = {}
        self._next = 0
        self.generation = 0
        """Rises whenever a series is added or removed."""

    def __len__(self) -> int:
        return len(self._labels)

    def intern(self, labels: Mapping[str, str]) -> int:
        """The id of a label set, new when it was not known."""
        key = labels if isinstance(labels, LabelSet) else LabelSet(labels)
        known = self._ids.get(key)
        if known is not None:
            return known
        with self._lock:
            known = self._ids.get(key)
            if known is not None:
                return known
            sid = self._next
            self._next += 1
            # Thousands of series have most of their pairs in common: one copy of each is kept.
            key = LabelSet(self._pairs.setdefault(pair, pair) for pair in key.pairs)
            self._labels[sid] = key
            for name, value in key.pairs:
                self._postings.setdefault(name, {}).setdefault(value, set()).add(sid)
            self._ids[key] = sid
            self.generation += 1
            return sid

    def labels(self, sid: int) -> LabelSet | None:
        """The label set of a series id; None when it has been forgotten."""
        return self._labels.get(sid)

    def remove(self, sids: Iterable[int]) -> None:
        """Forget series that hold no samples any more."""
        with self._lock:
            for sid in sids:
                key = self._labels.pop(sid, None)
                if key is None:
                    continue
                del self._ids[key]
                for name, value in key.pairs:
                    holders = self._postings[name][value]
                    holders.discard(sid)
                    if not holders:
                        del self._pairs[name, value]
                        del self._postings[name][value]
                        if not self._postings[name]:
                            del self._postings[name]
            self.generation += 1

    def select(self, matchers: Sequence[Matcher]) -> list[int]:
        """Ids of the series that satisfy every matcher, in the order in which they came (as Prometheus's head has them)."""
        with self._lock:
            found: set[int] | None = None
            # Narrow by conditions that need the label to be there first; the others only ever remove.
            for matcher in sorted(matchers, key=lambda m: (m.matches_empty(), m.op != "=")):
                values = self._postings.get(matcher.name, {})
                if matcher.matches_empty():
                    if found is None:
                        found = set(self._labels)
                    for value, holders in values.items():
                        if not matcher.matches(value):
                            found = found - holders
                    continue
                if matcher.op == "=":
                    hits = values.get(matcher.value, set())
                else:
                    hits = set().union(*(h for value, h in values.items() if matcher.matches(value)))
                found = set(hits) if found is None else found & hits
                if not found:
                    return []
            chosen = set(self._labels) if found is None else found
            return sorted(chosen)

    def label_names(self, sids: Iterable[int] | None = None) -> list[str]:
        """Label names in use, sorted; of the given series only when they are given."""
        with self._lock:
            if sids is None:
                return sorted(self._postings)
            return sorted({name for sid in sids if sid in self._labels for name in self._labels[sid]})

    def label_values(self, name: str, sids: Iterable[int] | None = None) -> list[str]:
        """Values of a label, sorted; of the given series only when they are given."""
        with self._lock:
            if sids is None:
                return sorted(self._postings.get(name, {}))
            return sorted({v for sid in sids if sid in self._labels and (v := self._labels[sid].get(name))})
