"""Puts the pieces of one answer together and takes several answers on one line apart, before any rule looks at them."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from runbooks.memory.framing import unframed
from runbooks.memory.patterns import REQUEST_TEXT

MOST_LINES = 40
"""Lines of one printed body; anything longer is no error body and is read line by line."""
MOST_BODIES = 200
KEYWORDS = (
    "maximum", "max_", "rror", "HTTP", "exist", "empty", "html", "HTML", "must", "cannot", "detail", "tool choice", "token", "busy", "prompt", "Refused", "API",
    "scaling", "Type", "Field", "context", "large", "Too", "Requested", "engine", "stop", "temperature", "model", "upstream", "adapter", "failed", "curl: (", "refused",
)  # fmt: skip

_START = re.compile(
    r"\{\s*[\"']error[\"']\s*:|\{\s*[\"']object[\"']\s*:\s*[\"']error[\"']|\{\s*[\"']type[\"']\s*:\s*[\"']error[\"']"
)
_ESCAPES = (
    ("\\u0027", "'"), ("\\u0022", '"'), ("\\u0060", "`"), ("\\u003c", "<"), ("\\u003e", ">"), ("\\u003C", "<"), ("\\u003E", ">"),
    ("\\\\", "\\"), ("\\'", "'"), ('\\"', '"'), ("\\n", " "), ("\\r", " "),
)  # fmt: skip
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_BEGUN = re.compile(
    r"maximum context length is -?[0-9]+|'max_tokens' or 'max_completion_tokens' is too large|prompt \(length [0-9]+\)|This model.s maximum context$|This model.s maximum$"
)
_ENDED = re.compile(
    r"input tokens|in the completion|tokens in the (?:messages|input for)|maximum (?:model|encoder|decoder) length of [0-9]+|resulted in [0-9]+|context_length_exceeded|[}\]]\s*$"
)
MOST_WRAPPED = 4
"""Lines that a terminal makes of the longest of these messages."""
_LOG_LINE = re.compile(r"\b(?:INFO|ERROR|WARNING|DEBUG)\b|^[<>*] |HTTP/[0-9]")
_HTML_START = re.compile(r"^(?:data: ?)?\s*<(?:html|!doctype html)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Piece:
    """One answer or one other line: its first line's number, its text, and the route that the writing module belongs to."""

    number: int
    text: str
    route: str = ""
    several: bool = False
    """True when the same line held more than one answer, so that equal ones are still two."""


def pieces(lines: Iterable[str]) -> Iterator[Piece]:
    """Bodies printed over several lines come back as one piece, several bodies on one line as several."""
    held: list[Piece] = []
    depth = 0
    begun: list[Piece] = []
    received, added = REQUEST_TEXT
    for number, raw in enumerate(lines, 1):
        if "Avg prompt throughput" in raw:
            continue
        if (
            not held
            and not begun
            and not any(keyword in raw for keyword in KEYWORDS)
            and raw.strip() not in ("{", "[{", "[")
        ):
            continue
        route = _route(raw)
        for line in unframed(number, raw):
            if received in line.text or added in line.text:
                continue
            piece = Piece(number, line.text, route)
            if begun and _LOG_LINE.search(piece.text):
                yield from _together(begun)
                begun = []
            if begun:
                begun.append(piece)
                if _ENDED.search(piece.text) or len(begun) >= MOST_WRAPPED:
                    yield from _together(begun)
                    begun = []
                continue
            if not held and _BEGUN.search(piece.text) and not _ENDED.search(piece.text):
                begun = [piece]
                continue
            page = bool(held) and depth == 0
            if held and not page and _LOG_LINE.search(piece.text):
                yield from _apart(held)
                held, depth = [], 0
            if held:
                held.append(piece)
                depth += 0 if page else _depth(piece.text)
                if "</html>" in piece.text.lower() if page else depth <= 0:
                    yield from _together(held)
                    held, depth = [], 0
                elif len(held) >= MOST_LINES:
                    yield from _together(held) if page else _apart(held)
                    held, depth = [], 0
            elif _HTML_START.match(piece.text) and "</html>" not in piece.text.lower():
                held, depth = [piece], 0
            elif piece.text.rstrip().endswith(("{", "[")) and _depth(piece.text) > 0:
                held, depth = [piece], _depth(piece.text)
            else:
                yield from _split(piece)
    yield from _together(begun) if begun else ()
    yield from _together(held) if depth == 0 and held else _apart(held)


def _depth(text: str) -> int:
    return text.count("{") + text.count("[") - text.count("}") - text.count("]")


def _together(held: list[Piece]) -> Iterator[Piece]:
    joined = " ".join(piece.text.strip() for piece in held)
    yield from _split(Piece(held[0].number, joined, held[0].route))


def _apart(held: list[Piece]) -> Iterator[Piece]:
    for piece in held:
        yield from _split(piece)


def _split(piece: Piece) -> Iterator[Piece]:
    if "&quot;" in piece.text or "&#" in piece.text:  # a body shown on a web page
        piece = replace(piece, text=html.unescape(piece.text))
    starts = [found.start() for found in _START.finditer(piece.text)][:MOST_BODIES]
    if len(starts) < 2:
        yield Piece(piece.number, _unescaped(piece.text), piece.route)
        return
    for start, end in zip([0, *starts[1:]], [*starts[1:], len(piece.text)], strict=True):
        yield Piece(piece.number, _unescaped(piece.text[start:end]), piece.route, several=True)


def _unescaped(text: str) -> str:
    """A body quoted inside a string (a client's report, a gateway's own JSON) reads like the body itself."""
    if "\\" in text:
        for escaped, plain in _ESCAPES:
            text = text.replace(escaped, plain)
    return _THOUSANDS.sub("", text) if "tokens" in text and "," in text else text


def _route(raw: str) -> str:
    """The module that logs an error belongs to one route."""
    if "serving_completion" in raw:
        return "/v1/completions"
    return "/v1/chat/completions" if "serving_chat" in raw else ""
