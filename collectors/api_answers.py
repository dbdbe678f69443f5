"""Answers of the Prometheus API as our values: vectors, frames and raw samples; refusals as the errors an operator can act on."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from collectors.model import Frame, Labels, Samples, Vector, Window
from collectors.source import QueryRejected, SourceBroken, SourceError, SourceRefused, SourceUnreachable

_HISTOGRAMS_LEFT_OUT = "native histograms in the answer were left out"


@dataclass(frozen=True)
class Answer:
    """The `data` of a successful answer: result type ('' for other endpoints), result, warnings and infos."""

    type: str
    result: Any
    warnings: tuple[str, ...] = ()


def answer_of(parsed: Mapping[str, Any], where: str) -> Answer:
    """The answer in a decoded success. Raises SourceBroken when it is not of the API's form."""
    notes = [*(parsed.get("warnings") or ()), *(parsed.get("infos") or ())]
    if parsed.get("isPartial") is True:  # VictoriaMetrics cluster
        notes.append("the answer is partial: some storage nodes did not answer")
    data = parsed.get("data")
    warnings = tuple(" ".join(str(note).split()) for note in notes)
    if isinstance(data, dict) and "resultType" in data:
        if not isinstance(data.get("result"), list):
            raise SourceBroken(f"{where}: the answer has no result")
        return Answer(str(data["resultType"]), data["result"], warnings)
    return Answer("", data, warnings)


def refusal_of(status: int, content_type: str, retry_after: str, body: bytes, parsed: Any, where: str) -> SourceError:
    """The error that a response means. `parsed` is its JSON, None when it has none."""
    said = _said(parsed, body, content_type)
    if status in (401, 403, 407):
        return SourceRefused(
            f"{where} refuses access ({status}){said}", "Check auth and headers of this source in pagewatch.toml"
        )
    if isinstance(parsed, dict) and parsed.get("status") == "error":
        kind = str(parsed.get("errorType", ""))
        if kind in ("timeout", "canceled") or status in (502, 504):
            return SourceUnreachable(
                f"{where} gave up on the query{said}", "Ask for a shorter range, or raise the timeouts"
            )
        if status == 429 or kind == "too_many_requests":
            return _busy(where, retry_after, said)
        if status >= 500 and kind not in ("execution", "bad_data"):
            return SourceUnreachable(f"{where} failed ({status}){said}", "Look at the server's log")
        return QueryRejected(f"{where} rejects the query{said}", _query_hint(said))
    if status == 429:
        return _busy(where, retry_after, said)
    if status in (413, 414, 431):
        return QueryRejected(f"{where} finds the query too long ({status})", "Ask for less at once")
    if status in (400, 422):
        return QueryRejected(f"{where} rejects the query ({status}){said}", _query_hint(said))
    if status == 404:
        return SourceBroken(f"{where} has no Prometheus API (404)", "Is a path prefix missing, such as /prometheus?")
    if status == 405:
        return SourceBroken(f"{where} does not take this kind of request (405)", "Is it the address of the query API?")
    if status >= 500:
        return SourceUnreachable(f"{where} failed ({status}){said}", "Try again, or look at the server's log")
    if body.lstrip()[:1] == b"<" or "html" in content_type:
        return SourceRefused(
            f"{where} answers with a web page{said}, not with the Prometheus API",
            "A login page, perhaps? Give credentials, or the address of the API behind it",
        )
    return SourceBroken(
        f"{where} answers ({status}), but not as a Prometheus API does", "Check the address and its path"
    )


def _busy(where: str, retry_after: str, said: str) -> SourceError:
    wait = f"It asks to wait {retry_after} s" if retry_after.isdigit() else "Wait a moment, then ask less often"
    return SourceUnreachable(f"{where} takes no more requests for now (429){said}", wait)


def _query_hint(said: str) -> str:
    if "11,000 points" in said or "too many points" in said.lower():
        return "Choose a longer step or a shorter range"
    if "too many samples" in said.lower() or "limit" in said.lower():
        return "Narrow the selector, or ask for a shorter range"
    return "Check the query"


def _said(parsed: Any, body: bytes, content_type: str) -> str:
    """What the response says of itself, in at most 300 characters."""
    text = ""
    if isinstance(parsed, dict):
        text = str(parsed.get("error") or parsed.get("message") or "")
    elif body.lstrip()[:1] == b"<" or "html" in content_type:
        title = re.search(rb"<title[^>]*>(.*?)</title>", body[:20_000], re.IGNORECASE | re.DOTALL)
        text = html.unescape(title[1].decode("utf-8", "replace")) if title else ""
    elif parsed is None:
        text = body[:300].decode("utf-8", "replace")
    text = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    return f": {text[:300]}" if text else ""


def vector_of(answer: Answer, at_ms: int, where: str) -> Vector:
    """An instant answer as a vector; a scalar has one empty label set. Raises QueryRejected for a matrix or a text."""
    if answer.type in ("matrix", "string"):
        what = "raw samples" if answer.type == "matrix" else "a text"
        raise QueryRejected(
            f"the query gives {what}, a vector or a number is needed", "Ask for samples of a selector instead"
        )
    try:
        if answer.type == "scalar":
            return Vector(at_ms, ({},), np.array([float(answer.result[1])]), answer.warnings)
        entries = [entry for entry in answer.result if "value" in entry]
        labels = tuple(_labels(entry["metric"]) for entry in entries)
        values = np.array([float(entry["value"][1]) for entry in entries], dtype=np.float64)
    except (TypeError, KeyError, IndexError, ValueError):
        raise SourceBroken(f"{where}: the answer is not of the Prometheus API's form") from None
    return Vector(at_ms, labels, values, _noted(answer, len(entries)))


def frame_of(answers: Iterable[Answer], window: Window, where: str) -> Frame:
    """Range answers over parts of a window as one frame; points off the grid are refused."""
    rows: dict[frozenset[tuple[str, str]], int] = {}
    labels: list[Labels] = []
    parts: list[tuple[int, Any, Any]] = []
    warnings: dict[str, None] = {}
    try:
        for answer in answers:
            entries = [entry for entry in answer.result if "values" in entry]
            warnings.update(dict.fromkeys(_noted(answer, len(entries))))
            for entry in entries:
                metric = _labels(entry["metric"])
                row = rows.setdefault(frozenset(metric.items()), len(labels))
                if row == len(labels):
                    labels.append(metric)
                times, values = _columns(entry["values"])
                parts.append((row, times, values))
    except (TypeError, KeyError, IndexError, ValueError):
        raise SourceBroken(f"{where}: the answer is not of the Prometheus API's form") from None
    grid = np.full((len(labels), window.steps), np.nan)
    for row, times, values in parts:
        columns, off = np.divmod(times - window.start_ms, window.step_ms)
        if off.any() or (columns.size and not (columns[0] >= 0 and columns[-1] < window.steps)):
            raise SourceBroken(f"{where} answers at other instants than asked", "Align start and end to the step")
        grid[row, columns] = values
    return Frame(window, tuple(labels), grid, tuple(warnings))


def on_grid(answers: Iterable[Answer], window: Window) -> bool:
    """Whether range answers begin at instants that were asked for. Anything that is not of the API's form passes; `frame_of` names it."""
    for answer in answers:
        for entry in answer.result:
            pairs = entry.get("values") if isinstance(entry, dict) else None
            if pairs and isinstance(pairs[0], list) and isinstance(pairs[0][0], int | float):
                offset_ms = round(pairs[0][0] * 1000) - window.start_ms
                if offset_ms < 0 or offset_ms % window.step_ms:
                    return False
    return True


def samples_of(answer: Answer, start_ms: int, end_ms: int, where: str) -> list[Samples]:
    """Raw samples with start < t <= end; the left edge that 2.x servers include is dropped."""
    if answer.type != "matrix":
        raise QueryRejected(f"{where} gives a {answer.type or 'strange answer'} where raw samples were asked for")
    found: list[Samples] = []
    try:
        for entry in answer.result:
            if "values" not in entry:
                continue
            times, values = _columns(entry["values"])
            first, last = np.searchsorted(times, [start_ms, end_ms], side="right")
            if first < last:
                found.append(Samples(_labels(entry["metric"]), times[first:last], values[first:last]))
    except (TypeError, KeyError, IndexError, ValueError):
        raise SourceBroken(f"{where}: the answer is not of the Prometheus API's form") from None
    return found


def _columns(pairs: list[Any]) -> tuple[Any, Any]:
    seconds = np.array([pair[0] for pair in pairs], dtype=np.float64)
    return np.round(seconds * 1000).astype(np.int64), np.array([float(pair[1]) for pair in pairs], dtype=np.float64)


def _labels(metric: Mapping[str, str]) -> Labels:
    return dict(metric)


def _noted(answer: Answer, kept: int) -> tuple[str, ...]:
    return answer.warnings if kept == len(answer.result) else (*answer.warnings, _HISTOGRAMS_LEFT_OUT)
