"""The exported rules say what the detectors say, in a form that Prometheus and Alertmanager accept."""

import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from collectors.settings import Settings
from runbooks.library import library
from runbooks.rule_tests import rule_tests
from runbooks.rules import RulesError, rule_groups, rules, rules_text, skipped
from tests.real_programs import program


def named(settings: Settings, name: str) -> dict[str, object]:
    return next(rule for group in rule_groups(settings) for rule in group["rules"] if rule.get("alert") == name)


def test_every_detector_is_a_rule_or_has_its_reason() -> None:
    settings = Settings()
    made = {f"{rule.runbook.id}.{rule.detector.name}" for rule in rules(settings)}
    left_out = dict(skipped(settings))
    for runbook in library().values():
        for detector in runbook.detector:
            key = f"{runbook.id}.{detector.name}"
            assert (key in made) != bool(left_out.get(key)), key
    assert left_out["replica_down.fewer_than_desired"] == "desired is not configured"
    assert not [key for key in dict(skipped(Settings(desired_replicas=3))) if "." in key]


@pytest.mark.parametrize("base", ["https://console.example/base/", "https://console.example/base/runbook"])
def test_a_rule_links_to_its_runbook_at_its_place(base: str) -> None:
    settings = Settings(alerts={"runbook_url": base})
    rule = named(settings, "PagewatchWaitingGrowthWaitSeconds")
    assert rule["annotations"]["runbook_url"] == (
        "https://console.example/base/runbook?id=waiting_growth"
        "&instance={{ $labels.instance | urlquery }}&engine={{ $labels.engine | urlquery }}"
    )
    assert rule["labels"]["severity"] == "page"
    assert rule["keep_firing_for"] == "1m"


def test_other_labels_may_make_a_replica() -> None:
    settings = Settings(identity={"replica": ["namespace", "pod"], "rank": "dp_rank"})
    rule = named(settings, "PagewatchWaitingGrowthWaitSeconds")
    assert "by (job, namespace, pod, dp_rank)" in rule["expr"]
    assert rule["annotations"]["summary"].endswith(
        " on {{ $labels.namespace }} {{ $labels.pod }} rank {{ $labels.dp_rank }}"
    )
    assert (
        "&instance={{ $labels.pod | urlquery }}&engine={{ $labels.dp_rank | urlquery }}"
        in (rule["annotations"]["runbook_url"])
    )
    config = yaml.safe_load(rules_text(settings, form="alertmanager"))
    assert config["inhibit_rules"][0]["equal"] == ["job", "namespace", "pod"]


def test_the_operator_sets_thresholds_tiers_and_scope() -> None:
    settings = Settings(
        scope={"cluster": 'a"b'},
        alerts={
            "thresholds": {"rules": {"waiting_growth.wait_seconds": 12}},
            "severity": {"waiting_growth": "ticket", "kv_pressure.usage": "ticket"},
        },
    )
    rule = named(settings, "PagewatchWaitingGrowthWaitSeconds")
    assert rule["expr"].endswith("> 12")
    assert rule["expr"].count('{cluster="a\\"b"}') == 2
    assert rule["labels"]["severity"] == "ticket"
    assert named(settings, "PagewatchKvPressureUsage")["labels"]["severity"] == "ticket"


@pytest.mark.parametrize(
    "alerts",
    [{"thresholds": {"rules": {"waiting_growth.nope": 1}}}, {"severity": {"nope": "page"}}],
)
def test_settings_for_detectors_that_do_not_exist_are_refused(alerts: dict[str, object]) -> None:
    with pytest.raises(RulesError, match="no detector"):
        rules_text(Settings(alerts=alerts))


def test_the_documented_thresholds_are_taken() -> None:
    from runbooks.thresholds import Thresholds
    from tests.shared_data import ROOT

    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    line = next(line for line in text.splitlines() if line.startswith("thresholds = "))
    settings = Settings(alerts=tomllib.loads(line))
    assert Thresholds.of(settings)("waiting_growth", "wait_over_objective") == 4
    assert named(settings, "PagewatchWaitingGrowthWaitSeconds")["expr"].endswith("> 10")


def test_unknown_dialects_and_forms_are_refused() -> None:
    with pytest.raises(RulesError, match="no dialect for engine 'nope'"):
        rules_text(Settings(), dialect="nope-1.0")
    with pytest.raises(RulesError, match="prometheusrule"):
        rules_text(Settings(), form="xml")


def test_burn_rates_follow_the_objective() -> None:
    settings = Settings(slo={"time_to_first_token": {"threshold_seconds": 1.0, "objective": 0.99}})
    expr = named(settings, "PagewatchLatencySloFirstTokenFastBurn")["expr"]
    assert 'le=~"1|1\\\\.0"' in expr
    assert "/ 0.01" in expr
    assert "[1h]" in expr
    assert "[5m]" in expr
    assert expr.endswith("> 14.4")


def test_the_prometheus_rule_object_holds_the_same_groups() -> None:
    whole = yaml.safe_load(rules_text(Settings(), form="prometheusrule"))
    assert (whole["apiVersion"], whole["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert whole["spec"]["groups"] == yaml.safe_load(rules_text(Settings()))["groups"]


def test_a_replica_that_is_down_mutes_everything_about_it() -> None:
    config = yaml.safe_load(rules_text(Settings(), form="alertmanager"))
    first = config["inhibit_rules"][0]
    assert first["source_matchers"] == ['alertname="PagewatchReplicaDownTargetDown"']
    assert first["equal"] == ["job", "instance"]
    existing = {rule.runbook.id for rule in rules(Settings())}
    for rule in config["inhibit_rules"]:
        for matcher in rule["source_matchers"] + rule["target_matchers"]:
            if matcher.startswith("runbook"):
                assert set(matcher.partition('"')[2].rstrip('"').split("|")) <= existing


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    settings = Settings(desired_replicas=3)
    (tmp_path / "rules.yaml").write_text(rules_text(settings))
    (tmp_path / "alertmanager.yaml").write_text(rules_text(settings, form="alertmanager"))
    for name, text in rule_tests(settings, "rules.yaml").items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.real
def test_promtool_accepts_the_rules_and_every_case_passes(exported: Path) -> None:
    promtool = program("promtool")
    checked = subprocess.run([promtool, "check", "rules", "rules.yaml"], cwd=exported, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    files = sorted(path.name for path in exported.glob("*.test.yaml"))
    assert {name.partition(".")[0] for name in files} == {r.id for r in library().values() if r.detector}
    tested = subprocess.run([promtool, "test", "rules", *files], cwd=exported, capture_output=True, text=True)
    assert tested.returncode == 0, tested.stdout + tested.stderr


@pytest.mark.real
def test_the_cases_can_fail(exported: Path) -> None:
    text = (exported / "rules.yaml").read_text()
    assert "> 5\n" in text
    (exported / "rules.yaml").write_text(text.replace("> 5\n", "> 500\n"))
    failed = subprocess.run(
        [program("promtool"), "test", "rules", "waiting_growth.15s.test.yaml"],
        cwd=exported,
        capture_output=True,
        text=True,
    )
    assert failed.returncode == 1
    assert "PagewatchWaitingGrowthWaitSeconds" in failed.stdout + failed.stderr


@pytest.mark.real
def test_alertmanager_accepts_the_snippet(exported: Path) -> None:
    program("prometheus-alertmanager")
    amtool = shutil.which("amtool")
    assert amtool, "amtool comes with prometheus-alertmanager"
    checked = subprocess.run(
        [amtool, "check-config", "alertmanager.yaml"], cwd=exported, capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_webhook_gives_a_token_only_where_the_api_has_one() -> None:
    """Alertmanager delivers nothing while its token file is missing, and a loopback API asks for none."""
    for settings, wanted in ((Settings(), False), (Settings(server={"api_token_env": "TOKEN"}), True)):
        text = rules_text(settings, form="alertmanager")
        receiver = next(each for each in yaml.safe_load(text)["receivers"] if each["name"] == "pagewatch")
        assert ("http_config" in receiver["webhook_configs"][0]) is wanted
        assert ("api_token_env" in text) is not wanted


def test_the_value_of_an_alert_stands_in_the_unit_of_its_limit() -> None:
    """'Now 0.364; fires above 20 %' is misread at three in the morning."""
    for rule in rules(Settings()):
        percent = "humanizePercentage" in rule.description
        assert percent is rule.description.split(";")[1].split(". ")[0].endswith("%"), rule.description


def test_rules_say_where_their_links_lead_until_the_console_has_an_address() -> None:
    assert "set [alerts] runbook_url" in rules_text(Settings())
    assert "set [alerts] runbook_url" not in rules_text(Settings(alerts={"runbook_url": "https://console.example.org"}))
