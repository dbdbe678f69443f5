"""Since when a condition holds, judged scrape by scrape."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from collectors.model import Floats, Int64s


def holding_since(times_ms: Int64s, flags: npt.NDArray[np.bool_], forgiven: int = 1) -> int | None:
    """First scrape of the stretch of True that reaches the newest scrape; None when the newest one is False.

    Stretches of at most `forgiven` False scrapes inside are bridged: a gauge read between two steps may blink.
    """
    if not len(flags) or not flags[-1]:
        return None
    held = np.flatnonzero(flags)
    breaks = np.flatnonzero(np.diff(held) > forgiven + 1)
    return int(times_ms[held[breaks[-1] + 1] if len(breaks) else held[0]])


def moving_since(times_ms: Int64s, total: Floats, quiet_ms: int) -> int | None:
    """First increase of the stretch in which a counter has kept moving until now; None when it has been quiet longer than `quiet_ms`.

    `total` are increases added up (NaN where a scrape brought nothing). A pause of at most `quiet_ms` does not end a stretch.
    """
    seen = np.flatnonzero(~np.isnan(total))
    if len(seen) < 2:
        return None
    return recurring_since(times_ms[seen[1:]], np.diff(total[seen]) > 0, int(times_ms[-1]), quiet_ms)


def recurring_since(times_ms: Int64s, flags: npt.NDArray[np.bool_], now_ms: int, quiet_ms: int) -> int | None:
    """First of the instants that keep coming until now, none later than `quiet_ms` after the one before; None when the last lies further back."""
    hits = times_ms[flags]
    if not len(hits) or now_ms - int(hits[-1]) > quiet_ms:
        return None
    pauses = np.flatnonzero(np.diff(hits) > quiet_ms)
    return int(hits[pauses[-1] + 1] if len(pauses) else hits[0])
