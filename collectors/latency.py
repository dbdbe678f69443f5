"""The Latency page's data: where the time goes, and for whom - quantile intervals, a heat map, replicas against the fleet, then and now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from collectors.asking import Answers, Question
from collectors.dialect import UnknownSignal
from collectors.discovery import discover
from collectors.figures import FigureStatus, Line, Panel
from collectors.fleet import ends_on_step, looked_back_ms
from collectors.flow import duration_words
from collectors.histograms import (
    QUANTILES,
    MergedHistogram,
    merged_histogram,
    missing_status,
)
from collectors.instants import format_instant
from collectors.latency_picture import Earlier, HeatMap, LatencyPicture
from collectors.latency_ranking import ranking, whole_figures
from collectors.model import Floats, Window
from collectors.quantiles import bucket_rates, bucket_rows
from collectors.settings import Objective, Settings
from collectors.signals import SIGNAL, Part, Plan, duration_text, panel_window_ms, rate_window_ms
from collectors.source import Source

SIGNALS = (
    "time_to_first_token",
    "inter_token_latency",
    "request_queue_time",
    "request_prefill_time",
    "request_decode_time",
    "e2e_request_latency",
)
PHASES = {
    "request_queue_time": "queue",
    "request_prefill_time": "prefill",
    "request_decode_time": "decode",
    "e2e_request_latency": "end to end",
}
WHERE_NOTE = (
    "Means per finished request. Queue, prefill and decode run on the engine's clock and add up to its time; end to end runs on the API "
    "server's and is longer by input processing, transport and queueing in front of the engine. Aborted requests are in none of them."
)
HOUR_MS, DAY_MS, WEEK_MS = 3_600_000, 86_400_000, 604_800_000
LONGEST_COUNTED_MS = HOUR_MS
"""Up to here every replica is counted over the whole window in one instant query; over a longer window replicas are compared for
this much, and the fleet's counts are added up from the panel's rates."""


def latency_picture(
    source: Source,
    window: Window,
    settings: Settings,
    chosen: str = "time_to_first_token",
    earlier_ms: Sequence[int] = (HOUR_MS, DAY_MS, WEEK_MS),
) -> LatencyPicture:
    """Latency over a window. `chosen` is the histogram of heat map, ranking and comparison.

    Raises SourceError when the source cannot answer, UnknownSignal when `chosen` is no histogram of the dialect.
    """
    window = ends_on_step(window)
    answers = Answers(source)
    discovery = discover(answers, settings, window.end_ms, window.end_ms - window.start_ms)
    plan = discovery.plan()
    _require_histogram(plan, chosen)
    panel_ms = panel_window_ms(discovery.scrape_interval_seconds, window.step_ms)
    whole_ms = max(window.end_ms - window.start_ms, rate_window_ms(discovery.scrape_interval_seconds))
    ranking_ms = min(whole_ms, LONGEST_COUNTED_MS)
    counted = ranking_ms == whole_ms
    answers.ask(_questions(plan, window, chosen, panel_ms, ranking_ms, earlier_ms, counted))

    layouts = answers.vector("layouts")
    merged = {
        signal: merged_histogram(answers, signal, signal, plan, window, panel_ms, layouts)
        for signal in dict.fromkeys((*SIGNALS, chosen))
    }
    rates = _rate_lines(answers, window)
    panels = tuple(merged[signal].panel(QUANTILES, rates.get(f"{signal}_sum")) for signal in SIGNALS)
    ranked, fleet = ranking(answers, plan, chosen, ranking_ms)
    whole = _whole(merged[chosen])
    if counted:
        whole = replace(
            whole, bounds=fleet.bounds, cumulative=fleet.rates, rate_window_ms=ranking_ms, replicas_per_bound=None,
            promql=answers.promql("ranking"), tainted=answers.taint("ranking"),
        )  # fmt: skip
    objective = _objective(settings, chosen)
    share = whole.share(objective) if objective is not None else None
    return LatencyPicture(
        at_ms=window.end_ms,
        window=window,
        source=source.info(),
        engine_text=plan.tree.engine_text,
        scrape_interval_seconds=discovery.scrape_interval_seconds,
        rate_window_ms=panel_ms,
        panels=panels,
        heat_map=_heat_map(merged[chosen], share.threshold if share is not None else None),
        chosen=chosen,
        ranking=ranked,
        where_time_goes=_where_time_goes(answers, plan, window, rates, panel_ms),
        where_note=WHERE_NOTE,
        slo=share,
        whole=whole_figures(whole, mixed=counted and fleet.mixed),
        whole_ms=whole_ms,
        earlier=tuple(
            _earlier(answers, plan, window, chosen, panel_ms, whole_ms if counted else 0, shift) for shift in earlier_ms
        ),
        findings=plan.tree.findings,
        warnings=(*answers.warnings(), *(f"{what}: {why}" for what, why in answers.refused.items())),
        asked=tuple(answers.asked),
    )


def _ago(shift_ms: int) -> str:
    weeks, rest = divmod(shift_ms, WEEK_MS)
    return f"{weeks} w ago" if weeks and not rest else f"{duration_words(shift_ms / 1000)} ago"


def _require_histogram(plan: Plan, signal: str) -> None:
    kinds = {entry.type for entry in plan.dialect.entries if entry.signal == signal}
    if kinds != {"histogram"}:
        known = sorted({entry.signal for entry in plan.dialect.entries if entry.type == "histogram" and entry.always})
        raise UnknownSignal(f"{signal!r} is no histogram of {plan.dialect.title}; there are: {', '.join(known)}")


def _questions(
    plan: Plan, window: Window, chosen: str, panel_ms: int, ranking_ms: int, earlier_ms: Sequence[int], counted: bool
) -> list[Question]:
    panel, ranking = duration_text(panel_ms), duration_text(ranking_ms)
    signals = tuple(dict.fromkeys((*SIGNALS, chosen)))
    parts = [Part(f"{signal}{suffix}", signal, suffix) for signal in signals for suffix in ("_sum", "_count")]
    chosen_parts = [Part(suffix, chosen, suffix) for suffix in ("_sum", "_count")]
    replica = plan.tree.replica_labels
    asked = [Question(signal, plan.buckets(signal, panel), window=window) for signal in signals]
    asked += [
        Question("rates", plan.chain(parts, panel), window=window),
        Question("ranking", plan.buckets(chosen, ranking, replica), at_ms=window.end_ms),
        Question("ranking_means", plan.chain(chosen_parts, ranking, replica), at_ms=window.end_ms),
        Question(
            "layouts", plan.layouts(signals, looked_back_ms(window, plan.tree)), at_ms=window.end_ms, optional=True
        ),
    ]
    for shift in earlier_ms:
        what, then = f"earlier_{shift}", _moved(window, shift)
        if counted:
            asked.append(Question(what, plan.buckets(chosen, ranking), at_ms=then.end_ms, optional=True))
        else:
            asked.append(Question(what, plan.buckets(chosen, panel), window=then, optional=True))
    return asked


def _moved(window: Window, shift_ms: int) -> Window:
    return Window(window.start_ms - shift_ms, window.end_ms - shift_ms, window.step_ms)


def _earlier(
    answers: Answers, plan: Plan, window: Window, chosen: str, panel_ms: int, counted_ms: int, shift_ms: int
) -> Earlier:
    """The same histogram over the same window a while ago; `counted_ms` is the window's length where one query counted it, else 0."""
    what, then = f"earlier_{shift_ms}", _moved(window, shift_ms)
    if counted_ms:
        vector = answers.vector(what)
        frame = merged_histogram(answers, what, chosen, plan, then, counted_ms)
        bounds, rates = bucket_rows(vector.labels, vector.values) if len(vector) else (np.empty(0), np.empty((0, 1)))
        before = replace(frame, bounds=bounds, cumulative=rates)
    else:
        before = _whole(merged_histogram(answers, what, chosen, plan, then, panel_ms))
    why, since = _reach(answers.source.extent_ms(), then)
    if before.missing == "not_scraped":
        before = replace(before, missing="no_data", note=answers.refused.get(what, "") or why or "no samples from then")
    return Earlier(_ago(shift_ms), shift_ms, whole_figures(before), since)


def _reach(extent: tuple[int, int] | None, then: Window) -> tuple[str, str]:
    """(why there is nothing, what is only partly there) of an earlier window in a source whose samples begin somewhere."""
    if extent is None or extent[0] <= then.start_ms:
        return "", ""
    first = f"samples begin at {format_instant(extent[0] // 1000 * 1000)}"
    return (first, "") if extent[0] >= then.end_ms else ("", first)


def _rate_lines(answers: Answers, window: Window) -> dict[str, Floats]:
    frame = answers.frame("rates", window)
    return {labels.get(SIGNAL, ""): values for labels, values in zip(frame.labels, frame.values, strict=True)}


def _objective(settings: Settings, signal: str) -> Objective | None:
    return {
        "time_to_first_token": settings.slo.time_to_first_token,
        "inter_token_latency": settings.slo.inter_token_latency,
    }.get(signal)


def _whole(histogram: MergedHistogram) -> MergedHistogram:
    """The histogram over the whole window as one column: the rates at steps one range apart, added up, count every observation once."""
    stride = max(histogram.rate_window_ms // histogram.window.step_ms, 1)
    columns = histogram.cumulative[:, ::-1][:, ::stride]
    if not columns.size:
        return histogram
    known = ~np.isnan(columns).all(axis=1)
    return replace(histogram, cumulative=np.where(known, np.nansum(columns, axis=1), np.nan)[:, None])


def _heat_map(histogram: MergedHistogram, threshold: float | None) -> HeatMap:
    return HeatMap(
        histogram.signal,
        histogram.unit,
        histogram.window,
        histogram.bounds,
        bucket_rates(histogram.cumulative),
        threshold,
        histogram.promql,
        histogram.note if histogram.status != "value" else "",
        histogram.tainted,
        histogram.rate_window_ms,
    )


def _where_time_goes(answers: Answers, plan: Plan, window: Window, rates: dict[str, Floats], panel_ms: int) -> Panel:
    lines = []
    for signal, words in PHASES.items():
        sums, counts = rates.get(f"{signal}_sum"), rates.get(f"{signal}_count")
        if sums is not None and counts is not None:
            with np.errstate(invalid="ignore", divide="ignore"):
                lines.append(Line(words, np.where(counts > 0, sums / counts, np.nan), "derived"))
    status: FigureStatus = "value"
    note = WHERE_NOTE
    if not lines:
        status, note = missing_status(plan, "e2e_request_latency", 0)
    query = answers.promql("rates")
    return Panel(
        "where_time_goes", "seconds", window, tuple(lines), query, status, note, answers.taint("rates"), panel_ms
    )
