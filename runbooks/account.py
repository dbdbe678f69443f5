"""The account of `running`: what its newest scrapes leave unexplained by first tokens, finished requests and prefill.

Real engines keep it to the request: running = first tokens - finished - aborted + those in prefill (scheduler facts I1, I5, I10,
J4), and hardly ever more than one is in prefill, since a started prompt takes the budget before the next is admitted (C2, C12).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from collectors.model import Floats
from collectors.observed import NAN
from runbooks.reading import Reading

FROZEN_SCRAPES = 8
"""With one request on board on average, eight scrapes that all show one and the same state are already unlikely."""
FIRST_LOOKS = 3
"""From so many scrapes at rest on, a gauge is looked at."""


@dataclass(frozen=True)
class Account:
    """What a resting `running` leaves unexplained at each scrape of its rest."""

    excess: Floats
    """Requests that would have to be in prefill, at least. Aborts only lower it."""
    usual: float
    """The most of it while the gauge still moved; NaN where it never did in this process."""
    scrapes_before: int
    """How many scrapes `usual` is of; 0 where the gauge never moved."""
    in_prefill: float
    """Requests in prefill on average: first tokens x time to first token (Little), which holds the prefill and more."""
    independent: float
    """How many of the scrapes tell something new: prefills that outlast a scrape are seen again by the next."""
    agrees: bool
    """The counters stand on the gauge's number all along."""


def account_of_running(reading: Reading, since_ms: int) -> Account | None:
    """The account of a `running` that rests since an instant; None without the counters or where lookups show that requests
    leave before their first token, which no counter tells."""
    rank = reading.rank
    begun, done, gauge = (
        rank.counter("time_to_first_token"),
        rank.counter("requests_finished"),
        rank.gauges.get("requests_running"),
    )
    first = rank.histograms.get("time_to_first_token")
    if begun is None or done is None or gauge is None or first is None or _left_in_prefill(reading, since_ms):
        return None
    inside = (rank.times_ms >= reading.epoch_ms) & (rank.times_ms <= reading.seen_ms)
    inside &= ~np.isnan(gauge + begun.values + done.values)
    times, rest = rank.times_ms[inside], (gauge - (begun.total - done.total))[inside]
    before, after = rest[times < since_ms], rest[times >= since_ms]
    if len(after) < FIRST_LOOKS:
        return None
    moved = len(before) >= FROZEN_SCRAPES and len(np.unique(gauge[inside][times < since_ms])) > 1
    window = (since_ms, reading.seen_ms)
    until_first_seconds = first.mean(*window)
    in_prefill = first.count.rate(*window) * until_first_seconds
    if in_prefill != in_prefill:
        return None
    independent = len(after) * min(1.0, reading.pace.interval_ms / max(2000 * until_first_seconds, 1.0))
    queue = rank.gauges.get("requests_waiting", np.zeros(len(gauge)))[inside][times >= since_ms]
    excess = np.maximum(
        _above_lowest(after) - np.nan_to_num(queue), 0.0
    )  # a preempted request waits with its first token told
    usual = float(_above_lowest(before).max()) if moved else NAN
    slack = reading.limits("metrics_untrustworthy", "slack_requests")
    agrees = bool(np.abs(after - np.median(after)).max() <= max(slack, usual if moved else 0.0))
    return Account(excess, usual, len(before) if moved else 0, in_prefill, independent, agrees)


def _above_lowest(values: Floats) -> Floats:
    """How far each value lies above the lowest up to it: aborts lower what is left for good, nothing but prefill raises it."""
    return values - np.minimum.accumulate(values)


def chance_by_rank(account: Account) -> float:
    """How likely the largest values all fall to the time of the rest if that time were like the one before."""
    after, above = len(account.excess), int((account.excess > account.usual).sum())
    if not account.scrapes_before or not above:
        return 1.0
    return math.comb(after, above) / math.comb(after + account.scrapes_before, above)


def chance_of_excess(account: Account, shown: float) -> float:
    """At most so likely is this mean excess with that many in prefill on average (Chernoff, values within 0..shown)."""
    mean, expected = float(account.excess.mean()) / max(shown, 1.0), account.in_prefill / max(shown, 1.0)
    if not 0 < expected < mean:
        return 1.0
    mean = min(mean, 1 - 1e-9)
    distance = mean * math.log(mean / expected) + (1 - mean) * math.log((1 - mean) / (1 - expected))
    return math.exp(-account.independent * distance)


def _left_in_prefill(reading: Reading, since_ms: int) -> bool:
    """Whether clearly more prompt tokens were looked up than booked at first tokens: clients leave during prefill."""
    window = (since_ms, reading.seen_ms)
    lookups, prompts = (reading.rank.increase(name, *window) for name in ("prefix_cache_queries", "prompt_tokens"))
    return lookups > prompts * (1 + reading.limits("metrics_untrustworthy", "board_off_ratio"))


def board_is_larger(reading: Reading, since_ms: int, shown: float) -> bool:
    """By Little's law over many finished requests; aborted ones only make it smaller."""
    window = (since_ms, reading.seen_ms)
    limits = reading.limits
    enough = limits("metrics_untrustworthy", "finished_per_running") * max(shown, 1.0)
    if not reading.rank.increase("requests_finished", *window) >= enough:
        return False
    on_board = reading.rank.rate("requests_finished", *window) * reading.rank.mean("request_inference_time", *window)
    slack = limits("metrics_untrustworthy", "slack_requests")
    return on_board >= (1 + limits("metrics_untrustworthy", "board_off_ratio")) * shown + slack
