"""What a target exposes: the Prometheus text format and OpenMetrics, line by line.

The grammar is Prometheus's own scanner's (model/textparse), so that a text is accepted or refused as Prometheus would: in the text format
white space is free and blank lines and comments are allowed; in OpenMetrics every gap is one space, only HELP, TYPE, UNIT and EOF follow
a `#`, and the text must end with `# EOF`. `line_memory.LineMemory` parses whole expositions and remembers these lines.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from collectors.model import Labels

ACCEPT = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.1"
)
"""Content negotiation of Prometheus 3 without protobuf. Without `escaping=allow-utf-8` prometheus_client 0.22 and later answers OpenMetrics in which
every `vllm:` name has become `vllm_`."""

_NAME = re.compile(rb"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_NAME = re.compile(rb"[a-zA-Z_][a-zA-Z0-9_]*")
_QUOTED = re.compile(rb'"((?:[^"\\]|\\.)*)"')
_GAP = re.compile(rb"[ \t]*")
_TOKEN = re.compile(rb"[^ \t{]+")
_STAMP = re.compile(rb"[0-9]+")
_META = re.compile(rb'[ \t]*#[ \t]+(HELP|TYPE)[ \t]+("(?:[^"\\]|\\.)*"|[a-zA-Z_:][a-zA-Z0-9_:]*)(?:[ \t](.*))?')
_BROKEN_META = re.compile(rb"[ \t]*#[ \t]+(HELP|TYPE)[ \t]")
_OPEN_META = re.compile(rb'# (HELP|TYPE|UNIT) ("(?:[^"\\]|\\.)*"|[a-zA-Z_:][a-zA-Z0-9_:]*) (.*)')
_ESCAPE = re.compile(r'\\([\\n"])')
_HELP_ESCAPE = re.compile(r"\\([\\n])")

TEXT_TYPES = {"counter", "gauge", "histogram", "summary", "untyped"}
OPENMETRICS_TYPES = {"counter", "gauge", "histogram", "gaugehistogram", "summary", "info", "stateset", "unknown"}
EOF = b"# EOF"
MAX_LABEL_BYTES = 16 * 1024
MAX_HELP_CHARACTERS = 4096
"""Longer HELP is cut: it is shown, never compared."""


class LineError(ValueError):
    """A line that is not what the format allows; the message is the reason alone."""


class LabelsError(LineError):
    """A sample that can be read, but whose labels are not a label set: Prometheus counts it before it refuses the exposition."""


class ExpositionError(ValueError):
    """An exposition that Prometheus would refuse as a whole.

    `samples` counts the samples read until then, `samples_kept` those of them with valid labels: a failed scrape reports both.
    """

    def __init__(
        self, reason: str, line_number: int, line: bytes, samples: int, samples_kept: int | None = None
    ) -> None:
        self.samples = samples
        self.samples_kept = samples if samples_kept is None else samples_kept
        shown = line[:80].decode("utf-8", "replace") + ("..." if len(line) > 80 else "")
        super().__init__(f"line {line_number}: {reason} in {shown!r}" if line else f"line {line_number}: {reason}")


@dataclass(frozen=True, slots=True)
class SampleLine:
    """One sample: labels with `__name__`, the value, the timestamp (ms) when the target gave one, and where its value begins."""

    labels: Labels
    value: float
    time_ms: int | None
    head: bytes
    """The line up to the space before the value when nothing follows the value, else empty: what may be remembered."""


@dataclass(frozen=True, slots=True)
class MetaLine:
    """One HELP, TYPE or UNIT line."""

    kind: Literal["HELP", "TYPE", "UNIT"]
    name: str
    text: str


def is_openmetrics(content_type: str) -> bool:
    """Whether a Content-Type says OpenMetrics; everything else is read as the text format."""
    return content_type.partition(";")[0].strip().lower() == "application/openmetrics-text"


def parse_value(token: bytes) -> float:
    """The number of a value token, as Go's ParseFloat in Prometheus reads it. Raises LineError.

    Refused though Python would take them: underscores, signs before nan, white space inside the token, and overflow (1e999).
    """
    try:
        if b"_" in token or token != token.strip():
            raise ValueError
        value = float(token)
    except ValueError:
        raise LineError(f"{token[:40].decode('utf-8', 'replace')!r} is not a number") from None
    if not math.isfinite(value):
        word = token.lower()
        if value != value and word != b"nan":
            raise LineError(f"{token[:40].decode('utf-8', 'replace')!r} is not a number")
        if value == value and word.lstrip(b"+-") not in (b"inf", b"infinity"):
            raise LineError(f"{token[:40].decode('utf-8', 'replace')!r} is out of range")
    return value


def parse_sample(line: bytes) -> SampleLine:
    """A sample line of the text format. Raises LineError."""
    begin = _gap(line, 0)
    labels, at = _series(line, begin, spaces=True)
    if begin:
        raise LabelsError("a metric name cannot begin with white space")
    at = _gap(line, at)
    token = _TOKEN.match(line, at)
    if token is None:
        raise LineError("expected a value after the metric")
    value = parse_value(token.group())
    end = _gap(line, token.end())
    if end == len(line):
        return SampleLine(labels, value, None, _head(line, token))
    stamp = _STAMP.match(line, end)
    if stamp is None or _gap(line, stamp.end()) != len(line):
        raise LineError("expected a timestamp in milliseconds or the end of the line after the value")
    return SampleLine(labels, value, _in_range(int(stamp.group())), b"")


def parse_openmetrics_sample(line: bytes) -> SampleLine:
    """A sample line of OpenMetrics; an exemplar is checked and dropped. Raises LineError."""
    labels, at = _series(line, 0, spaces=False)
    rest = line[at:]
    if not rest.startswith(b" "):
        raise LineError("expected one space and a value after the metric")
    rest, mark, exemplar = rest.partition(b" # {")
    if mark:
        _check_exemplar(line, len(line) - len(exemplar) - 1)
    parts = rest[1:].split(b" ")
    if len(parts) > 2 or b"" in parts:
        raise LineError("expected a value, a timestamp, and nothing else, each after one space")
    value = parse_value(parts[0])
    if len(parts) == 1 and not mark:
        return SampleLine(labels, value, None, line[:at])
    return SampleLine(labels, value, _seconds_ms(parts[1]) if len(parts) == 2 else None, b"")


def parse_meta(line: bytes) -> MetaLine | None:
    """A `#` line of the text format: HELP, TYPE, or None for any other comment. Raises LineError."""
    found = _META.fullmatch(line)
    if found is None:
        if _BROKEN_META.match(line):
            raise LineError("expected a metric name after HELP or TYPE")
        return None
    kind = found.group(1).decode()
    name, text = _meta_name(found.group(2)), _text(found.group(3) or b"", "help text")
    if kind == "TYPE":
        if text not in TEXT_TYPES:
            raise LineError(f"invalid metric type {text!r}")
        return MetaLine("TYPE", name, "unknown" if text == "untyped" else text)
    return MetaLine("HELP", name, _HELP_ESCAPE.sub(_unescaped, text[:MAX_HELP_CHARACTERS]))


def parse_openmetrics_meta(line: bytes) -> MetaLine:
    """A `#` line of OpenMetrics other than EOF. Raises LineError."""
    found = _OPEN_META.fullmatch(line)
    if found is None:
        raise LineError("only HELP, TYPE, UNIT and EOF may follow a '#' in OpenMetrics")
    name, text = _meta_name(found.group(2)), _text(found.group(3), "metadata")
    if found.group(1) == b"TYPE":
        if text not in OPENMETRICS_TYPES:
            raise LineError(f"invalid metric type {text!r}")
        return MetaLine("TYPE", name, text)
    if found.group(1) == b"UNIT":
        if text and not name.endswith("_" + text):
            raise LineError(f"unit {text!r} is not a suffix of metric {name!r}")
        return MetaLine("UNIT", name, text)
    return MetaLine("HELP", name, unescape(text[:MAX_HELP_CHARACTERS]))


def unescape(text: str) -> str:
    """A quoted label value without its escapes; an unknown escape stays as it is, as in Prometheus."""
    return _ESCAPE.sub(_unescaped, text) if "\\" in text else text


def _unescaped(found: re.Match[str]) -> str:
    return "\n" if found.group(1) == "n" else found.group(1)


def _gap(line: bytes, at: int) -> int:
    found = _GAP.match(line, at)
    return found.end() if found else at


def _head(line: bytes, token: re.Match[bytes]) -> bytes:
    """What may be remembered: only when the value is the end of the line and one space stands before it."""
    at = token.start()
    return line[: at - 1] if token.end() == len(line) and line[at - 1 : at] == b" " else b""


def _series(line: bytes, at: int, *, spaces: bool) -> tuple[dict[str, str], int]:
    """The metric name and labels from `at` on, and where they end."""
    labels: dict[str, str] = {}
    found = _NAME.match(line, at)
    if found is not None:
        labels["__name__"] = found.group().decode()
        at = found.end()
    brace = _gap(line, at) if spaces else at
    if line[brace : brace + 1] == b"{":
        at = _label_pairs(line, brace + 1, labels, spaces=spaces)
    if "__name__" not in labels:
        raise LineError("expected a metric name")
    return labels, at


def _label_pairs(line: bytes, at: int, labels: dict[str, str], *, spaces: bool) -> int:
    while True:
        at = _gap(line, at) if spaces else at
        if line[at : at + 1] == b"}":
            return at + 1
        at = _label_pair(line, at, labels, spaces=spaces)
        at = _gap(line, at) if spaces else at
        if line[at : at + 1] == b",":
            at += 1
        elif not spaces and line[at : at + 1] != b"}":  # the text format's scanner does not insist on commas
            raise LineError("expected ',' or '}' after a label value")


def _label_pair(line: bytes, at: int, labels: dict[str, str], *, spaces: bool) -> int:
    """One `name="value"`, or a quoted metric name (`{"my.metric",...}`), written into `labels`; returns where it ends."""
    quoted = _QUOTED.match(line, at)
    found = quoted or _LABEL_NAME.match(line, at)
    if found is None:
        raise LineError("expected a label name")
    at = _gap(line, found.end()) if spaces else found.end()
    if line[at : at + 1] != b"=":
        if quoted is None:
            raise LineError(f"expected '=' after label name {found.group().decode()!r}")
        if "__name__" in labels:
            raise LineError("a metric name stands twice")
        labels["__name__"] = unescape(_text(quoted.group(1), "metric name"))
        return found.end()
    name = unescape(_text(quoted.group(1), "label name")) if quoted else found.group().decode()
    value = _QUOTED.match(line, _gap(line, at + 1) if spaces else at + 1)
    if value is None:
        raise LineError(f"expected a quoted value for label {name!r}")
    if name in labels:
        raise LabelsError(f"label name {name!r} is not unique")
    if len(value.group(1)) > MAX_LABEL_BYTES:
        raise LabelsError(f"the value of label {name!r} has {len(value.group(1))} bytes, more than {MAX_LABEL_BYTES}")
    labels[name] = unescape(_text(value.group(1), "label value"))
    return value.end()


def _meta_name(token: bytes) -> str:
    return unescape(_text(token[1:-1], "metric name")) if token.startswith(b'"') else token.decode()


def _text(raw: bytes, what: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise LineError(f"{what} is not valid UTF-8") from None


def _in_range(time_ms: int) -> int:
    if time_ms > 2**63 - 1:
        raise LineError("timestamp is out of range")
    return time_ms


def _seconds_ms(token: bytes) -> int:
    seconds = parse_value(token)
    if not math.isfinite(seconds) or abs(seconds) > 2**53:
        raise LineError("timestamp is not a number of seconds")
    return int(seconds * 1000)


def _check_exemplar(line: bytes, at: int) -> None:
    """An exemplar: braces, one space, a value, and perhaps one space and a timestamp."""
    end = _label_pairs(line, at + 1, {}, spaces=False)
    parts = line[end:].split(b" ")
    if len(parts) not in (2, 3) or parts[0] != b"":
        raise LineError("expected a value, and at most a timestamp, after the labels of an exemplar")
    for part in parts[1:]:
        parse_value(part)
