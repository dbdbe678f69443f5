"""Prometheus alerting rules made from the detectors, an Alertmanager snippet, and promtool tests made from the cases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote_plus

from collectors.scope import scope_matchers
from collectors.settings import Settings
from collectors.signals import duration_text, rate_window_ms
from runbooks.library import library
from runbooks.naming import DialectNames, names_of, parameters
from runbooks.runbook import Detector, Runbook
from runbooks.template import Binding, TemplateError, resolve, template_names
from runbooks.wording import worded

FORMS = ("plain", "prometheusrule", "alertmanager")
DEFAULT_BASE = "http://127.0.0.1:8501"
SCRAPE_INTERVAL_SECONDS = 15.0
"""What most Prometheus servers run with: rate windows of a minute, which suit 5 s as well."""
PREFIX = "Pagewatch"


class RulesError(Exception):
    """Rules cannot be made as asked. One line: what is wrong and what there is."""


NUMBER, PERCENT = '{{ $value | printf "%.3g" }}', "{{ $value | humanizePercentage }}"
"""An alert's value as Prometheus's templates write it; a ratio in the unit of the limit that stands beside it."""


@dataclass(frozen=True)
class Rule:
    """One alerting rule. `labels_kept` are the labels that its expression leaves on the alert."""

    runbook: Runbook
    detector: Detector
    alert: str
    expr: str
    threshold: float
    severity: str
    runbook_url: str
    place: str
    """Words for where it fires, with label templates; '' for the fleet."""

    @property
    def summary(self) -> str:
        return self.detector.summary + self.place

    @property
    def description(self) -> str:
        unit = f" {self.detector.unit}" if self.detector.unit not in ("", "flag", "ratio") else ""
        limit = worded(self.threshold, self.detector.unit if self.detector.unit != "flag" else "")
        value = PERCENT if self.detector.unit == "ratio" else NUMBER
        return f"Now {value}{unit}; fires {self.detector.comparison} {limit}. Clears when {self.detector.clear}."

    @property
    def labels(self) -> dict[str, str]:
        """Labels that the rule adds. Alertmanager routes by `severity`; the API finds the runbook by `runbook`."""
        return {
            "severity": self.severity,
            "runbook": self.runbook.id,
            "detector": self.detector.name,
            "scope": self.detector.where,
        }

    def to_yaml(self) -> dict[str, Any]:
        rule: dict[str, Any] = {
            "alert": self.alert,
            "expr": self.expr,
            "for": duration_or_zero(self.detector.hold_seconds),
        }
        if self.detector.keep_seconds:
            rule["keep_firing_for"] = duration_text(1000 * self.detector.keep_seconds)
        rule["labels"] = self.labels
        rule["annotations"] = {
            "summary": self.summary,
            "description": self.description,
            "runbook_url": self.runbook_url,
        }
        return rule


def place_words(settings: Settings, where: str) -> str:
    """' on <replica> rank <rank>' in the labels that identify them here."""
    if where == "fleet":
        return ""
    words = " on " + " ".join(f"{{{{ $labels.{label} }}}}" for label in settings.identity.replica)
    return words + (f" rank {{{{ $labels.{settings.identity.rank} }}}}" if where == "rank" else "")


def duration_or_zero(seconds: int) -> str:
    return duration_text(1000 * seconds) if seconds else "0s"


def alert_name(runbook_id: str, detector: str) -> str:
    """PagewatchWaitingGrowthWaitSeconds for waiting_growth and wait_seconds."""
    return PREFIX + "".join(word.capitalize() for word in f"{runbook_id}_{detector}".split("_"))


def rules(settings: Settings, dialect: str = "vllm-0.11.0") -> list[Rule]:
    """Every detector that PromQL can express, as a rule for a dialect. Raises RulesError.

    A detector whose signals the dialect does not have, or that needs a setting that is not made (desired replicas), is
    left out; `skipped` tells which and why.
    """
    return [made for _, _, made in _made(settings, dialect) if isinstance(made, Rule)]


def skipped(settings: Settings, dialect: str = "vllm-0.11.0") -> list[tuple[str, str]]:
    """Detectors that are not exported, as (runbook.detector, reason)."""
    found = [
        (f"{runbook.id}.{detector.name}", made)
        for runbook, detector, made in _made(settings, dialect)
        if isinstance(made, str)
    ]
    return found + [
        (runbook.id, "a checklist" if runbook.symptom == "change" else "no metric shows it; see its runbook.md")
        for runbook in library().values()
        if not runbook.detector
    ]


def _made(settings: Settings, dialect: str) -> Iterator[tuple[Runbook, Detector, Rule | str]]:
    names = names_for(settings, dialect)
    values = parameters(
        settings, rate_window_ms=rate_window_ms(SCRAPE_INTERVAL_SECONDS), lookback_ms=900_000, names=names
    )
    scope = (scope_matchers(settings.scope),) if settings.scope else ()
    binding = Binding(names, values, scope)
    thresholds = _overrides(settings)
    for runbook in library().values():
        for detector in runbook.detector:
            yield runbook, detector, _rule(runbook, detector, binding, settings, thresholds)


def _rule(
    runbook: Runbook, detector: Detector, binding: Binding, settings: Settings, thresholds: dict[str, float]
) -> Rule | str:
    if detector.export == "none":
        return detector.no_export_reason
    hold_seconds = settings.alerts.hold_seconds.get(f"{runbook.id}.{detector.name}", detector.hold_seconds)
    detector = detector.model_copy(update={"hold_seconds": hold_seconds})
    unset = [name for name in template_names(detector.promql) if binding.parameters.get(name) == "NaN"]
    if unset:
        return f"{unset[0]} is not configured"
    try:
        promql = resolve(detector.promql, binding)
    except TemplateError as error:
        return str(error)
    key = f"{runbook.id}.{detector.name}"
    threshold = thresholds.get(key, detector.threshold)
    operator = ">" if detector.comparison == "above" else "<"
    severity = settings.alerts.severity.get(key) or settings.alerts.severity.get(runbook.id) or detector.severity
    return Rule(
        runbook=runbook,
        detector=detector,
        alert=alert_name(runbook.id, detector.name),
        expr=f"({promql}) {operator} {threshold:g}",
        threshold=threshold,
        severity=severity,
        runbook_url=runbook_link(settings, runbook.id, detector.where),
        place=place_words(settings, detector.where),
    )


def runbook_link(settings: Settings, runbook_id: str, where: str) -> str:
    """The address of a runbook at the place of an alert, with Prometheus's own escaping of label values."""
    base = (settings.alerts.runbook_url or DEFAULT_BASE).rstrip("/")
    page = base if base.endswith("/runbook") else f"{base}/runbook"
    link = f"{page}?id={quote_plus(runbook_id)}"
    if where in ("replica", "rank"):
        labels = settings.identity.replica
        link += f"&instance={{{{ $labels.{'instance' if 'instance' in labels else labels[-1]} | urlquery }}}}"
    if where == "rank":
        link += f"&engine={{{{ $labels.{settings.identity.rank} | urlquery }}}}"
    return link


def names_for(settings: Settings, dialect: str) -> DialectNames:
    try:
        return names_of(dialect, settings.identity.rank)
    except ValueError as error:
        raise RulesError(str(error)) from None


def _overrides(settings: Settings) -> dict[str, float]:
    """Thresholds of `[alerts.thresholds.rules]` by runbook.detector, and a check of every name. Raises RulesError."""
    known = {f"{runbook.id}.{detector.name}" for runbook in library().values() for detector in runbook.detector}
    values = dict(settings.alerts.thresholds.get("rules", {}))
    for key in values:
        if key not in known:
            raise RulesError(f"alerts.thresholds.rules: no detector {key!r}; there are: {', '.join(sorted(known))}")
    for key in settings.alerts.hold_seconds:
        if key not in known:
            raise RulesError(f"alerts.hold_seconds: no detector {key!r}; there are: {', '.join(sorted(known))}")
    for key in settings.alerts.severity:
        if key not in known and key not in library():
            raise RulesError(f"alerts.severity: no detector {key!r}; there are: {', '.join(sorted(library()))}")
    return values


def rollout_gate(named: list[Rule]) -> dict[str, Any]:
    """A recording rule that is 1 while no page of ours fires and 0 otherwise: what a rollout waits for."""
    pages = f'ALERTS{{alertname=~"{PREFIX}.*",severity="page",alertstate="firing"}}'
    return {"record": "pagewatch:rollout_gate", "expr": f"1 - clamp_max(count({pages}) or vector(0), 1)"}


def rule_groups(settings: Settings, dialect: str = "vllm-0.11.0") -> list[dict[str, Any]]:
    """Rule groups, one a runbook, and the rollout gate last."""
    made = rules(settings, dialect)
    groups = []
    for runbook_id in dict.fromkeys(rule.runbook.id for rule in made):
        own = [rule.to_yaml() for rule in made if rule.runbook.id == runbook_id]
        groups.append({"name": f"pagewatch-{runbook_id.replace('_', '-')}", "rules": own})
    groups.append({"name": "pagewatch-rollout-gate", "rules": [rollout_gate(made)]})
    return groups


def rules_text(settings: Settings, *, dialect: str = "vllm-0.11.0", form: str = "plain") -> str:
    """The rules as YAML: `plain` rule file, `prometheusrule` object, or the `alertmanager` snippet. Raises RulesError."""
    if form not in FORMS:
        raise RulesError(f"no form {form!r}; there are: {', '.join(FORMS)}")
    if form == "alertmanager":
        from runbooks.routing import alertmanager_text

        return alertmanager_text(rules(settings, dialect), settings)
    groups = rule_groups(settings, dialect)
    head = f"# Made by `pagewatch rules --dialect {dialect}` from the detectors of its runbooks. Rate windows suit scrapes of 4 to 15 s.\n"
    if not settings.alerts.runbook_url:
        head += f"# runbook_url leads to {DEFAULT_BASE}, the reader's own machine: set [alerts] runbook_url to where the console is reached.\n"
    for name, reason in skipped(settings, dialect):
        head += f"# Left out: {name}: {reason}\n"
    if form == "plain":
        return head + as_yaml({"groups": groups})
    return head + as_yaml(
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": {"name": "pagewatch", "labels": {"app.kubernetes.io/name": "pagewatch"}},
            "spec": {"groups": groups},
        }
    )


def as_yaml(data: Any) -> str:
    import yaml

    return str(yaml.safe_dump(data, sort_keys=False, width=10_000, allow_unicode=True))
