"""admission_rejects, auth_rejects and client_aborts: what only the HTTP side and the balance of requests show."""

from __future__ import annotations

from collections.abc import Sequence

from collectors.observed import HttpSeries, Replica
from runbooks.reading import Reading
from runbooks.scene import Scene, Suspicion
from runbooks.verdicts import Confidence

AUTH_STATUSES = ("401", "403")


def rejects(scene: Scene) -> list[Suspicion]:
    """Replicas that refuse a noticeable share of generation requests now.

    vLLM groups statuses (4xx), records refused prompts under their route and records no 401 at all; a gateway in front
    may write exact statuses. A series born above zero counts from zero.
    """
    found = []
    for replica in scene.observations.replicas:
        if scene.state(scene.places(replica)[0]) == "down":
            continue
        refused = [s for s in replica.http if s.generates and s.status[:1] == "4"]
        auth = [s for s in refused if s.status in AUTH_STATUSES]
        other = [s for s in refused if s.status not in AUTH_STATUSES]
        for cause, series in (("auth_rejects", auth), ("admission_rejects", other)):
            suspicion = _refusing(scene, replica, cause, series)
            if suspicion is not None:
                found.append(suspicion)
    return found


def _refusing(scene: Scene, replica: Replica, cause: str, series: Sequence[HttpSeries]) -> Suspicion | None:
    if not series:
        return None
    pace, limits = scene.pace, scene.limits
    end = min(scene.at_ms, int(replica.times_ms[-1]))
    start = max(end - 2 * pace.recent_ms, replica.epoch_start_ms(end))
    refused = sum(_or_zero(s.counter.increase(start, end)) for s in series)
    newest = sum(_or_zero(s.counter.increase(end - pace.recent_ms, end)) for s in series)
    total = replica.http_increase(start, end)
    needed = limits("admission_failure", "refused_requests")
    share = limits("admission_failure", "refused_ratio")
    recent_total = replica.http_increase(end - pace.recent_ms, end)
    if refused < needed or refused < share * total or newest < share * recent_total or newest < min(needed, 3):
        return None
    rises = sorted({t for s in series for t in _rises(s, end - 10 * pace.recent_ms, end)})
    if len([t for t in rises if t > start]) < 2:
        return None
    evidence = [f"{refused:.0f} of {total:.0f} generation requests were refused in {(end - start) / 1000:.0f} s"]
    born = [s.counter.born_ms for s in series if s.counter.born_ms is not None]
    if born:
        evidence.append("the series appeared inside the window: rate() does not see what its first sample already held")
    routes = ", ".join(sorted({f"{s.handler} {s.status}" for s in series}))
    evidence.append(f"routes: {routes}")
    return Suspicion(
        cause=cause,
        confidence="likely",
        places=scene.places(replica),
        since_ms=_since(rises, 2 * pace.recent_ms),
        evidence=tuple(evidence),
        runner_up=None if cause == "auth_rejects" else "auth_rejects",
        separating_check="read one refused answer: its message names the limit (pagewatch admission decodes it)",
        cannot_know=("which limit refused them: a refused prompt touches no vllm: counter",),
    )


def _rises(series: HttpSeries, start_ms: int, end_ms: int) -> list[int]:
    times, total = series.counter.times_ms, series.counter.total
    grown = [int(t) for t, now, was in zip(times[1:], total[1:], total[:-1], strict=True) if now > was]
    return [t for t in grown if start_ms < t <= end_ms]


def _since(rises: Sequence[int], gap_ms: int) -> int | None:
    since = None
    for t in reversed(rises):
        if since is not None and since - t > gap_ms:
            break
        since = t
    return since


def client_aborts(scene: Scene) -> list[Suspicion]:
    """Ranks where admitted requests vanish: first tokens = finished + growth of running, or clients have left.

    0.11.0 never counts an abort (request_success{abort} stays 0), so the balance of requests is the only trace.
    """
    found = []
    for place, reading in scene.readings.items():
        if scene.state(place) not in ("serving", "prefill_only", "idle"):
            continue
        suspicion = _vanishing(scene, reading)
        if suspicion is not None:
            found.append(suspicion)
    return found


def _vanishing(scene: Scene, reading: Reading) -> Suspicion | None:
    limits = scene.limits
    window_ms = round(max(1000 * limits("client_aborts", "window_seconds"), reading.pace.recent_ms))
    needed, share = limits("client_aborts", "aborted_requests"), limits("client_aborts", "aborted_ratio")

    def lost_in(length_ms: int, requests: float) -> tuple[float, float] | None:
        """(admitted, lost) of the newest time of a length, when it lost enough."""
        counts = vanished(reading, *reading.last_ms(length_ms))
        return counts if counts is not None and counts[1] >= max(requests, share * counts[0]) else None

    counts = lost_in(reading.pace.recent_ms, needed)
    if counts is not None:
        window_ms = reading.pace.recent_ms
    elif lost_in(window_ms // 2, 2.0) is not None:
        counts = lost_in(window_ms, needed)
    if counts is None:
        return None
    admitted, lost = counts
    start, end = reading.last_ms(window_ms)
    ended = reading.replica.http_increase(start, end, statuses="25")
    finished = sum(_or_zero(rank.increase("requests_finished", start, end)) for rank in reading.replica.ranks)
    evidence = [
        f"of {admitted:.0f} requests that got a first token in {(end - start) / 1000:.0f} s, about {lost:.0f} neither finished nor still run",
    ]
    against: list[str] = []
    confidence: Confidence = "likely"
    if ended == ended and finished <= ended:
        if ended - finished >= 0.3 * lost:
            evidence.append(f"{ended:.0f} requests ended over HTTP while {finished:.0f} finished in the engine")
        else:
            against.append(f"HTTP saw only {ended - finished:.0f} requests end without finishing")
            confidence = "possible"
    return Suspicion(
        cause="client_aborts",
        confidence=confidence,
        places=(reading.place,),
        since_ms=_aborts_since(reading, window_ms),
        evidence=tuple(evidence),
        against=tuple(against),
        runner_up="metrics_untrustworthy",
        separating_check="read the gateway's log for closed connections and compare client time-outs with the time per answer",
        cannot_know=('the abort count itself: request_success_total{finished_reason="abort"} stays 0 in 0.11.0',),
        reads=frozenset({"requests_running", "requests_finished", "time_to_first_token"}),
    )


def vanished(reading: Reading, start_ms: int, end_ms: int) -> tuple[float, float] | None:
    """(requests that got a first token, those of them or of the earlier ones that left without finishing) in a window."""
    rank = reading.rank
    if reading.work_before_silence:
        start_ms = max(start_ms, reading.busy_since_ms)  # what the gauges showed before a silence may be old
    ends = reading.common_scrapes(("requests_running", "time_to_first_token", "requests_finished"), start_ms, end_ms)
    if ends is None:
        return None
    start_ms, end_ms = ends
    running = rank.gauge("requests_running", start_ms - 1, end_ms)
    admitted = rank.increase("time_to_first_token", start_ms, end_ms)
    finished = rank.increase("requests_finished", start_ms, end_ms)
    if len(running) < 2 or admitted <= 0:
        return None
    preempted = rank.increase("preemptions", start_ms, end_ms)
    waiting = rank.gauge("requests_waiting", start_ms - 1, end_ms)
    returned = max(0.0, float(waiting[-1] - waiting[0])) if preempted > 0 and len(waiting) > 1 else 0.0
    return admitted, admitted - finished - float(running[-1] - running[0]) - returned


def _aborts_since(reading: Reading, window_ms: int) -> int:
    since = reading.seen_ms
    while since - window_ms >= reading.epoch_ms:
        counts = vanished(reading, since - window_ms, since)
        if counts is None or counts[1] < 0.5 * reading.limits("client_aborts", "aborted_ratio") * counts[0]:
            break
        since -= window_ms // 2
    return max(since - window_ms, reading.epoch_ms)


def _or_zero(value: float) -> float:
    return value if value == value else 0.0
