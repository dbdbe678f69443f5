"""replica_imbalance and rank_imbalance: one place queues while its equals have room, because more is sent to it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from runbooks.reading import Reading
from runbooks.scene import Scene, Suspicion
from runbooks.verdicts import Confidence

ALIVE = ("serving", "prefill_only", "idle")
READS = frozenset({"requests_running", "requests_waiting", "time_to_first_token"})


def imbalance(scene: Scene) -> list[Suspicion]:
    """Compares ranks inside a replica, and replicas of one model, by what is sent to them and by who queues.

    Ranks share one balancer. Replicas are known to when they took equal shares before and traffic has moved from the
    others to the hot one since. A load that merely grew at one of two may be meant for it alone; beside several equal
    ones that stand idle it is uneven all the same.
    """
    return [*_ranks(scene), *_replicas(scene)]


def _ranks(scene: Scene) -> list[Suspicion]:
    found = []
    for replica in scene.observations.replicas:
        group = [r for r in scene.readings.values() if r.rank.instance == replica.instance]
        hot = _hot(scene, group)
        if hot:
            found.append(_suspicion(scene, "rank_imbalance", hot, group, "likely", ()))
    return found


def _replicas(scene: Scene) -> list[Suspicion]:
    found = []
    models: dict[str, list[Reading]] = defaultdict(list)
    for reading in scene.readings.values():
        models[reading.rank.model].append(reading)
    for group in models.values():
        single = [r for r in group if len(r.replica.ranks) == 1 and scene.state(r.place) in ALIVE]
        hot = _hot(scene, single)
        if not hot:
            continue
        onset = min((r.queue_since_ms for r in hot if r.queue_since_ms is not None), default=None)
        rest = [r for r in single if r not in hot]
        before = _arrivals_before(hot, rest, onset)
        confidence: Confidence = "likely"
        against: tuple[str, ...] = ()
        if before is None:
            against = ("the window holds no time before the queue to compare with",)
            confidence = "likely" if len(single) >= 3 else "possible"
        elif before[0] > scene.limits("imbalance", "balanced_ratio") * before[1]:
            against = ("the replicas did not take equal shares before either: they may not be balanced at all",)
            confidence = "possible"
        elif (
            float(np.median([_number(r.arrivals) for r in rest])) > scene.limits("imbalance", "left_ratio") * before[1]
        ):
            against = ("the others take as much as before: the load grew at the hot place, it did not move there",)
            confidence = (
                "likely"
                if len(rest) >= 2 and _skew(hot, rest) >= scene.limits("imbalance", "grown_ratio")
                else "possible"
            )
        found.append(_suspicion(scene, "replica_imbalance", hot, single, confidence, against))
    return found


def _hot(scene: Scene, group: Sequence[Reading]) -> list[Reading]:
    """Queueing places that are sent much more than the median of the others, when the others have room."""
    alive = [r for r in group if scene.state(r.place) in ALIVE]
    hot = [r for r in alive if r.queued]
    rest = [r for r in alive if r not in hot]
    if not hot or len(rest) < 1 or len(hot) > len(alive) / 2:
        return []
    usual = float(np.median([_number(r.arrivals) for r in rest]))
    running = float(np.median([_mean(r) for r in rest]))
    return [
        r
        for r in hot
        if _number(r.arrivals) >= scene.limits("imbalance", "arrivals_ratio") * usual
        and _work_sent(r)
        >= scene.limits("imbalance", "arrivals_ratio") * float(np.median([_work_sent(o) for o in rest]))
        and running <= scene.limits("imbalance", "idle_share") * _mean(r)
        and all(not o.waiting > 0 or o.wait_seconds < o.objective_seconds for o in rest)
    ]


def _suspicion(
    scene: Scene,
    cause: str,
    hot: Sequence[Reading],
    group: Sequence[Reading],
    confidence: Confidence,
    against: tuple[str, ...],
) -> Suspicion:
    rest = [r for r in group if r not in hot]
    sent = sum(_number(r.arrivals) for r in hot) / max(sum(_number(r.arrivals) for r in group), 1e-9)
    names = ", ".join(str(r.place.engine if cause == "rank_imbalance" else r.place.instance) for r in hot)
    kind = "ranks" if cause == "rank_imbalance" else "replicas"
    return Suspicion(
        cause=cause,
        confidence=confidence,
        places=tuple(r.place for r in hot),
        since_ms=min((r.queue_since_ms for r in hot if r.queue_since_ms is not None), default=None),
        evidence=(
            f"{names}: {len(hot)} of {len(group)} {kind} take {sent:.0%} of the arrivals "
            f"(about {sum(_number(r.arrivals) for r in hot):.1f}/s against {sum(_number(r.arrivals) for r in rest):.1f}/s on the rest)",
            f"{sum(r.waiting for r in hot):.0f} wait there, {sum(r.waiting for r in rest):.0f} on the others, "
            f"which run {sum(r.running for r in rest) / max(len(rest), 1):.0f} on average",
        ),
        against=against,
        runner_up="seat_limited",
        separating_check="read the router's distribution of requests (its log or its own metrics) for the same minutes",
        cannot_know=("what the router decided and why: only its effect shows here",),
        reads=READS,
        ranks=cause == "rank_imbalance",
    )


def _arrivals_before(
    hot: Sequence[Reading], rest: Sequence[Reading], onset_ms: int | None
) -> tuple[float, float] | None:
    """(most arrivals at a hot place, median of the others) before the queue; None where one of them is not known."""

    def before(group: Sequence[Reading]) -> list[float]:
        windows = [(reading, reading.before_ms(onset_ms)) for reading in group]
        return [reading.arrivals_in(*window) for reading, window in windows if window is not None]

    then, others = before(hot), before(rest)
    if not then or not others or not np.isfinite(then + others).all() or float(np.median(others)) <= 0:
        return None
    return max(then), float(np.median(others))


def _skew(hot: Sequence[Reading], rest: Sequence[Reading]) -> float:
    """Least arrivals at a hot place over the median of the others."""
    usual = float(np.median([_number(r.arrivals) for r in rest]))
    return min(_number(r.arrivals) for r in hot) / max(usual, 1e-9)


def _work_sent(reading: Reading) -> float:
    """Requests per second in tokens of prompt, so that many short ones do not outweigh few long ones."""
    return (
        _number(reading.arrivals)
        * max(_number(reading.rate("prompt_tokens")), 1.0)
        / max(_number(reading.rate("time_to_first_token")), 1e-3)
    )


def _mean(reading: Reading) -> float:
    values = reading.gauge("requests_running")
    return float(values.mean()) if len(values) else 0.0


def _number(value: float) -> float:
    return value if value == value else 0.0
