"""Many viewers of one page cost the source what one costs: through the pages, one after the other within an interval, and all at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pages.ui import data
from tests.pages.conftest import Bench
from tests.pages.test_pages import opened

VIEWERS = 20
PAGES = {
    "fleet.py": {},
    "latency.py": {},
    "replica.py": {"instance": "127.0.0.1:8000"},
    "diagnose.py": {},
}


@pytest.mark.parametrize(
    ("page", "viewers"), [("fleet.py", VIEWERS), ("latency.py", 5), ("replica.py", 5), ("diagnose.py", 5)]
)
def test_viewers_who_come_within_an_interval_cost_one_set_of_queries(bench: Bench, page: str, viewers: int) -> None:
    source = bench.live()
    interval_ms = data.held().refresh_ms
    assert bench.clock.now_ms % interval_ms == 0
    opened(page, **PAGES[page])
    one_set = source.asked
    assert one_set > 0
    for _ in range(viewers - 1):
        bench.clock.now_ms += (interval_ms - 1) // viewers
        opened(page, **PAGES[page])
    assert source.asked == one_set
    bench.clock.now_ms = (bench.clock.now_ms // interval_ms + 1) * interval_ms
    opened(page, **PAGES[page])
    two_sets = source.asked
    assert one_set < two_sets <= 2 * one_set  # what does not change is not asked again
    opened(page, **PAGES[page])
    assert source.asked == two_sets


def test_who_looks_at_something_else_has_a_set_of_its_own(bench: Bench) -> None:
    source = bench.live()
    opened("fleet.py")
    one_set = source.asked
    opened("fleet.py", range="1h")
    assert source.asked > one_set
    asked = source.asked
    opened("fleet.py", range="1h")
    opened("fleet.py")
    assert source.asked == asked


def test_viewers_who_come_at_the_same_moment_wait_for_one_answer(bench: Bench) -> None:
    source = bench.live()
    alone = data.view_of({}, None)
    data.fleet(alone)
    data.latency(alone, "time_to_first_token")
    data.diagnosis(alone)
    one_set = source.asked
    bench.clock.now_ms += data.held().refresh_ms
    together = threading.Barrier(VIEWERS)

    def look(_: int) -> tuple[int, int, int]:
        together.wait(timeout=30)
        view = data.view_of({}, None)
        seen = data.fleet(view).value, data.latency(view, "time_to_first_token").value, data.diagnosis(view).value
        return id(seen[0]), id(seen[1]), id(seen[2])

    with ThreadPoolExecutor(VIEWERS) as pool:
        seen = set(pool.map(look, range(VIEWERS)))
    assert len(seen) == 1, "all see the very same pictures"
    assert one_set < source.asked <= 2 * one_set
