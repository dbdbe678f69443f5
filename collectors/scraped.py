"""What discovery sees: scraped series and targets, and the labels by which they are told apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from collectors.model import Labels

Key = tuple[str, ...]

SCOPE_LABELS = ("cluster", "region", "environment", "env", "datacenter", "namespace", "job")
"""Labels that say where a replica lives, widest first."""
WIDE_LABELS = frozenset(("cluster", "region", "environment", "env", "datacenter"))
"""Where the same address can be another machine."""
HA_LABELS = frozenset(
    (
        "prometheus",
        "prometheus_replica",
        "prometheus_group",
        "replica",
        "__replica__",
        "monitor",
        "receive",
        "tenant_id",
    )
    + ("thanos_replica", "ha_replica", "agent", "agent_hostname", "collector")
)
"""Labels that say who scraped, not what was scraped."""
SECOND_JOB_LABELS = frozenset(("job", "scrape_job", "service", "endpoint", "container", "scrape_config"))
SAME_START_SECONDS = 2.0
"""Two scrapes of one process agree on process_start_time_seconds to the digit; exporters may round."""
MODEL = "model_name"
PID = "pid"


@dataclass(frozen=True)
class Series:
    """One scraped series as discovery saw it: canonical family, the prefix it came with, its labels and value."""

    family: str
    prefix: str
    labels: Labels
    value: float


@dataclass(frozen=True)
class Target:
    """What the scraper itself tells of one target."""

    labels: Labels
    up: float | None = None
    started_seconds: float | None = None
    sampled_seconds: float | None = None
    version: str = ""
    """What the replica itself answers to /version, where it was asked."""


def key_of(labels: Labels, replica_labels: Sequence[str]) -> Key:
    return tuple([labels.get(label, "") for label in replica_labels])


def key_text(key: Key) -> str:
    return "/".join(part for part in key if part) or "(no identity label)"
