"""Twenty viewers, one set of queries; a source that is down leaves the last good picture standing, with its age."""

import threading

import pytest

from collectors.model import Window
from collectors.refresh import PictureCache, quantised_ms, quantised_window
from collectors.source import SourceUnreachable


class Clock:
    now_ms = 1_000_000

    def __call__(self):
        return self.now_ms


def test_twenty_viewers_of_one_page_ask_once():
    clock, asked = Clock(), []
    cache = PictureCache(clock)
    everyone, answer_now = threading.Barrier(20), threading.Event()

    def make():
        asked.append(1)
        assert answer_now.wait(10)
        return "picture"

    def view():
        everyone.wait(10)
        shown.append(cache.get("fleet", quantised_ms(clock(), 5000), make))

    shown = []
    viewers = [threading.Thread(target=view) for _ in range(20)]
    for viewer in viewers:
        viewer.start()
    answer_now.set()
    for viewer in viewers:
        viewer.join(10)
    assert asked == [1]
    assert [one.picture for one in shown] == ["picture"] * 20


def test_a_new_interval_and_another_subject_ask_anew_and_an_old_version_is_still_there():
    asked = []
    cache = PictureCache(Clock())
    for subject, version in [("a", 1), ("a", 2), ("a", 1), ("b", 1), ("a", 2)]:
        cache.get(subject, version, lambda s=subject, v=version: asked.append((s, v)))
    assert asked == [("a", 1), ("a", 2), ("b", 1)]


def test_the_last_good_picture_stays_while_the_source_is_down():
    clock = Clock()
    cache = PictureCache(clock, retry_after_ms=5000)
    assert cache.get("fleet", 1, lambda: "good").failure is None
    tries = []

    def fail():
        tries.append(clock.now_ms)
        raise SourceUnreachable("connection refused", "Is it up?")

    clock.now_ms += 10_000
    down = cache.get("fleet", 2, fail)
    assert (down.picture, down.made_ms, down.failed_since_ms) == ("good", 1_000_000, 1_010_000)
    assert down.failure.cause == "connection refused"
    assert down.retry_ms == 1_015_000
    clock.now_ms += 1000
    assert cache.get("fleet", 3, fail).picture == "good"  # left alone for a while
    assert len(tries) == 1
    clock.now_ms += 5000
    again = cache.get("fleet", 4, fail)
    assert len(tries) == 2
    assert again.failed_since_ms == 1_010_000  # the outage began with the first failure
    clock.now_ms += 6000
    assert cache.get("fleet", 5, lambda: "better").failure is None


def test_without_any_picture_the_failure_is_raised_to_every_viewer_but_asked_once():
    clock, tries = Clock(), []
    cache = PictureCache(clock)

    def fail():
        tries.append(1)
        raise SourceUnreachable("no route")

    for _ in range(3):
        with pytest.raises(SourceUnreachable, match="no route"):
            cache.get("fleet", 1, fail)
    assert len(tries) == 1


def test_a_defect_reaches_its_caller_and_blocks_nobody():
    cache = PictureCache(Clock())
    with pytest.raises(ZeroDivisionError):
        cache.get("fleet", 1, lambda: 1 / 0)
    assert cache.get("fleet", 1, lambda: "ok").picture == "ok"


def test_the_cache_is_bounded():
    cache, made = PictureCache(Clock(), size=3), []
    for subject in range(5):
        cache.get(subject, 1, lambda s=subject: made.append(s) or s)
    cache.get(4, 1, lambda: made.append("again"))
    cache.get(0, 1, lambda: made.append("dropped"))
    assert made == [0, 1, 2, 3, 4, "dropped"]


def test_windows_are_quantised_before_they_are_keys():
    assert quantised_window(1_003_999, 60_000, 5_000, 5_000) == Window(940_000, 1_000_000, 5_000)
    assert quantised_window(1_000_000, 60_000, 5_000, 5_000) == quantised_window(1_004_999, 60_000, 5_000, 5_000)
