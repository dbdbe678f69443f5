"""The bar while a recording is read: only when it takes a moment, at most ten times a second, gone afterwards."""

from __future__ import annotations

import pytest

from collectors.progress import listener
from pages.ui import reading_bar


class Bar:
    def __init__(self, said: list[str]) -> None:
        self._said = said

    def progress(self, share: float, text: str) -> None:
        self._said.append(f"{share:.0%} {text}")

    def empty(self) -> None:
        self._said.append("gone")


@pytest.mark.parametrize(("seconds_each", "told"), [(0.01, 0), (0.3, 7), (0.06, 0)])
def test_a_bar_stands_only_while_it_is_needed(seconds_each: float, told: int, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    now = [50.0]
    monkeypatch.setattr(reading_bar.st, "empty", lambda: Bar(said))
    monkeypatch.setattr(reading_bar.time, "monotonic", lambda: now[0])
    with pytest.raises(ZeroDivisionError), reading_bar.shown_while_reading():  # noqa: PT012  a page that breaks
        tell = listener()
        assert tell is not None
        for step in range(10):
            tell(step / 10, "reading samples")
            now[0] += seconds_each
        raise ZeroDivisionError
    assert listener() is None
    assert len(said) == (told + 1 if told else 0)
    if told:
        assert said[0] == "30% Opening the recording: reading samples"
        assert said[-1] == "gone"
