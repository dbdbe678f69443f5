"""Laws between counters of one process: what must never exceed what, compared in the newest scrapes.

/metrics is not written atomically, so a relation counts as broken only when it is in several scrapes in a row, by more
than a step's worth.
"""

from __future__ import annotations

import numpy as np

from collectors.model import Floats
from collectors.observed import Rank
from runbooks.laws.model import KEPT, Check, Outcome, Subject, unknown

FALLS_REMEMBERED_MS = 120_000
"""Two registries that answer in turn show a fall within a few scrapes; a single fall is told for two minutes."""


def _values(rank: Rank, signal: str) -> Floats | None:
    counter = rank.counter(signal)
    return counter.values if counter is not None else None


def _sums(rank: Rank, signal: str) -> Floats | None:
    histogram = rank.histograms.get(signal)
    return histogram.sum.values if histogram is not None else None


def _newest(subject: Subject, *columns: Floats | None) -> list[Floats] | None:
    """The newest scrapes in which all columns have values; None when there are too few or a column is missing."""
    present = [c for c in columns if c is not None]
    assert subject.rank is not None
    if len(present) != len(columns):
        return None
    end = subject.rank.at(subject.at_ms) + 1
    if end >= subject.scrapes:
        newest = [c[end - subject.scrapes : end] for c in present]
        total = sum([sum(column.tolist()) for column in newest])
        if total == total:  # nothing is missing, or something infinite is dealt with below
            return newest
    whole = np.flatnonzero(~np.isnan(np.stack([c[:end] for c in present])).any(axis=0))[-subject.scrapes :]
    return [c[whole] for c in present] if len(whole) == subject.scrapes else None


def _at_most(subject: Subject, low: Floats | None, high: Floats | None, low_name: str, high_name: str) -> Outcome:
    rows = _newest(subject, low, high)
    if rows is None:
        return unknown(f"{low_name} or {high_name} is not there")
    less, more = rows
    requests = subject.limits("metrics_untrustworthy", "slack_requests")
    ratio = subject.limits("metrics_untrustworthy", "slack_ratio")
    if all(
        low > high + max(requests, ratio * abs(high) * 0.1)
        for low, high in zip(less.tolist(), more.tolist(), strict=True)
    ):
        return Outcome("broken", f"{low_name} {less[-1]:,.0f} exceed {high_name} {more[-1]:,.0f}")
    return KEPT


def hits_within_queries(subject: Subject) -> Outcome:
    """By their increases in the newest minutes: cumulative values hide a young fault and remember an old one."""
    rank, reading = subject.rank, subject.reading
    assert rank is not None
    assert reading is not None
    hits, queries = rank.counter("prefix_cache_hits"), rank.counter("prefix_cache_queries")
    if hits is None or queries is None:
        return unknown("no prefix cache counters")
    start, end = reading.last_ms(2 * reading.pace.recent_ms)
    hit, asked = hits.increase(start, end), queries.increase(start, end)
    if hit != hit or asked != asked:
        return unknown("fewer than two scrapes")
    block = rank.cache.block_size_tokens or 16
    if hit > asked + block:
        return Outcome("broken", f"{hit:,.0f} tokens hit of {asked:,.0f} looked up in {(end - start) / 1000:.0f} s")
    return KEPT


def first_tokens_cover_finished(subject: Subject) -> Outcome:
    assert subject.rank is not None
    first = _values(subject.rank, "time_to_first_token")
    if first is not None and not np.nansum(first) > 0:
        return unknown("no first token in this process (a pooling model has none)")
    return _at_most(subject, _values(subject.rank, "requests_finished"), first, "finished requests", "first tokens")


def finished_equals_latency_counts(subject: Subject) -> Outcome:
    rank = subject.rank
    assert rank is not None
    finished = _values(rank, "requests_finished")
    broken, seen = [], 0
    for signal in (
        "e2e_request_latency",
        "request_queue_time",
        "request_prefill_time",
        "request_decode_time",
        "request_inference_time",
    ):
        rows = _newest(subject, finished, _values(rank, signal))
        if rows is None:
            continue
        seen += 1
        slack = max(
            subject.limits("metrics_untrustworthy", "slack_requests"),
            subject.limits("metrics_untrustworthy", "slack_ratio") * 0.1 * float(rows[0][-1]),
        )
        if (np.abs(rows[0] - rows[1]) > slack).all():
            broken.append((signal, f"{rows[1][-1]:,.0f} of {signal} for {rows[0][-1]:,.0f} finished"))
    if broken:
        return Outcome("broken", "; ".join(words for _, words in broken), tuple(signal for signal, _ in broken))
    return KEPT if seen else unknown("no counters to compare")


def tokens_cover_first_tokens(subject: Subject) -> Outcome:
    assert subject.rank is not None
    return _at_most(
        subject,
        _values(subject.rank, "time_to_first_token"),
        _values(subject.rank, "generation_tokens"),
        "first tokens",
        "generated tokens",
    )


def gaps_within_tokens(subject: Subject) -> Outcome:
    rank = subject.rank
    assert rank is not None
    first, gaps = _values(rank, "time_to_first_token"), _values(rank, "inter_token_latency")
    both = first + gaps if first is not None and gaps is not None else None
    return _at_most(subject, both, _values(rank, "generation_tokens"), "first tokens and gaps", "generated tokens")


def prompt_sum_within_prompt_tokens(subject: Subject) -> Outcome:
    rank = subject.rank
    assert rank is not None
    return _at_most(
        subject,
        _sums(rank, "request_prompt_tokens"),
        _values(rank, "prompt_tokens"),
        "finished prompts",
        "prompt tokens",
    )


def answer_sum_within_generated_tokens(subject: Subject) -> Outcome:
    rank = subject.rank
    assert rank is not None
    return _at_most(
        subject,
        _sums(rank, "request_generation_tokens"),
        _values(rank, "generation_tokens"),
        "finished answers",
        "generated tokens",
    )


def steps_within_tokens(subject: Subject) -> Outcome:
    rank = subject.rank
    assert rank is not None
    return _at_most(
        subject,
        _values(rank, "iteration_tokens"),
        _values(rank, "generation_tokens"),
        "counted steps",
        "generated tokens",
    )


def step_tokens_within_tokens(subject: Subject) -> Outcome:
    rank = subject.rank
    assert rank is not None
    prompt, generated = _values(rank, "prompt_tokens"), _values(rank, "generation_tokens")
    both = prompt + generated if prompt is not None and generated is not None else None
    return _at_most(subject, _sums(rank, "iteration_tokens"), both, "tokens of steps", "prompt and generated tokens")


def _within_seconds(subject: Subject, rows: list[Floats] | None, exact: bool) -> Outcome:
    """The last of the rows against the sum of the others, with a second or two per cent of slack."""
    if rows is None:
        return unknown("a phase is missing")
    whole, parts = rows[-1], np.sum(rows[:-1], axis=0)
    slack = np.maximum(
        1.0, subject.limits("metrics_untrustworthy", "slack_ratio") * np.maximum(np.abs(whole), np.abs(parts))
    )
    excess = np.abs(parts - whole) if exact else parts - whole
    if (excess > slack).all():
        return Outcome("broken", f"the parts take {parts[-1]:,.1f} s, the whole {whole[-1]:,.1f} s")
    return KEPT


def phases_add_up(subject: Subject) -> Outcome:
    rank = subject.rank
    assert rank is not None
    rows = _newest(subject, *(_sums(rank, f"request_{phase}_time") for phase in ("prefill", "decode", "inference")))
    return _within_seconds(subject, rows, exact=True)


def phases_within_request(subject: Subject) -> Outcome:
    rank = subject.rank
    assert rank is not None
    names = ("request_queue_time", "request_inference_time", "e2e_request_latency")
    return _within_seconds(subject, _newest(subject, *(_sums(rank, name) for name in names)), exact=False)


def counter_falls_only_with_process(subject: Subject) -> Outcome:
    """A fall counts as a restart's when the start time moved between the scrapes around it."""
    rank, reading = subject.rank, subject.reading
    assert rank is not None
    assert reading is not None
    if np.isnan(subject.replica.process_start_seconds).all():
        return unknown("process_start_time_seconds is not exported (several API servers)")
    window_ms = max(4 * reading.pace.recent_ms, FALLS_REMEMBERED_MS)
    excused = set(subject.replica.restarts_ms) if not subject.replica.start_times_alternate else set()
    falls: dict[int, list[str]] = {}
    for signal in rank.counters.keys() | rank.histograms.keys():
        counter = rank.counter(signal)
        for t in counter.drops_ms if counter is not None else ():
            if reading.seen_ms - window_ms < t <= reading.seen_ms and not any(
                0 <= t - r <= subject.interval_ms for r in excused
            ):
                falls.setdefault(t, []).append(signal)
    if not falls:
        return KEPT
    newest = max(falls)
    names = ", ".join(sorted(falls[newest])[:3])
    return Outcome(
        "broken",
        f"counters fell at {len(falls)} scrapes (last: {names}, {(subject.at_ms - newest) / 1000:.0f} s ago) without a restart",
        tuple(sorted({signal for signals in falls.values() for signal in signals})),
    )


CHECKS: dict[str, Check] = {
    "hits_within_queries": hits_within_queries,
    "first_tokens_cover_finished": first_tokens_cover_finished,
    "finished_equals_latency_counts": finished_equals_latency_counts,
    "tokens_cover_first_tokens": tokens_cover_first_tokens,
    "gaps_within_tokens": gaps_within_tokens,
    "prompt_sum_within_prompt_tokens": prompt_sum_within_prompt_tokens,
    "answer_sum_within_generated_tokens": answer_sum_within_generated_tokens,
    "steps_within_tokens": steps_within_tokens,
    "step_tokens_within_tokens": step_tokens_within_tokens,
    "phases_add_up": phases_add_up,
    "phases_within_request": phases_within_request,
    "counter_falls_only_with_process": counter_falls_only_with_process,
}
