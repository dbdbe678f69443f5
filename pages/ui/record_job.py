"""Recording from a live source in the background: one at a time per process, with its progress, its end kept until the next one.

An interrupted recording leaves `NAME.capsule.partial`, never half an incident file.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from pathlib import Path

from collectors.settings import Settings
from collectors.source import Source, SourceError
from runbooks.recording import record_incident, since_first_sample, walks_in
from runbooks.records import RecordsError

LOG = logging.getLogger("pagewatch.pages")


@dataclass(frozen=True)
class Order:
    """What to record: start <= t <= end (ms) of a source into a file, under a title."""

    source_key: str
    source: Source
    start_ms: int
    end_ms: int
    out: Path
    title: str


@dataclass
class Job:
    order: Order
    share: float = 0.0
    words: str = "asking the source"
    problem: SourceError | None = None
    failure: str = ""
    seconds: float = 0.0
    """The length of what was written."""
    ended: threading.Event = field(default_factory=threading.Event)
    stopping: threading.Event = field(default_factory=threading.Event)

    @property
    def running(self) -> bool:
        return not self.ended.is_set()

    @property
    def key(self) -> str:
        """The name of the file in the library."""
        return self.order.out.name


class _Stopped(Exception):
    """The process ends: what was fetched stays in the partial folder."""


_job: Job | None = None
_lock = threading.Lock()


def current() -> Job | None:
    """The recording that runs or ran last."""
    return _job


def begin(order: Order, settings: Settings) -> Job | None:
    """Start it; None while another one runs."""
    global _job
    with _lock:
        if _job is not None and _job.running:
            return None
        _job = Job(order)
        threading.Thread(target=_run, args=(_job, settings), name="recording", daemon=True).start()
        return _job


def stop() -> None:
    """End the recording that runs, if any, and forget it."""
    global _job
    with _lock:
        job, _job = _job, None
    if job is not None:
        job.stopping.set()
        job.ended.wait(10)


def _run(job: Job, settings: Settings) -> None:
    from pages.ui import records

    def progress(share: float, words: str) -> None:
        if job.stopping.is_set():
            raise _Stopped
        job.share, job.words = share, words

    order = job.order
    try:
        order.out.parent.mkdir(parents=True, exist_ok=True)
        start_ms = since_first_sample(order.source, order.start_ms, order.end_ms)
        try:
            walked = walks_in(records.walks(), order.source.info().name, start_ms, order.end_ms)
        except RecordsError:
            walked = ()
        record_incident(
            order.source,
            start_ms,
            order.end_ms,
            order.out,
            settings,
            walks=walked,
            title=order.title,
            progress=progress,
        )
        job.seconds = (order.end_ms - start_ms) / 1000
    except SourceError as error:
        job.problem = error
    except OSError as error:
        job.failure = f"{error.filename or order.out.parent}: {error.strerror}"
    except _Stopped:
        job.failure = "stopped"
    except Exception:
        LOG.exception("the recording of %s failed", order.out.name)
        job.failure = "the recording failed; the log has the details"
    finally:
        job.ended.set()
