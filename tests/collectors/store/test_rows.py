"""What a scrape becomes: labels, reports and staleness markers as Prometheus writes them."""

from __future__ import annotations

import pytest

from collectors.model import is_stale
from collectors.store.line_memory import LineMemory
from collectors.store.rows import (
    MAX_AHEAD_MS,
    MAX_BEHIND_MS,
    REPORTED,
    Row,
    TargetRows,
    TooManyNewSeries,
    labelled_series,
)
from collectors.store.targets import target_of

TARGET = target_of("replica:8000", {"zone": "a"}, "vllm")


class Scraped:
    """Scrapes of one target, 5 s apart."""

    def __init__(self) -> None:
        self.rows = TargetRows(TARGET)
        self._memory = LineMemory()
        self._at_ms = 1_796_000_000_000

    def good(self, text: str) -> list[Row]:
        self._at_ms += 5000
        return self.rows.scraped(self._memory.parse(text.encode(), openmetrics=False), self._at_ms, 0.25)

    def bad(self, samples: int = 0) -> list[Row]:
        self._at_ms += 5000
        return self.rows.failed(self._at_ms, 0.5, samples, samples)


def values(row: Row) -> dict[str, float | None]:
    """Values by name and exposed labels; None for a staleness marker."""
    stale = is_stale(row.values)
    own = {"job", "instance", "zone"}
    return {
        labels["__name__"] + "".join(f" {k}={v}" for k, v in labels.items() if k not in own | {"__name__"}): None if gone else float(value)
        for labels, value, gone in zip(row.series, row.values, stale, strict=True)
    }  # fmt: skip


def test_a_scrape_has_its_samples_and_five_reports_with_the_targets_labels() -> None:
    (row,) = Scraped().good('a{x="1"} 1\nb 2\n')
    assert values(row) == {
        "a x=1": 1,
        "b": 2,
        "up": 1,
        "scrape_duration_seconds": 0.25,
        "scrape_samples_scraped": 2,
        "scrape_samples_post_metric_relabeling": 2,
        "scrape_series_added": 2,
    }
    assert all((s["job"], s["instance"], s["zone"]) == ("vllm", "replica:8000", "a") for s in row.series)


def test_series_of_an_unchanged_target_are_the_same_object() -> None:
    scraped = Scraped()
    (first,) = scraped.good("a 1\nb 2\n")
    (second,) = scraped.good("a 2\nb 2\n")
    assert second.series is first.series
    assert values(second)["scrape_series_added"] == 0
    assert values(second)["a"] == 2


def test_a_series_that_is_gone_gets_one_marker() -> None:
    scraped = Scraped()
    scraped.good("a 1\nb 2\n")
    (second,) = scraped.good("a 1\n")
    assert values(second)["b"] is None
    (third,) = scraped.good("a 1\n")
    assert "b" not in values(third)


def test_a_failed_scrape_marks_every_series_once_and_reports_down() -> None:
    scraped = Scraped()
    scraped.good("a 1\nb 2\n")
    (failed,) = scraped.bad(samples=1)
    assert values(failed) == {
        "a": None,
        "b": None,
        "up": 0,
        "scrape_duration_seconds": 0.5,
        "scrape_samples_scraped": 1,
        "scrape_samples_post_metric_relabeling": 1,
        "scrape_series_added": 0,
    }
    (again,) = scraped.bad()
    assert set(values(again)) == set(REPORTED)


def test_series_that_come_back_after_a_failed_scrape_are_not_counted_as_added() -> None:
    scraped = Scraped()
    scraped.good("a 1\nb 2\n")
    scraped.bad()
    (back,) = scraped.good("a 1\nb 2\nc 3\n")
    assert values(back)["scrape_series_added"] == 1
    assert values(back)["a"] == 1


def test_series_that_come_back_after_good_scrapes_without_them_are_counted_again() -> None:
    scraped = Scraped()
    scraped.good("a 1\nb 2\n")
    scraped.good("a 1\n")
    (back,) = scraped.good("a 1\nb 2\n")
    assert values(back)["scrape_series_added"] == 1


def test_an_empty_exposition_marks_what_was_there() -> None:
    scraped = Scraped()
    scraped.good("a 1\n")
    (empty,) = scraped.good("")
    assert values(empty)["a"] is None
    assert values(empty)["up"] == 1
    (again,) = scraped.good("")
    assert set(values(again)) == set(REPORTED)


def test_a_target_that_ends_marks_its_reports_too() -> None:
    scraped = Scraped()
    scraped.good("a 1\n")
    (end,) = scraped.rows.ended(1_796_000_100_000)
    assert values(end) == dict.fromkeys(("a", *REPORTED))


@pytest.mark.parametrize(
    ("exposed", "expected"),
    [
        ({"job": "x"}, {"exported_job": "x", "job": "vllm"}),
        ({"job": "x", "exported_job": "y"}, {"exported_job": "y", "exported_exported_job": "x", "job": "vllm"}),
        ({"job": ""}, {"job": "vllm"}),
        ({"a": ""}, {"job": "vllm"}),
        ({"a": "1"}, {"a": "1", "job": "vllm"}),
    ],
)
def test_exposed_labels_give_way_to_the_targets(exposed: dict[str, str], expected: dict[str, str]) -> None:
    assert labelled_series(exposed, {"job": "vllm"}).as_dict() == expected


def test_a_target_cannot_claim_to_be_up_and_series_stay_distinct() -> None:
    (row,) = Scraped().good('up 7\nm{a=""} 1\nm 2\nn 3\n')
    assert len(set(row.series)) == len(row.series)
    assert values(row) | {"scrape_series_added": 0} == {
        "m": 1,
        "n": 3,
        "up": 1,
        "scrape_duration_seconds": 0.25,
        "scrape_samples_scraped": 4,
        "scrape_samples_post_metric_relabeling": 4,
        "scrape_series_added": 0,
    }


def test_samples_with_their_own_timestamps_stand_at_them_and_get_no_markers() -> None:
    scraped = Scraped()
    rows = scraped.good("a 1\nold 2 1796000001000\nolder 3 1796000000500\n")
    assert [row.time_ms for row in rows] == [1_796_000_005_000, 1_796_000_000_500, 1_796_000_001_000]
    assert values(rows[0])["scrape_series_added"] == 3
    assert values(rows[1]) == {"older": 3}
    assert len({row.target for row in rows}) == 2
    (after,) = scraped.good("a 1\n")
    assert "old" not in values(after)


def test_a_target_whose_series_keep_changing_is_refused_until_it_calms_down() -> None:
    rows, memory = TargetRows(TARGET, new_series_an_hour=1000), LineMemory()

    def scrape(number: int, at_ms: int) -> list[Row]:
        body = b"".join(b'm{id="%d-%d"} 1\n' % (number, place) for place in range(300))
        return rows.scraped(memory.parse(body, openmetrics=False), at_ms, 0.1)

    for number in range(3):
        scrape(number, number * 5000)
    with pytest.raises(TooManyNewSeries, match="300 new series .* does a label change with every scrape"):
        scrape(3, 15_000)
    assert sum(value is None for value in values(rows.failed(15_000, 0.1)[0]).values()) == 300
    assert len(scrape(4, 15_000 + 3_600_000)[0].series) == 305


def test_samples_far_in_the_past_are_dropped() -> None:
    now_ms = 1_796_000_005_000
    rows = Scraped().good(f"a 1\nb 2 {now_ms - MAX_BEHIND_MS - 1}\nc 3 {now_ms - MAX_BEHIND_MS}\nd 4 0\n")
    assert [values(row) for row in rows[1:]] == [{"c": 3}]


def test_samples_far_in_the_future_are_dropped() -> None:
    rows = Scraped().good(f"a 1\nb 2 {1_796_000_005_000 + MAX_AHEAD_MS + 1}\nc 3 {1_796_000_005_000 + MAX_AHEAD_MS}\n")
    assert [values(row) for row in rows[1:]] == [{"c": 3}]
