"""Other programs' files into incident files and back. What each format cannot carry stands in docs/capsule.md."""

from __future__ import annotations

import errno
import gzip
import os
import threading
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal

import orjson

from collectors.capsule.body_reader import BodyReader
from collectors.capsule.facts import engine_facts, facts_of
from collectors.capsule.file import open_parts, write_capsule
from collectors.capsule.format_json import matrix_of, series_of, write_matrix
from collectors.capsule.format_victoriametrics import joined, read_lines, write_lines
from collectors.capsule.manifest import Extent, Manifest, Origin
from collectors.capsule.staleness import has_markers, with_markers
from collectors.counting import counted
from collectors.file_trouble import file_trouble
from collectors.model import MetricMeta, Samples
from collectors.source import SourceBroken

MAX_INPUT_BYTES = 8 * 1024**3
MAX_INPUT_RATIO = 400
FORMATS = ("openmetrics", "parquet", "prometheus-json", "victoria-metrics")
NOT_CARRIED = {
    "openmetrics": "window, marks, diagnosis and ground truth",
    "prometheus-json": "types, help, marks, diagnosis and ground truth",
    "victoria-metrics": "window, types, help, marks, diagnosis and ground truth",
}
"""What is lost beside samples; Parquet loses nothing."""
WRITER = "pagewatch 0.1"


@dataclass(frozen=True)
class Summary:
    """What an import, an export or a recording wrote."""

    path: Path
    series: int
    samples: int
    replicas: int = 0
    duration_ms: int = 0
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        span = f", {counted(self.replicas, 'replica')}, {self.duration_ms / 1000:.0f} s" if self.duration_ms else ""
        notes = "".join(f"\n  note: {note}" for note in self.notes)
        return f"{self.path}: {self.series} series, {counted(self.samples, 'sample').replace(',', '')}{span}{notes}"


@dataclass
class Contents:
    """What an input file held, whatever its format."""

    series: list[Samples]
    origin: Origin
    types: dict[str, MetricMeta] = field(default_factory=dict)
    wrapper: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    tells_staleness: bool = False
    manifest: Manifest | None = None
    """The manifest that travelled with the samples, when they come from one of our own exports."""


def import_file(path: Path, out: Path) -> Summary:
    """Turn a file of any format that is read into an incident file. Raises SourceError; a failed import writes nothing."""
    path, out = Path(path), Path(out)
    try:
        contents = _contents(path)
    except OSError as error:
        raise SourceBroken(*file_trouble(path, error)) from None
    if not any(each.times_ms.size for each in contents.series):
        raise SourceBroken(f"{path} holds no samples", "Export or record it again")
    return write_contents(contents, out, title=_stem(path), where=str(path))


def write_contents(contents: Contents, out: Path, title: str, where: str = "") -> Summary:
    """Write what was read (from `where`) as an incident file: series joined and sorted, staleness mended, facts gathered."""
    series = joined(contents.series, where or title)
    marked = has_markers(series)
    notes = list(contents.notes)
    staleness: Literal["kept", "reconstructed", "absent"] = "kept"
    if not marked and not contents.tells_staleness:
        series = with_markers(series)
        staleness = "reconstructed" if has_markers(series) else "absent"
        if staleness == "reconstructed":
            notes.append("staleness markers were put in where a target was scraped and a series of it was missing")
    if contents.manifest is not None:
        written = write_capsule(out, contents.manifest, series, presorted=True)
        return _summary(out, written, notes)
    wrapper = contents.wrapper
    facts = facts_of(series, contents.types)
    told = _told_window(wrapper, facts["window"])
    if told is not None:
        facts["window"] = told
    elif contents.origin.kind != "simulated":  # a run is exactly its samples
        notes.append("the file tells no window, so it reaches from the first sample to the last")
    names = frozenset(each.labels.get("__name__", "") for each in series)
    manifest = Manifest(
        title=str(wrapper.get("scenario") or wrapper.get("title") or title),
        written_by=WRITER,
        source=contents.origin,
        engine=engine_facts(str(wrapper.get("engine") or ""), names),
        staleness=staleness,
        notes=tuple(notes),
        ground_truth=wrapper.get("ground_truth"),
        server_flags=wrapper.get("server_flags"),
        original={key: value for key, value in wrapper.items() if key not in ("ground_truth", "server_flags")},
        **facts,
    )
    written = write_capsule(out, manifest, series, presorted=True)
    return _summary(out, written, notes)


def _summary(out: Path, written: Manifest, notes: Iterable[str]) -> Summary:
    return Summary(
        path=out,
        series=written.body.series,
        samples=written.body.samples,
        replicas=len(written.replicas),
        duration_ms=written.window.end_ms - written.window.start_ms,
        notes=tuple(notes),
    )


def _told_window(wrapper: dict[str, Any], seen: Extent) -> Extent | None:
    """From the recording's own start to its own end, widened to the samples; None where it tells none that fits them."""
    try:
        start_ms, end_ms = round(float(wrapper["start"]) * 1000), round(float(wrapper["end"]) * 1000)
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    length_ms = seen.end_ms - seen.start_ms
    if seen.start_ms - start_ms > length_ms + 60_000 or end_ms - seen.end_ms > length_ms + 60_000 or end_ms < start_ms:
        return None
    return Extent(start_ms=min(start_ms, seen.start_ms), end_ms=max(end_ms, seen.end_ms))


def _contents(path: Path) -> Contents:
    if path.is_dir():
        from collectors.capsule.format_tsdb import is_tsdb, read_tsdb

        if is_tsdb(path):
            return Contents(list(read_tsdb(path)), Origin(kind="file", backend="prometheus"))
        raise SourceBroken(f"{path} is a folder, but no Prometheus data folder", "Name the file to import")
    with open(path, "rb") as file:
        magic = file.read(4)
    if magic == b"PAR1":
        from collectors.capsule.format_parquet import read_parquet

        return read_parquet(path)
    if magic[:2] == b"PK":
        raise SourceBroken(f"{path} is a zip, an incident file already, perhaps", "Open it with --source")
    if not magic:
        raise SourceBroken(f"{path} is empty", "Export or record it again")
    with open(path, "rb") as file:
        return _text_contents(_Bounded(file, packed=magic[:2] == b"\x1f\x8b", where=str(path)), path)


class _Bounded:
    """Reads a plain or gzipped file, and refuses one that unpacks to more than any recording does."""

    def __init__(self, file: BinaryIO, *, packed: bool, where: str) -> None:
        size = os.fstat(file.fileno()).st_size
        self._file: Any = gzip.GzipFile(fileobj=file) if packed else file
        self._limit = min(MAX_INPUT_BYTES, max(size * MAX_INPUT_RATIO, 256 * 1024**2)) if packed else MAX_INPUT_BYTES
        self._where = where
        self._seen = 0
        self._pushed_back = b""

    def readline(self, size: int = -1) -> bytes:
        if self._pushed_back:
            line, self._pushed_back = self._pushed_back, b""
            return line
        return self._count(lambda: self._file.readline(size if size >= 0 else self._limit + 1))

    def push_back(self, line: bytes) -> None:
        """Give a line back, to be read again first."""
        self._pushed_back = line

    def read(self) -> bytes:
        """All that is left."""
        first, self._pushed_back = self._pushed_back, b""
        return first + self._count(lambda: self._file.read(self._limit + 1))

    def _count(self, ask: Callable[[], bytes]) -> bytes:
        try:
            data = ask()
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise SourceBroken(f"{self._where} is damaged: {error}", "Take another copy") from None
        self._seen += len(data)
        if self._seen > self._limit:
            raise SourceBroken(f"{self._where} unpacks to more than {self._limit} bytes, as no recording does")
        return data


def _text_contents(file: _Bounded, path: Path) -> Contents:
    first = file.readline()
    while first and not first.strip():
        first = file.readline()
    file.push_back(first)
    start = first.lstrip()[:1]
    if start == b"{" and b'"timestamps"' in first and b'"metric"' in first and _is_series_line(first):
        origin = Origin(kind="file", backend="victoria-metrics")
        return Contents(list(read_lines(file, str(path))), origin)  # type: ignore[arg-type]
    if start in (b"{", b"["):
        return _json_contents(file.read(), path)
    if b"\0" in first:
        raise SourceBroken(f"{path} is of no format that can be imported", f"Formats: {', '.join(FORMATS)}")
    from collectors.capsule.format_openmetrics import read_openmetrics

    types: dict[str, MetricMeta] = {}
    series = read_openmetrics(iter(file.readline, b""), str(path), types)
    return Contents(series, Origin(kind="file", backend="openmetrics"), types)


def _is_series_line(line: bytes) -> bool:
    try:
        parsed = orjson.loads(line)
    except orjson.JSONDecodeError:
        return True  # a damaged line is named by the reader
    return isinstance(parsed, dict) and {"metric", "values", "timestamps"} <= parsed.keys()


def _json_contents(text: bytes, path: Path) -> Contents:
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise SourceBroken(f"{path} is not whole JSON: {error}", "The file is cut off or damaged") from None
    result, wrapper = matrix_of(document, str(path))
    skipped: list[str] = []
    series = list(series_of(result, str(path), skipped))
    notes = [f"{len(skipped)} native histogram series were left out ({skipped[0]} ...)"] if skipped else []
    return Contents(series, Origin(kind="file", backend="prometheus"), {}, wrapper, notes)


def _stem(path: Path) -> str:
    name = path.name
    for suffix in (".gz", ".json", ".jsonl", ".txt", ".om", ".prom", ".parquet"):
        name = name.removesuffix(suffix)
    return name or path.name


def export_capsule(path: Path, to: str, out: Path) -> Summary:
    """Write an incident file in another format, atomically. Raises SourceError; an unknown format is named."""
    form = "victoria-metrics" if to in ("victoriametrics", "victoria-metrics") else to
    if form not in FORMATS:
        raise SourceBroken(f"unknown format {to!r}", f"Formats: {', '.join(FORMATS)}")
    manifest, reader = open_parts(Path(path))
    reader.verify()
    out = Path(out)
    partial = out.with_name(f".{out.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    if not out.parent.is_dir():  # not every writer says what was not there
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(out))
    try:
        if form == "parquet":
            from collectors.capsule.format_parquet import write_parquet

            labels = {label for each in reader.read() for label in each.labels}
            samples = write_parquet(partial, manifest, reader.read(), labels)
        else:
            with open(partial, "xb") as file:
                samples = _write(form, file, manifest, reader)
                file.flush()
                os.fsync(file.fileno())
        os.replace(partial, out)
    finally:
        with suppress(FileNotFoundError):
            partial.unlink()
    lost = manifest.body.samples - samples
    notes = [f"{lost} staleness markers or values that {form} cannot carry were left out"] if lost else []
    if form in NOT_CARRIED:
        notes.append(f"{form} does not carry {NOT_CARRIED[form]} of an incident file")
    return Summary(out, manifest.body.series, samples, notes=tuple(notes))


def _write(form: str, file: BinaryIO, manifest: Manifest, reader: BodyReader) -> int:
    if form == "prometheus-json":
        return write_matrix(file, reader.read(), manifest.title, manifest.window)
    if form == "victoria-metrics":
        return write_lines(file, reader.read())
    from collectors.capsule.format_openmetrics import families, write_openmetrics

    types = manifest.metadata()
    names = reader.metric_names()
    if names is None:
        names = frozenset(each.labels.get("__name__", "") for each in reader.read())
    by_family = (each for members in families(names, types) for each in reader.read(members))
    return write_openmetrics(file, by_family, types)
