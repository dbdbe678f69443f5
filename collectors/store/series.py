"""Label sets as values: sorted, hashed once, comparable, cheap to strip of their metric name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

METRIC_NAME = "__name__"


class LabelSet(Mapping[str, str]):
    """An immutable label set. An empty value equals a missing label, as everywhere in Prometheus."""

    __slots__ = ("_hash", "_map", "_nameless", "pairs")

    def __init__(self, labels: Mapping[str, str] | Iterable[tuple[str, str]] = ()) -> None:
        items = labels.items() if isinstance(labels, Mapping) else labels
        self.pairs: tuple[tuple[str, str], ...] = tuple(sorted((k, v) for k, v in items if v))
        self._map = dict(self.pairs)
        self._hash = hash(self.pairs)
        self._nameless: LabelSet | None = None

    def __getitem__(self, name: str) -> str:
        return self._map[name]

    def get(self, name: str, default: str = "") -> str:  # type: ignore[override]
        """The label's value, '' when it is missing."""
        return self._map.get(name, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._map)

    def __len__(self) -> int:
        return len(self._map)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if isinstance(other, LabelSet):
            return self is other or (self._hash == other._hash and self.pairs == other.pairs)
        return isinstance(other, Mapping) and self._map == dict(other)

    def __lt__(self, other: LabelSet) -> bool:
        return self.pairs < other.pairs

    def __repr__(self) -> str:
        inner = ", ".join(f'{k}="{v}"' for k, v in self.pairs if k != METRIC_NAME)
        return f"{self.get(METRIC_NAME)}{{{inner}}}"

    def as_dict(self) -> dict[str, str]:
        """A fresh plain dict, sorted by label name."""
        return self._map.copy()

    def nameless(self) -> LabelSet:
        """Without the metric name; the same object each time, so that identity stands for equality."""
        if METRIC_NAME not in self._map:
            return self
        if self._nameless is None:
            self._nameless = LabelSet(p for p in self.pairs if p[0] != METRIC_NAME)
        return self._nameless

    def keep(self, names: frozenset[str]) -> LabelSet:
        """Only the named labels."""
        return LabelSet(p for p in self.pairs if p[0] in names)

    def drop(self, names: frozenset[str]) -> LabelSet:
        """All but the named labels."""
        return LabelSet(p for p in self.pairs if p[0] not in names)

    def replace(self, name: str, value: str) -> LabelSet:
        """With one label set; an empty value removes it."""
        return LabelSet([*(p for p in self.pairs if p[0] != name), (name, value)])


EMPTY = LabelSet()
