"""Prometheus query API JSON: the recordings' wrapper and the API envelope, both a matrix of raw samples in seconds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import numpy as np
import orjson

from collectors.capsule.manifest import Extent
from collectors.model import Samples, is_stale
from collectors.series_lines import EARLIEST_MS, SeriesLineError, check_times
from collectors.source import SourceBroken

_NEXT = 'Ask for raw samples as an instant query, such as {job="vllm"}[30m]'


def matrix_of(document: Any, where: str) -> tuple[list[Any], dict[str, Any]]:
    """The result list of a wrapper, an API envelope or a bare list, and what else the wrapper holds. Raises SourceBroken."""
    if isinstance(document, list):
        return document, {}
    if not isinstance(document, dict):
        raise SourceBroken(f"{where} is JSON, but no answer of the Prometheus query API", _NEXT)
    if document.get("status") == "error":
        raise SourceBroken(f"{where} holds a failed answer: {document.get('error', 'no reason given')}", _NEXT)
    rest = {key: value for key, value in document.items() if key not in ("status", "data", "result", "resultType")}
    inner = document.get("data") if isinstance(document.get("data"), dict) else document
    assert isinstance(inner, dict)
    kind = inner.get("resultType", "matrix")
    if kind != "matrix":
        raise SourceBroken(f"{where} holds a {kind}, a matrix of raw samples is needed", _NEXT)
    result = inner.get("result")
    if not isinstance(result, list):
        raise SourceBroken(f"{where} holds no list named result", _NEXT)
    return result, rest


def series_of(result: Iterable[Any], where: str, skipped: list[str] | None = None) -> Iterator[Samples]:
    """The series of a matrix. Seconds become the nearest millisecond. Raises SourceBroken naming the series.

    Series of native histograms are skipped and noted in `skipped`.
    """
    for number, entry in enumerate(result, 1):
        place = f"{where}: series {number}"
        labels = entry.get("metric") if isinstance(entry, dict) else None
        if not isinstance(labels, dict) or not all(isinstance(value, str) for value in labels.values()):
            raise SourceBroken(f"{place} has no metric, an object of texts", _NEXT)
        if "histograms" in entry and "values" not in entry:
            if skipped is not None:
                skipped.append(str(labels.get("__name__", number)))
            continue
        values = entry.get("values")
        if not isinstance(values, list):
            raise SourceBroken(f"{place} has no list of values", _NEXT)
        yield _series({key: value for key, value in labels.items() if value != ""}, values, place)


def _series(labels: dict[str, str], pairs: list[Any], place: str) -> Samples:
    name = labels.get("__name__", "")
    try:
        seconds = np.array([pair[0] for pair in pairs], dtype=np.float64)
        values = np.array([float(pair[1]) for pair in pairs], dtype=np.float64)
    except (TypeError, ValueError, IndexError, KeyError):
        raise SourceBroken(f"{place} ({name}) holds something that is not a [seconds, value] pair") from None
    if not bool(np.isfinite(seconds).all()) or bool((np.abs(seconds) > 1e15).any()):
        raise SourceBroken(f"{place} ({name}) has a timestamp that is no number")
    if seconds.size and float(seconds[0]) >= EARLIEST_MS:
        raise SourceBroken(
            f"{place} ({name}): timestamp {seconds[0]:.0f} cannot be seconds", "Milliseconds? divide by 1000"
        )
    times = np.round(seconds * 1000).astype(np.int64)
    try:
        check_times(times, f"{place} ({name})")
    except SeriesLineError as error:
        raise SourceBroken(error.cause, error.next_step) from None
    return Samples(labels, times, values)


def write_matrix(file: BinaryIO, series: Iterable[Samples], title: str = "", window: Extent | None = None) -> int:
    """The API envelope with one matrix; staleness markers cannot be said in it and are left out. Returns the sample count.

    Title and window stand beside the data, where the recordings' wrapper has them (`start` and `end` in seconds).
    """
    count = 0
    told: dict[str, Any] = {"title": title} if title else {}
    if window is not None:
        told |= {"start": window.start_ms / 1000, "end": window.end_ms / 1000}
    head = orjson.dumps({"status": "success", **told})[:-1]
    file.write(head + b',"data":{"resultType":"matrix","result":[')
    separator = b"\n"
    for each in series:
        kept = ~is_stale(each.values)
        times, values = each.times_ms[kept].tolist(), each.values[kept].tolist()
        if not times:
            continue
        pairs = [[at / 1000, value_text(value)] for at, value in zip(times, values, strict=True)]
        file.write(separator + orjson.dumps({"metric": dict(each.labels), "values": pairs}))
        separator = b",\n"
        count += len(times)
    file.write(b"\n]}}\n")
    return count


def value_text(value: float) -> str:
    """A value as the API writes it: shortest text that gives it back, NaN, +Inf and -Inf."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 and str(value)[0:2] != "-0" else repr(value)
