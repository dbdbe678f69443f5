"""The law of completeness: what this engine version always exports is there."""

from __future__ import annotations

import numpy as np

from collectors.detection import always_exported
from collectors.observed import Observations, index_at
from collectors.observed_layout import COUNTERS, GAUGES, HISTOGRAMS
from runbooks.laws.model import KEPT, Check, Outcome, Subject, unknown

NEWEST_ANSWERS = 5
"""A signal that is in none of the newest five answered scrapes is gone; one lost write is not."""
READ = frozenset((*GAUGES, *COUNTERS, *HISTOGRAMS))


def told_by_job(observations: Observations) -> dict[str, frozenset[str]]:
    """Signals that any target of a job shows in its newest answers: what that job's relabelling lets through."""
    told: dict[str, frozenset[str]] = {}
    for replica in observations.replicas:
        job = replica.labels.get("job", "")
        since = observations.at_ms - (NEWEST_ANSWERS + 1) * replica.interval_ms
        shown = frozenset[str]().union(*(rank.present(observations.at_ms, since) for rank in replica.ranks))
        told[job] = told.get(job, frozenset()) | shown
    return told


def always_exported_is_there(subject: Subject) -> Outcome:
    """Missing counts where the process showed it before or others of the job show it; what no target of a job ever shows is
    not scraped (a keep list in the relabelling), which is no word of the engine's."""
    rank, reading, replica = subject.rank, subject.reading, subject.replica
    assert rank is not None
    assert reading is not None
    answers = np.flatnonzero(replica.answered[: index_at(replica.times_ms, subject.at_ms) + 1])[-NEWEST_ANSWERS:]
    answers = answers[replica.times_ms[answers] >= reading.epoch_ms]
    if len(answers) < subject.scrapes:
        return unknown("fewer than three answers of this process")
    now = rank.present(subject.at_ms, int(replica.times_ms[answers[0]]) - 1)
    if not now:
        return unknown("no signal of this rank is left: the rank or its statistics are gone")
    before = rank.present(subject.at_ms, reading.epoch_ms - 1)
    required = always_exported(before, subject.version) & READ
    gone = (before - now) | (required & subject.told_by_job) - now
    if gone:
        which = "the same process showed it before" if gone <= before else "others of the job show it"
        return Outcome("broken", f"{', '.join(sorted(gone))} missing: {which}", tuple(sorted(gone)))
    newest = rank.present(subject.at_ms, int(replica.times_ms[answers[-1]]) - 1)
    if before - newest:
        return unknown(
            f"{', '.join(sorted(before - newest))} missing in the newest scrape: one lost write looks the same"
        )
    missing = sorted(required - now)
    if missing:
        return unknown(f"no target of the job shows {', '.join(missing)}: not scraped, perhaps a keep list")
    return KEPT


CHECKS: dict[str, Check] = {"always_exported_is_there": always_exported_is_there}
