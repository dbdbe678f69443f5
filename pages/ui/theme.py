"""Which colour slot a replica has. The colours themselves are in .streamlit/config.toml."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterable

PALETTE_SIZE = 8


def slots(names: Iterable[str], taken: dict[str, int] | None = None) -> dict[str, int | None]:
    """A palette slot per replica: its hash, or the next free slot where that is taken; None when all eight are gone.

    `taken` are slots given before: a replica keeps its colour while others come and go.
    """
    found: dict[str, int | None] = dict(taken or {})
    free = set(range(PALETTE_SIZE)) - {slot for slot in found.values() if slot is not None}
    for name in sorted(set(names)):
        if name in found:
            continue
        if not free:
            found[name] = None
            continue
        slot = zlib.crc32(name.encode()) % PALETTE_SIZE
        while slot not in free:
            slot = (slot + 1) % PALETTE_SIZE
        free.remove(slot)
        found[name] = slot
    return found


class SlotMemory:
    """The slots of one source for the life of the process, so that no page and no refresh recolours a replica."""

    def __init__(self) -> None:
        self._taken: dict[str, int] = {}
        self._lock = threading.Lock()

    def of(self, names: Iterable[str], worst_first: Iterable[str] = ()) -> dict[str, int | None]:
        """Slots of these names. Beyond the palette the worst three get the freed slots of replicas that are gone, the rest are grey."""
        wanted = list(names)
        with self._lock:
            if len(set(wanted) | set(self._taken)) > PALETTE_SIZE:
                present = set(wanted)
                self._taken = {name: slot for name, slot in self._taken.items() if name in present}
            if len(set(wanted)) > PALETTE_SIZE:
                worst = [name for name in worst_first if name in set(wanted)][:3]
                given = slots(worst)
                return {name: given.get(name) for name in wanted}
            given = slots(wanted, self._taken)
            self._taken.update({name: slot for name, slot in given.items() if slot is not None})
            return {name: given[name] for name in wanted}
