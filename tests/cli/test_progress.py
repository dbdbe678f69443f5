"""A long reading is shown on a terminal, a short one and one into a file are not."""

from __future__ import annotations

import io
import sys

import pytest

import cli_input


class Terminal(io.StringIO):
    def __init__(self, tty: bool) -> None:
        super().__init__()
        self._tty = tty

    def isatty(self) -> bool:
        return self._tty


@pytest.mark.parametrize(
    ("tty", "seconds_each", "shown"), [(True, 0.5, ["  60%", "  80%"]), (True, 0.01, []), (False, 5.0, [])]
)
def test_progress_on_a_terminal(
    tty: bool, seconds_each: float, shown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal(tty)
    now = [100.0]
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(cli_input.time, "monotonic", lambda: now[0])
    tell = cli_input.progress_line()
    for share in (0.2, 0.4, 0.6, 0.8, 1.0):
        tell(share, "reading samples")
        now[0] += seconds_each
    written = terminal.getvalue().split("\r")
    assert [line[:4] for line in written if "%" in line] == [text[-4:] for text in shown]
    assert terminal.getvalue().endswith("\r\x1b[K") is bool(shown), "the line is taken away at the end"
