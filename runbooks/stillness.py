"""Why nothing moves: tells an engine that stopped from gauges that are merely old and from a queue whose head never fits.

All three show work on the gauges and no token. What separates them: prefix lookups go on while a head is retried (one a
step, scheduler facts F, I1); the gauges move while steps run; requests that ended over HTTP around the last step took
the work with them (stale), requests that come and end later without a token found a dead engine (stalled).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from runbooks.reading import Reading
from runbooks.reading_windows import once

Kind = Literal["moving", "unclear", "stopped", "stale", "blocked", "blocked_perhaps", "deaf"]
"""deaf = no work on the gauges, yet requests end over HTTP and none gets a token."""


@dataclass(frozen=True)
class Stillness:
    kind: Kind
    since_ms: int
    evidence: tuple[str, ...] = ()
    against: tuple[str, ...] = ()


@once
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
    if silent_ms < reading.patience_ms:
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
