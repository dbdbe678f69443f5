"""Instants and durations as people write them, in epoch milliseconds."""

from __future__ import annotations

import re
from datetime import UTC, datetime

UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000, "y": 31_536_000_000}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdwy])")
_LATEST_MS = 253_402_300_799_999  # 9999-12-31T23:59:59.999Z, the last instant that a datetime can show


def parse_instant_ms(text: str) -> int:
    """Epoch milliseconds of RFC 3339 text or of unix seconds with an optional fraction.

    Raises ValueError with the text and the forms that are understood. An RFC 3339 time without an offset is refused
    rather than guessed.
    """
    text = text.strip()
    try:
        seconds = float(text)
    except ValueError:
        pass
    else:
        if not abs(seconds) * 1000 <= _LATEST_MS:
            raise ValueError(f"{text!r} is not unix seconds (milliseconds, perhaps? divide by 1000)")
        return round(seconds * 1000)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither RFC 3339 (2026-11-30T14:03:20Z) nor unix seconds") from None
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no offset; write {text}Z for UTC")
    return round(moment.timestamp() * 1000)


def format_instant(at_ms: int) -> str:
    """RFC 3339 in UTC, with milliseconds only where they are not zero."""
    moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S") + (f".{at_ms % 1000:03d}" if at_ms % 1000 else "") + "Z"


def parse_duration_ms(text: str) -> int:
    """Milliseconds of a Prometheus duration such as 90s, 1h30m or 500ms; a bare number is seconds. Raises ValueError."""
    text = text.strip()
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return round(float(text) * 1000)
    if not text or _PART.sub("", text):
        raise ValueError(f"{text!r} is not a duration such as 90s, 30m or 1h30m")
    total = round(sum(float(number) * UNIT_MS[unit] for number, unit in _PART.findall(text)))
    if total <= 0:
        raise ValueError(f"{text!r} is no time at all; give a duration above zero")
    return total
