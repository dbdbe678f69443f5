"""Takes a log line out of whatever carried it: colours, JSON lines, Docker, Kubernetes, journald, process prefixes.

Everything found is text from outside: control characters are replaced, nothing is interpreted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

LONGEST_LINE = 16_384
"""Characters of a line that are looked at; vLLM's longest start-up line is far shorter."""
LONGEST_RECORD = 2**20
"""Characters of a JSON record that are looked at: it may carry a whole traceback, or a page of log lines."""
MOST_TEXTS = 2_000
DEEPEST_RECORD = 6
MOST_FRAMES = 6

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-_]|\[\d{1,2}(?:;\d{1,3})*m")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_CRI = re.compile(r"^\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d) (?:stdout|stderr) [FP] ")
_SYSLOG = re.compile(
    r"^(?:<\d{1,3}>)?(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)?|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)) \S+ [\w@.\-/]+(?:\[\d+\])?: "
)
_SYSLOG_5424 = re.compile(r"^<\d{1,3}>1 \S+ \S+ \S+ \S+ \S+ (?:-|\[[^\]]*\]) ")
_PYTHON_LOGGING = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} - [\w.]+ - [A-Z]+ - ")
_RFC3339 = re.compile(
    r"^\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?: ?Z| ?[+-]\d\d:?\d\d)?\]?(?: \[[\w.\-]{1,64}\])? +(?=\S)"
)
_STERN = re.compile(r"^[a-z0-9][a-z0-9.\-]*-[a-z0-9]+ [a-z0-9][a-z0-9\-]* (?=[(A-Z]|Traceback|  File )")
_RANK = re.compile(r"^(?:\[rank\d+\]: ?|\d{1,5}: |\(\w+, pid=\d+\) )(?=\s*\S)")
_GREP = re.compile(
    r"^(?:[\w./\-]+\.(?:log|txt|out|err)(?:\.\d+)?[:\-])?\d{1,9}[:\-](?=[^\d])|^[\w./\-]+\.(?:log|txt|out|err):(?=\S)"
)
_QUOTED = re.compile(r"^(?:> ?)+(?![A-Z]+ /\S* HTTP/)(?=\S)")
_TAGGED = re.compile(r"^(?!data:)[\w.@/\-]{1,80}: ?(?=\{\")")
_COMPOSE = re.compile(r"^[\w.\-]{1,64}(?: (?:stdout|stderr))? +\| ")
_KUBECTL = re.compile(r"^\[pod/[^\]]+\] ")
_LETTER_FRAMES = (_COMPOSE, _SYSLOG, _STERN, _GREP, _TAGGED)
_FRAMES = {
    **dict.fromkeys("0123456789", (_CRI, _SYSLOG, _PYTHON_LOGGING, _RFC3339, _COMPOSE, _STERN, _RANK, _GREP)),
    "[": (_KUBECTL, _RFC3339, _RANK),
    "<": (_SYSLOG_5424, _SYSLOG),
    ">": (_QUOTED,),
    "(": (_RANK,),
    "{": (), " ": (), "\t": (), "": (),
}  # fmt: skip
"""Framings by the character that they begin with; letters and the rest have `_LETTER_FRAMES`."""
_HEADER = re.compile(
    r"\((?:APIServer|ApiServer|EngineCore|Worker|VllmWorker|RayWorker|DPCoordinator)\w* (?:rank=\d+ )?(?:pid=)?\d+(?:, ip=[\d.]+)?\) ?|"
    r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? (?:\[[\w./]+:\d+\]|[\w./]+:\d+\])"
)
"""How vLLM's own part of a line begins: whatever stands before it is framing, known or not."""
_LONG_NUMBER = re.compile(r"\d{40,}")
"""No figure of any log; arithmetic on it would leave the range of numbers."""
_USERS_WORDS = re.compile(
    r"(?P<key>[\"'](?:content|reasoning_content|prompt|text|input|arguments)[\"']\s*:\s*)(?:\"(?:[^\"\\]|\\.)*(?:\"|$)|'(?:[^'\\]|\\.)*(?:'|$))"
)
"""What a user wrote or a model answered, inside a request or an answer that stands in the log."""
_LONGEST_PREFIX = 160
_RAY = re.compile(r"^\((?P<proc>[A-Za-z][\w.:]*) (?:pid=)?\d+(?:, ip=[\d.]+)?\)\s+(?=\S)")
_PROCESS = re.compile(r"^\((?P<proc>[A-Za-z0-9_]+(?: rank=\d+)?) pid=(?P<pid>\d+)\)\s*")
_V0_PROCESS = re.compile(r"^\((?P<proc>VllmWorkerProcess) pid=(?P<pid>\d+)\)\s*")
_LEVEL = re.compile(
    r"^(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d [\d:.,]{8,12} (?:\[[^\]]*\]|[\w./]+:\d+\])\s?"
)
_BODY = re.compile(r"\{\s*\"(?:error|object)\"\s*:\s*[{\"]")
_JSON_FIELDS = (
    "log", "message", "msg", "MESSAGE", "text", "line", "event", "textPayload", "jsonPayload", "@message", "_raw", "short_message", "body",
)  # fmt: skip
_WRITTEN_BY_USERS = frozenset(
    {"prompt", "prompts", "messages", "content", "input", "inputs", "query", "request", "request_body"}
)
_LOG_FIELDS = frozenset(
    {"level", "levelname", "severity", "time", "timestamp", "@timestamp", "ts", "asctime", "logger"}
)
_WORTH_READING = re.compile(r"Traceback|Error\b|[\"']error\\?[\"']|GiB")
_PRETTY_FIELD = re.compile(rf"^\s*\"(?:{'|'.join(_JSON_FIELDS)})\"\s*:\s*(?P<value>\"(?:[^\"\\]|\\.)*\"),?\s*$")


@dataclass(frozen=True)
class LogLine:
    """One line without its framing. `process` is vLLM's name for who wrote it ('' when it does not say)."""

    number: int
    process: str
    level: str
    text: str


def plain(text: str) -> str:
    """`text` without colours, with every other control character shown as a visible substitute, cut to a bounded length."""
    return _clean(text[:LONGEST_LINE])


def _clean(text: str) -> str:
    if "\x1b" in text or "[" in text and "m" in text:
        text = _ANSI.sub("", text)
    text = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text.rstrip("\r\n"))
    return text.replace("\N{NO-BREAK SPACE}", " ").lstrip("\N{REPLACEMENT CHARACTER}\N{ZERO WIDTH NO-BREAK SPACE}")


def unframe(number: int, raw: str) -> LogLine:
    """The first line inside one raw line, every known framing removed, outermost first."""
    return unframed(number, raw)[0]


def unframed(number: int, raw: str, *, one_field_a_line: bool = False) -> list[LogLine]:
    """The lines inside one raw line: one, unless a JSON record carries a traceback or a page of lines. At least one.

    `one_field_a_line` also opens a record that was printed over several lines, by its message field.
    """
    return [_vllm_line(number, text) for text in _carried(raw, one_field_a_line, 3)]


def _carried(raw: str, one_field_a_line: bool, rounds: int) -> list[str]:
    text = _clean(raw[:LONGEST_RECORD] if raw.lstrip(" \t\ufeff>")[:1] in ("{", "[") else raw[:LONGEST_LINE])
    for _ in range(MOST_FRAMES):  # a container's framing may wrap another one's
        if _PROCESS.match(text):
            break
        for frame in _FRAMES.get(text[:1], _LETTER_FRAMES):
            found = frame.match(text)
            if found:
                text = text[found.end() :]
                break
        else:
            break
    if rounds and ("{" in text or "[" in text or '"' in text):
        inner = _from_json(text)
        if not inner and one_field_a_line:
            inner = _from_field(text)
        if inner:
            return [line for one in inner for line in _carried(one, one_field_a_line, rounds - 1)]
    text = _LONG_NUMBER.sub("\N{REPLACEMENT CHARACTER}", text[:LONGEST_LINE])
    return [_USERS_WORDS.sub(r'\g<key>""', text) if "{" in text else text]


def _from_json(text: str) -> list[str]:
    """The lines that a JSON record carries; none when the text is no such record. Error bodies stay as they are."""
    start = text.strip()
    if start[:1] not in ("{", "[") or _BODY.match(start):
        return []
    if start[-1:] not in ("}", "]"):
        return _from_cut_json(start)
    try:
        record = json.loads(start)
    except (ValueError, RecursionError):
        return []
    texts = list(islice(_texts(record, DEEPEST_RECORD), MOST_TEXTS))
    return [line for one in texts for line in one.split("\n") if line.strip()][:MOST_TEXTS]


def _from_cut_json(start: str) -> list[str]:
    """A record whose end is missing still carries the lines of its traceback so far."""
    if not start.startswith('{"') or "\\n" not in start:
        return []
    lines = start.replace('\\"', '"').replace("\\u0027", "'").split("\\n")
    return [line for line in lines if line.strip()][:MOST_TEXTS]


def _from_field(text: str) -> list[str]:
    found = _PRETTY_FIELD.match(text)
    if not found:
        return []
    try:
        value = json.loads(found["value"])
    except ValueError:
        return []
    return [line for line in value.split("\n") if line.strip()][:MOST_TEXTS]


def _texts(record: Any, depth: int) -> Iterator[str]:
    """What was written for a reader: the message first, then tracebacks and answers in other fields; never what a user sent."""
    if depth == 0:
        return
    if isinstance(record, list):
        for item in record:
            yield from _texts(item, depth - 1)
        return
    if not isinstance(record, dict):
        return
    if _is_error_body(record):
        yield json.dumps(record, ensure_ascii=False)
        return
    message = next((field for field in _JSON_FIELDS if isinstance(record.get(field), str)), "")
    if message:
        yield record[message]
    for field, value in record.items():
        if field == message or field in _WRITTEN_BY_USERS:
            continue
        if isinstance(value, str):
            if _WORTH_READING.search(value):
                yield value
        else:
            yield from _texts(value, depth - 1)


def _is_error_body(record: dict[str, Any]) -> bool:
    """A server's answer: an `error` object, or a message with a code or a type beside it."""
    if isinstance(record.get("error"), dict) or record.get("object") == "error":
        return True
    return "message" in record and ("code" in record or "type" in record) and not _LOG_FIELDS & record.keys()


def _vllm_line(number: int, text: str) -> LogLine:
    """What vLLM itself puts before a message comes off: process names, level and module."""
    process = ""
    level = ""
    if not _RAY.match(text):
        header = _HEADER.search(text, 0, _LONGEST_PREFIX)
        text = text[header.start() :] if header else text
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
