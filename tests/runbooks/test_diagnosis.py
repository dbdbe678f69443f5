"""The diagnosis as a whole: its JSON, how suspicions are weighed, several incidents at once, settings, cost."""

from __future__ import annotations

import itertools
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from collectors.settings import Alerts, Engine, Settings, SettingsError
from runbooks.anomalies import SYMPTOM_OF
from runbooks.diagnosis import diagnose
from runbooks.thresholds import Pace, Thresholds
from runbooks.verdicts import CAUSES, RUNBOOK_OF_CAUSE
from runbooks.weighing import PRIORITY
from tests.runbooks.queue_cases import Case, cases, diagnosed, moved, thinned
from tests.runbooks.recorded_source import RecordedSource

CASES = {case.name: case for case in cases()}
needs_cases = pytest.mark.skipif(not CASES, reason="shared queue cases not found (set PAGEWATCH_SHARED)")


@lru_cache(maxsize=24)
def source_of(path: Path) -> RecordedSource:
    return RecordedSource.read(path)


def instances(source: RecordedSource) -> list[str]:
    return sorted({s.labels["instance"] for s in source.all_samples()})


def lone_incidents() -> list[Case]:
    """Cases of one replica with an incident and an instant in it."""
    found = []
    for case in CASES.values():
        flags = case.expected["incidents"]
        if flags and "during" in case.expected["at"] and len(instances(source_of(case.path))) == 1:
            found.append(case)
    return found


def test_every_cause_has_a_runbook_and_a_rank() -> None:
    assert set(RUNBOOK_OF_CAUSE) == set(CAUSES)
    assert set(PRIORITY) == set(CAUSES) - {"healthy"}


@needs_cases
def test_the_answer_has_the_documented_shape() -> None:
    case = CASES["seat_limited_16"]
    answer = diagnosed(source_of(case.path), case.expected["at"]["during"])
    assert json.loads(json.dumps(answer)) == answer
    assert answer["schema"] == 1
    assert set(answer) >= {"schema", "at", "source", "replicas", "laws", "anomalies", "verdicts"}
    assert set(answer["replicas"][0]) >= {"instance", "engine", "state", "since"}
    assert set(answer["laws"][0]) >= {"id", "status", "where", "evidence"}
    assert set(answer["anomalies"][0]) >= {"id", "severity", "since", "where", "runbook"}
    verdict = answer["verdicts"][0]
    assert set(verdict) >= {
        "cause", "confidence", "where", "evidence", "aggravated_by", "runner_up", "separating_check", "cannot_know", "runbook",
    }  # fmt: skip
    assert verdict["where"] == {"scope": "replica", "replicas": [{"instance": "vllm-0:8000", "engine": "0"}]}
    assert any(character.isdigit() for character in verdict["evidence"][0])


@needs_cases
def test_health_is_a_single_verdict() -> None:
    case = CASES["healthy_steady_two_replicas"]
    answer = diagnosed(source_of(case.path), case.expected["at"]["late"])
    assert [(v["cause"], v["confidence"]) for v in answer["verdicts"]] == [("healthy", "likely")]
    assert answer["anomalies"] == []
    assert {r["state"] for r in answer["replicas"]} == {"serving"}


@needs_cases
def test_two_incidents_on_two_replicas_are_both_named() -> None:
    wrong = []
    for one, other in itertools.islice(itertools.combinations(lone_incidents(), 2), 0, None, 9):
        first, second = source_of(one.path), source_of(other.path)
        at = one.expected["at"]["during"]
        shift = round((at - other.expected["at"]["during"]) * 1000)
        beside = moved(second, {instances(second)[0]: "beside:8000"}, shift)
        both = RecordedSource([*first.all_samples(), *beside.all_samples()], "both")
        verdicts = diagnosed(both, at)["verdicts"]
        for case, instance in ((one, instances(first)[0]), (other, "beside:8000")):
            right = {case.incidents[0]["cause"], *case.incidents[0].get("accept", ())}
            if not any(
                v["cause"] in right and instance in {r["instance"] for r in v["where"]["replicas"]} for v in verdicts
            ):
                wrong.append((one.name, other.name, case.name, [v["cause"] for v in verdicts]))
    assert wrong == []


@needs_cases
def test_a_symptom_is_listed_under_its_cause_not_beside_it() -> None:
    case = CASES["kv_preemption_thrash"]
    answer = diagnosed(source_of(case.path), case.expected["at"]["during"])
    assert [v["cause"] for v in answer["verdicts"]] == ["kv_limited"]
    assert answer["verdicts"][0]["aggravated_by"] == ["preemption_thrash"]
    assert {a["id"] for a in answer["anomalies"]} >= {"kv_pressure", "waiting_growth", "preemption"}


@needs_cases
def test_the_states_tell_stalled_stale_and_down_apart() -> None:
    def state(name: str, label: str = "during") -> str:
        case = CASES[name]
        answer = diagnosed(source_of(case.path), case.expected["at"][label])
        return next(str(r["state"]) for r in answer["replicas"] if r["instance"] == "vllm-0:8000")

    assert state("stalled_frozen_busy") == "stalled"
    assert state("stalled_livelock") == "stalled"
    assert state("stale_gauges_after_abort") == "stale"
    assert state("replica_down_for_good") == "down"
    assert state("metrics_missing_log_stats_off") == "unknown"
    assert state("healthy_idle_night", "middle") == "idle"
    assert state("healthy_prefill_only", "middle") == "prefill_only"
    assert state("healthy_long_answers", "middle") == "serving"


@needs_cases
def test_server_flags_and_ground_truth_are_out_of_reach() -> None:
    """The observation holds nothing but scraped series: the same samples under another name judge the same."""
    case = CASES["overload_fleet"]
    source, at = source_of(case.path), case.expected["at"]["during"]
    nameless = RecordedSource(source.all_samples(), "")
    assert {**diagnosed(nameless, at), "source": ""} == {**diagnosed(source, at), "source": ""}


@needs_cases
def test_configured_seats_replace_the_highest_value_seen() -> None:
    case = CASES["seat_limited_16"]
    answer = diagnosed(source_of(case.path), case.expected["at"]["during"], Settings(engine=Engine(seats=16)))
    assert "16 (configured)" in " ".join(answer["verdicts"][0]["evidence"])
    assert answer["verdicts"][0]["cannot_know"] == []


@needs_cases
def test_a_configured_budget_is_compared_with_the_tokens_per_step() -> None:
    case = CASES["prefill_limited_budget_512"]
    for budget, cause in ((512, "prefill_limited"), (100_000, "overload")):
        answer = diagnosed(
            source_of(case.path), case.expected["at"]["during"], Settings(engine=Engine(token_budget=budget))
        )
        causes = {v["cause"] for v in answer["verdicts"]}
        assert (cause == "prefill_limited") == ("prefill_limited" in causes)


@needs_cases
@pytest.mark.parametrize("keep_every", [1, 2, 6, 12])
def test_a_window_longer_than_the_data_and_an_instant_past_it_work(keep_every: int) -> None:
    case = CASES["healthy_low_traffic"]
    source = source_of(case.path)
    slower = thinned(source, keep_every) if keep_every > 1 else source
    start, end = (t / 1000 for t in slower.extent_ms() or (0, 0))
    for at in (start + 1, start + 20, end, end + 30 * keep_every):
        assert [v["cause"] for v in diagnosed(slower, at)["verdicts"]] in (["healthy"], ["metrics_missing"])
    (late,) = diagnosed(slower, end + 4000)["verdicts"]
    assert (late["cause"], late["confidence"]) == ("metrics_missing", "undetermined")


def test_an_empty_source_is_said_to_be_empty() -> None:
    answer = diagnose(RecordedSource([]), 1_700_000_000_000, Settings()).to_json()
    assert [(v["cause"], v["confidence"]) for v in answer["verdicts"]] == [("metrics_missing", "undetermined")]
    assert answer["replicas"] == []
    assert answer["verdicts"][0]["where"] == {"scope": "fleet", "replicas": []}
    assert "the instant lies inside the data" in answer["verdicts"][0]["separating_check"]


def test_the_text_of_an_empty_source_says_where_and_what_to_check() -> None:
    text = diagnose(RecordedSource([]), 1_700_000_000_000, Settings()).to_text()
    assert "on the fleet" in text
    assert "to be sure: check whether the instant lies inside the data" in text


def test_thresholds_can_be_overridden_and_a_wrong_name_is_refused() -> None:
    changed = Thresholds.of(Settings(alerts=Alerts(thresholds={"sequence_hog": {"no_admission_seconds": 90}})))
    assert changed("sequence_hog", "no_admission_seconds") == 90
    with pytest.raises(SettingsError, match=r"sequence_hog: no threshold 'nope'; there are: no_admission"):
        Thresholds.of(Settings(alerts=Alerts(thresholds={"sequence_hog": {"nope": 1}})))


@pytest.mark.parametrize(("interval_ms", "recent_ms", "hold_ms"), [(2000, 30_000, 25_000), (60_000, 240_000, 180_000)])
def test_now_and_hold_follow_the_scrape_interval(interval_ms: int, recent_ms: int, hold_ms: int) -> None:
    pace = Pace.of(Thresholds.of(Settings()), interval_ms)
    assert (pace.recent_ms, pace.hold_ms) == (recent_ms, hold_ms)


@needs_cases
def test_text_names_cause_place_evidence_and_next_step() -> None:
    case = CASES["rank_imbalance_dp4"]
    source: Any = source_of(case.path)
    text = diagnose(source, round(case.expected["at"]["during"] * 1000), Settings()).to_text()
    assert "rank_imbalance (likely) on vllm-0:8000 rank 2" in text
    assert "next: pagewatch walk imbalance" in text


@needs_cases
def test_every_anomaly_says_since_when_and_latency_stands_under_its_cause() -> None:
    """A metric that lies has no onset: only its law knows what it compares."""
    late = 0
    for case in CASES.values():
        for label, at, _ in case.instants():
            answer = diagnosed(source_of(case.path), at)
            for anomaly in answer["anomalies"]:
                if anomaly["runbook"] != "metrics_untrustworthy":
                    assert anomaly["since"] is not None, f"{case.name} {label}: {anomaly}"
                    assert anomaly["since"] <= answer["at"]
                if anomaly["id"] == "latency_slo":
                    late += 1
                    slowing = [v for v in answer["verdicts"] if v["cause"] in SYMPTOM_OF["latency_slo"]]
                    assert not slowing or anomaly["cause"], f"{case.name} {label}: {anomaly}"
    assert late
