"""promtool test files made from the cases of the runbooks: what is shipped is proven on the real evaluator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote_plus

from collectors.settings import Settings
from runbooks.cases import Case, Expectation, read_cases
from runbooks.library import FOLDER, library
from runbooks.naming import DialectNames
from runbooks.rules import NUMBER, PERCENT, Rule, as_yaml, names_for, rules


def rule_tests(settings: Settings, rule_file: str, dialect: str = "vllm-0.11.0") -> dict[str, str]:
    """promtool test files by file name, made from the cases; `rule_file` is what they load.

    One file per runbook and sample interval, evaluated at that interval: more often than samples come proves nothing.
    """
    by_name = {(rule.runbook.id, rule.detector.name): rule for rule in rules(settings, dialect)}
    names = names_for(settings, dialect)
    tests: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for runbook in library().values():
        for case in read_cases(FOLDER / runbook.id, runbook):
            if (runbook.id, case.detector) in by_name:
                test = _test(case, by_name[runbook.id, case.detector], names)
                tests.setdefault((runbook.id, case.interval), []).append(test)
    return {
        f"{runbook_id}.{interval}.test.yaml": as_yaml(
            {"rule_files": [rule_file], "evaluation_interval": interval, "tests": made}
        )
        for (runbook_id, interval), made in tests.items()
    }


def _test(case: Case, rule: Rule, names: DialectNames) -> dict[str, Any]:
    series = []
    for each in case.series:
        labels = ",".join(f'{label}="{value}"' for label, value in each.labels.items())
        series.append({"series": f"{names[each.signal].metric}{{{labels}}}", "values": each.values})
    return {
        "name": case.name,
        "interval": case.interval,
        "input_series": series,
        "alert_rule_test": [
            {"eval_time": each.at, "alertname": rule.alert, "exp_alerts": list(_expected(each, rule))}
            for each in case.expect
        ],
    }


def _expected(each: Expectation, rule: Rule) -> Iterator[dict[str, Any]]:
    for labels in each.firing:
        made = rule.to_yaml()["annotations"]
        yield {
            "exp_labels": {**labels, **rule.labels},
            "exp_annotations": {name: _filled(text, labels, each.value or 0.0) for name, text in made.items()},
        }


def _filled(text: str, labels: dict[str, str], value: float) -> str:
    """A template of ours as Prometheus fills it in (labels, url-escaped labels, the value)."""
    text = text.replace(NUMBER, f"{value:.3g}").replace(PERCENT, f"{value * 100:.4g}%")
    for label, content in labels.items():
        text = text.replace(f"{{{{ $labels.{label} | urlquery }}}}", quote_plus(content))
        text = text.replace(f"{{{{ $labels.{label} }}}}", content)
    return text
