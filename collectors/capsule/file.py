"""The file of an incident: `manifest.json` and `series.jsonl.gz` in one zip, or in a folder. Documented in docs/capsule.md.

Reading is hardened: nothing is ever unpacked to disk, every size is limited, and what is wrong is said in one line. Writing is atomic.
"""

from __future__ import annotations

import os
import shutil
import stat
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

from collectors.capsule.body_reader import MAX_RATIO, BodyReader, FileRange, MemoryRange
from collectors.capsule.body_writer import BodyWriter, sorted_series
from collectors.capsule.manifest import BODY_FILE, MANIFEST_FILE, SCHEMA, Extent, Manifest, read_manifest
from collectors.file_trouble import file_trouble
from collectors.model import Samples
from collectors.source import SourceBroken

SUFFIX = ".capsule"
MAX_MANIFEST_BYTES = 64 * 1024**2
MAX_ENTRIES = 1000
OTHER_FORMATS = "Recordings and other formats are turned into one by: pagewatch import FILE --out X.capsule"
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)


def write_capsule(
    path: Path,
    manifest: Manifest,
    samples: Iterable[Samples],
    *,
    presorted: bool = False,
    finish: Callable[[Manifest], Manifest] | None = None,
) -> Manifest:
    """Write an incident file atomically; the manifest as written (with its body, and the window when it had none).

    Same samples and manifest, same bytes. `presorted` streams series that already come in the order of `sort_key`; `finish` may add to the manifest what was
    only known once all of them had passed. Raises SourceBroken for a series
    that comes twice, OSError when the disk does not take it; a failed write leaves nothing behind.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        with open(partial, "xb") as file:
            with zipfile.ZipFile(file, "w") as archive:
                extremes = _Extremes()
                with archive.open(_zip_entry(BODY_FILE, zipfile.ZIP_STORED), "w", force_zip64=True) as body_file:
                    writer = BodyWriter(cast(BinaryIO, body_file))
                    for series in samples if presorted else sorted_series(samples):
                        extremes.see(series)
                        writer.add(series)
                    body = writer.finish()
                manifest = finish(manifest) if finish is not None else manifest
                window = manifest.window if manifest.window != Extent() else extremes.extent()
                written = manifest.model_copy(update={"schema_": SCHEMA, "body": body, "window": window})
                entry = _zip_entry(MANIFEST_FILE, zipfile.ZIP_DEFLATED)
                archive.writestr(entry, written.to_json(), compresslevel=9)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        with suppress(FileNotFoundError):
            partial.unlink()
    return written


def amend_manifest(path: Path, change: Callable[[Manifest], Manifest]) -> Manifest:
    """Write an incident file's manifest anew, atomically; its samples stay byte for byte. The manifest as written.

    `change` may touch anything but the body, which is kept whatever it returns. Raises SourceBroken for a file that cannot
    be opened or whose body is damaged; a failure leaves the file as it was.
    """
    path = Path(path)
    manifest, reader = open_parts(path)
    reader.verify()
    written = change(manifest).model_copy(update={"body": manifest.body})
    folder = path.is_dir()
    target = path / MANIFEST_FILE if folder else path
    partial = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        with open(partial, "xb") as file:
            if folder:
                file.write(written.to_json())
            else:
                with zipfile.ZipFile(path) as old, zipfile.ZipFile(file, "w") as archive:
                    entry = _zip_entry(BODY_FILE, zipfile.ZIP_STORED)
                    with old.open(BODY_FILE) as body, archive.open(entry, "w", force_zip64=True) as goal:
                        shutil.copyfileobj(body, goal, 1 << 20)
                    entry = _zip_entry(MANIFEST_FILE, zipfile.ZIP_DEFLATED)
                    archive.writestr(entry, written.to_json(), compresslevel=9)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    finally:
        with suppress(FileNotFoundError):
            partial.unlink()
    return written


class _Extremes:
    """First and last sample time that was seen."""

    def __init__(self) -> None:
        self._start: int | None = None
        self._end = 0

    def see(self, series: Samples) -> None:
        if series.times_ms.size:
            begin, end = int(series.times_ms[0]), int(series.times_ms[-1])
            self._start = begin if self._start is None else min(self._start, begin)
            self._end = max(self._end, end)

    def extent(self) -> Extent:
        return Extent(start_ms=self._start or 0, end_ms=self._end)


def _zip_entry(name: str, method: int) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _ZIP_TIME)
    entry.compress_type = method
    entry.create_system = 3
    entry.external_attr = 0o644 << 16
    return entry


def open_parts(path: Path) -> tuple[Manifest, BodyReader]:
    """Manifest and body of an incident file or an unpacked folder, hash not yet checked. Raises SourceBroken."""
    try:
        manifest, reader = _open_folder(path) if path.is_dir() else _open_zip(path)
    except OSError as error:
        raise SourceBroken(*file_trouble(path, error)) from None
    if manifest.window.end_ms < manifest.window.start_ms:
        raise SourceBroken(f"{path}: the window of its manifest ends before it starts")
    return manifest, reader


def _open_folder(path: Path) -> tuple[Manifest, BodyReader]:
    for name in (MANIFEST_FILE, BODY_FILE):
        entry = path / name
        if entry.is_symlink():
            raise SourceBroken(f"{path}: {name} is a symbolic link, which an incident file never holds")
        if not entry.is_file():
            raise SourceBroken(f"{path} holds no {name}; it is not an unpacked incident file", OTHER_FORMATS)
    with open(path / MANIFEST_FILE, "rb") as manifest_file:
        text = manifest_file.read(MAX_MANIFEST_BYTES + 1)
    if len(text) > MAX_MANIFEST_BYTES:
        raise SourceBroken(f"{path}: {MANIFEST_FILE} is larger than {MAX_MANIFEST_BYTES >> 20} MiB")
    manifest = read_manifest(text, str(path))
    body = path / BODY_FILE
    return manifest, BodyReader(FileRange(body, 0, body.stat().st_size), manifest.body, str(path))


def _open_zip(path: Path) -> tuple[Manifest, BodyReader]:
    try:
        with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
            entries = _checked_entries(archive, path)
            manifest = read_manifest(_unpacked(archive, entries[MANIFEST_FILE], MAX_MANIFEST_BYTES, path), str(path))
            body = entries[BODY_FILE]
            packed: FileRange | MemoryRange
            if body.compress_type == zipfile.ZIP_STORED:
                packed = FileRange(path, _data_offset(file, body), body.file_size)
            else:
                packed = MemoryRange(_unpacked(archive, body, min(manifest.body.bytes, 2 * 1024**3), path))
        return manifest, BodyReader(packed, manifest.body, str(path))
    except (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError):
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError) as error:
        raise SourceBroken(
            f"{path} is not an incident file or is damaged: {error}",
            OTHER_FORMATS,
        ) from None


def _checked_entries(archive: zipfile.ZipFile, path: Path) -> Mapping[str, zipfile.ZipInfo]:
    """The entries by name. Refuses names that lead elsewhere, symbolic links, doubles, encryption and impossible ratios."""
    entries: dict[str, zipfile.ZipInfo] = {}
    listed = archive.infolist()
    if len(listed) > MAX_ENTRIES:
        raise SourceBroken(f"{path} holds {len(listed)} entries, an incident file has a handful")
    for entry in listed:
        name = entry.orig_filename
        parts = PurePosixPath(name.replace("\\", "/")).parts
        if not parts or ".." in parts or parts[0] == "/" or ":" in parts[0] or "\0" in name or "\\" in name:
            raise SourceBroken(f"{path} holds the entry {name!r}, whose name leads outside of it")
        if stat.S_ISLNK(entry.external_attr >> 16):
            raise SourceBroken(f"{path} holds the symbolic link {name!r}, which an incident file never does")
        if name in entries:
            raise SourceBroken(f"{path} holds {name!r} twice")
        if entry.flag_bits & 1:
            raise SourceBroken(f"{path}: {name!r} is encrypted")
        if entry.file_size > 1024**2 and entry.file_size > MAX_RATIO * max(1, entry.compress_size):
            raise SourceBroken(f"{path}: {name!r} unpacks to more than {MAX_RATIO} times its size")
        entries[name] = entry
    for needed in (MANIFEST_FILE, BODY_FILE):
        if needed not in entries:
            raise SourceBroken(f"{path} holds no {needed}; it is not an incident file")
    return entries


def _unpacked(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, limit_bytes: int, path: Path) -> bytes:
    with archive.open(entry) as file:
        data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise SourceBroken(f"{path}: {entry.filename} is larger than {limit_bytes} bytes")
    return data


def _data_offset(file: BinaryIO, entry: zipfile.ZipInfo) -> int:
    """Where a stored entry's bytes begin: behind its local header, whose name and extra lengths may differ from the directory's."""
    file.seek(entry.header_offset)
    header = file.read(30)
    if len(header) < 30 or header[:4] != b"PK\x03\x04":
        raise zipfile.BadZipFile(f"no header where {entry.filename} should begin")
    return entry.header_offset + 30 + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
