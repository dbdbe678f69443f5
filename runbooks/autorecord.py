"""Incidents that alerts opened are recorded on their own: from 30 minutes before they began to 15 minutes after they cleared.

One thread looks every few seconds for incidents that are due. All it knows is in the records file: another process, or this one
after a crash, goes on where it stopped, even in the middle of a recording.
"""

from __future__ import annotations

import fcntl
import shutil
import sqlite3
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from collectors.capsule.record_plan import PartialFolder
from collectors.settings import Settings
from collectors.source import Source, SourceError
from runbooks.due_recordings import DueRecordings, Recording, Told
from runbooks.recording import Note, record_incident, walks_in
from runbooks.records import Records
from runbooks.walks import Walks

LOOK_EVERY_SECONDS = 15.0
ATTEMPTS = 5
RETRY_MS = 60_000
"""After the first failure; four times longer after each further one (the fifth attempt comes after about 1 h 25 min)."""
NOTES = 200
"""Alerts of a storm that are told in the file."""
LONGEST_PROBLEM = 500


@dataclass(frozen=True)
class Limits:
    """What recordings may take of the disk. Nothing is ever deleted to make room: at the limit, recording stops and says so."""

    free_bytes: int = 1 << 30
    """Stays free."""
    file_bytes: int = 2 << 30
    """Of one recording while it is fetched."""
    total_bytes: int = 20 << 30
    """Of all files that were recorded automatically and are still there."""


class NoRoom(SourceError):
    """The disk is too full for a recording."""


class TooLarge(SourceError):
    """A recording is larger than one may be; trying again cannot help."""


class _Stopped(Exception):
    """The process ends; the pieces stay for the next one."""


def incidents_folder(settings: Settings, environment: Mapping[str, str] = MappingProxyType({})) -> Path:
    """Where incident files are kept: PAGEWATCH_INCIDENTS, else beside the store's samples when a folder is configured, else the user's data folder."""
    named = environment.get("PAGEWATCH_INCIDENTS")
    if named:
        return Path(named).expanduser()
    home = environment.get("XDG_DATA_HOME") or "~/.local/share"
    return (settings.store.data or Path(home) / "pagewatch").expanduser() / "incidents"


class AutoRecorder:
    """Records what is due into `folder`. `clock` gives epoch milliseconds (wall time, as the alerts have)."""

    def __init__(
        self,
        source: Source,
        settings: Settings,
        records: Records,
        clock: Callable[[], int],
        folder: Path,
        limits: Limits = Limits(),
    ) -> None:
        self._source = source
        self._settings = settings
        self._records = records
        self._clock = clock
        self._folder = folder
        self._limits = limits
        self._due = DueRecordings(records, lambda name: (folder / name).exists())
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, look_every_seconds: float = LOOK_EVERY_SECONDS) -> AutoRecorder:
        """Starts the thread; it looks at once, then every so many seconds."""
        self._thread = threading.Thread(
            target=self._work, args=(look_every_seconds,), name="pagewatch-autorecord", daemon=True
        )
        self._thread.start()
        return self

    def stop(self, patience_seconds: float = 10.0) -> None:
        """Ends the thread; a recording in progress keeps its pieces and goes on at the next start."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(patience_seconds)

    def _work(self, look_every_seconds: float) -> None:
        complaint = ""
        while not self._stopping.is_set():
            try:
                self.record_due()
                complaint = ""
            except (OSError, sqlite3.Error) as error:
                if str(error) != complaint:
                    print(f"pagewatch: incidents are not recorded: {error}", file=sys.stderr, flush=True)
                complaint = str(error)
            self._stopping.wait(look_every_seconds)
        self._records.close()

    def record_due(self) -> None:
        """Records everything that is due now, one after the other; does nothing while another process is at it.

        Raises OSError or sqlite3.Error when the records file cannot be used; what goes wrong with a recording is stored with it.
        """
        with self._alone() as mine:
            if not mine:
                return
            self._due.plan(self._clock())
            for recording in self._due.due(self._clock()):
                if self._stopping.is_set():
                    return
                self._record(self._due.begin(recording))

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """Whether this is the only recorder of these incidents. The lock ends with its process, however that ends."""
        with open(self._records.path.with_name(self._records.path.name + ".recorder"), "ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True

    def _record(self, recording: Recording) -> None:
        out = self._folder / recording.file
        told = self._due.told(recording)
        walks = walks_in(
            Walks(self._records, self._clock), self._source.info().name, recording.start_ms, recording.end_ms
        )
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check_room(out)
            record_incident(
                self._source,
                recording.start_ms,
                recording.end_ms,
                out,
                self._settings,
                progress=lambda done, words: self._check_room(out),
                notes=_notes(told),
                walks=walks,
                title=_title(told),
            )
            size_bytes = out.stat().st_size
        except _Stopped:
            self._due.interrupted(recording)
        except TooLarge as error:
            self._give_up(recording, out, str(error))
        except (SourceError, OSError) as error:
            if recording.attempts >= ATTEMPTS:
                self._give_up(recording, out, str(error))
            else:
                wait_ms = RETRY_MS * 4 ** (recording.attempts - 1)
                self._due.failed(recording, _one_line(str(error)), self._clock() + wait_ms)
        except Exception as defect:  # a defect in one recording must not end all later ones: stored, and told in full
            traceback.print_exc()
            self._give_up(recording, out, f"the recording failed: {type(defect).__name__}: {defect}")
        else:
            self._due.recorded(recording, size_bytes)

    def _give_up(self, recording: Recording, out: Path, problem: str) -> None:
        PartialFolder(out).remove()
        self._due.failed(recording, _one_line(problem), None)

    def _check_room(self, out: Path) -> None:
        """Called between the pieces of a recording. Raises NoRoom, TooLarge, or _Stopped when the process ends."""
        if self._stopping.is_set():
            raise _Stopped
        free = shutil.disk_usage(self._folder).free
        if free < self._limits.free_bytes:
            raise NoRoom(
                f"{self._folder} has {free >> 20} MiB free, and {self._limits.free_bytes >> 20} MiB stay free",
                "Make room, then record the window by hand",
            )
        held = _size_bytes(PartialFolder(out).path)
        if held > self._limits.file_bytes:
            raise TooLarge(
                f"the recording takes more than {self._limits.file_bytes >> 20} MiB",
                "Record fewer metrics or a shorter window by hand",
            )
        total = held + sum(_size_bytes(self._folder / name) for name in self._due.files())
        if total > self._limits.total_bytes:
            raise NoRoom(
                f"automatic recordings in {self._folder} take more than {self._limits.total_bytes >> 20} MiB",
                "Delete those that are no longer needed",
            )


def _size_bytes(path: Path) -> int:
    """Size of a file or of the files in a folder; 0 when it is not there."""
    try:
        return sum(file.stat().st_size for file in path.iterdir()) if path.is_dir() else path.stat().st_size
    except FileNotFoundError:
        return 0


def _notes(told: tuple[Told, ...]) -> tuple[Note, ...]:
    notes: list[Note] = []
    for each in told[:NOTES]:
        notes.append(Note(each.starts_ms, f"alert {each.alert} began"[:200], each.instance[:200]))
        if each.ends_ms is not None:
            notes.append(Note(each.ends_ms, f"alert {each.alert} cleared"[:200], each.instance[:200]))
    return tuple(notes)


def _title(told: tuple[Told, ...]) -> str:
    names = tuple(dict.fromkeys(each.alert or "alert" for each in told))
    return (names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more")[:120]


def _one_line(text: str) -> str:
    return " ".join(text.split())[:LONGEST_PROBLEM]
