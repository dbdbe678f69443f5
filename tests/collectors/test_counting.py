"""One of a thing is not many of it."""

from __future__ import annotations

import pytest

from collectors.counting import counted, unit_of
from pages.ui.words import amount


@pytest.mark.parametrize(
    ("number", "words"),
    [(0, "0 replicas"), (1, "1 replica"), (1.0, "1 replica"), (2, "2 replicas"), (1.5, "1.5 replicas"), (12345, "12,345 replicas")],
)  # fmt: skip
def test_a_number_and_its_noun(number: float, words: str) -> None:
    assert counted(number, "replica") == words
    assert counted(1, "series", "series") == "1 series"


def test_a_unit_follows_the_number_that_is_shown() -> None:
    assert unit_of("1", "requests") == "request"
    assert unit_of("1.2", "requests") == "requests"
    assert unit_of("1", "requests/s") == "requests/s"
    assert amount(1.0, "requests") == ("1", "request")
    assert amount(0.0, "requests") == ("0", "requests")
