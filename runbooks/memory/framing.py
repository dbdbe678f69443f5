"""Takes a log line out of whatever carried it: colours, JSON lines, Docker, Kubernetes, journald, process prefixes.

Everything found is text from outside: control characters are replaced, nothing is interpreted.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

LONGEST_LINE = 16_384
"""Characters of a line that are looked at; vLLM's longest start-up line is far shorter."""

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-_]|\[\d{1,2}(?:;\d{1,3})*m")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_CRI = re.compile(r"^\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d) (?:stdout|stderr) [FP] ")
_RFC3339 = re.compile(r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)? +(?=\S)")
_JOURNALD = re.compile(r"^[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S+ [\w@.\-/]+(?:\[\d+\])?: ")
_COMPOSE = re.compile(r"^[\w.\-]{1,64} +\| ")
_KUBECTL = re.compile(r"^\[pod/[^\]]+\] ")
_RAY = re.compile(r"^\((?P<proc>[A-Za-z][\w.:]*) (?:pid=)?\d+(?:, ip=[\d.]+)?\)\s+(?=\S)")
_PROCESS = re.compile(r"^\((?P<proc>[A-Za-z0-9_]+) pid=(?P<pid>\d+)\)\s*")
_V0_PROCESS = re.compile(r"^\((?P<proc>VllmWorkerProcess) pid=(?P<pid>\d+)\)\s*")
_LEVEL = re.compile(
    r"^(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d [\d:.,]{8,12} (?:\[[^\]]*\]|[\w./]+:\d+\])\s?"
)
_BODY = re.compile(r"\{\s*\"(?:error|object)\"\s*:")
_JSON_FIELDS = ("log", "message", "msg", "MESSAGE", "text", "line", "event")


@dataclass(frozen=True)
class LogLine:
    """One line without its framing. `process` is vLLM's name for who wrote it ('' when it does not say)."""

    number: int
    process: str
    level: str
    text: str


def plain(text: str) -> str:
    """`text` without colours, with every other control character shown as a visible substitute, cut to a bounded length."""
    if len(text) > LONGEST_LINE:
        text = text[:LONGEST_LINE]
    if "\x1b" in text or "[" in text and "m" in text:
        text = _ANSI.sub("", text)
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text.rstrip("\r\n"))


def _from_json(text: str) -> str:
    """The message of a JSON log line, or the text itself when it is not one. Error bodies stay as they are."""
    if not text.startswith("{") or _BODY.match(text):
        return text
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(record, dict) and not ("message" in record and ("code" in record or "type" in record)):
        for field in _JSON_FIELDS:
            value = record.get(field)
            if isinstance(value, str):
                return value.rstrip("\n")
    return text


def unframe(number: int, raw: str) -> LogLine:
    """Removes every known framing from one raw line, outermost first."""
    text = plain(raw)
    for _ in range(3):  # a container's framing may wrap another one's
        before = text
        text = _from_json(text.strip() if text[:1] in " {" and "{" in text[:8] else text)
        text = plain(text) if text is not before else text
        for frame in (_CRI, _KUBECTL, _COMPOSE, _JOURNALD, _RFC3339):
            text = frame.sub("", text, count=1)
        if text == before:
            break
    process = ""
    level = ""
    for _ in range(2):
        found = _PROCESS.match(text) or _V0_PROCESS.match(text) or _RAY.match(text)
        if not found:
            break
        process = found["proc"]
        text = text[found.end() :]
    found = _LEVEL.match(text)
    if found:
        level = found["level"]
        text = text[found.end() :]
    return LogLine(number, process, level, text)
