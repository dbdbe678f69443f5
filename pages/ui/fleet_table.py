"""The replica table of the Fleet page: worst first, a word for everything that has no value. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from collectors.figures import STATUS_WORDS, Figure, QuantileFigure
from collectors.fleet_picture import ReplicaRow
from pages.ui import nav
from pages.ui.fleet_scene import STATE_LEVELS, Scene, state_words
from pages.ui.table import Cell, Column, Row
from pages.ui.words import digits, duration, figure_text, quantile_text

FLEET = "fleet"
MOST_ROWS = 24


def columns(scene: Scene) -> tuple[Column, ...]:
    """The table's head; what is a rate says over how long."""
    over = f"over the last {duration(scene.picture.rate_window_ms / 1000)}"
    return (
        Column("replica"),
        Column("state"),
        Column("wait", "right", f"waiting / rate of first tokens {over} (Little's law)"),
        Column("waiting", "right"),
        Column("running / seats", "right", "seats: max_num_seqs, configured or inferred from the ceiling of running"),
        Column("KV", "right", "share of KV cache blocks in use, the fullest rank"),
        Column("in / out tok/s", "right", over),
        Column("TTFT p99", "right", f"bucket that holds the 99th percentile {over}"),
        Column("preempt /min", "right", over),
        Column("prefix hits", "right", over),
        Column("age", "right", "of the newest sample"),
    )


def rows(scene: Scene, older_seconds: float = 0.0) -> list[Row]:
    """The replica table, worst first: what does not serve, then by what waits; `older_seconds` ages an old picture."""
    first = sorted(scene.picture.replicas, key=lambda row: not _fails(scene, row))
    return [_row(scene, row, older_seconds) for row in first]


def fleet_line(scene: Scene, older_seconds: float = 0.0) -> Row | None:
    """What the rows add up to, as the table's first line; None where there is one replica only."""
    if len(scene.picture.replicas) < 2:
        return None
    fleet, totals = scene.picture.fleet, scene.picture.totals
    ages = [row.age_seconds for row in scene.picture.replicas if row.age_seconds is not None]
    p99 = fleet.time_to_first_token_p99
    cells = (
        Cell(f"{scene.picture.replicas_up} of {len(scene.picture.replicas)} scraped", "muted"),
        _wait_cell(totals.worst_wait, fleet.waiting, scene, prefix="worst "),
        _cell(None, fleet.waiting, scene, "requests_waiting"),
        _seats_of(
            scene, None, fleet.running, fleet.seats, whole=all(row.seats.known for row in scene.picture.replicas)
        ),
        _cell(None, totals.worst_kv_cache_usage, scene, "kv_cache_usage", prefix="worst "),
        _pair(scene, None, fleet.prompt_tokens, fleet.generation_tokens),
        _p99_cell(scene, None, p99),
        _cell(None, fleet.preemptions, scene, "preemptions", bare=True),
        _cell(None, fleet.prefix_hit_ratio, scene, "prefix_cache_hits", "prefix_cache_queries"),
        Cell("unknown" if not ages else duration(min(ages) + older_seconds), "muted"),
    )
    return Row(FLEET, cells)


def averaging_text(scene: Scene) -> str:
    """The fleet's p99 beside the worst replica's and beside what averaging would say; '' where there is nothing to compare."""
    fleet = scene.picture.fleet
    p99, average = fleet.time_to_first_token_p99, fleet.mean_of_p99s
    if p99.interval is None or average.value is None or len(scene.picture.replicas) < 2:
        return ""
    over = duration(scene.picture.rate_window_ms / 1000)
    return (
        f"TTFT p99 over {over}: the fleet {quantile_text(p99)} ({p99.interval.observations:,.0f} first tokens), "
        f"worst {fleet.worst_p99_key} {quantile_text(fleet.worst_p99)}; a mean of p99s would say {figure_text(average)}."
    )


def _fails(scene: Scene, row: ReplicaRow) -> bool:
    state = scene.state(row)
    return row.scraped != "gone" and state is not None and STATE_LEVELS[state.state] == "bad"


def _row(scene: Scene, row: ReplicaRow, older_seconds: float) -> Row:
    cells = (
        _state_cell(scene, row),
        _wait_cell(row.wait, row.waiting, scene, row),
        _cell(row, row.waiting, scene, "requests_waiting"),
        _seats_of(scene, row, row.running, row.seats),
        _cell(row, row.kv_cache_usage, scene, "kv_cache_usage"),
        _pair(scene, row, row.prompt_tokens, row.generation_tokens),
        _p99_cell(scene, row, row.time_to_first_token_p99),
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


def _doubts(scene: Scene, row: ReplicaRow | None, tainted: Sequence[str], *signals: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*tainted, *scene.doubts(*signals, row=row))))


def _cell(
    row: ReplicaRow | None,
    figure: Figure,
    scene: Scene,
    *signals: str,
    tone: str = "",
    icon: str = "",
    prefix: str = "",
    bare: bool = False,
    show_note: bool = False,
) -> Cell:
    """One figure of a row, or of the fleet (`row` None), with the reason where it has no value or is not trusted."""
    doubts = _doubts(scene, row, figure.tainted, *signals)
    if figure.value is None:
        why = "" if figure.status == "not_scraped" else figure.note  # the state of the row says that already
        return Cell(STATUS_WORDS[figure.status], "muted", note="; ".join(doubts) or why, doubt=bool(doubts))
    text = digits(figure.value) if bare or figure.unit == "requests" else figure_text(figure)
    note = "; ".join(doubts) or (figure.note if show_note else "")
    return Cell(prefix + text, tone, icon, note, bool(doubts))


def _wait_cell(wait: Figure, waiting: Figure, scene: Scene, row: ReplicaRow | None = None, prefix: str = "") -> Cell:
    """Seconds of waiting; where nothing waits, zero is what is known."""
    signals = ("requests_waiting", "time_to_first_token")
    if waiting.value == 0 and wait.value is None:
        doubts = _doubts(scene, row, waiting.tainted, *signals)
        return Cell("0 s", note="; ".join(doubts), doubt=bool(doubts))
    late = wait.value is not None and wait.value > scene.settings.slo.time_to_first_token.threshold_seconds
    return _cell(row, wait, scene, *signals, tone="warn" if late else "", icon="warn" if late else "", prefix=prefix)


def _p99_cell(scene: Scene, row: ReplicaRow | None, p99: QuantileFigure) -> Cell:
    doubts = _doubts(scene, row, p99.tainted, "time_to_first_token")
    if p99.interval is None:
        why = p99.note if p99.status != "not_scraped" else ""
        return Cell(quantile_text(p99), "muted", note="; ".join(doubts) or why, doubt=bool(doubts))
    late = p99.interval.lo >= scene.settings.slo.time_to_first_token.threshold_seconds
    return Cell(quantile_text(p99), "warn" if late else "", note="; ".join(doubts), doubt=bool(doubts))


def _seats_of(scene: Scene, row: ReplicaRow | None, running: Figure, seats: Figure, whole: bool = True) -> Cell:
    """Running of seats; a sum that lacks the seats of a replica (`whole` False) is none to compare with."""
    doubts = _doubts(scene, row, (*running.tainted, *seats.tainted), "requests_running")
    if running.value is None:
        return Cell(STATUS_WORDS[running.status], "muted", note="; ".join(doubts), doubt=bool(doubts))
    note = (
        f"Seats inferred: {seats.note}" if seats.known and whole and seats.evidence == "inferred" and seats.note else ""
    )
    known = digits(seats.value) if seats.value is not None and whole else "?"
    return Cell(f"{digits(running.value)} / {known}", note="; ".join(doubts) or note, doubt=bool(doubts))


def _pair(scene: Scene, row: ReplicaRow | None, first: Figure, second: Figure) -> Cell:
    doubts = _doubts(scene, row, (*first.tainted, *second.tainted), "prompt_tokens", "generation_tokens")
    if first.value is None and second.value is None:
        why = "" if second.status == "not_scraped" else second.note
        return Cell(STATUS_WORDS[second.status], "muted", note="; ".join(doubts) or why, doubt=bool(doubts))
    shown = ["-" if figure.value is None else digits(figure.value) for figure in (first, second)]
    return Cell(" / ".join(shown), note="; ".join(doubts), doubt=bool(doubts))
