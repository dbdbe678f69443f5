"""replica_down, and its double: a metrics endpoint that fails while the server lives (metrics_missing)."""

from __future__ import annotations

import numpy as np

from collectors.observed import Replica, index_at
from runbooks.scene import Scene, Suspicion
from runbooks.states import unreachable

EVERYTHING = frozenset(
    [
        "overload",
        "seat_limited",
        "kv_limited",
        "prefill_limited",
        "unadmittable_head",
        "sequence_hog",
        "engine_slow",
        "engine_stalled",
        "stale_gauges",
        "admission_rejects",
        "client_aborts",
        "cold_prefix_cache",
        "metrics_missing",
        "metrics_untrustworthy",
    ]
)


def replica_down(scene: Scene) -> list[Suspicion]:
    """Targets whose scrapes have failed for the hold time.

    A closed port fails at once, an error page as slowly as a good answer. Whether the replica still serves shows in the
    traffic of its peers: a dead one's share moves to them.
    """
    found = []
    for replica in scene.observations.replicas:
        outside = unreachable(replica, scene.at_ms, scene.pace)
        if outside is None or outside[0] != "down":
            continue
        _, since_ms, why = outside
        evidence = [f"{why} (up = 0) since {(scene.at_ms - since_ms) / 1000:.0f} s"]
        against: list[str] = []
        answers = _something_answers(scene, replica, since_ms)
        rise = _peers_rise(scene, replica, since_ms)
        if rise is not None and rise >= scene.limits("replica_down", "peers_rise_ratio"):
            evidence.append(f"its peers take {rise:.2f} times the requests they took before")
        if answers is not None and answers < scene.limits("replica_down", "answered_duration_ratio"):
            evidence.append("the scrapes fail at once, as at a closed port")
        alive = answers is not None and answers >= scene.limits("replica_down", "answered_duration_ratio")
        calm = rise is not None and rise < scene.limits("replica_down", "peers_rise_ratio")
        if alive:
            against.append("the failing scrapes take as long as good ones did: something answers at the port")
        if calm:
            against.append(f"its peers' traffic did not rise (x {rise:.2f}): its clients may still be served")
        flaky = flaky_share(scene, replica)
        if flaky is not None:
            against.append(f"{flaky:.0%} of its newest scrapes failed in several stretches: it answers in between")
        failing_page = alive and (calm or rise is None)
        found.append(
            Suspicion(
                cause="metrics_missing" if alive and calm else "replica_down",
                confidence="possible" if failing_page or flaky is not None else "likely",
                places=scene.places(replica),
                since_ms=since_ms,
                evidence=tuple(evidence + against) if alive and calm else tuple(evidence),
                against=() if alive and calm else tuple(against),
                runner_up="replica_down" if alive and calm else "metrics_missing",
                separating_check="send one request to the replica: an answer means that only /metrics fails",
                cannot_know=("whether the process lives: failed scrapes bring no metric",),
                explains=EVERYTHING,
            )
        )
    return found


def flaky_share(scene: Scene, replica: Replica) -> float | None:
    """Share of the newest scrapes that failed, when they failed in several stretches with answers between; else None."""
    share, stretches = _failures(scene, replica)
    return share if stretches >= scene.limits("metrics_missing", "flaky_stretches") else None


def _failures(scene: Scene, replica: Replica) -> tuple[float, int]:
    """(share of the newest scrapes that failed, in how many stretches); (0, 0) when that is too small a share, or too few are known."""
    scrapes = int(scene.limits("metrics_missing", "flaky_scrapes"))
    up = replica.up[: index_at(replica.times_ms, scene.at_ms) + 1]
    up = up[~np.isnan(up)][-scrapes:]
    failed = up == 0
    share = float(failed.mean()) if len(up) else 0.0
    known = len(up) >= scene.limits("metrics_missing", "flaky_scrapes_known")
    if not known or share < scene.limits("metrics_missing", "flaky_ratio"):
        return 0.0, 0
    return share, int(np.sum(failed & ~np.concatenate(([False], failed[:-1]))))


def _flaky_since_ms(scene: Scene, replica: Replica) -> int:
    """First failed scrape of the stretch up to now in which failures never lay further apart than the scrapes looked at."""
    scrapes = int(scene.limits("metrics_missing", "flaky_scrapes"))
    last = index_at(replica.times_ms, scene.at_ms) + 1
    known = ~np.isnan(replica.up[:last])
    failed = np.flatnonzero(replica.up[:last][known] == 0)
    breaks = np.flatnonzero(np.diff(failed) >= scrapes)
    return int(replica.times_ms[:last][known][failed[breaks[-1] + 1 if len(breaks) else 0]])


def lost_scrapes(scene: Scene) -> list[Suspicion]:
    """Targets that answer only now and then: their rates and gauges have holes, the replica may be well.

    Two stretches of failures without a restart are possibly that; one is an outage that is over, or goes on.
    """
    found = []
    for replica in scene.observations.replicas:
        share, stretches = _failures(scene, replica)
        several = stretches >= scene.limits("metrics_missing", "flaky_stretches")
        twice = stretches == 2 and not replica.restarts_ms and unreachable(replica, scene.at_ms, scene.pace) is None
        if not (twice or (several and len(replica.restarts_ms) <= 1)):
            continue
        found.append(
            Suspicion(
                cause="metrics_missing",
                confidence="likely" if several else "possible",
                places=scene.places(replica),
                since_ms=_flaky_since_ms(scene, replica),
                evidence=(f"{share:.0%} of the newest scrapes failed, in {stretches} stretches, without a restart",),
                runner_up="replica_down",
                separating_check="compare scrape_duration_seconds with the scrape time-out; scrape by hand from the scraper's host",
                cannot_know=("what happened between the scrapes that came through",),
                explains=frozenset({"replica_down"}),
            )
        )
    return found


def _something_answers(scene: Scene, replica: Replica, since_ms: int) -> float | None:
    """Duration of failed scrapes over that of good ones; None when unknown or when they ran into the timeout."""
    durations = replica.scrape_duration_seconds
    times, last = replica.times_ms, index_at(replica.times_ms, scene.at_ms)
    known = ~np.isnan(durations) & (np.arange(len(times)) <= last)
    failed = durations[known & (times > since_ms) & (replica.up == 0)]
    good = durations[known & (times < since_ms) & (replica.up == 1)]
    if not len(failed) or not len(good):
        return None
    ratio = float(np.median(failed) / max(float(np.median(good)), 1e-6))
    return None if ratio > 10 and float(np.median(failed)) > 1.0 else ratio


def _peers_rise(scene: Scene, replica: Replica, since_ms: int) -> float | None:
    """Peers' first tokens per second now over before; None when the replica had no share worth noticing."""
    pace = scene.pace
    before = (since_ms - 8 * pace.recent_ms, since_ms - pace.interval_ms)
    own = sum(_or_zero(rank.rate("time_to_first_token", *before)) for rank in replica.ranks)
    peers = [
        rank
        for other, rank in scene.observations.ranks()
        if other.instance != replica.instance and (not replica.model or rank.model == replica.model)
    ]
    was = sum(_or_zero(rank.rate("time_to_first_token", *before)) for rank in peers)
    window = (max(since_ms + pace.interval_ms, scene.at_ms - 8 * pace.recent_ms), scene.at_ms)
    if not peers or was <= 0 or own < 0.2 * was or window[1] - window[0] < pace.recent_ms:
        return None
    is_now = sum(_or_zero(rank.rate("time_to_first_token", *window)) for rank in peers)
    return is_now / was


def _or_zero(value: float) -> float:
    return value if value == value else 0.0
