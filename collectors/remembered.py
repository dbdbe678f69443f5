"""What depends on the labels of a result alone, remembered by the very tuple that holds them.

A selection hands out the same tuple as long as no series comes or goes, so a dashboard's next refresh finds its groups
and its shortened label sets made.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from collectors.model import Labels

T = TypeVar("T")
TUPLES_KEPT = 512
KEYS_KEPT = 8192
"""For each tuple: a dashboard has a few, a fleet whose series come with gaps new ones at every look."""
_held: OrderedDict[int, tuple[tuple[Labels, ...], dict[Hashable, Any]]] = OrderedDict()


def of_labels(labels: tuple[Labels, ...], key: Hashable, compute: Callable[[], T]) -> T:
    """`compute()`, or what it gave before for this tuple and key. It must depend on nothing else."""
    known = _held.get(id(labels))
    if known is None or known[0] is not labels:
        known = _held[id(labels)] = (labels, {})  # holding the tuple keeps its id from being given to another
        while len(_held) > TUPLES_KEPT:
            try:
                _held.popitem(last=False)
            except KeyError:  # another thread was faster
                break
    found: T
    try:
        found = known[1][key]
    except KeyError:
        if len(known[1]) >= KEYS_KEPT:
            known[1].clear()
        found = known[1][key] = compute()
    return found


def of_both(left: tuple[Labels, ...], right: tuple[Labels, ...], key: Hashable, compute: Callable[[], T]) -> T:
    """The same for what depends on two tuples; of all the right ones that a left one met, the last is remembered."""
    held: list[tuple[tuple[Labels, ...], T]] = of_labels(left, ("both", key), list)
    last = held[0] if held else None
    if last is None or last[0] is not right:
        last = right, compute()
        held[:] = [last]
    return last[1]
