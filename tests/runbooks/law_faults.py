"""One way to break each law in an honest recording; used by the tests and by the table in docs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from collectors.model import Samples
from collectors.settings import Engine, Settings
from tests.runbooks.recorded_source import RecordedSource

Change = Callable[[Samples], Samples | tuple[Samples, ...] | None]
SICK = "vllm-0:8000"
"""The replica that is changed; the others stay honest."""


def changed(source: RecordedSource, change: Change) -> RecordedSource:
    """The recording with every series of the sick replica passed through a change; None drops the series, several take its place."""
    kept: list[Samples] = []
    for series in source.all_samples():
        after = change(series) if series.labels["instance"] == SICK else series
        several = after if isinstance(after, tuple) else (after,)
        kept += [one for one in several if one is not None and len(one.times_ms)]
    return RecordedSource(kept, source.name)


def _values(name: str, new: Callable[[Samples], np.ndarray], **labels: str) -> Change:  # type: ignore[type-arg]
    def change(series: Samples) -> Samples:
        if series.labels["__name__"] != name or any(series.labels.get(k) != v for k, v in labels.items()):
            return series
        return Samples(series.labels, series.times_ms, new(series))

    return change


def _late(series: Samples, amount: float) -> np.ndarray:  # type: ignore[type-arg]
    out = series.values.copy()
    out[len(out) // 2 :] += amount
    return out


def _no_scrapes(series: Samples) -> Samples:
    end = int(series.times_ms[-1])
    keep = (series.times_ms < end - 120_000) | (series.times_ms > end - 40_000)
    return Samples(series.labels, series.times_ms[keep], series.values[keep])


def _until(series: Samples, before_end_ms: int) -> Samples:
    keep = series.times_ms < series.times_ms[-1] - before_end_ms
    return Samples(series.labels, series.times_ms[keep], series.values[keep])


def _all_in_first_bucket(series: Samples) -> Samples:
    if series.labels["__name__"] != "vllm:time_to_first_token_seconds_bucket":
        return series if series.labels["__name__"] != "vllm:time_to_first_token_seconds_sum" else _scaled(series, 1e-3)
    return Samples(series.labels, series.times_ms, COUNTS["ttft"])


def _held(series: Samples, last_ms: int) -> Samples:
    """The series that keeps the value it had so long before its end."""
    late = series.times_ms > series.times_ms[-1] - last_ms
    return Samples(series.labels, series.times_ms, np.where(late, series.values[~late][-1], series.values))


def _second_rank_leaves(series: Samples) -> Samples | tuple[Samples, ...]:
    """Two engines behind the address, one of which is gone from the page in the last minute."""
    if series.labels.get("engine") != "0" or series.labels["__name__"] == "vllm:cache_config_info":
        return series
    other = Samples({**series.labels, "engine": "1"}, series.times_ms, series.values)
    return series, _until(other, 60_000)


COUNTS: dict[str, np.ndarray] = {}  # type: ignore[type-arg]


def _scaled(series: Samples, factor: float) -> Samples:
    return Samples(series.labels, series.times_ms, series.values * factor)


def _alternating_starts(series: Samples) -> np.ndarray:  # type: ignore[type-arg]
    return series.values + np.where(np.arange(len(series.values)) % 3 == 0, 50.0, 0.0)


FAULTS: Mapping[str, Change] = {
    "buckets_cumulative": _values("vllm:time_to_first_token_seconds_bucket", lambda s: s.values + 1e6, le="0.1"),
    "inf_bucket_is_count": _values("vllm:time_to_first_token_seconds_count", lambda s: s.values + 7),
    "sum_fits_buckets": _values("vllm:e2e_request_latency_seconds_sum", lambda s: s.values * 1000),
    "buckets_not_all_equal": _all_in_first_bucket,
    "counter_falls_only_with_process": _values(
        "vllm:prompt_tokens_total", lambda s: np.where(s.times_ms > s.times_ms[-1] - 60_000, s.values / 3, s.values)
    ),
    "process_start_moves_forward": _values("process_start_time_seconds", _alternating_starts),
    "hits_within_queries": _values("vllm:prefix_cache_hits_total", lambda s: np.arange(len(s.values)) * 1e5),
    "first_tokens_cover_finished": _values(
        "vllm:request_success_total", lambda s: s.values + 5000, finished_reason="stop"
    ),
    "finished_equals_latency_counts": _values(
        "vllm:request_success_total", lambda s: np.maximum(s.values - 90, 0), finished_reason="length"
    ),
    "tokens_cover_first_tokens": _values("vllm:generation_tokens_total", lambda s: s.values / 1000),
    "gaps_within_tokens": _values("vllm:generation_tokens_total", lambda s: s.values / 2),
    "prompt_sum_within_prompt_tokens": _values("vllm:request_prompt_tokens_sum", lambda s: s.values * 2),
    "answer_sum_within_generated_tokens": _values("vllm:request_generation_tokens_sum", lambda s: s.values * 2),
    "steps_within_tokens": _values("vllm:iteration_tokens_total_count", lambda s: s.values * 1000),
    "step_tokens_within_tokens": _values("vllm:iteration_tokens_total_sum", lambda s: s.values * 1.5),
    "phases_add_up": _values("vllm:request_decode_time_seconds_sum", lambda s: s.values * 1.2),
    "phases_within_request": _values("vllm:request_queue_time_seconds_sum", lambda s: s.values + 4000),
    "usage_is_a_ratio": _values("vllm:kv_cache_usage_perc", lambda s: s.values * 100),
    "gauges_not_negative": _values("vllm:num_requests_waiting", lambda s: s.values - 1),
    "running_within_seats": lambda series: series,
    "usage_zero_when_nothing_runs": lambda series: (
        Samples(series.labels, series.times_ms, series.values * 0 + 0.4)
        if series.labels["__name__"] == "vllm:kv_cache_usage_perc"
        else _values("vllm:num_requests_running", lambda s: s.values * 0)(series)
    ),
    "always_exported_is_there": lambda series: (
        _until(series, 60_000) if series.labels["__name__"] == "vllm:num_requests_waiting" else series
    ),
    "gauges_move_with_steps": lambda series: (
        _held(series, 240_000) if series.labels["__name__"] == "vllm:num_requests_running" else series
    ),
    "work_means_progress": lambda series: (
        _held(series, 90_000) if series.labels["__name__"].startswith(("vllm:", "http_")) else series
    ),
    "tokens_lead_to_finishes": _values("vllm:request_success_total", lambda s: s.values * 0 + s.values[0]),
    "hit_ratio_readable": _values("vllm:prefix_cache_queries_total", lambda s: s.values * 5),
    "ranks_stay": _second_rank_leaves,
    "scraped_once": lambda series: (
        series,
        Samples({**series.labels, "job": "vllm-too"}, series.times_ms + 700, series.values),
    ),
    "scraped_without_gaps": _no_scrapes,
    "clocks_agree": _values("process_start_time_seconds", lambda s: s.values + 1e6),
    "counters_born_at_zero": lambda series: (
        (series, Samples({**series.labels, "status": "4xx"}, series.times_ms[-30:], 400.0 + np.zeros(30)))
        if series.labels["__name__"] == "http_requests_total"
        else series
    ),
    "quantiles_inside_buckets": lambda series: (
        _scaled(series, 0.2)
        if series.labels["__name__"] == "vllm:time_to_first_token_seconds_bucket" and series.labels["le"] != "+Inf"
        else series
    ),
}
"""Law id -> the change of a healthy recording that breaks it."""
UNDER_SEATS = Settings(engine=Engine(seats=1))


def broken_by(source: RecordedSource, law: str) -> RecordedSource:
    """The recording with the fault of a law."""
    for series in source.all_samples():
        if series.labels["__name__"] == "vllm:time_to_first_token_seconds_count" and series.labels["instance"] == SICK:
            COUNTS["ttft"] = series.values
    return changed(source, FAULTS[law])


def settings_for(law: str) -> Settings:
    """Settings under which the law can be judged."""
    return UNDER_SEATS if law == "running_within_seats" else Settings()


def twice_scraped(source: RecordedSource) -> RecordedSource:
    """The same recording with the sick replica scraped by a second job too."""
    twins = [
        Samples({**s.labels, "job": "vllm-too"}, s.times_ms + 700, s.values)
        for s in source.all_samples()
        if s.labels["instance"] == SICK
    ]
    return RecordedSource([*source.all_samples(), *twins], source.name)
