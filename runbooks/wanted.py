"""How many replicas the operator wants: a number, or a PromQL that tells it at an instant. A query that fails is not zero."""

from __future__ import annotations

import math
from dataclasses import dataclass

from collectors.settings import Settings
from collectors.source import Source, SourceError


@dataclass(frozen=True)
class Wanted:
    """The number, or why there is none."""

    replicas: int | None
    why: str = ""


NOT_SET = Wanted(None, "desired_replicas is not set")


def wanted_replicas(source: Source | None, at_ms: int, settings: Settings) -> Wanted:
    """desired_replicas of the configuration at an instant. Never raises for a query: its failure is the reason for not knowing."""
    configured = settings.desired_replicas
    if configured is None:
        return NOT_SET
    if isinstance(configured, int):
        return Wanted(configured)
    if source is None:
        return Wanted(None, "desired_replicas is a query, and no source was asked")
    try:
        told = source.instant(configured, at_ms)
    except SourceError as error:
        return Wanted(None, f"the query of desired_replicas failed: {error}")
    if len(told) != 1:
        return Wanted(None, f"the query of desired_replicas answers {len(told)} values where one is needed")
    value = float(told.values[0])
    if not math.isfinite(value) or value < 0 or value != round(value):
        return Wanted(None, f"the query of desired_replicas answers {value:g}, which is no number of replicas")
    return Wanted(round(value))
