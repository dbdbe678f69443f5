"""Grafana's variables and Helm's placeholders, filled with stand-ins of their kind so that the query parses.

A stand-in for a name is marked, so that no rule judges a name that only the dashboard knows.
"""

from __future__ import annotations

import json
import re

UNKNOWN_NAME = "pagewatch_unknown"
"""Part of every metric or label name that stands for a variable."""

_BACKQUOTED = re.compile(r"`([^`]*)`")
_QUOTED = re.compile(r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'")
_VARIABLE = re.compile(
    r"\$\{(?P<braced>\w+)(?:\.\w+)?(?::[^}]*)?\}|\[\[(?P<square>\w+)(?::\w+)?\]\]|\$(?P<plain>\w+)|(?P<helm>\{\{[^{}]*\}\})"
)
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\((?:[\w\s,:$]|\{|\})*$")
_CALLED = re.compile(r"\s*(?:\(|(?:by|without)\b)")
_DURATIONS = {
    "__rate_interval": "60s",
    "__interval": "1s",
    "__range": "1h",
    "__interval_ms": "1000",
    "__range_s": "3600",
    "__range_ms": "3600000",
}


def requote(text: str) -> str:
    """Back-quoted strings take no escapes in PromQL; the parser would process them, so they are written as double-quoted ones."""
    pieces, position = [], 0
    for quoted in re.finditer(rf"{_QUOTED.pattern}|{_BACKQUOTED.pattern}", text):
        pieces.append(text[position : quoted.start()])
        raw = quoted.group(0)
        pieces.append(json.dumps(raw[1:-1], ensure_ascii=False) if raw.startswith("`") else raw)
        position = quoted.end()
    return "".join([*pieces, text[position:]])


def fill(text: str) -> str:
    """Variables outside quotes get a stand-in of their kind; inside quotes they stay, as the label values that they will be."""
    pieces, position = [], 0
    for quoted in _QUOTED.finditer(text):
        pieces += [_outside(text, position, quoted.start()), quoted.group(0)]
        position = quoted.end()
    return "".join([*pieces, _outside(text, position, len(text))])


def _outside(text: str, start: int, end: int) -> str:
    pieces, position = [], start
    for found in _VARIABLE.finditer(text, start, end):
        name = found["braced"] or found["square"] or found["plain"] or ""
        pieces += [
            text[position : found.start()],
            _DURATIONS.get(name) or _stand_in(text[: found.start()], text[found.end() :]),
        ]
        position = found.end()
    return "".join([*pieces, text[position:end]])


def _stand_in(before: str, after: str) -> str:
    """By what stands around the variable: a duration, label, matcher, function, metric name, part of a name, or a number."""
    last, follows = before.rstrip()[-1:], after.lstrip()
    braces = _QUOTED.sub("", before)
    in_matchers = braces.count("{") > braces.count("}")
    if before[-1:].isidentifier() or before[-1:] == ":" and not in_matchers and "[" not in before.rsplit("]", 1)[-1]:
        return UNKNOWN_NAME
    if (
        after[:1].isidentifier()
        and not after.startswith(("s]", "m]", "h]"))
        or after.startswith(":")
        and after[1:2].isalpha()
    ):
        return UNKNOWN_NAME
    if last in ("[", ":") or re.search(r"\boffset\s*-?\s*$", before):
        return "5m"
    if in_matchers:
        return UNKNOWN_NAME if follows[:1] in ("=", "!") else f'{UNKNOWN_NAME}=~".*"'
    if _GROUPING.search(before):
        return UNKNOWN_NAME
    if _CALLED.match(after):
        return "rate" if "[" in after.split(")", 1)[0] else "max"
    return UNKNOWN_NAME if follows[:1] in ("{", "[") else "1"
