"""From raw samples to a diagnosis: states, laws, anomalies, and verdicts that weigh every suspicion against the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from collectors.observations import observe
from collectors.observed import Observations
from collectors.settings import Settings
from collectors.source import Source
from runbooks.anomalies import anomalies
from runbooks.causes.capacity import queue_without_kv
from runbooks.causes.cold import cold_prefix_cache
from runbooks.causes.gone import gone
from runbooks.causes.http import client_aborts, rejects
from runbooks.causes.imbalance import imbalance
from runbooks.causes.kv import kv_limited
from runbooks.causes.metrics import metrics_missing, metrics_untrustworthy
from runbooks.causes.outage import lost_scrapes, replica_down
from runbooks.causes.progress import head_larger_than_pool, no_progress, one_gauge_frozen
from runbooks.causes.restart import replica_restarted
from runbooks.causes.slow import engine_slow
from runbooks.laws import check_laws
from runbooks.reading import Reading
from runbooks.scene import Scene, Suspicion
from runbooks.states import rank_states
from runbooks.thresholds import Pace, Thresholds
from runbooks.verdicts import Diagnosis, Place, Verdict, Where
from runbooks.wanted import Wanted, wanted_replicas
from runbooks.weighing import weigh

RULES: tuple[Callable[[Scene], list[Suspicion]], ...] = (
    gone,
    replica_down,
    lost_scrapes,
    replica_restarted,
    metrics_missing,
    metrics_untrustworthy,
    no_progress,
    head_larger_than_pool,
    one_gauge_frozen,
    kv_limited,
    queue_without_kv,
    imbalance,
    engine_slow,
    cold_prefix_cache,
    rejects,
    client_aborts,
)


def diagnose(source: Source, at_ms: int, settings: Settings, observations: Observations | None = None) -> Diagnosis:
    """What holds at an instant, seen with the window before it. Raises SourceError when the source cannot answer."""
    seen = observations if observations is not None else observe(source, at_ms, settings)
    return judge(seen, settings, wanted_replicas(source, at_ms, settings))


def judge(observations: Observations, settings: Settings, wanted: Wanted | None = None) -> Diagnosis:
    """The same from observations already made; pure. `wanted`: how many replicas there should be, where a query tells it."""
    scene = scene_of(observations, settings, wanted)
    suspicions = [suspicion for rule in RULES for suspicion in rule(scene)]
    verdicts = weigh(scene, suspicions)
    named = {verdict.cause for verdict in verdicts}
    kept = [s for s in suspicions if s.cause in named]
    return Diagnosis(
        at_ms=observations.at_ms,
        source=observations.source_name,
        window_start_ms=observations.start_ms,
        interval_ms=observations.interval_ms,
        replicas=tuple(scene.states.values()),
        laws=tuple(scene.laws),
        anomalies=tuple(anomalies(scene, kept, verdicts)),
        verdicts=verdicts or (_healthy(scene),),
        warnings=(*observations.warnings, *_unknown_wanted(scene)),
    )


def _unknown_wanted(scene: Scene) -> tuple[str, ...]:
    """Why it is not known how many replicas are wanted, where the operator meant to say."""
    return (scene.wanted.why,) if scene.wanted.why and scene.settings.desired_replicas is not None else ()


def scene_of(observations: Observations, settings: Settings, wanted: Wanted | None = None) -> Scene:
    """Readings, states and laws of an instant, before any cause is suspected."""
    limits = Thresholds.of(settings)
    pace = Pace.of(limits, observations.interval_ms or 15_000)
    readings = _readings(observations, settings, limits)
    states = rank_states(observations, readings, pace)
    laws = check_laws(observations, readings, limits)
    known = wanted if wanted is not None else wanted_replicas(None, observations.at_ms, settings)
    return Scene(observations, settings, limits, pace, readings, states, laws, known)


def _readings(observations: Observations, settings: Settings, limits: Thresholds) -> Mapping[Place, Reading]:
    readings = {}
    for replica, rank in observations.ranks():
        readings[Place(replica.instance, rank.engine)] = Reading(
            replica=replica,
            rank=rank,
            at_ms=observations.at_ms,
            pace=Pace.of(limits, replica.interval_ms),
            limits=limits,
            objective_seconds=settings.slo.time_to_first_token.threshold_seconds,
            seats=settings.engine.seats,
            token_budget=settings.engine.token_budget,
        )
    return readings


def _healthy(scene: Scene) -> Verdict:
    counts: dict[str, int] = {}
    for state in scene.states.values():
        counts[state.state] = counts.get(state.state, 0) + 1
    words = ", ".join(f"{number} {state}" for state, number in sorted(counts.items()))
    broken = [law for law in scene.laws if law.status == "broken"]
    unknown = sum(law.status == "unknown" for law in scene.laws)
    return Verdict(
        cause="healthy",
        confidence="likely",
        where=Where("fleet", tuple(scene.states)),
        evidence=(
            f"ranks: {words}",
            *_as_many_as_wanted(scene),
            f"checks: {len(scene.laws) - len(broken) - unknown} kept, {len(broken)} broken, {unknown} not decidable",
        ),
        cannot_know=(
            "requests refused for a wrong key: 0.11.0 counts no 401",
            "requests that never reached a replica",
        ),
    )


def _as_many_as_wanted(scene: Scene) -> tuple[str, ...]:
    if scene.wanted.replicas is None:
        return ()
    return (f"{len(scene.observations.replicas)} of {scene.wanted.replicas} wanted replicas are scraped",)
