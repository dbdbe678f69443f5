"""Since when a condition holds, judged scrape by scrape."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from collectors.model import Int64s


def holding_since(times_ms: Int64s, flags: npt.NDArray[np.bool_], forgiven: int = 1) -> int | None:
    """First scrape of the stretch of True that reaches the newest scrape; None when the newest one is False.

    Stretches of at most `forgiven` False scrapes inside are bridged: a gauge read between two steps may blink.
    """
    if not len(flags) or not flags[-1]:
        return None
    since = misses = 0
    for index in range(len(flags) - 1, -1, -1):
        if flags[index]:
            since, misses = index, 0
        else:
            misses += 1
            if misses > forgiven:
                break
    return int(times_ms[since])
