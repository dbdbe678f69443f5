"""Why nothing moves: tells an engine that stopped from gauges that are merely old and from a queue whose head never fits.

All three show work on the gauges and no token. What separates them: prefix lookups go on while a head is retried (one a
step, scheduler facts F, I1); the gauges move while steps run; requests that ended over HTTP around the last step took
the work with them (stale), requests that come and end later without a token found a dead engine (stalled).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from collectors.model import Floats, Int64s
from runbooks.reading import Reading

FROZEN_SCRAPES = 8
"""With one request on board on average, eight scrapes that all show one and the same state are already unlikely."""

Kind = Literal["moving", "unclear", "stopped", "stale", "blocked", "blocked_perhaps", "deaf"]
"""deaf = no work on the gauges, yet requests end over HTTP and none gets a token."""


@dataclass(frozen=True)
class Stillness:
    kind: Kind
    since_ms: int
    evidence: tuple[str, ...] = ()
    against: tuple[str, ...] = ()


def stillness(reading: Reading) -> Stillness:
    """Judges the newest scrapes of one rank. `unclear`: silent, but not long enough to say (a long lone prefill)."""
    since = reading.silent_since_ms
    if not reading.measures_progress or reading.running != reading.running:
        return Stillness("moving", since)
    if reading.work == 0:
        return _without_work(reading)
    work_since = reading.work_since_ms
    since = max(since, work_since if work_since is not None else since)
    silent_ms = reading.seen_ms - since
    if silent_ms < patience_ms(reading):
        return Stillness("moving", since)
    seconds = f"{silent_ms / 1000:.0f} s"
    board = f"{reading.running:.0f} running and {reading.waiting:.0f} waiting"
    silence = f"no token, first token or finished request for {seconds} with {board}"
    lookups = _lookups_that_go_on(reading, since)
    if lookups > 0 and reading.running == 0:
        return Stillness(
            "blocked",
            since,
            (
                silence,
                f"{lookups:,.0f} prefix tokens were looked up meanwhile: the head of the queue is retried every step",
            ),
        )
    kv_moved = reading.moved("kv_cache_usage", since + 1)
    if reading.running > 0 and (kv_moved or lookups > 0):  # chunks of a long prefill, or a request preempting itself
        lone_ms = 1000 * reading.limits("engine_stalled", "lone_request_seconds")
        if silent_ms < lone_ms or _kv_rises(reading, since):
            return Stillness("unclear", since, (silence, "KV usage still moves: a long prompt may be in its prefill"))
        return Stillness("blocked", since, (silence, "blocks are taken and given back without any token"))
    alone = reading.waiting > 0 and reading.running == 0
    if alone and reading.caching is not True and _steps_run(reading, since):
        return Stillness(
            "blocked_perhaps",
            since,
            (silence, "the gauges move, so steps run; with prefix caching off a retried head leaves no other trace"),
        )
    return _frozen(reading, since, silent_ms, silence)


def patience_ms(reading: Reading) -> int:
    """Silence that is still ordinary: twenty seconds and three scrapes, or half as much again as the longest that ended by itself."""
    lone_ms = round(1000 * reading.limits("engine_stalled", "lone_request_seconds"))
    base_ms = max(1000 * reading.limits("engine_stalled", "silent_seconds"), 3 * reading.pace.interval_ms)
    return max(round(base_ms), min(reading.longest_silence_ms * 3 // 2, lone_ms))


@dataclass(frozen=True)
class FrozenGauges:
    """Gauges against traffic: since when they stand still, and the evidence ("" = they move)."""

    since_ms: int
    evidence: str
    contradicted: bool = False
    """Whether the traffic tells another number than the gauge, so that no steady load explains it."""


def frozen_gauges(reading: Reading) -> FrozenGauges | None:
    """Gauges that stand still to the last digit while requests come and go; None when too few did.

    Expected on board by Little's law: finished requests per second x time in the engine. Running and KV usage both at
    rest on that, over at least eight scrapes, are not being written any more.
    """
    times, usage = reading.series("kv_cache_usage")
    _, running = reading.series("requests_running")
    traffic = _traffic(reading, FROZEN_SCRAPES)
    if len(usage) != len(running) or len(usage) < FROZEN_SCRAPES + 1 or traffic is None:
        return None
    since = max(_still_since(times, usage), _still_since(times, running))
    if reading.seen_ms - since < FROZEN_SCRAPES * reading.pace.interval_ms:
        return FrozenGauges(since, "")
    words = f"running {running[-1]:.0f} and KV usage {usage[-1]:.2%} have not moved"
    return FrozenGauges(since, f"{words} for {(reading.seen_ms - since) / 1000:.0f} s while {traffic}")


def one_frozen(reading: Reading) -> tuple[str, FrozenGauges] | None:
    """(signal, since and evidence) of one of running and KV usage that stands still while the other moves; else None.

    A queue keeps running at its ceiling, so none may wait. A closed loop of clients keeps it constant, so the gauge must have
    moved earlier in this process, and three times as many requests must have come and gone as for both. What a closed loop
    keeps constant is also what Little's law tells; and it holds no KV usage still while running moves.
    """
    times, usage = reading.series("kv_cache_usage")
    _, running = reading.series("requests_running")
    scrapes = 2 * FROZEN_SCRAPES
    full = reading.rank.gauge("requests_waiting", reading.seen_ms - scrapes * reading.pace.interval_ms, reading.seen_ms)
    if len(full) and full.max() > 0:
        return None
    traffic = _traffic(reading, scrapes)
    if len(usage) != len(running) or len(usage) < 2 * scrapes or traffic is None:
        return None
    since = {"kv_cache_usage": _still_since(times, usage), "requests_running": _still_since(times, running)}
    long_ago = reading.seen_ms - scrapes * reading.pace.interval_ms
    for signal, values, other in (
        ("requests_running", running, "kv_cache_usage"),
        ("kv_cache_usage", usage, "requests_running"),
    ):
        earlier = values[times < since[signal]]
        moved_before = len(earlier) >= FROZEN_SCRAPES and float(np.std(earlier)) > 0
        if since[signal] <= long_ago < since[other] and values[-1] > 0 and moved_before:
            seconds = (reading.seen_ms - since[signal]) / 1000
            return signal, FrozenGauges(
                since[signal],
                f"{signal} has stood at {values[-1]:g} for {seconds:.0f} s while {traffic}",
                signal == "kv_cache_usage" or _board_differs(reading, since[signal], float(values[-1])),
            )
    return None


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


def _board_differs(reading: Reading, since_ms: int, shown: float) -> bool:
    """Whether the requests that came and went since then say that another number than the one shown was on board.

    By Little's law over many of them; or because more finished than got a first token, by more than the gauge shows in all:
    these must have been on board before. Aborted requests only hide that, they never feign it.
    """
    begun, done = reading.rank.counter("time_to_first_token"), reading.rank.counter("requests_finished")
    if begun is None or done is None:
        return False
    while_shown = (reading.rank.times_ms >= since_ms) & (reading.rank.times_ms <= reading.seen_ms)
    ahead = (begun.values - done.values)[while_shown]
    ahead = ahead[~np.isnan(ahead)]
    slack = reading.limits("metrics_untrustworthy", "slack_requests")
    if len(ahead) and float((np.maximum.accumulate(ahead) - ahead).max()) > shown + slack:
        return True
    window = (since_ms, reading.seen_ms)
    if not reading.rank.increase("requests_finished", *window) >= (
        reading.limits("metrics_untrustworthy", "finished_per_running") * shown
    ):
        return False
    on_board = reading.rank.rate("requests_finished", *window) * reading.rank.mean("request_inference_time", *window)
    return abs(on_board - shown) >= reading.limits("metrics_untrustworthy", "board_off_ratio") * shown


def _frozen(reading: Reading, since: int, silent_ms: int, silence: str) -> Stillness:
    """No lookups, no blocks moving: stopped, or only the gauges are old."""
    interval = reading.pace.interval_ms
    evidence = [silence]
    if reading.caching:
        evidence.append("prefix lookups stand still, so no queued request is being tried")
    ended_at_once = _left_over_http(reading, since - interval, since + 2 * interval)
    ended_later = reading.replica.http_increase(since + 2 * interval, reading.seen_ms, statuses="25")
    failed = reading.replica.http_increase(since - interval, reading.seen_ms, statuses="5")
    if failed >= 1:
        evidence.append(f"{failed:.0f} requests failed with 5xx since: the server is up, its engine does not answer")
        return Stillness("stopped", since, tuple(evidence))
    share = reading.limits("engine_stalled", "left_share")
    lone_ms = 1000 * reading.limits("engine_stalled", "lone_request_seconds")
    waits_grow = reading.moved("requests_waiting", since + 1)
    if ended_at_once == ended_at_once and ended_at_once >= share * reading.work and not waits_grow:
        if ended_later > max(1.0, 0.1 * reading.work):
            evidence.append(f"{ended_later:.0f} requests ended over HTTP since without a token: new ones get nothing")
            return Stillness("stopped", since, tuple(evidence))
        evidence.append(
            f"{ended_at_once:.0f} requests ended over HTTP without finishing as the gauges froze, as many as were on board"
        )
        evidence.append("no request has ended since: nobody seems to wait for anything")
        return Stillness("stale", since, tuple(evidence))
    if reading.work <= 1 and silent_ms < lone_ms:
        return Stillness("unclear", since, (silence, "one request alone: a long prefill counts nothing until its end"))
    if ended_later > 0:
        evidence.append(f"{ended_later:.0f} requests ended over HTTP since, none with a token")
    elif ended_at_once == ended_at_once:
        evidence.append("the requests on board did not end over HTTP: their clients still wait")
    return Stillness("stopped", since, tuple(evidence))


def _left_over_http(reading: Reading, start_ms: int, end_ms: int) -> float:
    """Requests that ended over HTTP minus those that finished, in a short window."""
    ended = reading.replica.http_increase(start_ms, end_ms, statuses="25")
    finished = sum(
        value
        for rank in reading.replica.ranks
        if (value := rank.increase("requests_finished", start_ms, end_ms)) == value
    )
    return ended - finished


def _without_work(reading: Reading) -> Stillness:
    since = reading.silent_since_ms
    if reading.silent_ms < reading.pace.hold_ms:
        return Stillness("moving", since)
    if any(other.increase("generation_tokens", since, reading.seen_ms) > 0 for other in reading.replica.ranks):
        return Stillness("moving", since)  # another rank of the replica answers the HTTP requests
    window = reading.last_ms(2 * reading.pace.recent_ms)
    ended = reading.replica.http_increase(max(window[0], since), window[1], statuses="25")
    if ended >= reading.limits("engine_stalled", "ended_without_token"):
        return Stillness(
            "deaf", since, (f"{ended:.0f} generation requests ended over HTTP since the last token, none got one",)
        )
    return Stillness("moving", since)


def _kv_rises(reading: Reading, since_ms: int) -> bool:
    values = reading.rank.gauge("kv_cache_usage", since_ms - 1, reading.seen_ms)
    return bool(len(values) > 1 and (values[1:] >= values[:-1]).all())


def _lookups_that_go_on(reading: Reading, since_ms: int) -> float:
    """Prefix tokens looked up since an instant, 0 when the last lookup is more than two scrapes old."""
    counter = reading.rank.counter("prefix_cache_queries")
    newest = counter.last_rise_ms(reading.seen_ms) if counter is not None else None
    if counter is None or newest is None or reading.seen_ms - newest > 2 * reading.pace.interval_ms:
        return 0.0
    return counter.increase(since_ms, reading.seen_ms)


def _steps_run(reading: Reading, since_ms: int) -> bool:
    """Whether queue gauges changed: only a step refreshes them."""
    return reading.moved("requests_waiting", since_ms + 1) or reading.moved("requests_running", since_ms + 1)
