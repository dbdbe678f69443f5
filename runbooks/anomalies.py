"""Detectors of the diagnosis: which anomalies fire where, each opening the runbook of the same name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from runbooks.causes.latency import late_share, late_since_ms
from runbooks.causes.wait import wait_words
from runbooks.inferred import preempting_since_ms
from runbooks.reading import Reading
from runbooks.scene import Scene, Suspicion
from runbooks.verdicts import RUNBOOK_OF_CAUSE, Anomaly, Place, Severity, Verdict

PAGES = frozenset(
    {"waiting_growth", "engine_stalled", "unadmittable_head", "replica_down", "latency_slo", "kv_pressure"}
)
"""Users wait or fail now; everything else is a ticket unless the operator says otherwise."""
_SLOWING = frozenset(
    ["overload", "seat_limited", "prefill_limited", "kv_limited", "unadmittable_head", "sequence_hog", "engine_slow"]
    + ["replica_imbalance", "rank_imbalance", "engine_stalled", "cold_prefix_cache", "replica_restarted"]
)
SYMPTOM_OF = {
    "waiting_growth": _SLOWING,
    "latency_slo": _SLOWING,
    "preemption": frozenset({"kv_limited", "sequence_hog", "unadmittable_head"}),
}
"""Detector that fires by itself -> causes that it is a symptom of."""

WAIT_READS = frozenset({"requests_waiting", "time_to_first_token"})
TAX_READS = frozenset({"preemptions", "requests_finished"})


def anomalies(scene: Scene, suspicions: Iterable[Suspicion], verdicts: Sequence[Verdict] = ()) -> list[Anomaly]:
    """Firings in order of severity and id. A suspicion fires its own detector; queues, preemptions and latencies by
    themselves, grouped under the first verdict of their place that makes them a symptom."""
    fired: dict[tuple[str, tuple[Place, ...]], Anomaly] = {}

    def fire(
        detector: str,
        places: tuple[Place, ...],
        since_ms: int | None,
        says: str,
        cause: str,
        ranks: bool,
        reads: frozenset[str],
    ) -> None:
        severity: Severity = scene.settings.alerts.severity.get(detector, "page" if detector in PAGES else "ticket")
        where = scene.where(places, ranks=ranks)
        fired.setdefault((detector, places), Anomaly(detector, severity, since_ms, where, detector, says, cause, reads))

    for suspicion in suspicions:
        if suspicion.confidence != "undetermined":
            detector = RUNBOOK_OF_CAUSE[suspicion.cause]
            says = suspicion.evidence[0] if suspicion.evidence else ""
            fire(
                detector, suspicion.places, suspicion.since_ms, says, suspicion.cause, suspicion.ranks, suspicion.reads
            )
    for place, reading in scene.readings.items():
        ranks = len(reading.replica.ranks) > 1
        if scene.state(place) not in ("serving", "prefill_only"):
            continue
        if reading.queued:
            words = wait_words(reading)
            cause = _cause_at(place, "waiting_growth", verdicts)
            fire("waiting_growth", (place,), reading.queue_since_ms, words, cause, ranks, WAIT_READS)
        if (tax := preemptions_per_finished(reading)) is not None:
            fire(
                "preemption",
                (place,),
                preempting_since_ms(reading.rank, 2 * round(reading.pace.recent_ms)),
                f"{reading.preemptions:.0f} preemptions, {tax:.1f} per finished request",
                _cause_at(place, "preemption", verdicts),
                ranks,
                TAX_READS,
            )
        late = list(_late(scene, reading))
        if late:
            words = "; ".join(f"{signal}: {words}" for signal, words, _ in late)
            cause = _cause_at(place, "latency_slo", verdicts)
            since_ms = min(since for _, _, since in late)
            reads = frozenset(signal for signal, _, _ in late)
            fire("latency_slo", (place,), since_ms, words, cause, ranks, reads)
    return sorted(fired.values(), key=lambda a: (a.severity != "page", a.id, a.where.places))


def _cause_at(place: Place, detector: str, verdicts: Sequence[Verdict]) -> str:
    """The first cause named at a place that has this symptom; "" when none has."""
    here = {place, Place(place.instance)}
    return next(
        (v.cause for v in verdicts if v.cause in SYMPTOM_OF[detector] and here & set(v.where.places)),
        "",
    )


def preemptions_per_finished(reading: Reading) -> float | None:
    """Preemptions per finished request in the recent window when that is a tax worth naming, else None."""
    counted = reading.preemptions
    if not counted >= 2:
        return None
    ratio = counted / max(reading.increase("requests_finished"), 1.0)
    return ratio if ratio >= reading.limits("preemption", "per_finished") else None


def _late(scene: Scene, reading: Reading) -> Iterable[tuple[str, str, int]]:
    """(what is late, how much, since when) for each objective whose budget burns at page speed."""
    slo = scene.settings.slo
    for signal, objective in (
        ("time_to_first_token", slo.time_to_first_token),
        ("inter_token_latency", slo.inter_token_latency),
    ):
        limit = objective.threshold_seconds
        share = late_share(reading, signal, limit)
        burning = scene.limits("latency_slo", "burn_factor") * (1 - objective.objective)
        if share is not None and share[1] >= scene.limits("latency_slo", "observations") and share[0] >= burning:
            words = f"{share[0]:.0%} of {share[1]:.0f} over {limit:g} s"
            yield signal, words, late_since_ms(reading, signal, burning * limit)
