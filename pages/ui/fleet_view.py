"""From the picture and the diagnosis to what the Fleet page draws. Pure: no Streamlit call, so a test can read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from collectors.figures import STATUS_WORDS, Figure, Panel, QuantilePanel
from collectors.fleet_picture import FleetPicture, ReplicaRow
from collectors.model import Floats
from collectors.settings import Settings
from pages.ui import nav
from pages.ui.charts import Band, Limit, Line, Mark, Quantile, Series
from pages.ui.charts import Panel as Chart
from pages.ui.table import Cell, Column, Row
from pages.ui.tiles import Answer, Tile
from pages.ui.words import amount, digits, duration, figure_text, percent, quantile_text, seconds
from runbooks.verdicts import Diagnosis, RankState

STATE_LEVELS = {
    "serving": "ok", "prefill_only": "ok", "idle": "ok", "stalled": "bad", "stale": "warn", "down": "bad", "unknown": "unknown",
}  # fmt: skip
STATE_WORDS = {"prefill_only": "prefill only"}
NEARLY_FULL = 0.9
FILLS_SOON_SECONDS = 900
"""A cache that fills within the default range is worth an amber word; a slope that needs longer is noise on an idle fleet."""
GREY_WIDTH, LINE_WIDTH = 1.0, 1.6


@dataclass(frozen=True)
class Scene:
    """Everything that the Fleet page shows at one instant."""

    picture: FleetPicture
    found: Diagnosis | None
    settings: Settings
    slots: Mapping[str, int | None]
    axis: tuple[int, int]
    kept: Mapping[str, str]
    marks: tuple[Mark, ...] = ()

    @property
    def taints(self) -> dict[str, tuple[str, ...]]:
        """Canonical signal -> what a broken law says against it."""
        told: dict[str, list[str]] = {}
        for law in self.found.laws if self.found is not None else ():
            if law.status == "broken":
                for signal in law.taints:
                    told.setdefault(signal, []).append(f"{law.where}: {law.evidence} (check {law.id})")
        for finding in self.picture.findings:
            for signal in finding.taints:
                told.setdefault(signal, []).append(finding.text)
        return {signal: tuple(dict.fromkeys(reasons)) for signal, reasons in told.items()}

    def doubts(self, *signals: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(reason for signal in signals for reason in self.taints.get(signal, ())))

    def state(self, row: ReplicaRow) -> RankState | None:
        """The worst of the replica's ranks, as the diagnosis sees it."""
        names = {row.key, row.labels.get("instance", row.key)}
        order = ("down", "stalled", "stale", "unknown", "prefill_only", "serving", "idle")
        mine = [s for s in (self.found.replicas if self.found is not None else ()) if s.place.instance in names]
        return min(mine, key=lambda s: order.index(s.state), default=None)


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


def state_words(state: RankState, at_ms: int) -> str:
    word = STATE_WORDS.get(state.state, state.state)
    if state.since_ms is None or state.state in ("serving", "prefill_only", "idle", "unknown"):
        return word
    return f"{word} {duration((at_ms - state.since_ms) / 1000)}"


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
    detail = f"SLO {seconds(slo.threshold)}" + (f", {percent(inside)} inside, {percent(slo.objective)} wanted" if inside is not None else "")  # fmt: skip
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


def tiles(scene: Scene) -> list[Tile]:
    """Wait, waiting, tokens out, finished against arriving, preemptions."""
    totals = scene.picture.totals
    arriving = totals.arrivals
    beside = f"of ~{digits(arriving.value)} /s arriving" if arriving.value is not None else "/s"
    limit = scene.settings.slo.time_to_first_token.threshold_seconds
    late = "warn" if totals.worst_wait.value is not None and totals.worst_wait.value > limit else ""
    waits = scene.doubts("requests_waiting")
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
        figure_tile(
            "Finished",
            totals.finished,
            scene.doubts("requests_finished"),
            kind="arrivals estimated" if arriving.value is not None else "",
            unit=beside,
        ),
        figure_tile("Preemptions", totals.preemptions, scene.doubts("preemptions")),
    ]


def _grid(scene: Scene, panel: Panel | QuantilePanel) -> dict[str, Any]:
    window = panel.window
    return {
        "start_ms": window.start_ms, "step_ms": window.step_ms, "points": window.steps, "axis": _axis(scene, window.start_ms, window.end_ms),
        "marks": scene.marks, "promql": panel.promql, "notice": notice_of(panel),
    }  # fmt: skip


def _axis(scene: Scene, start_ms: int, end_ms: int) -> tuple[int, int]:
    first, last = scene.axis
    return (min(first, start_ms) if first >= start_ms - 1 else first, max(last, end_ms))


def notice_of(panel: Panel | QuantilePanel) -> str:
    """The word for an empty panel; '' when there is something to draw."""
    if panel.status != "value":
        word = STATUS_WORDS[panel.status]
        return f"{word[:1].upper()}{word[1:]}" + (f": {panel.note}" if panel.note else "")
    if isinstance(panel, Panel):
        drawn = any(np.isfinite(line.values).any() for line in panel.lines)
    else:
        drawn = bool(np.isfinite(panel.series.estimate).any())
    return "" if drawn else "No data in this range" + (f": {panel.note}" if panel.note else "")


def by_replica(scene: Scene, panel: Panel) -> tuple[tuple[Line, ...], str]:
    """Lines in the replicas' colours, and what to say of those that have none. With many replicas the rest is thin and grey."""
    order = [row.key for row in scene.picture.replicas]
    named = sorted(panel.lines, key=lambda line: order.index(line.key) if line.key in order else len(order))
    colour = {line.key: scene.slots.get(line.key) for line in named}
    grey = [line for line in named if colour[line.key] is None]
    lines = [Line(line.key, line.values, "quiet", GREY_WIDTH, legend=False) for line in grey]
    for line in sorted((n for n in named if colour[n.key] is not None), key=lambda n: n.key if not grey else ""):
        slot = colour[line.key]
        assert slot is not None
        lines.append(Line(line.key, line.values, slot, LINE_WIDTH))
    return tuple(lines), f"{len(grey)} more in grey" if grey else ""


def quantile_series(panel: QuantilePanel) -> tuple[Quantile, ...]:
    """Bands of the buckets and the estimates inside them; the widest line is the median."""
    widths = {0.5: (2.6, 0.24), 0.95: (1.8, 0.16), 0.99: (1.0, 0.10)}
    return tuple(
        Quantile(
            f"p{q * 100:g}", panel.series.lo[row], panel.series.hi[row], panel.series.estimate[row], "accent", *widths.get(q, (1.4, 0.14))
        )
        for row, q in sorted(enumerate(panel.series.quantiles), key=lambda pair: -pair[1])
    )  # fmt: skip


def panels(scene: Scene) -> list[Chart]:
    """Waiting, KV usage, arrivals and completions, time to first token; then running and the token gap."""
    picture = scene.picture
    slo = picture.totals.time_to_first_token_slo
    gap_slo = picture.totals.inter_token_latency_slo

    def chart(title: str, unit: str, panel: Panel | QuantilePanel, series: tuple[Series, ...], label: str, signals: Sequence[str], **more: Any) -> Chart:  # fmt: skip
        grid = _grid(scene, panel)
        taints = tuple(dict.fromkeys((*panel.tainted, *scene.doubts(*signals))))
        label += f" · rates over {duration(panel.rate_window_ms / 1000)}" if panel.rate_window_ms else ""
        return Chart(
            title, unit, series=() if grid["notice"] else series, unit_label=label, taints=taints, **{**grid, **more}
        )

    def runbook(name: str) -> str:
        return nav.link("runbook", **nav.merged(dict(scene.kept), id=name))

    waiting, more = by_replica(scene, picture.waiting)
    usage, usage_more = by_replica(scene, picture.kv_cache_usage)
    running, running_more = by_replica(scene, picture.running)
    return [
        chart("Waiting", "", picture.waiting, waiting, "requests, by replica", ("requests_waiting",), runbook=runbook("waiting_growth"), aside=more),
        chart("KV cache usage", "ratio", picture.kv_cache_usage, usage, "% of blocks, by replica", ("kv_cache_usage",), y_max=1.0, runbook=runbook("kv_pressure"), aside=usage_more),
        chart("Arrivals and completions", "/s", picture.flow, _flow(picture.flow), "requests/s, fleet", ("time_to_first_token", "requests_finished"), runbook=runbook("waiting_growth")),
        chart("Time to first token", "s", picture.time_to_first_token, quantile_series(picture.time_to_first_token), "bucket that holds the quantile, fleet", ("time_to_first_token",), limits=(Limit(f"SLO {seconds(slo.threshold)}", slo.threshold),)),
        chart("Running", "", picture.running, running, "requests, by replica", ("requests_running",), aside=running_more),
        chart("Gap between tokens", "s", picture.inter_token_latency, quantile_series(picture.inter_token_latency), "bucket that holds the quantile, fleet", ("inter_token_latency",), limits=(Limit(f"SLO {seconds(gap_slo.threshold)}", gap_slo.threshold),)),
    ]  # fmt: skip


def _flow(panel: Panel) -> tuple[Line | Band, ...]:
    arrivals, done, first = (panel.line(key) for key in ("arrivals", "completions", "first tokens"))
    series: list[Line | Band] = []
    if arrivals is not None and done is not None:
        series.append(Band("gap", done.values, np.fmax(arrivals.values, done.values), "warn", 0.14))
    if arrivals is not None:
        series.append(Line("arriving (estimate)", arrivals.values, "accent"))
    if done is not None:
        series.append(Line("finished", done.values, "text"))
    elif first is not None:
        series.append(Line("first tokens", first.values, "text"))
    return tuple(series)


COLUMNS = (
    Column("replica"),
    Column("state"),
    Column("wait", "right", "waiting / rate of first tokens (Little's law)"),
    Column("waiting", "right"),
    Column("running / seats", "right", "seats: max_num_seqs, configured or inferred from the ceiling of running"),
    Column("KV", "right", "share of KV cache blocks in use, the fullest rank"),
    Column("in / out tok/s", "right"),
    Column("TTFT p99", "right", "bucket that holds the 99th percentile"),
    Column("preempt /min", "right"),
    Column("prefix hits", "right"),
    Column("age", "right", "of the newest sample"),
)


def rows(scene: Scene, older_seconds: float = 0.0) -> list[Row]:
    """The replica table, worst first; `older_seconds` ages an old picture."""
    return [_row(scene, row, older_seconds) for row in scene.picture.replicas]


def _row(scene: Scene, row: ReplicaRow, older_seconds: float) -> Row:
    limit = scene.settings.slo.time_to_first_token.threshold_seconds
    late = row.wait.value is not None and row.wait.value > limit
    p99 = row.time_to_first_token_p99
    p99_late = p99.interval is not None and p99.interval.lo >= limit
    cells = (
        _state_cell(scene, row),
        Cell("0 s") if row.waiting.value == 0 and row.wait.value is None else _cell(row.wait, scene, "requests_waiting", tone="warn" if late else "", icon="warn" if late else ""),
        _cell(row.waiting, scene, "requests_waiting"),
        _seats_cell(scene, row),
        _cell(row.kv_cache_usage, scene, "kv_cache_usage"),
        _pair(row.prompt_tokens, row.generation_tokens),
        Cell(quantile_text(p99), "muted" if p99.interval is None else "warn" if p99_late else "", note=p99.note if p99.interval is None else "; ".join(p99.tainted), doubt=bool(p99.tainted)),
        _cell(row.preemptions, scene, "preemptions", bare=True),
        _cell(row.prefix_hit_ratio, scene, "prefix_cache_hits", "prefix_cache_queries", show_note=True),
        Cell("unknown" if row.age_seconds is None else duration(row.age_seconds + older_seconds), "muted"),
    )  # fmt: skip
    href = nav.link("replica", **nav.merged(dict(scene.kept), instance=row.key))
    return Row(row.key, cells, href, scene.slots.get(row.key))


def _state_cell(scene: Scene, row: ReplicaRow) -> Cell:
    if row.scraped == "gone":
        return Cell("gone", "muted", "unknown", "had samples in this range and is no longer scraped")
    state = scene.state(row)
    if state is None:
        return Cell("down" if row.scraped == "down" else "unknown", "bad" if row.scraped == "down" else "muted", "bad" if row.scraped == "down" else "unknown")  # fmt: skip
    level = STATE_LEVELS[state.state]
    tone = level if level in ("warn", "bad") else "muted" if state.state in ("idle", "unknown") else ""
    return Cell(state_words(state, scene.picture.at_ms), tone, level, state.why if level != "ok" else "")


def _cell(figure: Figure, scene: Scene, *signals: str, tone: str = "", icon: str = "", bare: bool = False, show_note: bool = False) -> Cell:  # fmt: skip
    doubts = tuple(dict.fromkeys((*figure.tainted, *scene.doubts(*signals))))
    if figure.value is None:
        return Cell(STATUS_WORDS[figure.status], "muted", note="; ".join(doubts) or figure.note, doubt=bool(doubts))
    text = digits(figure.value) if bare or figure.unit == "requests" else figure_text(figure)
    note = "; ".join(doubts) or (figure.note if show_note else "")
    return Cell(text, tone, icon, note, bool(doubts))


def _seats_cell(scene: Scene, row: ReplicaRow) -> Cell:
    running = "no data" if row.running.value is None else digits(row.running.value)
    if row.seats.value is None:
        return Cell(
            running if row.running.value is None else f"{running} / ?", "muted" if row.running.value is None else ""
        )
    note = row.seats.note if row.seats.evidence == "inferred" else ""
    return Cell(f"{running} / {digits(row.seats.value)}", note=f"Seats inferred: {note}" if note else "")


def _pair(first: Figure, second: Figure) -> Cell:
    if first.value is None and second.value is None:
        return Cell(STATUS_WORDS[second.status], "muted", note=second.note)
    shown = ["-" if figure.value is None else digits(figure.value) for figure in (first, second)]
    return Cell(" / ".join(shown))
