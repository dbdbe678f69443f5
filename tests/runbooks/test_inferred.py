"""Silences found in one step are those that a walk over the scrapes finds."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.observed import Counter, Rank
from runbooks.inferred import longest_silence_ms

STEP_MS = 5_000


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_the_longest_silence_lies_between_two_rises_while_requests_ran(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 25))
    times = np.arange(count, dtype=np.int64) * STEP_MS

    def line(values: st.SearchStrategy[float]) -> np.ndarray:  # type: ignore[type-arg]
        return np.array(data.draw(st.lists(values, min_size=count, max_size=count)))

    counters = {name: np.cumsum(line(st.sampled_from([0.0, 0.0, 0.0, 2.0]))) for name in ("a", "b")}
    running = line(st.sampled_from([float("nan"), 0.0, 1.0, 3.0, 3.0]))
    made = {name: Counter(times, total, total) for name, total in counters.items()}
    rank = Rank("r", "0", "m", times, {"requests_running": running}, made, {})
    start, end = sorted(data.draw(st.tuples(st.integers(-1, count), st.integers(-1, count))))
    rises = [
        place
        for place in range(1, count)
        if start <= place <= end and any(total[place] > total[place - 1] for total in counters.values())
    ]
    longest = 0
    for earlier, later in zip(rises, rises[1:], strict=False):
        shown = [value for value in running[earlier:later] if value == value]
        if shown and min(shown) > 0:
            longest = max(longest, later - earlier)
    assert longest_silence_ms(rank, ("a", "b", "c"), start * STEP_MS, end * STEP_MS) == longest * STEP_MS
