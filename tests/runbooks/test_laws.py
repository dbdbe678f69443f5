"""Laws: described completely, kept in health, each broken by its own fault and by no other's."""

from __future__ import annotations

from functools import lru_cache

import pytest

from collectors.model import Samples
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
    "tokens_lead_to_finishes": {"finished_equals_latency_counts"},
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


def test_every_law_has_a_check_and_every_check_a_law_and_a_fault() -> None:
    assert set(all_laws()) == set(FAULTS)
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


def only(law: str, source: RecordedSource, at: float) -> dict[str, str]:
    """instance -> status of one law (the worst of its ranks)."""
    order = ("kept", "unknown", "broken")
    found: dict[str, str] = {}
    for finding in diagnosed(source, at)["laws"]:
        if finding["id"] == law:
            for replica in finding["where"]["replicas"]:
                worst = max(found.get(replica["instance"], "kept"), finding["status"], key=order.index)
                found[replica["instance"]] = worst
    return found


def without(source: RecordedSource, name: str, instances: set[str], *, last_seconds: float = 1e9) -> RecordedSource:
    """The recording in which some targets do not export a name, for the last part of it or all along."""
    kept = []
    for series in source.all_samples():
        if series.labels["__name__"].startswith(name) and series.labels["instance"] in instances:
            keep = series.times_ms < series.times_ms[-1] - last_seconds * 1000
            series = Samples(series.labels, series.times_ms[keep], series.values[keep])
        if len(series.times_ms):
            kept.append(series)
    return RecordedSource(kept, source.name)


@pytest.mark.parametrize(
    "name",
    ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "vllm:generation_tokens_total",
     "vllm:time_to_first_token_seconds", "vllm:prefix_cache_hits_total", "vllm:request_queue_time_seconds",
     "vllm:iteration_tokens_total"],
)  # fmt: skip
def test_a_signal_that_one_target_does_not_show_is_missing_there(name: str) -> None:
    """Gone in mid-flight, or never there while another target of the job shows it."""
    case, source = steady()
    at = case.expected["at"]["late"]
    for seconds in (90.0, 1e9):
        found = only("always_exported_is_there", without(source, name, {SICK}, last_seconds=seconds), at)
        # the prefix cache counters are in no V0 version: without them the version could be older, unless it showed them before
        older = name.startswith("vllm:prefix_cache") and seconds > 1e6
        assert found == {SICK: "kept" if older else "broken", "vllm-1:8000": "kept"}


def test_what_no_target_of_the_job_ever_shows_is_not_scraped_and_no_break() -> None:
    case, source = steady()
    everyone = {SICK, "vllm-1:8000"}
    lean = without(
        without(source, "vllm:request_queue_time_seconds", everyone), "vllm:iteration_tokens_total", everyone
    )
    assert only("always_exported_is_there", lean, case.expected["at"]["late"]) == dict.fromkeys(everyone, "unknown")


def test_two_jobs_with_different_keep_lists_are_each_held_to_their_own() -> None:
    case, source = steady()
    lean = without(source, "vllm:request_queue_time_seconds", {SICK})
    jobs = [
        Samples({**s.labels, "job": "lean"}, s.times_ms, s.values) if s.labels["instance"] == SICK else s
        for s in lean.all_samples()
    ]
    found = only("always_exported_is_there", RecordedSource(jobs), case.expected["at"]["late"])
    assert found == {SICK: "unknown", "vllm-1:8000": "kept"}


def test_a_counter_born_with_the_first_scrapes_of_a_recording_is_no_break() -> None:
    """Scrapes that begin just before a process's first request: its series appear one scrape later, full."""
    case, source = steady()
    late = case.expected["at"]["late"]
    kept = []
    for series in source.all_samples():
        if series.labels["__name__"] == "http_requests_total":
            series = Samples(series.labels, series.times_ms[2:], series.values[2:])
        kept.append(series)
    found = only("counters_born_at_zero", RecordedSource(kept), late - 0.0)
    assert set(found.values()) == {"kept"}
