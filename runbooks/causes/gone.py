"""What the source itself cannot show: no target at all, targets nobody scrapes any more, fewer than are wanted."""

from __future__ import annotations

from runbooks.scene import Scene, Suspicion
from runbooks.states import unreachable
from runbooks.verdicts import Confidence


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
        return []
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
    desired = scene.settings.desired_replicas
    alive = len(replicas) - len(silent)
    short = isinstance(desired, int) and alive < desired
    confidence: Confidence = "likely" if short else "undetermined"
    wanted = (
        f"{alive} of {desired} wanted replicas are scraped"
        if isinstance(desired, int)
        else "desired_replicas is not set"
    )
    if isinstance(desired, int) and not short:
        return []
    return [
        Suspicion(
            cause="replica_down",
            confidence=confidence,
            places=places,
            since_ms=min(int(r.times_ms[-1]) for r in silent),
            evidence=(f"no longer scraped: {ages} ago", wanted),
            runner_up="healthy",
            separating_check="ask the orchestrator whether the replica was scaled away",
            cannot_know=("whether it was removed on purpose: a deleted target has no up = 0",),
        )
    ]
