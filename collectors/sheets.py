"""Strips sorted out by scraped target, and what follows from labels alone kept for as long as the labels stay the same."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from collectors.model import Floats, Int64s, Labels
from collectors.remembered import of_labels
from collectors.strips import Strip, Strips

TargetKey = tuple[tuple[str, str], ...]
"""The labels that tell one target from another, sorted."""
T = TypeVar("T")
KEPT_PER_SHARE = 8


@dataclass(frozen=True, eq=False)
class Share:
    """The series of one target in a strip: `rows` of it (None = all). `turn`: which of several questions it answers.

    pairs: the label sets as sorted pairs; first: the least of them.

    Equal only to itself: a lasting answer brings the very same share again.
    """

    key: TargetKey
    labels: tuple[Labels, ...]
    rows: npt.NDArray[np.intp] | None
    turn: int
    pairs: tuple[TargetKey, ...]
    first: TargetKey
    kept: dict[Hashable, tuple[tuple[Share, ...], Any]] = field(default_factory=dict, repr=False)

    @property
    def target(self) -> dict[str, str]:
        """The labels of the target."""
        return dict(self.key)


@dataclass(frozen=True, eq=False)
class Sheet:
    """Samples of one target that were scraped together: `values` (series, rows) at `times_ms` (rows,); read-only."""

    share: Share
    times_ms: Int64s
    values: Floats
    plain: bool = False
    """Known to hold no staleness marker."""


@dataclass(frozen=True)
class Row:
    """A series on the sheets of a target: on which of them, and in which row of all of them one above the other."""

    sheet: int
    row: int
    labels: Labels


def sheets_of(answer: Strips, key_of: Callable[[Labels], TargetKey], kind: str, turn: int = 0) -> list[Sheet]:
    """The sheets of an answer, ordered by their first label set. `kind` names `key_of` for what is kept of the labels."""
    found = []
    for strip in answer.strips:

        def shares(strip: Strip = strip) -> tuple[Share, ...]:
            return _shares(answer.labels, strip.places.tolist(), key_of, turn)

        kept = of_labels(answer.labels, (kind, turn, strip.places.tobytes()), shares) if answer.lasting else shares()
        for share in kept:
            values = strip.values if share.rows is None else strip.values[share.rows]
            found.append(Sheet(share, strip.times_ms, values, strip.plain))
    return sorted(found, key=lambda sheet: sheet.share.first)


def _shares(
    labels: Sequence[Labels], places: Sequence[int], key_of: Callable[[Labels], TargetKey], turn: int
) -> tuple[Share, ...]:
    rows: dict[TargetKey, list[int]] = {}
    for row, place in enumerate(places):
        rows.setdefault(key_of(labels[place]), []).append(row)
    shares = []
    for key, mine in rows.items():
        own = tuple(labels[places[row]] for row in mine)
        chosen = None if len(rows) == 1 else np.array(mine, dtype=np.intp)
        pairs = tuple(tuple(sorted(one.items())) for one in own)
        shares.append(Share(key, own, chosen, turn, pairs, min(pairs)))
    return tuple(shares)


def kept(shares: tuple[Share, ...], what: str, make: Callable[[], T]) -> T:
    """`make()`, or what it gave before for these very shares. It must depend on nothing but their labels."""
    if not shares:
        return make()
    held = shares[0].kept
    key = (what, *map(id, shares))
    found = held.get(key)
    if found is not None:  # the shares are held with it, so that no id is given to another meanwhile
        made: T = found[1]
        return made
    made = make()
    if len(held) >= KEPT_PER_SHARE:
        held.clear()
    held[key] = (shares, made)
    return made


def rows_of(shares: tuple[Share, ...]) -> tuple[Row, ...]:
    """The series of a target's sheets in the order of questions and labels."""

    def make() -> tuple[Row, ...]:
        found = []
        above = 0
        for number, share in enumerate(shares):
            for row, labels in enumerate(share.labels):
                found.append((share.turn, share.pairs[row], Row(number, above + row, labels)))
            above += len(share.labels)
        found.sort(key=lambda one: one[:2])
        return tuple(row for _, _, row in found)

    return kept(shares, "rows", make)
