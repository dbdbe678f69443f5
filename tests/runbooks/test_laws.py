"""Laws: described completely, kept in health, each broken by its own fault and by no other's."""

from __future__ import annotations

from functools import lru_cache

import pytest

from runbooks.laws import CHECKS, GRAVE, all_laws
from tests.runbooks.law_faults import FAULTS, SICK, broken_by, settings_for, twice_scraped
from tests.runbooks.queue_cases import Case, cases, diagnosed, healthy
from tests.runbooks.recorded_source import RecordedSource

CALM = healthy(cases())
ALSO_BROKEN = {
    # A fault of one counter breaks every law that compares with it.
    "buckets_cumulative": {"sum_fits_buckets"},
    "step_tokens_within_tokens": {"sum_fits_buckets"},
    "phases_add_up": {"sum_fits_buckets"},
    "phases_within_request": {"sum_fits_buckets"},
    "sum_fits_buckets": set(),
    "counter_falls_only_with_process": {
        "prompt_sum_within_prompt_tokens",
        "step_tokens_within_tokens",
        "hit_ratio_readable",
    },
    "prompt_sum_within_prompt_tokens": {"sum_fits_buckets"},
    "answer_sum_within_generated_tokens": {"sum_fits_buckets"},
    "steps_within_tokens": {"inf_bucket_is_count"},
    "buckets_not_all_equal": {"sum_fits_buckets"},
    "first_tokens_cover_finished": {"finished_equals_latency_counts"},
    "tokens_cover_first_tokens": {
        "step_tokens_within_tokens",
        "gaps_within_tokens",
        "answer_sum_within_generated_tokens",
        "steps_within_tokens",
        "work_means_progress",
    },
    "gaps_within_tokens": {"answer_sum_within_generated_tokens", "step_tokens_within_tokens"},
    "usage_zero_when_nothing_runs": {"gauges_move_with_steps"},
    "quantiles_inside_buckets": {"sum_fits_buckets"},
}


@lru_cache(maxsize=1)
def steady() -> tuple[Case, RecordedSource]:
    """A healthy case of two busy replicas."""
    if not CALM:
        pytest.skip("shared queue cases not found (set PAGEWATCH_SHARED)")
    case = next(c for c in CALM if c.name == "healthy_steady_two_replicas")
    return case, RecordedSource.read(case.path)


def broken_laws(source: RecordedSource, at: float, law: str = "") -> dict[str, set[str]]:
    """Broken law -> instances."""
    found: dict[str, set[str]] = {}
    for finding in diagnosed(source, at, settings_for(law))["laws"]:
        if finding["status"] == "broken":
            found.setdefault(finding["id"], set()).update(r["instance"] for r in finding["where"]["replicas"])
    return found


def test_every_law_has_a_check_and_every_check_a_law() -> None:
    assert set(all_laws()) == set(CHECKS)
    assert len(all_laws()) >= 25
    for law in all_laws().values():
        assert law.statement.endswith(".")
        assert law.why
        assert law.query


@pytest.mark.parametrize("law", sorted(FAULTS))
def test_a_fault_breaks_its_own_law_and_no_unrelated_one(law: str) -> None:
    case, source = steady()
    at = case.expected["at"]["late"]
    broken = broken_laws(broken_by(source, law), at, law)
    others = {SICK, "vllm-1:8000"} if law == "running_within_seats" else {SICK}
    assert broken.get(law) in ({SICK}, others)
    assert set(broken) - {law} <= ALSO_BROKEN.get(law, set())


@pytest.mark.parametrize("law", sorted(set(FAULTS) & GRAVE))
def test_a_grave_fault_is_a_verdict_about_the_metrics_and_nothing_else(law: str) -> None:
    case, source = steady()
    verdicts = diagnosed(broken_by(source, law), case.expected["at"]["late"])["verdicts"]
    likely = [v for v in verdicts if v["confidence"] == "likely"]
    assert [v["cause"] for v in likely] == ["metrics_untrustworthy"]
    assert {r["instance"] for r in likely[0]["where"]["replicas"]} == {SICK}
    assert law in " ".join(likely[0]["evidence"])


def test_a_process_scraped_twice_is_counted_once_and_said() -> None:
    case, source = steady()
    at = case.expected["at"]["late"]
    answer = diagnosed(twice_scraped(source), at)
    assert len(answer["replicas"]) == len(diagnosed(source, at)["replicas"])
    assert broken_laws(twice_scraped(source), at) == {"scraped_once": {SICK}}
    assert [v["cause"] for v in answer["verdicts"]] == ["healthy"]


def test_a_law_without_data_is_unknown_not_kept() -> None:
    case, source = steady()
    thin = RecordedSource([s for s in source.all_samples() if not s.labels["__name__"].endswith("_bucket")])
    laws = {f["id"]: f["status"] for f in diagnosed(thin, case.expected["at"]["late"])["laws"]}
    assert laws["buckets_cumulative"] == laws["inf_bucket_is_count"] == laws["sum_fits_buckets"] == "unknown"
    assert laws["running_within_seats"] == "unknown"
    assert laws["hits_within_queries"] == "kept"


def test_broken_laws_name_the_signals_they_taint() -> None:
    case, source = steady()
    findings = diagnosed(broken_by(source, "hits_within_queries"), case.expected["at"]["late"])["laws"]
    taints = next(f["taints"] for f in findings if f["id"] == "hits_within_queries" and f["status"] == "broken")
    assert {"prefix_cache_hits", "prefix_cache_queries"} <= set(taints)
