"""The threshold lab runs in the background: one trial at a time per process, with its progress, its answer kept until another is asked for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from collectors.capsule import read_capsule
from collectors.source import SourceError
from pages.ui.console import console
from runbooks.lab import Recording, Tried, try_detector, try_threshold

LOG = logging.getLogger("pagewatch.pages")


@dataclass(frozen=True)
class Trial:
    """What to try: a threshold `table.name` or a detector `runbook.name`, its values, on which files."""

    kind: str
    name: str
    values: tuple[float, ...]
    files: tuple[Path, ...]


@dataclass
class Job:
    trial: Trial
    share: float = 0.0
    answer: tuple[Tried, ...] | None = None
    problem: str = ""
    stopping: threading.Event = field(default_factory=threading.Event)

    @property
    def done(self) -> bool:
        return self.answer is not None or bool(self.problem)


_job: Job | None = None
_lock = threading.Lock()


def current() -> Job | None:
    """The trial that runs or ran last."""
    return _job


def begin(trial: Trial) -> None:
    """Start a trial; one that is running is stopped for it."""
    global _job
    with _lock:
        if _job is not None:
            _job.stopping.set()
        _job = Job(trial)
        threading.Thread(target=_run, args=(_job,), name="threshold lab", daemon=True).start()


def stop() -> None:
    """Stop and forget."""
    global _job
    with _lock:
        if _job is not None:
            _job.stopping.set()
        _job = None


def _run(job: Job) -> None:
    def progress(share: float) -> None:
        job.share = share

    try:
        recordings = [Recording.of(read_capsule(path)) for path in job.trial.files]
        job.answer = _try(job.trial, recordings, progress, job.stopping.is_set)
    except SourceError as error:
        job.problem = str(error)
    except Exception:
        LOG.exception("the threshold lab failed")
        job.problem = "the trial failed; the log has the details"


def _try(
    trial: Trial, recordings: Sequence[Recording], progress: Callable[[float], None], stopped: Callable[[], bool]
) -> tuple[Tried, ...]:
    settings = console().settings
    if trial.kind == "detector":
        return try_detector(trial.name, trial.values, recordings, settings, progress=progress, stopped=stopped)
    table, _, name = trial.name.partition(".")
    return try_threshold(table, name, trial.values, recordings, settings, progress=progress, stopped=stopped)
