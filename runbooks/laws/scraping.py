"""Laws of the target as it is scraped: identity, clock, gaps, births."""

from __future__ import annotations

import math

import numpy as np

from collectors.observed import index_at
from runbooks.laws.model import KEPT, Check, Outcome, Subject, unknown

USUAL_LOSS_RATIO = 0.06
"""A busy healthy host was seen to lose so many scrapes singly; what is as unlikely by it as three in a row is a gap."""
BORN_SCRAPES = 3
"""A series that appears with the first scrapes of its process is told from the start: nobody takes rates there yet."""
CLOCK_SLACK_SECONDS = 5.0
"""Scrapers and targets run NTP; a skew below a usual scrape interval changes nothing here."""


def process_start_moves_forward(subject: Subject) -> Outcome:
    starts = subject.replica.process_start_seconds
    starts = starts[~np.isnan(starts)]
    if not len(starts):
        return unknown("process_start_time_seconds is not exported")
    back = int((np.diff(starts) < -0.5).sum())
    if back:
        return Outcome("broken", f"the start time moved back {back} times: two processes answer in turn")
    return KEPT


def ranks_stay(subject: Subject) -> Outcome:
    replica = subject.replica
    if not replica.ranks:
        return unknown("no rank is known")
    past = np.flatnonzero(replica.answered[: index_at(replica.times_ms, subject.at_ms) + 1])
    if len(past) < 3:
        return unknown("fewer than three answers")
    since = int(replica.times_ms[past[-3]]) - 1
    gone = [rank.engine for rank in replica.ranks if "requests_running" not in rank.present(subject.at_ms, since)]
    if gone and len(gone) < len(replica.ranks):
        return Outcome("broken", f"rank {', '.join(gone)} is gone while the others go on")
    return KEPT if not gone else unknown("no rank is left: see metrics_missing")


def scraped_without_gaps(subject: Subject) -> Outcome:
    """Gaps between scrape attempts, runs of failed ones, and more single failures than a healthy busy target has.

    Unknown after fewer failures than that among the newest scrapes: a loss that has just begun looks the same.
    """
    replica = subject.replica
    times = replica.times_ms[: index_at(replica.times_ms, subject.at_ms) + 1]
    if len(times) < 3:
        return unknown("fewer than three scrapes")
    first = max(0, index_at(times, subject.at_ms - 20 * replica.interval_ms))
    recent = times[first:]
    widest = float(np.diff(recent).max()) / 1000 if len(recent) > 1 else 0.0
    if widest > 3.5 * replica.interval_ms / 1000:
        return Outcome("broken", f"no scrape for {widest:.0f} s at an interval of {replica.interval_ms / 1000:.0f} s")
    failed = replica.up[: len(times)][-20:] == 0
    if not failed.any():
        return KEPT
    runs = "".join("x" if f else " " for f in failed).split()
    longest = max((len(run) for run in runs), default=0)
    if longest >= 3:
        return Outcome("broken", f"{longest} scrapes in a row failed")
    for scrapes in range(4, len(failed) + 1):
        lost = int(failed[-scrapes:].sum())
        if _at_least(lost, scrapes, USUAL_LOSS_RATIO) <= USUAL_LOSS_RATIO**3:
            return Outcome("broken", f"{lost} of the last {scrapes} scrapes failed")
    if failed[-5:].sum() >= 2:
        return unknown(f"{int(failed[-5:].sum())} of the last 5 scrapes failed: too few to tell")
    return KEPT


def _at_least(lost: int, scrapes: int, ratio: float) -> float:
    """Chance of losing at least so many scrapes by independent single losses."""
    return sum(math.comb(scrapes, k) * ratio**k * (1 - ratio) ** (scrapes - k) for k in range(lost, scrapes + 1))


def scraped_once(subject: Subject) -> Outcome:
    twins = [labels for labels in subject.replica.duplicates if labels.get("instance")]
    if not twins:
        return KEPT
    differ = sorted({k for labels in twins for k, v in labels.items() if subject.replica.labels.get(k) != v})
    return Outcome(
        "broken", f"the same process is scraped {len(twins) + 1} times (labels differ in {', '.join(differ)})"
    )


def clocks_agree(subject: Subject) -> Outcome:
    starts = subject.replica.process_start_seconds
    known = ~np.isnan(starts)
    if not known.any():
        return unknown("process_start_time_seconds is not exported")
    ahead = float((starts[known] - subject.replica.times_ms[known] / 1000).max())
    if ahead > CLOCK_SLACK_SECONDS:
        return Outcome("broken", f"the process starts {ahead:.0f} s in the scraper's future")
    return KEPT


def counters_born_at_zero(subject: Subject) -> Outcome:
    """Series that appeared beside others of a running process with a noticeable part of what they hold now."""
    replica = subject.replica
    if not replica.http:
        return unknown("no http series")
    epoch_ms = replica.epoch_start_ms(subject.at_ms)
    answers = replica.times_ms[replica.answered & (replica.times_ms >= epoch_ms)]
    if len(answers) <= BORN_SCRAPES:
        return unknown("fewer than four answers of this process")
    settled_ms = int(answers[BORN_SCRAPES])
    oldest_ms = min(
        int(s.counter.times_ms[~np.isnan(s.counter.values)][0])
        for s in replica.http
        if not np.isnan(s.counter.values).all()
    )
    born = []
    for series in replica.http:
        counter = series.counter
        if counter.born_ms is None or not max(settled_ms, oldest_ms + 1) <= counter.born_ms <= subject.at_ms:
            continue
        first = float(counter.values[index_at(counter.times_ms, counter.born_ms)])
        grown = counter.increase(int(counter.times_ms[0]), subject.at_ms)
        if first >= 5 and first >= 0.2 * grown:
            born.append(f"{series.handler} {series.status} began at {first:.0f}")
    return Outcome("broken", "; ".join(born) + ": rate() does not see them") if born else KEPT


CHECKS: dict[str, Check] = {
    "process_start_moves_forward": process_start_moves_forward,
    "ranks_stay": ranks_stay,
    "scraped_without_gaps": scraped_without_gaps,
    "scraped_once": scraped_once,
    "clocks_agree": clocks_agree,
    "counters_born_at_zero": counters_born_at_zero,
}
