"""Parameters of the Prometheus HTTP API: instants, durations, windows, limits, read as Prometheus reads them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import datetime
from urllib.parse import parse_qsl

from collectors.instants import UNIT_MS
from collectors.model import Window

MAX_POINTS = 11_000
EARLIEST_MS = -(2**53)
LATEST_MS = 2**53
_DURATION = re.compile(r"(?:(\d+)y)?(?:(\d+)w)?(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?(?:(\d+)ms)?")
_UNITS = ("y", "w", "d", "h", "m", "s", "ms")
_FRACTION = re.compile(r"(\.\d{6})\d+")
_RFC3339 = re.compile(r"-?\d{4,}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")
# What Go clients send for "from the beginning" and "to the end" (time.Unix of the smallest and largest millisecond).
_BEGINNING = "-292273086-05-16T16:47:06Z"
_END = "292277025-08-18T07:12:54.999999999Z"


class BadParameter(ValueError):
    """A parameter that Prometheus would answer with 400 bad_data; the message is the API's."""


class Parameters:
    """The parameters of one request, from the query string and from a form body, first value first."""

    def __init__(self, pairs: Sequence[tuple[str, str]]) -> None:
        self._values: dict[str, list[str]] = {}
        for name, value in pairs:
            self._values.setdefault(name, []).append(value)

    @classmethod
    def parse(cls, query_string: bytes, form: bytes) -> Parameters:
        """From raw bytes. Raises BadParameter when they are not form encoded."""
        try:
            pairs = [
                pair
                for raw in (form, query_string)
                for pair in parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=1000)
            ]
        except ValueError:
            raise BadParameter("error parsing form values: not form encoded") from None
        return cls(pairs)

    def text(self, name: str, default: str = "") -> str:
        """The first value, or the default."""
        return self._values.get(name, [default])[0]

    def texts(self, name: str) -> list[str]:
        """Every value."""
        return self._values.get(name, [])

    def instant_ms(self, name: str, default_ms: int | None = None) -> int:
        """An instant in ms. Raises BadParameter when it is not one, or missing without a default."""
        text = self.text(name)
        if not text and default_ms is not None:
            return default_ms
        try:
            return parse_time_ms(text)
        except ValueError as error:
            said = f"Invalid time value for '{name}': {error}" if default_ms is not None else str(error)
            raise _invalid(name, ValueError(said)) from None

    def duration_ms(self, name: str) -> int:
        """A duration in ms: seconds as a number, or 15s, 1h30m. Raises BadParameter."""
        try:
            return parse_api_duration_ms(self.text(name))
        except ValueError as error:
            raise _invalid(name, error) from None

    def limit(self, name: str = "limit") -> int:
        """A count; 0 means no limit. Raises BadParameter."""
        text = self.text(name)
        if not text:
            return 0
        if not re.fullmatch(r"[+-]?\d{1,18}", text):
            raise _invalid(name, ValueError(f'cannot parse "{text}" to an integer'))
        if int(text) < 0:
            raise _invalid(name, ValueError("limit must be non-negative"))
        return int(text)

    def window(self) -> Window:
        """start, end and step of a range query. Raises BadParameter."""
        start_ms, end_ms = self.instant_ms("start"), self.instant_ms("end")
        if end_ms < start_ms:
            raise _invalid("end", ValueError("end timestamp must not be before start time"))
        step_ms = self.duration_ms("step")
        if step_ms <= 0:
            raise _invalid(
                "step",
                ValueError("zero or negative query resolution step widths are not accepted. Try a positive integer"),
            )
        if (end_ms - start_ms) // step_ms > MAX_POINTS:
            raise BadParameter(
                f"exceeded maximum resolution of {MAX_POINTS:,} points per timeseries. "
                "Try decreasing the query resolution (?step=XX)"
            )
        return Window(start_ms, end_ms, step_ms)


def parse_time_ms(text: str) -> int:
    """Unix seconds with a fraction, or RFC 3339. Raises ValueError in the API's words."""
    refused = ValueError(f'cannot parse "{text}" to a valid timestamp')
    if text == _BEGINNING:
        return EARLIEST_MS
    if text == _END:
        return LATEST_MS
    seconds = _number(text)
    if seconds is not None:
        if not math.isfinite(seconds):
            raise refused
        return max(EARLIEST_MS, min(LATEST_MS, round(seconds * 1000)))
    if not _RFC3339.fullmatch(text):
        raise refused
    try:
        moment = datetime.fromisoformat(_FRACTION.sub(r"\1", text.upper()))
    except ValueError:
        raise refused from None
    return round(moment.timestamp() * 1000)


def parse_api_duration_ms(text: str) -> int:
    """A number of seconds, or a Prometheus duration (units in falling order). Raises ValueError in the API's words."""
    seconds = _number(text)
    if seconds is not None:
        if not abs(seconds) * 1000 < LATEST_MS:
            raise ValueError(f'cannot parse "{text}" to a valid duration. It overflows int64')
        return int(seconds * 1000)
    found = _DURATION.fullmatch(text)
    if not text or found is None:
        raise ValueError(f'cannot parse "{text}" to a valid duration')
    return sum(int(number) * UNIT_MS[unit] for number, unit in zip(found.groups(), _UNITS, strict=True) if number)


def _number(text: str) -> float | None:
    if not text.isascii() or "_" in text or text != text.strip():
        return None
    try:
        return float(text)
    except ValueError:
        return None


def _invalid(name: str, error: ValueError) -> BadParameter:
    return BadParameter(f'invalid parameter "{name}": {error}')
