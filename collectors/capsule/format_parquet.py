"""Parquet: one long table, zstd, a row per sample: `timestamp` (ms, UTC), `value`, `stale`, `metric` and a column per label.

The manifest travels in the file's metadata, so that reading our own file back loses nothing. Foreign tables need `timestamp`, `value` and
`metric` (or `__name__`); every other text column is a label.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from collectors.capsule.manifest import Manifest, Origin, read_manifest
from collectors.model import STALE, Floats, Int64s, Samples, is_stale
from collectors.series_lines import EARLIEST_MS, SeriesLineError, check_times
from collectors.source import SourceBroken

if TYPE_CHECKING:
    from collectors.capsule.convert import Contents

ROWS_PER_GROUP = 2_000_000
MAX_ROWS = 500_000_000
_OWN = ("timestamp", "value", "stale", "metric")
_KEY = b"pagewatch"


def column_names(labels: Iterable[str]) -> dict[str, str]:
    """Column of each label: its own name, with `label_` in front where that is taken."""
    taken = set(_OWN)
    columns: dict[str, str] = {}
    for label in sorted(set(labels) - {"__name__"}):
        column = label
        while column in taken:
            column = "label_" + column
        taken.add(column)
        columns[label] = column
    return columns


def write_parquet(path: Path, manifest: Manifest, series: Iterable[Samples], labels: Iterable[str]) -> int:
    """Write the table; returns the sample count. `labels` are all label names that occur."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = column_names(labels)
    text = pa.dictionary(pa.int32(), pa.string())
    schema = pa.schema(
        [("timestamp", pa.timestamp("ms", tz="UTC")), ("value", pa.float64()), ("stale", pa.bool_()), ("metric", text)]
        + [(column, text) for column in columns.values()],
        metadata={_KEY: orjson.dumps({"manifest": manifest.to_json().decode(), "columns": columns})},
    )
    count = 0
    with pq.ParquetWriter(
        path,
        schema,
        compression="zstd",
        use_dictionary=["metric", *columns.values()],
        column_encoding={"timestamp": "DELTA_BINARY_PACKED", "value": "BYTE_STREAM_SPLIT"},
    ) as writer:
        for group in _groups(series):
            writer.write_table(_table(group, columns, schema))
            count += sum(each.times_ms.size for each in group)
    return count


def _groups(series: Iterable[Samples]) -> Iterator[list[Samples]]:
    group: list[Samples] = []
    rows = 0
    for each in series:
        group.append(each)
        rows += each.times_ms.size
        if rows >= ROWS_PER_GROUP:
            yield group
            group, rows = [], 0
    if group:
        yield group


def _table(group: list[Samples], columns: dict[str, str], schema: Any) -> Any:
    import pyarrow as pa

    lengths = [each.times_ms.size for each in group]
    times = np.concatenate([each.times_ms for each in group])
    values = np.concatenate([each.values for each in group])
    stale = is_stale(values)
    arrays = [
        pa.array(times, pa.int64()).cast(pa.timestamp("ms", tz="UTC")),
        pa.array(values, pa.float64(), from_pandas=False),
        pa.array(stale, pa.bool_()),
    ]
    for label in ("__name__", *columns):
        known: dict[str, int] = {}
        codes = [known.setdefault(each.labels[label], len(known)) if label in each.labels else -1 for each in group]
        indices = np.repeat(np.array(codes, dtype=np.int32), lengths)
        arrays.append(
            pa.DictionaryArray.from_arrays(
                pa.array(indices, pa.int32(), mask=indices < 0), pa.array(list(known), pa.string())
            )
        )
    return pa.Table.from_arrays(arrays, schema=schema)


def read_parquet(path: Path) -> Contents:
    """What a table holds. Raises SourceBroken naming the column or the reason."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
        names = file.schema_arrow.names
        told = (file.schema_arrow.metadata or {}).get(_KEY)
        if file.metadata.num_rows > MAX_ROWS:
            raise SourceBroken(f"{path} has {file.metadata.num_rows} rows, more than the {MAX_ROWS} that are read")
        metric = "metric" if "metric" in names else "__name__"
        for needed in ("timestamp", "value", metric):
            if needed not in names:
                raise SourceBroken(f"{path} has no column {needed!r}", "A row needs timestamp, value and metric")
        manifest, columns = _told(told, path)
        labels = {
            columns.get(name, name): name for name in names if name not in ("timestamp", "value", "stale", metric)
        }
        pieces: dict[tuple[str | None, ...], list[tuple[Int64s, Floats]]] = {}
        for number in range(file.num_row_groups):
            _take(
                file.read_row_group(number),
                ["metric" if metric == "metric" else "__name__", *labels.values()],
                pieces,
                path,
            )
    except (pa.ArrowException, OSError) as error:
        raise SourceBroken(f"{path} cannot be read as Parquet: {' '.join(str(error).split())[:200]}") from None
    keys = ("__name__", *labels)
    series = [_joined(dict(zip(keys, key, strict=True)), parts, path) for key, parts in pieces.items()]
    return _contents(series, manifest)


def _told(told: bytes | None, path: Path) -> tuple[Manifest | None, dict[str, str]]:
    if told is None:
        return None, {}
    try:
        parsed = orjson.loads(told)
        columns = {str(column): str(label) for label, column in parsed["columns"].items()}
        return read_manifest(parsed["manifest"].encode(), str(path)), columns
    except (orjson.JSONDecodeError, KeyError, AttributeError):
        raise SourceBroken(f"{path}: its metadata is damaged") from None


def _take(
    table: Any, label_columns: list[str], pieces: dict[tuple[str | None, ...], list[tuple[Int64s, Floats]]], path: Path
) -> None:
    """Cut one row group into runs of equal labels and note each run."""
    import pyarrow as pa
    import pyarrow.compute as pc

    stamps = table["timestamp"]
    if pa.types.is_timestamp(stamps.type):
        stamps = pc.cast(stamps, pa.timestamp("ms", tz=stamps.type.tz), safe=False).cast(pa.int64())
    elif not pa.types.is_integer(stamps.type):
        raise SourceBroken(f"{path}: the column timestamp holds {stamps.type}, neither times nor whole milliseconds")
    if stamps.null_count or table["value"].null_count:
        raise SourceBroken(f"{path}: a row has no timestamp or no value")
    times = stamps.to_numpy().astype(np.int64)
    values = table["value"].cast(pa.float64()).to_numpy().copy()
    if "stale" in table.column_names:
        values[table["stale"].fill_null(False).to_numpy().astype(bool)] = STALE
    codes, words = [], []
    for column in label_columns:
        encoded = table[column].cast(pa.string()).combine_chunks()
        encoded = (
            encoded.dictionary_encode()
            if not isinstance(encoded, pa.ChunkedArray)
            else encoded.chunk(0).dictionary_encode()
        )
        codes.append(encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False))
        words.append([*encoded.dictionary.to_pylist(), None])
    if not times.size:
        return
    changes = np.zeros(times.size, dtype=bool)
    for column_codes in codes:
        changes[1:] |= column_codes[1:] != column_codes[:-1]
    starts = [0, *np.flatnonzero(changes).tolist(), times.size]
    for start, end in zip(starts, starts[1:], strict=False):
        key = tuple(each[int(column_codes[start])] for each, column_codes in zip(words, codes, strict=True))
        pieces.setdefault(key, []).append((times[start:end], values[start:end]))


def _joined(labels: dict[str, str | None], parts: list[tuple[Int64s, Floats]], path: Path) -> Samples:
    times = np.concatenate([part[0] for part in parts])
    values = np.concatenate([part[1] for part in parts])
    if times.size and int(times.min()) < EARLIEST_MS:
        raise SourceBroken(f"{path}: timestamp {times.min()} cannot be milliseconds", "Seconds, perhaps?")
    try:
        check_times(times, f"{path}: {labels.get('__name__')}")
    except SeriesLineError as error:
        raise SourceBroken(error.cause, error.next_step) from None
    return Samples({label: value for label, value in labels.items() if value}, times, values)


def _contents(series: list[Samples], manifest: Manifest | None) -> Contents:
    from collectors.capsule.convert import Contents

    if manifest is None:
        return Contents(series, Origin(kind="file", backend="parquet"))
    return Contents(series, manifest.source, dict(manifest.metadata()), tells_staleness=True, manifest=manifest)
