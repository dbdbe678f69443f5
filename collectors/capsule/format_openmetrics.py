"""OpenMetrics text with timestamps, as `promtool tsdb create-blocks-from openmetrics` takes it.

Written family by family with TYPE and HELP, seconds with three decimals, `# EOF` at the end. Staleness markers cannot be said in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import BinaryIO

import numpy as np

from collectors.capsule.facts import family_names
from collectors.capsule.format_json import value_text
from collectors.model import Labels, MetricMeta, Samples, is_stale
from collectors.series_lines import EARLIEST_MS, SeriesLineError, check_times
from collectors.source import SourceBroken

FORMATS_READ = (
    "Give OpenMetrics text with timestamps, Prometheus JSON, VictoriaMetrics lines, Parquet or a Prometheus data folder"
)
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_PAIR = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\\n]|\\.)*)"\s*(,|$)')
_ESCAPED = re.compile(r"\\(.)")
_META = re.compile(rb"# (TYPE|HELP|UNIT) (\S+) ?(.*)")
_TYPES = frozenset(("counter", "gauge", "histogram", "summary", "info", "stateset", "gaugehistogram", "unknown"))


def read_openmetrics(lines: Iterator[bytes], where: str, types: dict[str, MetricMeta]) -> list[Samples]:
    """The series of a text, in order of first appearance; fills `types`. Raises SourceBroken naming the line."""
    columns: dict[bytes, tuple[list[float], list[float]]] = {}
    first_lines: dict[bytes, int] = {}
    ended = False
    for number, raw in enumerate(lines, 1):
        line = raw.strip()
        if not line:
            continue
        if ended:
            raise SourceBroken(f"{where}: line {number} stands after # EOF")
        if line.startswith(b"#"):
            ended = line == b"# EOF"
            _note_meta(line, types)
            continue
        key, value, seconds = _sample(line, where, number)
        column = columns.get(key)
        if column is None:
            column = columns[key] = ([], [])
            first_lines[key] = number
        column[0].append(seconds)
        column[1].append(value)
    if not ended:
        raise SourceBroken(f"{where} has no # EOF at its end", "The file is cut off, or is no OpenMetrics text")
    return [_series(key, column, where, first_lines[key]) for key, column in columns.items()]


def _note_meta(line: bytes, types: dict[str, MetricMeta]) -> None:
    found = _META.fullmatch(line)
    if found is None:
        return
    family, text = found[2].decode("utf-8", "replace"), found[3].decode("utf-8", "replace")
    known = types.get(family, MetricMeta("unknown", ""))
    if found[1] == b"TYPE":
        known = MetricMeta(text.strip(), known.help, known.unit)
    elif found[1] == b"HELP":
        known = MetricMeta(known.type, text.replace("\\n", "\n").replace('\\"', '"').replace("\\\\", "\\"), known.unit)
    else:
        known = MetricMeta(known.type, known.help, text.strip())
    types[family] = known


def _sample(line: bytes, where: str, number: int) -> tuple[bytes, float, float]:
    """Series text, value and seconds of a line; an exemplar behind ` # ` is left out."""
    closing = line.rfind(b"}", 0, line.find(b" # {") if b" # {" in line else None)
    end_of_key = closing + 1 if closing > 0 else line.find(b" ")
    parts = line[end_of_key:].split(b" # ", 1)[0].split()
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        numbers = []
    if end_of_key > 0 and len(numbers) == 2:
        return line[:end_of_key], numbers[0], numbers[1]
    if end_of_key > 0 and len(numbers) == 1:
        raise SourceBroken(f"{where}: line {number} has no timestamp", "A recording needs the time of every sample")
    raise SourceBroken(f"{where}: line {number} is no sample: {line[:80].decode('utf-8', 'replace')!r}", FORMATS_READ)


def _series(key: bytes, column: tuple[list[float], list[float]], where: str, number: int) -> Samples:
    seconds = np.array(column[0])
    if not bool(np.isfinite(seconds).all()) or float(np.abs(seconds).max()) >= EARLIEST_MS:
        raise SourceBroken(
            f"{where}: line {number}: timestamp {seconds.max():.0f} cannot be seconds", "Milliseconds? divide by 1000"
        )
    times = np.round(seconds * 1000).astype(np.int64)
    labels = _labels(key, where, number)
    try:
        check_times(times, f"{where}: the series of line {number}")
    except SeriesLineError as error:
        raise SourceBroken(error.cause, error.next_step) from None
    return Samples(labels, times, np.array(column[1]))


def parse_labels(text: str) -> dict[str, str]:
    """Label pairs of `a="b",c="d"`. Raises ValueError."""
    labels: dict[str, str] = {}
    position = 0
    while position < len(text) and text[position:].strip():
        found = _PAIR.match(text, position)
        if found is None:
            raise ValueError(text[position : position + 40])
        labels[found[1]] = _ESCAPED.sub(lambda each: "\n" if each[1] == "n" else each[1], found[2])
        position = found.end()
    return labels


def _labels(key: bytes, where: str, number: int) -> Labels:
    try:
        text = key.decode("utf-8")
        name, _, rest = text.partition("{")
        labels = parse_labels(rest[:-1]) if rest else {}
        if not _NAME.fullmatch(name.strip()):
            raise ValueError(name)
    except ValueError:
        raise SourceBroken(f"{where}: line {number} is no sample: {key[:80]!r}", FORMATS_READ) from None
    return {"__name__": name.strip(), **{label: value for label, value in labels.items() if value != ""}}


def families(names: Iterable[str], types: Mapping[str, MetricMeta]) -> list[frozenset[str]]:
    """Sample names grouped by the family that they are written under, in order."""
    grouped: dict[str, set[str]] = {}
    for name in names:
        grouped.setdefault(_family(name, types)[0], set()).add(name)
    return [frozenset(grouped[family]) for family in sorted(grouped)]


def write_openmetrics(file: BinaryIO, series: Iterable[Samples], types: Mapping[str, MetricMeta]) -> int:
    """The text of series that come family by family. Returns the sample count; names that the format forbids are left out."""
    count = 0
    families = groupby(series, key=lambda each: _family(each.labels.get("__name__", ""), types))
    written: set[str] = set()
    for (family, type_), members in families:
        if family not in written:
            written.add(family)
            file.write(f"# TYPE {family} {type_}\n".encode())
            meta = types.get(family) or types.get(family + "_total")
            if meta is not None and meta.help:
                escaped = meta.help.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
                file.write(f"# HELP {family} {escaped}\n".encode())
        for each in members:
            count += _write_series(file, each)
    file.write(b"# EOF\n")
    return count


def _family(name: str, types: Mapping[str, MetricMeta]) -> tuple[str, str]:
    """Family and type for a TYPE line. A counter's family has no `_total`; a name whose type would forbid it is unknown."""
    for base in family_names(name):
        meta = types.get(base)
        if meta is None or meta.type not in _TYPES:
            continue
        suffix = name.removeprefix(base)
        if meta.type == "counter" and name.endswith("_total"):
            return name.removesuffix("_total"), "counter"
        if meta.type in ("histogram", "summary") and suffix in ("_bucket", "_count", "_sum", "_created", ""):
            return base, meta.type
        if meta.type == "gauge" and suffix == "":
            return base, "gauge"
    return name, "unknown"


def _write_series(file: BinaryIO, series: Samples) -> int:
    name = series.labels.get("__name__", "")
    if not _NAME.fullmatch(name) or not all(_LABEL.fullmatch(label) for label in series.labels):
        return 0
    pairs = ",".join(
        f'{label}="{_escaped(value)}"' for label, value in sorted(series.labels.items()) if label != "__name__"
    )
    key = f"{name}{{{pairs}}}" if pairs else name
    kept = ~is_stale(series.values)
    times, values = series.times_ms[kept].tolist(), series.values[kept].tolist()
    file.write(
        "".join(
            f"{key} {value_text(value)} {at // 1000}.{at % 1000:03d}\n" for at, value in zip(times, values, strict=True)
        ).encode()
    )
    return len(times)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
