"""Series lines: one series a line, VictoriaMetrics' export schema, of the store's segments and of incident files of schema 1.

`{"metric":{"__name__":"up",...},"values":[1,null,"NaN"],"timestamps":[1796006012441,...]}`: timestamps are epoch milliseconds, `null`
is a staleness marker, other non-finite values are the strings "NaN", "+Inf" and "-Inf". Written lines are canonical: `__name__` first, the
other labels sorted, no spaces, whole numbers without a fraction - same samples, same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import numpy as np
import orjson

from collectors.model import STALE, Floats, Int64s, Labels, Samples, is_stale
from collectors.source import SourceBroken

MAX_LINE_BYTES = 64 * 1024 * 1024
"""Longest line that is read; a series of a week at one sample a second has about 20 MB."""
EARLIEST_MS = 100_000_000_000
"""1973-03-03. Anything earlier that claims to be milliseconds is seconds (today 1.8e9)."""
LATEST_MS = 4_102_444_800_000 * 10
"""The year 3270: anything later that claims to be milliseconds is micro- or nanoseconds."""

_HEAD = b'{"metric":{'
_VALUES = b'},"values":['
_TIMES = b'],"timestamps":['
_STRINGS = {"NaN": np.nan, "Inf": np.inf, "+Inf": np.inf, "Infinity": np.inf, "-Inf": -np.inf, "-Infinity": -np.inf}


class SeriesLineError(SourceBroken):
    """A line that is not a series; the message has the line number and the reason."""


def sort_key(labels: Labels) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The order of an incident file: by metric name, then by the sorted label pairs."""
    return labels.get("__name__", ""), tuple(sorted(pair for pair in labels.items() if pair[0] != "__name__"))


def encode_labels(labels: Labels) -> bytes:
    """Canonical JSON of a label set: `__name__` first, the rest sorted, empty values left out."""
    name = {"__name__": labels["__name__"]} if "__name__" in labels else {}
    return orjson.dumps(name | {key: labels[key] for key in sorted(labels) if key != "__name__" and labels[key] != ""})


def encode_values(values: Floats) -> bytes:
    """JSON array of values; whole numbers are written without a fraction."""
    values = np.ascontiguousarray(values, dtype=np.float64)
    finite = np.isfinite(values)
    if finite.all():
        whole = values.astype(np.int64) if bool((np.abs(values) < 2.0**53).all()) else None
        if whole is not None and bool((whole == values).all()) and not bool(np.signbit(values[values == 0]).any()):
            return orjson.dumps(whole, option=orjson.OPT_SERIALIZE_NUMPY)
        return orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)
    written: list[Any] = values.tolist()
    stale = is_stale(values)
    for position in np.flatnonzero(~finite).tolist():
        value = written[position]
        written[position] = None if stale[position] else "NaN" if value != value else "+Inf" if value > 0 else "-Inf"
    return orjson.dumps(written)


def encode_series(samples: Samples) -> bytes:
    """One canonical line, with its newline."""
    times = orjson.dumps(np.ascontiguousarray(samples.times_ms, dtype=np.int64), option=orjson.OPT_SERIALIZE_NUMPY)
    return b'{"metric":%b,"values":%b,"timestamps":%b}\n' % (
        encode_labels(samples.labels),
        encode_values(samples.values),
        times,
    )


def write_series_lines(fileobj: BinaryIO, series: Iterable[Samples]) -> int:
    """Write one line per series in the order given; returns the number of lines."""
    count = 0
    for samples in series:
        fileobj.write(encode_series(samples))
        count += 1
    return count


def line_name(line: bytes) -> str | None:
    """The metric name of a canonical line without parsing the rest; None when the line has to be parsed to know."""
    start = b'{"metric":{"__name__":"'
    if not line.startswith(start):
        return None
    name = line[len(start) : line.find(b'"', len(start))]
    return None if b"\\" in name else name.decode("utf-8", "replace")


class SeriesDecoder:
    """Decodes lines; keeps the timestamp vectors it has seen, since the series of one target share theirs."""

    def __init__(self, *, lenient_times: bool = False) -> None:
        self._times: dict[bytes, Int64s] = {}
        self._lenient = lenient_times

    def decode(self, line: bytes, number: int) -> Samples:
        """Samples of one line. Raises SeriesLineError with `number` and the reason."""
        split = _split(line)
        if split is None:
            return self._decode_any(line, number)
        metric, raw_values, raw_times = split
        times = self._times.get(raw_times)
        try:
            labels = orjson.loads(metric)
            listed = orjson.loads(raw_values)
            if times is None:
                times = self._checked_times(orjson.loads(raw_times), number)
        except orjson.JSONDecodeError as error:
            raise SeriesLineError(f"line {number} is damaged: {error}") from None
        if len(self._times) > 512:
            self._times.clear()
        self._times[raw_times] = times
        return _samples(labels, listed, times, number)

    def _decode_any(self, line: bytes, number: int) -> Samples:
        try:
            parsed = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise SeriesLineError(f"line {number} is not JSON: {error}") from None
        if not isinstance(parsed, dict) or not {"metric", "values", "timestamps"} <= parsed.keys():
            raise SeriesLineError(f"line {number} is not a series (metric, values and timestamps are needed)")
        if not isinstance(parsed["timestamps"], list):
            raise SeriesLineError(f"line {number}: timestamps is not a list")
        return _samples(parsed["metric"], parsed["values"], self._checked_times(parsed["timestamps"], number), number)

    def _checked_times(self, listed: list[Any], number: int) -> Int64s:
        try:
            times = np.array(listed) if listed else np.empty(0, dtype=np.int64)
        except (ValueError, OverflowError):
            times = np.array([""])
        if times.dtype.kind != "i" or times.ndim != 1:
            raise SeriesLineError(f"line {number}: timestamps are not whole numbers of milliseconds")
        times = times.astype(np.int64)
        if not self._lenient:
            check_times(times, f"line {number}")
        times.setflags(write=False)
        return times


def check_times(times_ms: Int64s, where: str) -> None:
    """Refuse timestamps that are not strictly increasing, or cannot be milliseconds. Raises SeriesLineError."""
    if times_ms.size == 0:
        return
    steps = np.diff(times_ms)
    if steps.size and bool((steps <= 0).any()):
        at = int(np.flatnonzero(steps <= 0)[0])
        kind = "a timestamp stands twice" if steps[at] == 0 else "timestamps are out of order"
        raise SeriesLineError(f"{where}: {kind} ({times_ms[at]} then {times_ms[at + 1]})")
    if int(times_ms[0]) < EARLIEST_MS:
        raise SeriesLineError(
            f"{where}: timestamp {times_ms[0]} cannot be milliseconds", "Seconds, perhaps? multiply by 1000"
        )
    if int(times_ms[-1]) > LATEST_MS:
        raise SeriesLineError(
            f"{where}: timestamp {times_ms[-1]} cannot be milliseconds", "Micro- or nanoseconds, perhaps?"
        )


def read_series_lines(fileobj: BinaryIO, *, lenient_times: bool = False) -> Iterator[Samples]:
    """The series of a file, line by line. Raises SeriesLineError naming the line.

    `lenient_times` leaves the order and magnitude of timestamps unchecked (for importers that mend or name them).
    """
    decoder = SeriesDecoder(lenient_times=lenient_times)
    number = 0
    while line := fileobj.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise SeriesLineError(f"line {number} is longer than {MAX_LINE_BYTES} bytes")
        if line.strip():
            yield decoder.decode(line, number)


def _split(line: bytes) -> tuple[bytes, bytes, bytes] | None:
    """Cut a canonical line at its marks. They hold unescaped quotes after a bracket, which no JSON string can contain."""
    if not line.startswith(_HEAD):
        return None
    values_at = line.find(_VALUES, len(_HEAD) - 1)
    times_at = line.find(_TIMES, values_at)
    end = line.rstrip()
    if values_at < 0 or times_at < 0 or not end.endswith(b"]}"):
        return None
    return (
        line[len(_HEAD) - 1 : values_at + 1],
        line[values_at + len(_VALUES) - 1 : times_at + 1],
        line[times_at + len(_TIMES) - 1 : len(end) - 1],
    )


def _samples(labels: Any, listed: Any, times: Int64s, number: int) -> Samples:
    if not isinstance(labels, dict) or not all(isinstance(value, str) for value in labels.values()):
        raise SeriesLineError(f"line {number}: metric is not an object of texts")
    if not isinstance(listed, list) or len(listed) != times.size:
        raise SeriesLineError(f"line {number}: values and timestamps differ in number")
    return Samples({key: value for key, value in labels.items() if value != ""}, times, floats_of(listed, number))


def floats_of(listed: list[Any], number: int) -> Floats:
    """Numbers, null (a staleness marker) and words as floats. Raises SeriesLineError with the line's number."""
    try:
        found = np.array(listed) if listed else np.empty(0)
    except (ValueError, OverflowError):
        found = np.array([""])
    if found.dtype.kind in "if" and found.ndim == 1:
        return found.astype(np.float64)
    values = np.empty(len(listed))
    for position, value in enumerate(listed):
        if value is None:
            values[position] = STALE
        elif isinstance(value, str) and value in _STRINGS:
            values[position] = _STRINGS[value]
        elif isinstance(value, int | float) and not isinstance(value, bool):
            values[position] = value
        else:
            raise SeriesLineError(f"line {number}: {value!r} is not a value")
    return values
