import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runbooks.episodes import holding_since, moving_since

TIMES = np.arange(0, 100_000, 5_000, dtype=np.int64)


def test_a_stretch_of_true_bridges_one_blink() -> None:
    flags = np.zeros(20, dtype=bool)
    flags[10:] = True
    flags[14] = False
    assert holding_since(TIMES, flags) == 50_000
    flags[13] = False
    assert holding_since(TIMES, flags) == 75_000
    flags[-1] = False
    assert holding_since(TIMES, flags) is None


@settings(deadline=None, max_examples=200)
@given(st.lists(st.booleans(), min_size=1, max_size=20), st.integers(0, 3))
def test_a_stretch_ends_before_more_blinks_than_are_forgiven(flags: list[bool], forgiven: int) -> None:
    since, misses = None, 0
    for place in range(len(flags) - 1, -1, -1) if flags[-1] else ():
        if flags[place]:
            since, misses = int(TIMES[place]), 0
        else:
            misses += 1
            if misses > forgiven:
                break
    assert holding_since(TIMES[: len(flags)], np.array(flags), forgiven) == since


@pytest.mark.parametrize(
    ("steps", "since"),
    [
        ([0] * 20, None),
        ([0] * 10 + [1] * 10, 50_000),
        ([0] * 5 + [1] * 3 + [0] * 9 + [2] * 3, 85_000),  # the first stretch ended 45 s before
        ([0] * 5 + [1] * 3 + [0] * 3 + [2] * 9, 25_000),  # a pause of 20 s is no end
        ([0] * 5 + [1] * 5 + [0] * 10, None),  # quiet for 50 s by now
    ],
)
def test_since_when_a_counter_keeps_moving(steps: list[int], since: int | None) -> None:
    total = np.cumsum(steps).astype(np.float64)
    assert moving_since(TIMES, total, quiet_ms=30_000) == since
    holes = total.copy()
    holes[[3, 11]] = np.nan
    assert moving_since(TIMES, holes, quiet_ms=30_000) in (since, None if since is None else since + 5_000)


def test_nothing_seen_moves_since_never() -> None:
    assert moving_since(TIMES, np.full(20, np.nan), 30_000) is None
