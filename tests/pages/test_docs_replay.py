"""docs/replay.md names every speed, alignment, parameter and length that the pages know."""

from __future__ import annotations

import pytest

from pages.ui.compare import HOWS
from pages.ui.compare_page import PARAMETERS
from pages.ui.library import KEPT_DAYS
from pages.ui.record_view import LENGTHS_MINUTES
from pages.ui.view import SPEEDS
from tests.shared_data import ROOT

TEXT = (ROOT / "docs" / "replay.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("word", [*(f"x{speed}" for speed in SPEEDS), *(f"`{name}`" for name in (*HOWS, *PARAMETERS))])
def test_it_names_every_choice(word: str) -> None:
    assert word in TEXT


def test_it_names_the_lengths_and_how_long_a_deleted_file_is_kept() -> None:
    assert f"{LENGTHS_MINUTES[0]} minutes to {LENGTHS_MINUTES[-1] // 60} hours" in TEXT
    assert KEPT_DAYS == 7
    assert "seven days" in TEXT
