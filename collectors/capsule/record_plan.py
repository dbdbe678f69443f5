"""What a recording will ask, in which pieces, and the folder that holds the pieces it has: written whole or not at all."""

from __future__ import annotations

import gzip
import os
import secrets
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from collectors.model import Samples
from collectors.promql_text import promql_shape, quote_label_value, selectors_of
from collectors.series_lines import encode_series, read_series_lines
from collectors.source import QueryRejected, Source, SourceBroken

SAMPLES_PER_QUERY = 400_000
"""About 10 MB of JSON; far under the 50 million samples at which Prometheus stops a query."""
SHORTEST_CHUNK_MS = 10_000
PLAN_FILE = "plan.json"
_ENGINE_SELECTOR = '{__name__=~".*vllm[:_].+"}'


@dataclass(frozen=True)
class Group:
    """Metric names that are asked together, as many as fit one query; names of all groups are in order."""

    names: tuple[str, ...]
    series: int


def selector_of(names: Sequence[str], match: str) -> str:
    """The selector `match` narrowed to some metric names."""
    pattern = "|".join(map(_escaped, names))
    name = f"__name__={quote_label_value(names[0])}" if len(names) == 1 else f"__name__=~{quote_label_value(pattern)}"
    body = match.strip()[1:-1].strip().rstrip(",")
    return f"{{{name},{body}}}" if body else f"{{{name}}}"


@dataclass(frozen=True)
class Plan:
    """A recording: what is asked of whom. `secret` keys the pseudonyms of redacted labels."""

    source: str
    start_ms: int
    end_ms: int
    matches: tuple[str, ...]
    redact: Mapping[str, str]
    groups: tuple[Group, ...]
    chunk_ms: int
    secret: str

    def pieces(self) -> list[tuple[int, int, int]]:
        """(group, from, to) of every query: samples with from < t <= to."""
        edges = [*range(self.start_ms - 1, self.end_ms, self.chunk_ms), self.end_ms]
        return [
            (number, begin, end)
            for number in range(len(self.groups))
            for begin, end in zip(edges, edges[1:], strict=False)
        ]

    def to_json(self) -> bytes:
        return orjson.dumps(
            {**self.__dict__, "groups": [[list(group.names), group.series] for group in self.groups]},
            option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS,
        )


def chosen_selectors(source: Source, match: Sequence[str] | None, start_ms: int, end_ms: int) -> tuple[str, ...]:
    """Selectors of what is recorded: those asked for, else everything that the targets of a vLLM expose.

    Raises SourceBroken when no such target is found.
    """
    if match:
        return tuple(map(_in_braces, match))
    targets = {
        (labels.get("job", ""), labels.get("instance", ""))
        for labels in source.series([_ENGINE_SELECTOR], start_ms, end_ms)
    }
    if not targets:
        raise SourceBroken(
            "no vLLM metrics between start and end", "Check the window, or say what to record: --match '{job=\"...\"}'"
        )
    jobs: dict[str, list[str]] = {}
    for job, instance in sorted(targets):
        jobs.setdefault(job, []).append(instance)
    return tuple(
        f"{{job={quote_label_value(job)},instance=~{quote_label_value('|'.join(map(_escaped, instances)))}}}"
        for job, instances in jobs.items()
    )


def _in_braces(match: str) -> str:
    """A selector with its metric name among the matchers. Raises QueryRejected for what is no plain selector."""
    found = selectors_of(match)
    plain = len(found) == 1 and len(found[0].alternatives) == 1 and not found[0].when
    if not plain or promql_shape(match) != "selector":
        raise QueryRejected(f"--match {match!r} is not a plain selector", 'Such as up{job="vllm"}')
    name = [f"__name__={quote_label_value(found[0].name)}"] if found[0].name else []
    matchers = [f"{each.label}{each.op}{quote_label_value(each.value)}" for each in found[0].alternatives[0]]
    return "{" + ",".join([*name, *matchers]) + "}"


def make_plan(
    source: Source, start_ms: int, end_ms: int, match: Sequence[str] | None, redact: Mapping[str, str] | None
) -> Plan:
    """Ask which series there are and cut the work into queries. Raises SourceError."""
    matches = chosen_selectors(source, match, start_ms, end_ms)
    counts: dict[str, int] = {}
    for labels in source.series(matches, start_ms, end_ms):
        name = labels.get("__name__", "")
        counts[name] = counts.get(name, 0) + 1
    if not counts:
        raise SourceBroken("nothing matches between start and end", "Check --match and the window")
    interval_ms = 2000  # the shortest usual scrape interval; more often only means smaller answers
    most = max(counts.values())
    chunk_ms = max(SHORTEST_CHUNK_MS, min(end_ms - start_ms + 1, SAMPLES_PER_QUERY * interval_ms // most))
    room = max(most, SAMPLES_PER_QUERY * interval_ms // chunk_ms)
    groups: list[Group] = []
    names: list[str] = []
    series = 0
    for name in sorted(counts):
        if names and (series + counts[name] > room or sum(map(len, names)) > 4000):
            groups.append(Group(tuple(names), series))
            names, series = [], 0
        names.append(name)
        series += counts[name]
    groups.append(Group(tuple(names), series))
    where = source.info()
    return Plan(
        source=where.url or where.name,
        start_ms=start_ms,
        end_ms=end_ms,
        matches=matches,
        redact=dict(redact or {}),
        groups=tuple(groups),
        chunk_ms=chunk_ms,
        secret=secrets.token_hex(16),
    )


def _escaped(text: str) -> str:
    """A regular expression that matches exactly this text, in RE2's words."""
    return "".join("\\" + char if char in r"\.+*?()|[]{}^$" else char for char in text)


class PartialFolder:
    """The pieces that a recording has so far, beside its goal: `X.capsule.partial`."""

    def __init__(self, out: Path) -> None:
        self.path = out.with_name(out.name + ".partial")

    def open(self, plan: Plan | None) -> Plan | None:
        """The plan of an earlier, unfinished recording; writes `plan` when there is none. Raises SourceBroken for a damaged one."""
        file = self.path / PLAN_FILE
        if file.is_file():
            return _read_plan(file)
        if plan is not None:
            self.path.mkdir(parents=True, exist_ok=True)
            _write_whole(file, plan.to_json())
        return None

    def has(self, piece: tuple[int, int, int]) -> bool:
        return self._file(piece).is_file()

    def keep(self, piece: tuple[int, int, int], series: Iterable[Samples]) -> None:
        """Keep the series of one piece."""
        _write_whole(self._file(piece), gzip.compress(b"".join(map(encode_series, series)), compresslevel=1, mtime=0))

    def read(self, piece: tuple[int, int, int]) -> list[Samples]:
        """The series of one piece. Raises SourceBroken when it is damaged."""
        file = self._file(piece)
        try:
            with gzip.open(file, "rb") as lines:
                return list(read_series_lines(lines))  # type: ignore[arg-type]
        except (OSError, EOFError) as error:
            raise SourceBroken(f"{file} is damaged: {error}", f"Remove {self.path} and record again") from None

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def _file(self, piece: tuple[int, int, int]) -> Path:
        number, begin, end = piece
        return self.path / f"{number:05d}-{begin}-{end}.jsonl.gz"


def _read_plan(file: Path) -> Plan:
    try:
        data = orjson.loads(file.read_bytes())
        groups = tuple(Group(tuple(names), int(series)) for names, series in data.pop("groups"))
        return Plan(**{**data, "matches": tuple(data["matches"])}, groups=groups)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        raise SourceBroken(f"{file} is damaged", f"Remove {file.parent} and record again") from None


def _write_whole(file: Path, data: bytes) -> None:
    partial = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    with open(partial, "wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    os.replace(partial, file)
