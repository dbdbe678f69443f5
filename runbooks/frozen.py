"""Gauges that stand still while requests come and go: which balance of the counters contradicts them, and when none can.

Real engines keep the account of `running` to the request (account.py). Stillness alone proves nothing: a closed loop of clients
holds the number of requests for ever, and blocks too where a whole request fits into one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from collectors.model import Floats, Int64s
from collectors.observed import Histogram
from runbooks.account import (
    FIRST_LOOKS,
    FROZEN_SCRAPES,
    account_of_running,
    board_is_larger,
    chance_by_rank,
    chance_of_excess,
)
from runbooks.quantile import median
from runbooks.reading import Reading
from runbooks.reading_windows import once

CHANCE = 1e-3
"""How unlikely the samples must be under honest gauges where the account alone has to prove it."""


@dataclass(frozen=True)
class FrozenGauges:
    """Gauges against traffic. `contradicted`: True = no honest engine shows this, False = it moves or the counters agree
    with its rest, None = they cannot tell (`evidence` then says why)."""

    signals: tuple[str, ...]
    since_ms: int
    evidence: str
    contradicted: bool | None


@once
def frozen_gauges(reading: Reading) -> FrozenGauges | None:
    """Running and KV usage both at rest while requests come and go; None when too few did.

    Two things contradict: the account of `running`; or requests so long that they take and give back several blocks each.
    """
    times, usage = reading.series("kv_cache_usage")
    _, running = reading.series("requests_running")
    traffic = _traffic(reading, FROZEN_SCRAPES)
    if len(usage) != len(running) or len(usage) < FROZEN_SCRAPES + 1 or traffic is None:
        return None
    all_three = ("requests_running", "requests_waiting", "kv_cache_usage")
    since = max(_still_since(times, usage), _still_since(times, running))
    if reading.seen_ms - since < FROZEN_SCRAPES * reading.pace.interval_ms:
        return FrozenGauges(all_three, since, "", False)
    words = f"running {running[-1]:.0f} and KV usage {usage[-1]:.2%} have not moved"
    words = f"{words} for {(reading.seen_ms - since) / 1000:.0f} s while {traffic}"
    if _several_blocks_each(reading, since):
        return FrozenGauges(all_three, since, words, True)
    verdict, why = _judge_running(reading, since, float(running[-1]))
    return FrozenGauges(all_three, since, f"{words}; {why}" if why else words, verdict)


@once
def one_frozen(reading: Reading) -> FrozenGauges | None:
    """One of running, KV usage and waiting that stands still while another moves, a contradicted one before others; None when
    there is none or too little traffic."""
    found = [one for look in (_running_alone, _usage_alone, _waiting_alone) if (one := look(reading)) is not None]
    return next((one for one in found if one.contradicted), found[0] if found else None)


def _running_alone(reading: Reading) -> FrozenGauges | None:
    """At rest while KV usage moves and nobody waits: a queue keeps running at its ceiling by itself."""
    times, running = reading.series("requests_running")
    usage_times, usage = reading.series("kv_cache_usage")
    if len(running) <= FIRST_LOOKS:
        return None
    since = _still_since(times, running)
    scrapes = int((times >= since).sum()) - 1
    if scrapes < FIRST_LOOKS or not (len(usage) and _still_since(usage_times, usage) > since):
        return None
    traffic = _traffic(reading, scrapes)
    waiting = reading.rank.gauge("requests_waiting", since - 1, reading.seen_ms)
    if traffic is None or (len(waiting) and waiting.max() > 0) or _turnover_scrapes(reading, since) < FIRST_LOOKS:
        return None
    verdict, why = _judge_running(reading, since, float(running[-1]))
    if verdict is None and scrapes < FROZEN_SCRAPES:
        why = "too short to tell"
    stands = (
        f"requests_running has stood at {running[-1]:g} for {(reading.seen_ms - since) / 1000:.0f} s while {traffic}"
    )
    return FrozenGauges(("requests_running",), since, f"{stands}; {why}" if why else stands, verdict)


def _turnover_scrapes(reading: Reading, since_ms: int) -> int:
    """Scrapes since then that brought first tokens or finished requests. A gauge at rest after the last of them is old, not false:
    only a step writes it."""
    grown: set[int] = set()
    for signal in ("time_to_first_token", "requests_finished"):
        counter = reading.rank.counter(signal)
        if counter is not None:
            times = counter.times_ms[1:][np.diff(counter.total) > 0]
            grown.update(times[(times > since_ms) & (times <= reading.seen_ms)].tolist())
    return len(grown)


def _usage_alone(reading: Reading) -> FrozenGauges | None:
    """At rest while running moves: every request owns at least one block of its own (facts D6)."""
    times, usage = reading.series("kv_cache_usage")
    _, running = reading.series("requests_running")
    if len(usage) != len(running) or len(usage) <= FIRST_LOOKS:
        return None
    since = _still_since(times, usage)
    resting = times >= since
    scrapes, turns = int(resting.sum()) - 1, int((np.diff(running[resting]) != 0).sum())
    traffic = _traffic(reading, max(scrapes, 1))
    moved_before = len(np.unique(usage[~resting])) > 1
    if scrapes < FIRST_LOOKS or turns < FIRST_LOOKS or traffic is None or not moved_before:
        return None
    stands = f"kv_cache_usage has stood at {usage[-1]:g} for {(reading.seen_ms - since) / 1000:.0f} s while {traffic}"
    if scrapes >= FROZEN_SCRAPES:
        return FrozenGauges(("kv_cache_usage",), since, f"{stands}, and running moved {turns} times", True)
    return FrozenGauges(("kv_cache_usage",), since, f"{stands}; too short to tell", None)


def _waiting_alone(reading: Reading) -> FrozenGauges | None:
    """At rest while the times that requests spent in the queue tell another length (Little: rate x queue time).

    Those who never leave the queue only make it longer than that, so a queue shorter than their product is false. A longer one
    may be of requests set aside (a low priority, an adapter, a grammar: facts C8): not told apart from a gauge at rest.
    """
    times, waiting = reading.series("requests_waiting")
    if len(waiting) <= 2 * FROZEN_SCRAPES:
        return None
    since = _still_since(times, waiting)
    patience_ms = 1000 * reading.rank.mean("e2e_request_latency", *reading.last_ms(2 * reading.pace.recent_ms))
    start = since + patience_ms  # most who finish after it came after the rest began
    if patience_ms != patience_ms or reading.seen_ms - start < FROZEN_SCRAPES * reading.pace.interval_ms:
        return None
    start_ms, queue = round(start), reading.rank.histograms.get("request_queue_time")
    traffic = _traffic(reading, int((times > start_ms).sum()))
    if queue is None or traffic is None:
        return None
    shown, seconds = float(waiting[-1]), (reading.seen_ms - since) / 1000
    lengths = _queue_lengths(reading, queue, start_ms)
    length = median(lengths) if len(lengths) else 0.0
    stands = f"requests_waiting has stood at {shown:g} for {seconds:.0f} s while {traffic}, which waited in a queue of {length:.1f}"
    slack = reading.limits("metrics_untrustworthy", "slack_requests")
    if length > shown * (1 + reading.limits("metrics_untrustworthy", "board_off_ratio")) + slack:
        moved_before = (
            len(np.unique(waiting[times < since])) > 1
        )  # else bursts in step with the scrapes would look the same
        return FrozenGauges(("requests_waiting",), since, stands, True if moved_before else None)
    if shown > 0 and length < shown / 4 and reading.moved("requests_running", since + 1):
        words = f"{stands}; requests that are set aside would look the same"
        return FrozenGauges(("requests_waiting",), since, words, None)
    return None


def _queue_lengths(reading: Reading, queue: Histogram, start_ms: int) -> Floats:
    """Mean queue between each two scrapes from an instant on, by the queue times of those that finished meanwhile: one burst
    between scrapes makes one of them long, a standing queue nearly all."""
    chosen = (queue.sum.times_ms >= start_ms) & (queue.sum.times_ms <= reading.seen_ms) & ~np.isnan(queue.sum.values)
    seconds = np.diff(queue.sum.times_ms[chosen]) / 1000
    return np.asarray(np.diff(queue.sum.total[chosen]) / seconds)


def _judge_running(reading: Reading, since_ms: int, shown: float) -> tuple[bool | None, str]:
    """Whether the counters contradict a resting `running` (None = they cannot tell), and in which words."""
    account = account_of_running(reading, since_ms)
    if account is None:
        return None, "the counters that it must agree with are missing"
    slack = reading.limits("metrics_untrustworthy", "slack_requests")
    scrapes = int(reading.limits("metrics_untrustworthy", "scrapes"))
    mean = float(account.excess.mean())
    telling = f"first tokens and finished requests differ from that by up to {account.excess.max():.0f}"
    spread = 3 * math.sqrt(account.in_prefill / max(account.independent, 1.0))
    if mean > account.in_prefill + max(0.5, spread):
        above = int((account.excess > account.usual + slack).sum()) if account.scrapes_before else 0
        if above >= scrapes or chance_by_rank(account) < CHANCE:
            return True, f"{telling}, by at most {account.usual:.0f} before"
        several_servers = bool(
            np.isnan(reading.replica.process_start_seconds).all()
        )  # each books its part a little later
        if not several_servers and chance_of_excess(account, shown) < CHANCE:
            return True, f"{telling}, and only {account.in_prefill:.1f} are in prefill on average"
    if len(account.excess) > 2 * FROZEN_SCRAPES and board_is_larger(
        reading, since_ms, shown
    ):  # a few scrapes all low are chance
        return True, "by their times in the engine more are on board"
    if account.agrees:
        return False, ""
    return None, "a closed loop of clients would hold it too"


def _several_blocks_each(reading: Reading, since_ms: int) -> bool:
    """Whether requests of this size take blocks as they grow: two blocks of tokens each, on average."""
    window = (since_ms, reading.seen_ms)
    tokens = reading.rank.increase("generation_tokens", *window)
    return tokens >= 2 * (reading.rank.cache.block_size_tokens or 128) * reading.rank.increase(
        "requests_finished", *window
    )


def _still_since(times_ms: Int64s, values: Floats) -> int:
    changed = np.flatnonzero(np.diff(values) != 0)
    return int(times_ms[changed[-1] + 1]) if len(changed) else int(times_ms[0])


def _traffic(reading: Reading, scrapes: int) -> str | None:
    """Words for the requests that came and went in the newest scrapes; None when there were too few to move a gauge."""
    window = (reading.seen_ms - scrapes * reading.pace.interval_ms, reading.seen_ms)
    come = reading.rank.increase("time_to_first_token", *window)
    gone = reading.rank.increase("requests_finished", *window)
    on_board = reading.rank.rate("requests_finished", *window) * reading.rank.mean("request_inference_time", *window)
    if not come >= scrapes or not gone >= scrapes or not on_board >= 1:
        return None
    return f"{come:.0f} requests came and {gone:.0f} went (about {on_board:.0f} on board by Little's law)"
