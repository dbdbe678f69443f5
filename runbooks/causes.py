"""The closed list of causes a verdict or a runbook outcome may name, and the runbook that treats each."""

from __future__ import annotations

RUNBOOK_OF_CAUSE: dict[str, str] = {
    "overload": "waiting_growth",
    "seat_limited": "waiting_growth",
    "prefill_limited": "waiting_growth",
    "kv_limited": "kv_pressure",
    "unadmittable_head": "unadmittable_head",
    "sequence_hog": "sequence_hog",
    "engine_slow": "engine_slow",
    "replica_imbalance": "imbalance",
    "rank_imbalance": "imbalance",
    "engine_stalled": "engine_stalled",
    "stale_gauges": "engine_stalled",
    "replica_down": "replica_down",
    "replica_restarted": "replica_restarted",
    "admission_rejects": "admission_failure",
    "auth_rejects": "auth_abuse",
    "client_aborts": "client_aborts",
    "cold_prefix_cache": "cold_prefix_cache",
    "metrics_missing": "metrics_missing",
    "metrics_untrustworthy": "metrics_untrustworthy",
}
CAUSES: frozenset[str] = frozenset({"healthy", *RUNBOOK_OF_CAUSE})
