"""The incident files that this console knows: those in its folder, and the neighbours of the file it was started with."""

from __future__ import annotations

import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from collectors.capsule import SUFFIX, read_capsule
from collectors.capsule.convert import import_file
from collectors.capsule.file import open_parts
from collectors.capsule.manifest import Manifest
from collectors.source import SourceBroken, SourceError
from pages.ui.console import console

LISTED = 200
DELETED = ".deleted"
KEPT_DAYS = 7
"""How long a deleted file can be brought back."""


@dataclass(frozen=True)
class Entry:
    """One incident file; `manifest` is None and `problem` says why when it cannot be opened."""

    key: str
    path: Path
    size_bytes: int
    manifest: Manifest | None
    problem: str = ""


_manifests: dict[tuple[str, int, int], tuple[Manifest | None, str]] = {}


def folders() -> list[Path]:
    here = console()
    found = [here.incidents_folder]
    own = Path(here.source_spec).expanduser() if here.source_spec and "://" not in here.source_spec else None
    if own is not None and own.exists() and own.parent.resolve() not in [folder.resolve() for folder in found]:
        found.append(own.parent)
    if here.shipped_folder is not None:
        found.append(here.shipped_folder)
    return found


def story_of(path: Path | None) -> str:
    """The written story of a shipped incident, Markdown of our own; '' when there is none."""
    here = console()
    if path is None or here.shipped_folder is None or here.stories_folder is None:
        return ""
    told = here.stories_folder / f"{path.stem}.md"
    shipped = path.resolve().parent == here.shipped_folder.resolve()
    return told.read_text(encoding="utf-8") if shipped and told.is_file() else ""


def files() -> dict[str, Path]:
    """Key (the file's name) -> path; the console's own folder wins over neighbours."""
    found: dict[str, Path] = {}
    for folder in folders():
        for path in sorted(folder.glob(f"*{SUFFIX}"))[:LISTED] if folder.is_dir() else []:
            if path.name not in found and (path.is_file() or path.is_dir()):
                found[path.name] = path
    return found


def path_of(key: str) -> Path:
    """The file behind a key out of an address: looked up, never joined. Raises SourceBroken."""
    try:
        return files()[key]
    except KeyError:
        raise SourceBroken(f"no incident file {key[:80]!r} here", "Open one from the Incidents page") from None


def entries() -> list[Entry]:
    """Every incident file with its manifest, newest incident first."""
    found = []
    for key, path in files().items():
        stat = path.stat()
        seen = (str(path), stat.st_mtime_ns, stat.st_size)
        if seen not in _manifests:
            if len(_manifests) > 2 * LISTED:
                _manifests.clear()
            try:
                _manifests[seen] = (open_parts(path)[0], "")
            except SourceError as error:
                _manifests[seen] = (None, str(error))
        manifest, problem = _manifests[seen]
        found.append(Entry(key, path, stat.st_size, manifest, problem))
    return sorted(found, key=lambda entry: -(entry.manifest.window.start_ms if entry.manifest else 0))


def names(entries_: Sequence[Entry]) -> dict[str, str]:
    """Key -> how the file is called: its title, with the key behind it where several have the same title."""
    titles = {
        entry.key: (entry.manifest.title if entry.manifest is not None else "") or entry.key for entry in entries_
    }
    seen = Counter(titles.values())
    return {key: title if seen[title] == 1 else f"{title} ({key})" for key, title in titles.items()}


def manifest_of(key: str) -> Manifest | None:
    """The manifest of an incident file of the library, or of the console's own ('')."""
    wanted = key or Path(console().source_spec).name
    return next((entry.manifest for entry in entries() if entry.key == wanted), None)


def take_in(name: str, content: bytes) -> str:
    """Keep an uploaded recording or incident file in the console's folder; its key. Raises SourceError, and then keeps nothing."""
    folder = console().incidents_folder
    folder.mkdir(parents=True, exist_ok=True)
    key = free_key(folder, name)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".upload-") as place:
        given = Path(place) / (Path(key).stem + _suffixes(name))
        given.write_bytes(content)
        if content[:2] == b"PK":
            read_capsule(given)
            os.replace(given, folder / key)
        else:
            import_file(given, folder / key)
    return key


def own_keys() -> list[str]:
    """The incident files in the console's own folder: what may be deleted. Shipped files and neighbours of the source are not ours."""
    folder = console().incidents_folder.resolve()
    return [key for key, path in files().items() if path.parent.resolve() == folder and path.is_file()]


def delete(key: str) -> None:
    """Put an incident file of the console's own folder aside, for `KEPT_DAYS`. Raises SourceBroken, OSError."""
    if key not in own_keys():
        raise SourceBroken(
            f"{key[:80]!r} is not in the console's own folder", "Only recordings kept there are deleted from here"
        )
    purge()
    aside = console().incidents_folder / DELETED
    aside.mkdir(exist_ok=True)
    kept = aside / key
    path = path_of(key)
    os.replace(path, kept)
    os.utime(kept)


def deleted() -> list[str]:
    """What can still be brought back, newest first."""
    aside = console().incidents_folder / DELETED
    found = [path for path in aside.glob(f"*{SUFFIX}") if path.is_file()] if aside.is_dir() else []
    return [path.name for path in sorted(found, key=lambda path: -path.stat().st_mtime_ns)]


def bring_back(key: str) -> str:
    """Undo a deletion; the key under which the file is there again. Raises SourceBroken, OSError."""
    if key not in deleted():
        raise SourceBroken(f"{key[:80]!r} is not among the deleted files", f"They are kept for {KEPT_DAYS} days")
    folder = console().incidents_folder
    free = free_key(folder, key)
    os.replace(folder / DELETED / key, folder / free)
    return free


def purge() -> None:
    """Remove what was deleted longer ago than `KEPT_DAYS`."""
    folder = console().incidents_folder / DELETED
    oldest_ms = console().clock() - KEPT_DAYS * 86_400_000
    for path in folder.glob(f"*{SUFFIX}") if folder.is_dir() else ():
        if path.stat().st_mtime * 1000 < oldest_ms:
            path.unlink(missing_ok=True)


def matching(entries_: Sequence[Entry], words: str, told: Callable[[Entry], str]) -> list[Entry]:
    """The entries in whose name, title, engine, replicas or findings (`told`) every word occurs, whatever its case."""
    wanted = words.lower().split()

    def text(entry: Entry) -> str:
        manifest = entry.manifest
        facts = (manifest.title, manifest.engine.name, manifest.engine.version, *(r.instance for r in manifest.replicas), *manifest.notes) if manifest is not None else (entry.problem,)  # fmt: skip
        return " ".join((entry.key, *facts, told(entry))).lower()

    return [entry for entry in entries_ if not wanted or all(word in text(entry) for word in wanted)]


def free_key(folder: Path, name: str, taken: Sequence[str] = ()) -> str:
    """A file name of harmless characters that is not there yet."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(name).name).strip(".-")
    for suffix in (SUFFIX, ".gz", ".json", ".jsonl", ".txt", ".om", ".prom", ".parquet"):
        stem = stem.removesuffix(suffix)
    stem = stem[:80].strip(".-") or "incident"
    number = 1
    while True:
        key = f"{stem}{'' if number == 1 else f'-{number}'}{SUFFIX}"
        if not (folder / key).exists() and key not in taken:
            return key
        number += 1


def _suffixes(name: str) -> str:
    kept = [suffix for suffix in Path(name).suffixes[-2:] if re.fullmatch(r"\.[A-Za-z0-9]{1,10}", suffix)]
    return "".join(kept)
