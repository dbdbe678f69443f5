"""The runbooks that ship are whole: every anomaly has one, every detector is proven, every query parses."""

import promql_parser
import pytest

from collectors.settings import Settings
from runbooks.anomalies import PAGES
from runbooks.cases import read_cases
from runbooks.library import FOLDER, library, load, runbook_ids
from runbooks.naming import default_names, parameters
from runbooks.runbook import Query, Runbook, RunbookError
from runbooks.template import Binding, resolve
from runbooks.verdicts import CAUSES, RUNBOOK_OF_CAUSE

PROMISED = {
    "waiting_growth", "kv_pressure", "preemption", "engine_stalled", "out_of_memory_start", "out_of_memory_run",
    "admission_failure", "engine_slow", "cold_prefix_cache", "imbalance", "sequence_hog", "unadmittable_head",
    "client_aborts", "auth_abuse", "replica_down", "replica_restarted", "metrics_missing", "metrics_untrustworthy",
    "latency_slo", "upgrade_rehearsal", "launch", "load_test_contract",
}  # fmt: skip
NAMES = default_names()
SETTINGS = Settings(desired_replicas=3)
BINDING = Binding(
    NAMES,
    parameters(SETTINGS, rate_window_ms=60_000, lookback_ms=900_000, names=NAMES),
    ('instance="a:8000"',),
    ('engine="0"',),
)


def every(runbook: Runbook) -> list[Query]:
    return [n for step in runbook.steps for n in step.number] + [n for v in runbook.verify for n in v.number]


def test_every_promised_runbook_is_there() -> None:
    assert set(runbook_ids()) == PROMISED == set(library())


def test_every_anomaly_and_cause_opens_a_runbook_of_its_own() -> None:
    assert set(runbook_ids()) >= PAGES
    for cause, runbook in RUNBOOK_OF_CAUSE.items():
        if cause != "healthy":
            assert cause in {outcome.cause for outcome in load(runbook).outcome}, (cause, runbook)


@pytest.mark.parametrize("runbook", library().values(), ids=lambda runbook: runbook.id)
def test_every_query_is_promql_that_keeps_to_its_place(runbook: Runbook) -> None:
    for query in every(runbook):
        if query.promql:
            promql = resolve(query.promql, BINDING)
            promql_parser.parse(promql)
            assert "$" not in promql
            assert 'instance="a:8000"' in promql  # BINDING is what the narrowest place gives
    for detector in runbook.detector:
        promql_parser.parse(resolve(detector.promql, BINDING))


@pytest.mark.parametrize("runbook", library().values(), ids=lambda runbook: runbook.id)
def test_texts_are_there_and_every_step_can_be_reached(runbook: Runbook) -> None:
    assert "**Meaning.**" in runbook.prose
    assert "**Impact.**" in runbook.prose
    assert runbook.prose.startswith("# ")
    reached = {runbook.steps[0].id}
    outcomes = set()
    for step in runbook.steps:
        assert step.id in reached, f"{runbook.id}: nothing leads to {step.id}"
        for target in step.next.model_dump().values():
            kind, _, name = target.partition(":")
            if kind == "outcome":
                outcomes.add(name)
            reached.add(target)
    causes = {runbook.outcome_of(name).cause for name in outcomes}
    for outcome in runbook.outcome:  # a leaf nothing leads to is there for what the diagnosis may say instead
        assert outcome.id in outcomes or outcome.cause not in causes, f"{runbook.id}: nothing leads to {outcome.id}"
        assert outcome.cause is None or outcome.cause in CAUSES
    for outcome in runbook.outcome:
        if outcome.runbook is not None:
            load(outcome.runbook)


@pytest.mark.parametrize("runbook", library().values(), ids=lambda runbook: runbook.id)
def test_every_detector_has_a_case_that_fires_and_one_that_does_not(runbook: Runbook) -> None:
    cases = read_cases(FOLDER / runbook.id, runbook)
    for detector in runbook.detector:
        seen = [each for case in cases if case.detector == detector.name for each in case.expect]
        assert any(each.firing for each in seen), f"{runbook.id}.{detector.name} never fires in a case"
        assert any(not each.firing for each in seen), f"{runbook.id}.{detector.name} is never silent in a case"


def test_no_runbook_advises_what_v1_does_not_have() -> None:
    for runbook in library().values():
        advice = " ".join(outcome.change for outcome in runbook.outcome)
        assert "swap" not in advice, runbook.id
        assert "longest prompt" not in advice, runbook.id


def test_an_unknown_runbook_is_one_line_with_the_known_ones() -> None:
    for wrong in ("nope", "../../etc/passwd", "x" * 10_000, "<b>", "a\nb", ""):
        with pytest.raises(RunbookError) as caught:
            load(wrong)
        assert "waiting_growth" in str(caught.value)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 1000
