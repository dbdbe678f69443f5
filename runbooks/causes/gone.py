"""What the source itself cannot show: no target at all, targets nobody scrapes any more, fewer than are wanted."""

from __future__ import annotations

from runbooks.scene import Scene, Suspicion
from runbooks.states import unreachable


def gone(scene: Scene) -> list[Suspicion]:
    """An empty or silent source is metrics_missing; a vanished target is replica_down as far as the operator said how many."""
    replicas = scene.observations.replicas
    if not replicas:
        return [
            Suspicion(
                cause="metrics_missing",
                confidence="undetermined",
                places=(),
                since_ms=None,
                evidence=("the source holds no vLLM metric in the window before the instant",),
                separating_check="check whether the instant lies inside the data; pagewatch doctor says what the source holds",
                cannot_know=("anything about the fleet at this instant",),
            )
        ]
    silent = [r for r in replicas if (out := unreachable(r, scene.at_ms, scene.pace)) and out[0] == "unscraped"]
    if not silent:
        return _never_seen(scene, len(replicas))
    places = tuple(place for replica in silent for place in scene.places(replica))
    ages = ", ".join(f"{r.instance} {(scene.at_ms - int(r.times_ms[-1])) / 1000:.0f} s" for r in silent[:5])
    if len(silent) == len(replicas):
        return [
            Suspicion(
                cause="metrics_missing",
                confidence="undetermined",
                places=places,
                since_ms=max(int(r.times_ms[-1]) for r in silent),
                evidence=(f"nothing has been scraped lately (newest sample: {ages} old)",),
                separating_check="check whether the scraper runs, and whether the instant lies inside the data",
                cannot_know=("anything about the fleet at this instant",),
            )
        ]
    wanted = scene.wanted.replicas
    alive = len(replicas) - len(silent)
    short = wanted is not None and alive < wanted
    if wanted is not None and not short:
        return []
    return [
        Suspicion(
            cause="replica_down",
            confidence="likely" if short else "undetermined",
            places=places,
            since_ms=min(int(r.times_ms[-1]) for r in silent),
            evidence=(f"no longer scraped: {ages} ago", _words(alive, scene)),
            runner_up="healthy",
            separating_check="ask the orchestrator whether the replica was scaled away",
            cannot_know=("whether it was removed on purpose: a deleted target has no up = 0",),
        )
    ]


def _words(alive: int, scene: Scene) -> str:
    wanted = scene.wanted
    return f"{alive} of {wanted.replicas} wanted replicas are scraped" if wanted.replicas is not None else wanted.why


def _never_seen(scene: Scene, known: int) -> list[Suspicion]:
    """Fewer targets in the whole window than the operator wants: which one is missing, no metric can say."""
    wanted = scene.wanted.replicas
    if wanted is None or known >= wanted:
        return []
    return [
        Suspicion(
            cause="replica_down",
            confidence="possible",
            places=(),
            since_ms=scene.observations.start_ms,
            evidence=(_words(known, scene), "no other target was there in the window before the instant"),
            runner_up="metrics_missing",
            separating_check="compare the scraper's list of targets with the orchestrator's list of replicas",
            cannot_know=("which replica is missing, and whether it serves unscraped",),
        )
    ]
