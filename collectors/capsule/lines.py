"""Lines of an incident file's body, schema 2: one series a line, differences instead of values, timestamps shared.

`{"metric":{"__name__":"up",...},"at":[0,41],"deltas":[1,-1],"times":3}`: the samples at the times of table line 3 (counted from 0), 1 until the 41st, then
0. A table line is `{"count":360,"first":1796006012441,"at":[0],"steps":[5000]}`. Counters of a serving engine grow by little between two scrapes and the
series of a target share their scrape times, so this takes a third of the text with the values and times themselves. Lines of schema 1
(`collectors.series_lines`) are read as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import orjson

from collectors.model import Floats, Int64s, Samples, is_stale
from collectors.series_lines import (
    SeriesDecoder,
    SeriesLineError,
    check_times,
    encode_labels,
    encode_values,
    floats_of,
)

MAX_SERIES_SAMPLES = 8_000_000
"""Samples of one series: at 5 s, more than a year."""
MAX_TABLE_BYTES = 64 * 1024**2
"""Timestamps behind this much stand in the lines of their series: where every series has its own, sharing saves nothing."""
TABLE_LINE = b'{"count":'
"""How a line of the table begins."""
MAX_DIGITS = 9
SPARSE_BELOW = 0.25
"""Changes are listed with their places when fewer than this share of the samples bring one."""
_EXACT = 2**53
_Entries = TypeVar("_Entries", Int64s, Floats)

TimesOf = Callable[[int], Int64s]
"""The timestamp vector of a table line's number."""


def encode_times(times_ms: Int64s) -> bytes:
    """One canonical line of the table of timestamps, with its newline."""
    first = int(times_ms[0]) if times_ms.size else 0
    steps = np.diff(times_ms)
    changed = np.ones(steps.size, dtype=bool)
    changed[1:] = steps[1:] != steps[:-1]
    places = _places(changed)
    kept = steps if places is None else steps[places]
    return b'{"count":%d,"first":%d%b,"steps":%b}\n' % (times_ms.size, first, _encoded_places(places), _dumps(kept))


def decode_times(line: bytes, where: str) -> Int64s:
    """The vector of a table line, read only. Raises SeriesLineError."""
    return _times(_parsed(line, where), where)


def _times(parsed: dict[str, Any], where: str) -> Int64s:
    count, first, steps = parsed.get("count"), parsed.get("first"), parsed.get("steps")
    if not isinstance(count, int) or not isinstance(first, int) or not isinstance(steps, list):
        raise SeriesLineError(f"{where} is no line of timestamps (count, first and steps are needed)")
    if not 0 <= count <= MAX_SERIES_SAMPLES:
        raise SeriesLineError(f"{where} has {count} timestamps, more than the {MAX_SERIES_SAMPLES} that are read")
    if abs(first) >= _EXACT:
        raise SeriesLineError(f"{where}: {first} cannot be milliseconds")
    known = _whole(steps, where, "steps")
    spread = _spread(known, parsed.get("at"), max(0, count - 1), where)
    times = np.full(count, first, dtype=np.int64)
    if count > 1:
        times[1:] += np.cumsum(spread)
        if int(np.abs(times).max()) >= _EXACT:  # a sum cannot pass 2^63 unseen: no step is longer than 2^53
            raise SeriesLineError(f"{where}: the timestamps leave what milliseconds can be")
    check_times(times, where)
    times.setflags(write=False)
    return times


def encode_line(samples: Samples, times: int | bytes) -> bytes:
    """One canonical line, with its newline; `times` is the number of its timestamps in the table, or a table line to stand in it."""
    values = np.ascontiguousarray(samples.values, dtype=np.float64)
    finite = np.isfinite(values)
    scaled = _as_integers(values[finite])
    changed = np.ones(values.size, dtype=bool)
    if scaled is None:
        bits = values.view(np.int64)
        changed[1:] = bits[1:] != bits[:-1]
        places = _places(changed)
        digits, written = b"", b'"values":' + encode_values(values if places is None else values[places])
    else:
        integers, count = scaled
        deltas = np.zeros(values.size, dtype=np.int64)
        deltas[finite] = np.diff(integers, prepend=0)
        changed[1:] = (deltas[1:] != 0) | ~finite[1:] | ~finite[:-1]
        places = _places(changed)
        if places is not None:
            deltas, values = deltas[places], values[places]
        digits = b',"digits":%d' % count if count else b""
        written = b'"deltas":' + (_dumps(deltas) if finite.all() else _with_words(deltas, values))
    return b'{"metric":%b%b%b,%b,"times":%b}\n' % (
        encode_labels(samples.labels),
        digits,
        _encoded_places(places),
        written,
        b"%d" % times if isinstance(times, int) else times.rstrip(),
    )


class LineDecoder:
    """Decodes lines of schema 1 and 2."""

    def __init__(self, times_of: TimesOf) -> None:
        self._shared = times_of
        self._plain = SeriesDecoder()

    def decode(self, line: bytes, number: int) -> Samples:
        """Samples of one line. Raises SeriesLineError with `number` and the reason."""
        if b'],"timestamps":[' in line:  # an unescaped quote behind a bracket: in no text of a line can it stand
            return self._plain.decode(line, number)
        where = f"line {number}"
        parsed = _parsed(line, where)
        if "timestamps" in parsed:
            return self._plain.decode(line, number)
        labels, told = parsed.get("metric"), parsed.get("times")
        if not isinstance(labels, dict) or not all(isinstance(value, str) for value in labels.values()):
            raise SeriesLineError(f"{where}: metric is not an object of texts")
        if not isinstance(told, int | dict) or isinstance(told, bool):
            raise SeriesLineError(f"{where} is not a series (metric, deltas or values, and times are needed)")
        times = _times(told, where) if isinstance(told, dict) else self._shared(told)
        listed = parsed.get("deltas", parsed.get("values"))
        if not isinstance(listed, list):
            raise SeriesLineError(f"{where} has neither a list of deltas nor of values")
        summed = "deltas" in parsed
        entries = _summed(listed, parsed.get("digits", 0), number) if summed else floats_of(listed, number)
        values = _spread(entries, parsed.get("at"), times.size, where)
        return Samples({key: value for key, value in labels.items() if value != ""}, times, values)


def _as_integers(values: Floats) -> tuple[Int64s, int] | None:
    """Values as whole numbers of 10^-digits that give exactly the same floats back; None when there are no such digits.

    They stay below 2^52, so that the difference of any two is a whole number that a float holds.
    """
    if values.size == 0:
        return np.empty(0, dtype=np.int64), 0
    if bool((np.abs(values) >= _EXACT // 2).any()) or bool(np.signbit(values[values == 0]).any()):
        return None
    probe = values[:16]
    for digits in range(MAX_DIGITS + 1):
        scale = 10.0**digits
        if not bool((np.rint(probe * scale) / scale == probe).all()):
            continue
        scaled = np.rint(values * scale)
        if bool((np.abs(scaled) >= _EXACT // 2).any()):
            return None
        if bool((scaled / scale == values).all()):
            return scaled.astype(np.int64), digits
    return None


def _places(changed: npt.NDArray[np.bool_]) -> Int64s | None:
    """Where something changed; None when that is at so many places that listing them saves nothing."""
    places = np.flatnonzero(changed)
    return None if places.size >= SPARSE_BELOW * changed.size else places


def _encoded_places(places: Int64s | None) -> bytes:
    return b"" if places is None else b',"at":' + _dumps(np.diff(places, prepend=0))


def _with_words(deltas: Int64s, values: Floats) -> bytes:
    """Deltas as JSON, with null and words in the places of values that are not finite."""
    entries: list[Any] = deltas.tolist()
    stale = is_stale(values)
    for place in np.flatnonzero(~np.isfinite(values)).tolist():
        value = values[place]
        entries[place] = None if stale[place] else "NaN" if value != value else "+Inf" if value > 0 else "-Inf"
    return orjson.dumps(entries)


def _dumps(numbers: Int64s) -> bytes:
    return orjson.dumps(np.ascontiguousarray(numbers, dtype=np.int64), option=orjson.OPT_SERIALIZE_NUMPY)


def _parsed(line: bytes, where: str) -> dict[str, Any]:
    try:
        parsed = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise SeriesLineError(f"{where} is not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise SeriesLineError(f"{where} is not a JSON object")
    return parsed


def _integers(listed: list[Any]) -> Int64s | None:
    """A list of whole numbers below 2^53; None when it holds anything else."""
    try:
        found = np.array(listed) if listed else np.empty(0, dtype=np.int64)
    except (ValueError, OverflowError):
        return None
    if found.dtype.kind != "i" or found.ndim != 1 or bool((np.abs(found) >= _EXACT).any()):
        return None
    return found.astype(np.int64, copy=False)


def _whole(listed: list[Any], where: str, what: str) -> Int64s:
    """A list of whole numbers below 2^53. Raises SeriesLineError."""
    found = _integers(listed)
    if found is None:
        raise SeriesLineError(f"{where}: {what} are not whole numbers below 2^53")
    return found


def _summed(listed: list[Any], digits: Any, number: int) -> Floats:
    """Values of deltas: running sums in units of 10^-digits; null and words stand at their own place only."""
    where = f"line {number}"
    if not isinstance(digits, int) or not 0 <= digits <= MAX_DIGITS:
        raise SeriesLineError(f"{where}: digits is {digits!r}, not a number from 0 to {MAX_DIGITS}")
    odd: list[int] = []
    whole = _integers(listed)
    if whole is None:
        odd = [place for place, entry in enumerate(listed) if entry is None or isinstance(entry, str)]
        whole = _whole([0 if entry is None or isinstance(entry, str) else entry for entry in listed], where, "deltas")
    sums = np.cumsum(whole)
    if sums.size and int(np.abs(sums).max()) >= _EXACT:  # a sum cannot pass 2^63 unseen: no delta is larger than 2^53
        raise SeriesLineError(f"{where}: the deltas add up to more than 2^53")
    values: Floats = sums / 10.0**digits
    if odd:
        values[odd] = floats_of([listed[place] for place in odd], number)
    return values


def _spread(entries: _Entries, at: Any, count: int, where: str) -> _Entries:
    """Entries for all `count` places: as they are, or each from its place on until the next one."""
    if at is None:
        if entries.size != count:
            raise SeriesLineError(f"{where}: {entries.size} entries stand for {count} samples")
        return entries
    if not isinstance(at, list) or len(at) != entries.size:
        raise SeriesLineError(f"{where}: places and entries differ in number")
    gaps = _whole(at, where, "places")
    if count == 0 and not gaps.size:
        return entries
    if not gaps.size or gaps[0] != 0 or bool((gaps[1:] <= 0).any()) or int(gaps.max()) >= max(count, 1):
        raise SeriesLineError(f"{where}: places do not rise from the first sample on")
    places = np.cumsum(gaps)
    if int(places[-1]) >= count:
        raise SeriesLineError(f"{where}: places lie behind the last of {count} samples")
    return np.repeat(entries, np.diff(places, append=count))
