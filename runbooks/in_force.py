"""What pagewatch judges by at an instant, as plain data for an incident file: detectors and their versions, their state, burn rates, settings."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

from collectors.model import Vector
from collectors.settings import Settings
from collectors.signals import duration_text, rate_window_ms
from collectors.source import Source, SourceError
from runbooks import thresholds
from runbooks.library import library, runbook_ids
from runbooks.naming import parameters, settings_dialect
from runbooks.rules import SCRAPE_INTERVAL_SECONDS, Rule, names_for, rules
from runbooks.template import Binding, TemplateError, resolve

BURN_WINDOWS_MS = (300_000, 1_800_000, 3_600_000, 21_600_000)
"""Short and long windows of a fast and a slow burn."""
OBJECTIVES = (
    ("time_to_first_token", "first_token_slo", "first_token_budget"),
    ("inter_token_latency", "token_gap_slo", "token_gap_budget"),
)
MOST_FIRING = 64
"""Places of one detector that are kept."""


def detector_versions() -> dict[str, str]:
    """Runbook id -> the first 16 hex digits of the SHA-256 of its runbook.toml, and `thresholds` -> those of thresholds.toml."""
    folder = files("runbooks.library")
    found = {name: _digest((folder / name / "runbook.toml").read_bytes()) for name in runbook_ids()}
    return {**found, "thresholds": _digest(thresholds.FILE.read_bytes())}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def rules_in_force(settings: Settings, *, redacted: bool = False) -> tuple[dict[str, Any], ...]:
    """Every detector with its threshold, hold time and severity, and the PromQL it stands for; no PromQL when labels are redacted."""
    return tuple(
        {
            "detector": f"{rule.runbook.id}.{rule.detector.name}",
            "threshold": rule.threshold,
            "comparison": rule.detector.comparison,
            "hold_seconds": rule.detector.hold_seconds,
            "severity": rule.severity,
            **({} if redacted else {"promql": rule.expr}),
        }
        for rule in rules(settings, settings_dialect(settings))
    )


def detector_states(
    source: Source, at_ms: int, settings: Settings, *, redacted: bool = False
) -> tuple[dict[str, Any], ...]:
    """Every detector's condition at an instant: where it holds with which value; the hold time is not waited for.

    A source that refuses one query is told in that entry's `problem`; SourceError only when it does not answer at all.
    """
    source.instant("1", at_ms)
    return tuple(_state(rule, source, at_ms, redacted=redacted) for rule in rules(settings, settings_dialect(settings)))


def _state(rule: Rule, source: Source, at_ms: int, *, redacted: bool) -> dict[str, Any]:
    told: dict[str, Any] = {"detector": f"{rule.runbook.id}.{rule.detector.name}", "at_ms": at_ms}
    try:
        found = source.instant(rule.expr, at_ms)
    except SourceError as error:
        return {**told, "problem": type(error).__name__ if redacted else error.cause}
    told["holds_at"] = len(found.labels)
    if not redacted and found.labels:
        told["where"] = [{"labels": dict(labels), "value": value} for labels, value in list(_rows(found))[:MOST_FIRING]]
    return told


def _rows(found: Vector) -> Iterator[tuple[Mapping[str, str], float]]:
    yield from zip(found.labels, found.values.tolist(), strict=True)


def burn_rates(source: Source, at_ms: int, settings: Settings) -> tuple[dict[str, Any], ...]:
    """How fast each latency objective's budget burns over each window, fleet-wide. `burn` is None where nothing was observed.

    The recording itself is often shorter than the longest window, so this cannot be computed from it later.
    """
    names = names_for(settings, settings_dialect(settings))
    values = parameters(
        settings, rate_window_ms=rate_window_ms(SCRAPE_INTERVAL_SECONDS), lookback_ms=900_000, names=names
    )
    told = []
    for signal, matcher, budget in OBJECTIVES:
        objective = getattr(settings.slo, signal)
        for window_ms in BURN_WINDOWS_MS:
            window = duration_text(window_ms)
            template = (
                f"(1 - sum(rate(${signal}_bucket{{${matcher}}}[{window}])) / (sum(rate(${signal}_count[{window}])) > 0))"
                f" / ${budget}"
            )
            entry: dict[str, Any] = {
                "objective": signal,
                "threshold_seconds": objective.threshold_seconds,
                "of": objective.objective,
                "window_ms": window_ms,
                "at_ms": at_ms,
                "burn": None,
            }
            try:
                found = source.instant(resolve(template, Binding(names, values, ())), at_ms)
            except (TemplateError, SourceError) as error:
                told.append({**entry, "problem": type(error).__name__})
                continue
            told.append({**entry, "burn": round(float(found.values[0]), 6) if len(found.labels) else None})
    return tuple(told)


def config_facts(settings: Settings, *, redacted: bool = False) -> dict[str, Any]:
    """What the operator had configured and judgements read; no address, header or secret.

    With redaction also no scope and no PromQL, which may hold the very values that are to be hidden.
    """
    desired = settings.desired_replicas
    facts: dict[str, Any] = {
        "engine": settings.engine.model_dump(mode="json", exclude_none=True, exclude_defaults=True),
        "slo": settings.slo.model_dump(mode="json"),
        "identity": settings.identity.model_dump(mode="json"),
        "thresholds": {name: dict(values) for name, values in settings.alerts.thresholds.items()},
        "severity": dict(settings.alerts.severity),
        "desired_replicas": desired if isinstance(desired, int) or not redacted else None,
        "scope": {} if redacted else dict(settings.scope),
    }
    return {name: value for name, value in facts.items() if value not in ({}, None, "")}


def detector_ids() -> tuple[str, ...]:
    """`runbook.detector` of every detector, in the order of the library."""
    return tuple(f"{runbook.id}.{detector.name}" for runbook in library().values() for detector in runbook.detector)
