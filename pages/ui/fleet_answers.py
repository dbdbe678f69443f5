"""The status strip and the tiles of the Fleet page. Pure: no Streamlit call, so a test can read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from collectors.figures import STATUS_WORDS, Figure
from collectors.model import Floats
from pages.ui.fleet_scene import STATE_LEVELS, Scene, state_words
from pages.ui.tiles import Answer, Tile
from pages.ui.words import amount, digits, duration, figure_text, percent, quantile_text, seconds

NEARLY_FULL = 0.9
FILLS_SOON_SECONDS = 900
"""A cache that fills within the default range is worth an amber word; a slope that needs longer is noise on an idle fleet."""


def answers(scene: Scene) -> list[Answer]:
    """The four questions, in order."""
    return [_serving(scene), _late(scene), _full(scene), _worse(scene)]


def _serving(scene: Scene) -> Answer:
    picture = scene.picture
    wanted = picture.replicas_desired.value
    total = int(wanted) if wanted is not None else picture.replicas_seen
    if not picture.replicas:
        return Answer("Serving", "nothing seen", "no replica has samples in this range", "unknown")
    states = [(row, scene.state(row)) for row in picture.replicas]
    if scene.found is None:
        return Answer("Serving", f"{picture.replicas_up} of {total} answer", "progress was not diagnosed", "unknown")
    fine = sum(s is not None and STATE_LEVELS[s.state] == "ok" for _, s in states)
    wrong = [(row, s) for row, s in states if s is not None and STATE_LEVELS[s.state] in ("bad", "warn")]
    idle = sum(s is not None and s.state == "idle" for _, s in states)
    if wrong:
        row, state = wrong[0]
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        level = "bad" if any(STATE_LEVELS[s.state] == "bad" for _, s in wrong) else "warn"
        return Answer("Serving", f"{fine} of {total}", f"{row.key} {state_words(state, picture.at_ms)}{more}", level)
    if fine < total:
        return Answer("Serving", f"{fine} of {total}", "the rest is not seen or unknown", "unknown" if fine else "bad")
    return Answer(
        "Serving",
        f"{fine} of {total}",
        "all idle" if idle == fine else f"{idle} idle" if idle else "all make progress",
        "ok",
    )


def _late(scene: Scene) -> Answer:
    totals = scene.picture.totals
    p95 = next((f for f in totals.time_to_first_token if f.interval is not None and f.interval.q == 0.95), None)
    slo = totals.time_to_first_token_slo
    doubt = "; ".join(scene.doubts("time_to_first_token"))
    if p95 is None:
        first = totals.time_to_first_token[0] if totals.time_to_first_token else None
        word = STATUS_WORDS[first.status] if first is not None else "not scraped"
        return Answer("Late", f"TTFT {word}", first.note if first is not None else "", "unknown")
    inside = slo.share.value
    over = duration(scene.picture.time_to_first_token.rate_window_ms / 1000)
    detail = f"SLO {seconds(slo.threshold)}" + (f", {percent(inside)} inside over {over}, {percent(slo.objective)} wanted" if inside is not None else "")  # fmt: skip
    level = "unknown" if slo.inside is None else "ok" if slo.inside else "warn"
    return Answer("Late", f"TTFT p95 {quantile_text(p95)}", detail, level, doubt)


def _full(scene: Scene) -> Answer:
    totals = scene.picture.totals
    usage = totals.worst_kv_cache_usage
    doubt = "; ".join(scene.doubts("kv_cache_usage"))
    if usage.value is None:
        return Answer("Full", f"KV {figure_text(usage)}", usage.note, "unknown", doubt)
    detail = f"worst {totals.worst_kv_key}" if totals.worst_kv_key else ""
    forecast = totals.kv_forecast
    soon = forecast.kind == "full" or (forecast.seconds is not None and forecast.seconds <= FILLS_SOON_SECONDS)
    if soon:
        detail += f", {forecast.text}"
    level = "warn" if usage.value >= NEARLY_FULL or soon else "ok"
    return Answer("Full", f"KV {percent(usage.value)}", detail, level, doubt)


def _worse(scene: Scene) -> Answer:
    totals = scene.picture.totals
    wait, drain = totals.worst_wait, totals.drain
    doubt = "; ".join(scene.doubts("requests_waiting"))
    if totals.waiting.value is None:
        return Answer("Worse", f"queue {figure_text(totals.waiting)}", totals.waiting.note, "unknown", doubt)
    if totals.waiting.value == 0:
        return Answer("Worse", "nothing waits", "the queue is empty", "ok", doubt)
    where = f" on {totals.worst_wait_key}" if totals.worst_wait_key and scene.picture.replicas_seen > 1 else ""
    word = f"wait {seconds(wait.value)}{where}" if wait.value is not None else f"{digits(totals.waiting.value)} wait"
    excess = drain.excess_per_second
    if drain.kind == "never" and excess is not None:
        detail = f"growing by {digits(excess)}/s: more arrives than gets a first token"
    elif drain.kind == "clears":
        detail = f"falling: {drain.text}"
    else:
        detail = wait.note if drain.kind == "unknown" else drain.text
    late = wait.value is not None and wait.value > scene.settings.slo.time_to_first_token.threshold_seconds
    return Answer("Worse", word, detail, "warn" if drain.kind == "never" or late else "ok", doubt)


def _change(figure: Figure) -> str:
    if figure.value is None:
        return figure.note
    if figure.earlier is None or not figure.earlier_ms:
        return ""
    moved = figure.value - figure.earlier
    number, unit = amount(abs(moved), figure.unit)
    same = number == "0"
    return f"{'same as' if same else ('+' if moved > 0 else '-') + number + (' ' + unit if figure.unit == 'seconds' else '') + ' vs'} {duration(figure.earlier_ms / 1000)} ago"


def figure_tile(label: str, figure: Figure, doubts: Sequence[str], *, history: Floats | None = None, tone: str = "", kind: str = "", unit: str | None = None) -> Tile:  # fmt: skip
    doubt = "; ".join((*figure.tainted, *doubts))
    shown = history if history is not None else figure.history if figure.history is not None else np.full(1, np.nan)
    kind = kind or ("" if figure.evidence == "measured" else figure.evidence)
    if figure.value is None:
        return Tile(label, STATUS_WORDS[figure.status], "", "", shown, "muted", kind, figure.note, doubt)
    number, word = amount(figure.value, figure.unit)
    return Tile(label, number, word if unit is None else unit, _change(figure), shown, tone, kind, doubt=doubt)


def capacity_text(scene: Scene) -> str:
    """The highest rate of first tokens that was sustained while work waited; '' while none was seen in this range."""
    capacity = scene.picture.totals.capacity_requests
    if capacity.value is None:
        return ""
    rows = scene.picture.replicas
    known = sum(row.capacity_requests.known for row in rows)
    return f"measured capacity {digits(capacity.value)} /s" + (f" of {known} of {len(rows)} replicas" if known < len(rows) else "")  # fmt: skip


def tiles(scene: Scene) -> list[Tile]:
    """Wait, waiting, tokens out, finished against arriving, preemptions."""
    totals = scene.picture.totals
    arriving = totals.arrivals
    beside = f"of ~{digits(arriving.value)} /s arriving" if arriving.value is not None else "/s"
    limit = scene.settings.slo.time_to_first_token.threshold_seconds
    late = "warn" if totals.worst_wait.value is not None and totals.worst_wait.value > limit else ""
    waits = scene.doubts("requests_waiting")
    finished = figure_tile(
        "Finished",
        totals.finished,
        scene.doubts("requests_finished", "time_to_first_token"),
        kind="arrivals estimated" if arriving.value is not None else "",
        unit=beside,
    )
    if totals.waiting.value == 0 and totals.worst_wait.value is None:
        history = totals.wait.history if totals.wait.history is not None else np.full(1, np.nan)
        worst = Tile("Wait now, worst", "0", "s", "nothing waits", history, kind="derived")
    else:
        worst = figure_tile("Wait now, worst", totals.worst_wait, waits, history=totals.wait.history, tone=late)
        if totals.wait.value is not None:
            worst = replace(worst, change=f"fleet {figure_text(totals.wait)}")
    return [
        worst,
        figure_tile("Waiting", totals.waiting, waits, tone=late),
        figure_tile("Tokens out", totals.generation_tokens, scene.doubts("generation_tokens")),
        replace(finished, change=capacity_text(scene) or finished.change),
        figure_tile("Preemptions", totals.preemptions, scene.doubts("preemptions")),
    ]
