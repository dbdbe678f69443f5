"""The scrape loop over real sockets: the grid, failures, lists that change, targets that never end."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.model import is_stale
from collectors.store.fetch import ScrapeLimits
from collectors.store.scrape import Grid, ScrapeSettings, TargetScrape, WallClock
from collectors.store.store import Store
from collectors.store.targets import target_of
from tests.collectors.store.exposing import Exposing, answer, eventually, listening
from tests.collectors.store.test_fetch import bomb, closes_early, streams_forever, trickles, zipped_bomb

FAST = ScrapeSettings(0.25, ScrapeLimits(timeout_seconds=0.25, body_bytes=200_000))


def latest(store: Store, promql: str) -> list[float]:
    return [float(v) for v in store.source().instant(promql, store.clock.now_ms()).values]


class SteppedClock(WallClock):
    """Wall time with a step that tests set."""

    def __init__(self) -> None:
        self.step_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.step_ms


@given(
    st.text(min_size=1, max_size=5),
    st.integers(200, 60_000),
    st.lists(st.integers(0, 200_000), min_size=1, max_size=20),
)
@settings(deadline=None)
def test_due_instants_lie_on_one_grid_and_within_an_interval(name: str, interval_ms: int, waits: list[int]) -> None:
    target = target_of("a:1", {"x": name}, "vllm")
    grid = Grid(target, interval_ms)
    now_ms = 1_796_000_000_000
    places, seen = set(), []
    for wait_ms in waits:
        now_ms += wait_ms
        due_ms = grid.next_ms(now_ms)
        assert now_ms - interval_ms // 2 <= due_ms <= now_ms + 2 * interval_ms
        places.add(due_ms % interval_ms)
        seen.append(due_ms)
        now_ms = max(now_ms, due_ms - 1)  # it is waited for, and the clock may be read a moment early
    assert len(places) == 1
    assert len(set(seen)) == len(seen)
    assert seen == sorted(seen)


def test_targets_start_at_different_phases() -> None:
    due = {Grid(target_of(f"replica-{n}:8000", {}, "vllm"), 5000).next_ms(0) for n in range(64)}
    assert len(due) > 55
    assert min(due) < 1000 < 4000 < max(due)


def test_an_early_wake_up_does_not_scrape_twice_and_a_late_one_is_stamped_as_it_was() -> None:
    grid = Grid(target_of("a:1", {}, "vllm"), 5000)
    due_ms = grid.next_ms(1_796_000_000_000)
    assert grid.stamp_ms(due_ms, due_ms - 1) == due_ms
    assert grid.stamp_ms(due_ms, due_ms + 2) == due_ms
    assert grid.stamp_ms(due_ms, due_ms + 3) == due_ms + 3
    assert grid.next_ms(due_ms - 1) == due_ms + 5000


def test_a_scrape_that_takes_the_whole_interval_does_not_cost_the_next_place() -> None:
    grid = Grid(target_of("a:1", {}, "vllm"), 5000)
    due_ms = grid.next_ms(1_796_000_000_000)
    assert grid.next_ms(due_ms + 5004) == due_ms + 5000
    assert grid.stamp_ms(due_ms + 5000, due_ms + 5004) == due_ms + 5004
    assert grid.next_ms(due_ms + 5010) == due_ms + 10_000
    assert grid.next_ms(due_ms + 18_000) == due_ms + 20_000  # overrun by more than half: the place is lost


def test_a_clock_that_steps_back_gets_the_next_instant_of_its_own_time() -> None:
    grid = Grid(target_of("a:1", {}, "vllm"), 5000)
    due_ms = grid.next_ms(1_796_000_000_000)
    again_ms = grid.next_ms(due_ms - 3_600_000)
    assert due_ms - 3_600_000 <= again_ms <= due_ms - 3_595_000


def test_scrapes_are_stored_with_labels_reports_and_metadata() -> None:
    target = Exposing(b'# HELP a Words.\n# TYPE a counter\na{job="other"} 5\n')
    with listening(target) as address:
        store = Store.open(None)
        store.start([address], FAST)
        eventually(lambda: latest(store, 'count_over_time(up{job="vllm"}[1m]) >= 3') != [])
        store.stop()
    source = store.source()
    assert source.series(["a"], 0, 2**52) == [
        {"__name__": "a", "exported_job": "other", "instance": address, "job": "vllm"}
    ]
    assert latest(store, "min_over_time(up[1m])") == [1]
    assert source.metadata()["a"].help == "Words."
    (status,) = store.statuses()
    assert (status.health, status.error) == ("up", "")


def test_a_failing_target_is_down_with_a_reason_and_its_series_end() -> None:
    target = Exposing(b"a 1\n")
    with listening(target) as address:
        store = Store.open(None)
        store.start([address], FAST)
        eventually(lambda: latest(store, "a") == [1])
        target.body = b"a 1\nb{ 2\nc 3\n"
        eventually(lambda: latest(store, "up") == [0])
        assert latest(store, "a") == []
        assert latest(store, "c") == []
        assert latest(store, "scrape_samples_scraped") == [1]
        assert store.statuses()[0].error == "line 2: expected a label name in 'b{ 2'"
        target.body = b"a 2\n"
        eventually(lambda: latest(store, "a") == [2])
        store.stop()


def test_a_target_that_leaves_the_file_ends_and_a_new_one_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collectors.store.scrape.LIST_SECONDS", 0.05)
    path = tmp_path / "targets.json"
    with listening(Exposing(b"a 1\n")) as first, listening(Exposing(b"a 2\n")) as second:
        path.write_text(json.dumps([{"targets": [first]}]))
        store = Store.open(None)
        store.start(path, FAST)
        eventually(lambda: latest(store, "a") == [1])
        path.write_text(json.dumps([{"targets": [second], "labels": {"zone": "b"}}]))
        eventually(lambda: latest(store, "a") == [2] and latest(store, "up") == [1])
        assert [status.target.labels["zone"] for status in store.statuses()] == ["b"]
        assert len(store.source().series(["up"], 0, 2**52)) == 2
        store.stop()


def test_stopping_writes_no_markers() -> None:
    with listening(Exposing(b"a 1\n")) as address:
        store = Store.open(None)
        store.start([address], FAST)
        eventually(lambda: latest(store, "a") == [1])
        store.stop()
        store.stop()
    (samples,) = store.source().samples("a", 0, 2**52)
    assert not is_stale(samples.values).any()


@pytest.mark.parametrize("behaviour", [streams_forever, trickles, closes_early, bomb])
def test_a_hostile_target_does_not_delay_the_others(behaviour: Callable[[socket.socket, str], None]) -> None:
    zipped_bomb()
    hostile = Exposing()
    hostile.behaviour = behaviour
    with listening(hostile) as bad, listening(Exposing(b"a 1\n")) as good:
        store = Store.open(None)
        store.start([bad, good], FAST)
        eventually(lambda: latest(store, f'count_over_time(up{{instance="{good}"}}[1m]) >= 8') != [])
        store.stop()
        assert latest(store, f'max_over_time(up{{instance="{bad}"}}[1m])') == [0]
        assert latest(store, f'min_over_time(up{{instance="{good}"}}[1m])') == [1]
        (samples,) = store.source().samples(f'up{{instance="{good}"}}', 0, 2**52)
        gaps = samples.times_ms[1:] - samples.times_ms[:-1]
        assert sorted(gaps)[len(gaps) // 2] < 480  # a busy machine may miss some; a delayed loop would miss all


def test_a_clock_that_steps_back_is_counted_and_not_fatal() -> None:
    clock = SteppedClock()
    with listening(Exposing(b"a 1\n")) as address:
        store = Store.open(None, clock=clock)
        store.start([address], FAST)
        eventually(lambda: latest(store, "count_over_time(a[1m]) >= 2") != [])
        clock.step_ms = -3_600_000
        eventually(lambda: store.blocks.out_of_order > 10)
        assert store.problem == ""
        clock.step_ms = 0
        before = store.blocks.sample_count
        eventually(lambda: store.blocks.sample_count > before)
        store.stop()
    (samples,) = store.source().samples("a", 0, 2**52)
    assert bool((samples.times_ms[1:] > samples.times_ms[:-1]).all())


def test_a_defect_in_one_scrape_is_a_reason_on_its_target(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scrape() -> None:
        scraped = TargetScrape(target_of("a:1", {}, "vllm"), FAST)

        async def strange() -> None:
            raise UnicodeError("label too long")

        monkeypatch.setattr(scraped._fetcher, "fetch", strange)
        rows = await scraped.scrape(1000)
        assert scraped.status.error == "UnicodeError: label too long"
        assert rows[0].values[0] == 0

    asyncio.run(scrape())


def test_a_store_that_cannot_go_on_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.open(None)

    def defective(*_: object) -> None:
        raise RuntimeError("no more rows")

    monkeypatch.setattr(store, "append", defective)
    monkeypatch.setattr("collectors.store.scrape.LIST_SECONDS", 0.05)
    with listening(Exposing(b"a 1\n")) as address:
        store.start([address], FAST)
        eventually(lambda: store.failed)
        assert store.problem == "scraping stopped: RuntimeError: no more rows"
        store.stop()


def test_a_store_whose_upkeep_ends_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.open(None)

    def defective(*_: object) -> None:
        raise RuntimeError("no room")

    monkeypatch.setattr(store.blocks, "drop_before", defective)
    monkeypatch.setattr("collectors.store.store.UPKEEP_SECONDS", 0.01)
    with listening(Exposing(b"a 1\n")) as address:
        store.start([address], FAST)
        eventually(lambda: store.failed)
        assert store.problem == "upkeep stopped: RuntimeError: no room"
        store.stop()


def test_big_bodies_are_parsed_beside_the_loop() -> None:
    body = b"".join(b'm{n="%d",padding="%s"} 1\n' % (number, b"x" * 100) for number in range(6000))
    threads: set[str] = set()

    async def scrape() -> None:
        scraped = TargetScrape(target_of(address, {}, "vllm"), ScrapeSettings(5, ScrapeLimits(5)))
        original = scraped._memory.parse

        def parse(*given: object, **options: object) -> object:
            threads.add(threading.current_thread().name)
            return original(*given, **options)  # type: ignore[arg-type]

        scraped._memory.parse = parse  # type: ignore[method-assign,assignment]
        rows = await scraped.scrape(1000)
        assert len(rows[0].series) == 6005
        await scraped.aclose()

    target = Exposing()
    target.behaviour = lambda connection, request: connection.sendall(answer(body))
    with listening(target) as address:
        asyncio.run(scrape())
    assert "MainThread" not in threads
