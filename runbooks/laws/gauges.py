"""Laws of the gauges and of progress."""

from __future__ import annotations

import numpy as np

from runbooks.frozen import frozen_gauges, one_frozen
from runbooks.laws.model import KEPT, Check, Outcome, Subject, unknown
from runbooks.stillness import stillness


def usage_is_a_ratio(subject: Subject) -> Outcome:
    assert subject.reading is not None
    values = subject.reading.gauge("kv_cache_usage")
    if not len(values):
        return unknown("no KV usage")
    if values.min() < -1e-9 or values.max() > 1 + 1e-9:
        return Outcome(
            "broken", f"KV usage between {values.min():g} and {values.max():g}; a percentage is not expected"
        )
    return KEPT


def gauges_not_negative(subject: Subject) -> Outcome:
    assert subject.reading is not None
    for signal in ("requests_running", "requests_waiting"):
        values = subject.reading.gauge(signal)
        if not len(values):
            return unknown(f"no {signal}")
        if values.min() < 0:
            return Outcome("broken", f"{signal} is {values.min():g}")
    return KEPT


def running_within_seats(subject: Subject) -> Outcome:
    assert subject.reading is not None
    seats = subject.reading.seats
    values = subject.reading.gauge("requests_running")
    if seats is None or not len(values):
        return unknown("seats are not configured")
    if values.max() > seats:
        return Outcome("broken", f"{values.max():.0f} run, {seats} seats are configured")
    return KEPT


def usage_zero_when_nothing_runs(subject: Subject) -> Outcome:
    """Broken when the newest scrapes all show blocks in use and no request."""
    reading = subject.reading
    assert reading is not None
    _, usage = reading.series("kv_cache_usage")
    _, running = reading.series("requests_running")
    _, waiting = reading.series("requests_waiting")
    if not len(usage) or len(usage) != len(running) or len(usage) != len(waiting):
        return unknown("a gauge is missing")
    newest = (usage > 0.001) & (running == 0) & (waiting == 0)
    if len(newest) >= subject.scrapes and newest[-subject.scrapes :].all():
        return Outcome("broken", f"KV usage {usage[-1]:.1%} with nothing running or waiting")
    return KEPT


def work_means_progress(subject: Subject) -> Outcome:
    reading = subject.reading
    assert reading is not None
    if not reading.measures_progress or reading.running != reading.running:
        return unknown("no progress counter")
    still = stillness(reading)
    if still.kind in ("stopped", "stale", "blocked", "blocked_perhaps", "deaf"):
        return Outcome("broken", still.evidence[0])
    if still.kind == "unclear":
        return unknown(still.evidence[0])
    return KEPT


def gauges_move_with_steps(subject: Subject) -> Outcome:
    """Unknown while a gauge rests and nothing contradicts it yet: a closed loop of clients looks the same."""
    assert subject.reading is not None
    together, alone = frozen_gauges(subject.reading), one_frozen(subject.reading)
    found = [one for one in (together, alone) if one is not None]
    for one in found:
        if one.contradicted:
            return Outcome("broken", one.evidence, one.signals)
    for one in found:
        if one.contradicted is None:
            return unknown(one.evidence)
    return KEPT if together is not None else unknown("too few requests came and went")


def tokens_lead_to_finishes(subject: Subject) -> Outcome:
    reading = subject.reading
    assert reading is not None
    assert subject.rank is not None
    start, end = reading.epoch_ms, reading.seen_ms
    tokens = subject.rank.increase("generation_tokens", start, end)
    finished = subject.rank.increase("requests_finished", start, end)
    if tokens != tokens or finished != finished or tokens == 0:
        return unknown("no tokens in the window")
    if finished > 0:
        return KEPT
    ended = subject.replica.http_increase(start, end, statuses="2")
    if len(subject.replica.ranks) == 1 and ended >= 20 and tokens > 0:
        return Outcome("broken", f"{ended:.0f} requests ended over HTTP, {tokens:,.0f} tokens were made, none finished")
    return unknown("nothing has ended yet: answers may be longer than the window")


def hit_ratio_readable(subject: Subject) -> Outcome:
    reading = subject.reading
    assert reading is not None
    ratio = reading.lookups_per_prompt_token
    if ratio != ratio or not reading.increase("prefix_cache_queries") > 0:
        return unknown("nothing was looked up")
    if reading.lookups_inflated:
        words = f"{ratio:.1f} lookups per prompt token" if np.isfinite(ratio) else "lookups without any admission"
        return Outcome("broken", f"{words}: the hit ratio counts retries and preempted requests")
    return KEPT


CHECKS: dict[str, Check] = {
    "usage_is_a_ratio": usage_is_a_ratio,
    "gauges_not_negative": gauges_not_negative,
    "running_within_seats": running_within_seats,
    "usage_zero_when_nothing_runs": usage_zero_when_nothing_runs,
    "work_means_progress": work_means_progress,
    "gauges_move_with_steps": gauges_move_with_steps,
    "tokens_lead_to_finishes": tokens_lead_to_finishes,
    "hit_ratio_readable": hit_ratio_readable,
}
