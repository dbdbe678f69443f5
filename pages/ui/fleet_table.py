"""The replica table of the Fleet page: worst first, a word for everything that has no value. Pure."""

from __future__ import annotations

from collectors.figures import STATUS_WORDS, Figure
from collectors.fleet_picture import ReplicaRow
from pages.ui import nav
from pages.ui.fleet_scene import STATE_LEVELS, Scene, state_words
from pages.ui.table import Cell, Column, Row
from pages.ui.words import digits, duration, figure_text, quantile_text

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
    """The replica table, worst first: what does not serve, then by what waits; `older_seconds` ages an old picture."""
    first = sorted(scene.picture.replicas, key=lambda row: not _fails(scene, row))
    return [_row(scene, row, older_seconds) for row in first]


def _fails(scene: Scene, row: ReplicaRow) -> bool:
    state = scene.state(row)
    return row.scraped != "gone" and state is not None and STATE_LEVELS[state.state] == "bad"


def _row(scene: Scene, row: ReplicaRow, older_seconds: float) -> Row:
    limit = scene.settings.slo.time_to_first_token.threshold_seconds
    late = row.wait.value is not None and row.wait.value > limit
    p99 = row.time_to_first_token_p99
    p99_late = p99.interval is not None and p99.interval.lo >= limit
    cells = (
        _state_cell(scene, row),
        Cell("0 s") if row.waiting.value == 0 and row.wait.value is None else _cell(row, row.wait, scene, "requests_waiting", tone="warn" if late else "", icon="warn" if late else ""),
        _cell(row, row.waiting, scene, "requests_waiting"),
        _seats_cell(scene, row),
        _cell(row, row.kv_cache_usage, scene, "kv_cache_usage"),
        _pair(row.prompt_tokens, row.generation_tokens),
        Cell(quantile_text(p99), "muted" if p99.interval is None else "warn" if p99_late else "", note=(p99.note if p99.status != "not_scraped" else "") if p99.interval is None else "; ".join(p99.tainted), doubt=bool(p99.tainted)),
        _cell(row, row.preemptions, scene, "preemptions", bare=True),
        _cell(row, row.prefix_hit_ratio, scene, "prefix_cache_hits", "prefix_cache_queries", show_note=True),
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


def _cell(row: ReplicaRow, figure: Figure, scene: Scene, *signals: str, tone: str = "", icon: str = "", bare: bool = False, show_note: bool = False) -> Cell:  # fmt: skip
    doubts = tuple(dict.fromkeys((*figure.tainted, *scene.doubts(*signals, row=row))))
    if figure.value is None:
        why = "" if figure.status == "not_scraped" else figure.note  # the state of the row says that already
        return Cell(STATUS_WORDS[figure.status], "muted", note="; ".join(doubts) or why, doubt=bool(doubts))
    text = digits(figure.value) if bare or figure.unit == "requests" else figure_text(figure)
    note = "; ".join(doubts) or (figure.note if show_note else "")
    return Cell(text, tone, icon, note, bool(doubts))


def _seats_cell(scene: Scene, row: ReplicaRow) -> Cell:
    running = STATUS_WORDS[row.running.status] if row.running.value is None else digits(row.running.value)
    if row.seats.value is None:
        return Cell(
            running if row.running.value is None else f"{running} / ?", "muted" if row.running.value is None else ""
        )
    note = row.seats.note if row.seats.evidence == "inferred" else ""
    return Cell(f"{running} / {digits(row.seats.value)}", note=f"Seats inferred: {note}" if note else "")


def _pair(first: Figure, second: Figure) -> Cell:
    if first.value is None and second.value is None:
        return Cell(STATUS_WORDS[second.status], "muted", note="" if second.status == "not_scraped" else second.note)
    shown = ["-" if figure.value is None else digits(figure.value) for figure in (first, second)]
    return Cell(" / ".join(shown))
