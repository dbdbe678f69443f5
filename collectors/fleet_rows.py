"""The replica table of the Fleet page: from the answers' rows to one line per replica."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from collectors.dialect import NOT_IN_VERSION
from collectors.figures import Evidence, Figure, FigureStatus, QuantileFigure, figure
from collectors.fleet_gauges import InstantRates, RankGauges
from collectors.fleet_picture import Drain, RankRow, ReplicaRow, Scraped
from collectors.flow import (
    FEWEST_FIRST_TOKENS,
    drain,
    kv_forecast,
    seats_ceiling,
    wait_seconds,
    waiting_change_per_second,
)
from collectors.identity import FleetTree, Rank, Replica
from collectors.model import Floats, Vector
from collectors.scraped import Key
from collectors.settings import Settings
from collectors.signals import duration_text

FORECAST_SECONDS = 300.0
"""The stretch that a forecast looks back on: long enough for a slope, short enough to be the present one."""
FORECAST_SCRAPES = 12
"""But at least so many scrapes: fewer do not tell a slope from a saw-tooth."""
SETTLED = "the last scrape failed"


@dataclass(frozen=True)
class Table:
    """Everything the rows are made of."""

    tree: FleetTree
    settings: Settings
    at_ms: int
    times_seconds: Floats
    scrape_interval_seconds: float | None
    gauges: RankGauges
    gauge_shift: int
    gauge_shift_seconds: float
    rates: InstantRates
    window_seconds: float
    capacity: InstantRates
    capacity_refused: str
    first_token_buckets: Vector
    promql: Mapping[str, tuple[str, ...]]
    tainted: Mapping[str, tuple[str, ...]]
    keeps_up: bool
    """Whether the source has `up` for anything here."""
    just_missed: frozenset[Key]
    """Replicas whose last scrape failed while the one or two before worked: their numbers only age."""

    def absent(self, replica: Replica, signal: str, seen: bool) -> tuple[FigureStatus, str]:
        """Why a replica has no value for a signal."""
        if replica.key in self.just_missed:
            return "no_data", ""
        if replica.up is False:
            return "not_scraped", SETTLED
        if replica.engine is None:
            gone = replica.up is None
            return "not_scraped", "no longer scraped" if gone else "its scrape holds no engine metric"
        if not replica.engine.dialect.signal(signal, replica.engine.version):
            return "not_in_version", NOT_IN_VERSION
        if not seen:
            return "not_scraped", "not among the scraped series"
        return "no_data", ""

    def figure(
        self, query: str, value: float | None, unit: str, evidence: Evidence, absent: tuple[FigureStatus, str], age: float | None,
        no_data: str = "", note: str = "",
    ) -> Figure:  # fmt: skip
        if absent[0] == "not_scraped" and absent[1] == SETTLED:
            value = None
        told = figure(
            value, unit, evidence, promql=self.promql.get(query, ()), age_seconds=age, missing=absent[0], note=note,
            missing_note=absent[1] or no_data,
        )  # fmt: skip
        for reason in self.tainted.get(query, ()):
            told = told.with_taint(reason)
        return told


def replica_rows(table: Table, first_token: Mapping[Key, QuantileFigure]) -> tuple[ReplicaRow, ...]:
    """One row per replica, worst first; `first_token` holds the p99 of those where something was observed."""
    change = waiting_change_per_second(
        table.gauges.values["requests_waiting"], table.gauge_shift, table.gauge_shift_seconds
    )
    seats = {i: _seats_of_rank(table.gauges, i) for i in range(len(table.gauges.owners))}
    rows = [_row(table, replica, change, seats, first_token) for replica in table.tree.replicas]
    return tuple(sorted(rows, key=row_order))


def row_order(row: ReplicaRow) -> tuple[float, ...] | tuple[object, ...]:
    """Worst first: nothing answers or nothing moves, then by wait, queue and cache."""
    stuck = (
        row.waiting.known and (row.waiting.value or 0) > 0 and not row.wait.known and (row.first_tokens.value or 0) == 0
    )
    hopeless = row.scraped in ("down", "gone") or stuck
    return (
        0 if hopeless else 1,
        -(row.wait.value or 0.0),
        -(row.waiting.value or 0.0),
        -(row.kv_cache_usage.value or 0.0),
        row.key,
    )


def _seats_of_rank(gauges: RankGauges, row: int) -> int | None:
    return seats_ceiling(*(gauges.values[s][row] for s in ("requests_running", "requests_waiting", "kv_cache_usage")))


def _engine_text(table: Table, replica: Replica) -> str:
    if replica.engine is None and replica.key in table.just_missed and len(table.tree.engines) == 1:
        return table.tree.engines[0].text
    return replica.engine.text if replica.engine else ""


def _scraped(replica: Replica, keeps_up: bool) -> Scraped:
    if replica.up is not None:
        return "up" if replica.up else "down"
    if replica.engine is None:
        return "gone"
    return "gone" if keeps_up and replica.sampled_ms is None else "unknown"


def _row(
    table: Table,
    replica: Replica,
    change: Floats,
    seats: Mapping[int, int | None],
    first_token: Mapping[Key, QuantileFigure],
) -> ReplicaRow:
    key, gauges, rates = replica.key, table.gauges, table.rates
    waiting_line, kv_line = gauges.total("requests_waiting", key), gauges.highest("kv_cache_usage", key)
    age = _age_seconds(table, replica, waiting_line)
    window = duration_text(round(table.window_seconds * 1000))
    too_few = f"fewer than two samples in the last {window}"

    def gauge(signal: str, unit: str, line: Floats) -> Figure:
        return table.figure(
            "gauges",
            _latest(table, key, line),
            unit,
            "measured",
            table.absent(replica, signal, signal in gauges.seen),
            age,
        )

    def rate(part: str, signal: str, unit: str, factor: float = 1.0) -> Figure:
        value = rates.of(part, key)
        absent = table.absent(replica, signal, part in rates.by_replica)
        return table.figure(
            "replica_rates", None if value is None else value * factor, unit, "measured", absent, age, too_few
        )

    waiting = gauge("requests_waiting", "requests", waiting_line)
    first = rate("first_tokens", "time_to_first_token", "requests/s")
    rows = list(gauges.rows_of.get(key, ()))
    moved = float(np.sum(change[rows, -1])) if rows else float("nan")
    return ReplicaRow(
        key=replica.text,
        labels=replica.labels,
        scope=replica.scope,
        models=replica.models or tuple(dict.fromkeys(gauges.owners[i][1].model for i in rows)),
        engine_text=_engine_text(table, replica),
        scraped="up" if key in table.just_missed else _scraped(replica, table.keeps_up),
        age_seconds=age,
        started_ms=replica.started_ms,
        wait=_wait(table, waiting, first, age, window),
        waiting=waiting,
        running=gauge("requests_running", "requests", gauges.total("requests_running", key)),
        seats=_seats(table, replica, rows, seats),
        kv_cache_usage=gauge("kv_cache_usage", "ratio", kv_line),
        prompt_tokens=rate("prompt_tokens", "prompt_tokens", "tokens/s"),
        generation_tokens=rate("generation_tokens", "generation_tokens", "tokens/s"),
        first_tokens=first,
        finished=rate("finished", "requests_finished", "requests/s"),
        time_to_first_token_p99=first_token.get(key) or _no_quantile(table, replica, age),
        preemptions=rate("preemptions", "preemptions", "per minute", 60.0),
        prefix_hit_ratio=_hit_ratio(table, replica, age),
        capacity_requests=_capacity(table, replica, "first_tokens", "time_to_first_token", "requests/s", age),
        capacity_tokens=_capacity(table, replica, "generation_tokens", "generation_tokens", "tokens/s", age),
        kv_forecast=kv_forecast(*_recent(table, kv_line)),
        arrivals=_arrivals(table, first, moved, age, rates.of("preemptions", key)),
        drain=_drain(waiting, moved, first),
        ranks=_rank_rows(table, replica, age) if len(replica.ranks) > 1 or len(rows) > 1 else (),
    )


def _latest(table: Table, key: Key, line: Floats) -> float:
    """The last value of a line; after a missed scrape the one before."""
    if key not in table.just_missed:
        return float(line[-1])
    known = line[~np.isnan(line)]
    return float(known[-1]) if len(known) else float("nan")


def _recent(table: Table, line: Floats) -> tuple[Floats, Floats]:
    """The last stretch of a line, one point per scrape interval, its newest point kept."""
    times = table.times_seconds
    seconds = max(FORECAST_SECONDS, FORECAST_SCRAPES * (table.scrape_interval_seconds or 0.0))
    start = int(np.searchsorted(times, times[-1] - seconds))
    step = float(times[1] - times[0]) if len(times) > 1 else 1.0
    stride = max(round((table.scrape_interval_seconds or step) / step), 1)
    return times[start:][::-stride][::-1], line[start:][::-stride][::-1]


def _age_seconds(table: Table, replica: Replica, line: Floats) -> float | None:
    if replica.sampled_ms is not None:
        return (table.at_ms - replica.sampled_ms) / 1000
    known = np.flatnonzero(~np.isnan(line))
    return float(table.times_seconds[-1] - table.times_seconds[known[-1]]) if len(known) else None


def _wait(table: Table, waiting: Figure, first: Figure, age: float | None, window: str) -> Figure:
    query = (*waiting.promql, *first.promql)
    tainted = tuple(dict.fromkeys((*waiting.tainted, *first.tainted)))
    if waiting.value is None:
        return Figure(waiting.status, None, "seconds", "derived", query, age, waiting.note, tainted)
    if waiting.value == 0:
        return Figure("no_data", None, "seconds", "derived", query, age, "nothing waits", tainted)
    seconds = None if first.value is None else wait_seconds(waiting.value, first.value, table.window_seconds)
    if seconds is None:
        why = first.note or f"fewer than {FEWEST_FIRST_TOKENS} first tokens in the last {window}"
        status: FigureStatus = "no_data" if first.known else first.status
        return Figure(status, None, "seconds", "derived", query, age, why, tainted)
    return Figure("value", seconds, "seconds", "derived", query, age, "waiting / rate of first tokens", tainted)


def _seats(table: Table, replica: Replica, rows: Sequence[int], seats: Mapping[int, int | None]) -> Figure:
    ranks = max(len(replica.ranks), 1)
    configured = table.settings.engine.seats
    if configured is not None:
        return Figure("value", float(configured * ranks), "requests", "configured")
    ceilings = [ceiling for row in rows if (ceiling := seats[row]) is not None]
    query = table.promql.get("gauges", ())
    if not ceilings:
        return Figure(
            "no_data", None, "requests", "inferred", query, note="no ceiling seen while work waited; not exported"
        )
    note = "the ceiling that running kept while work waited; max_num_seqs is not exported"
    return Figure("value", float(max(ceilings) * ranks), "requests", "inferred", query, note=note)


def hit_ratio(table: Table) -> Figure:
    """All replicas' hits / all their lookups over the table's range."""
    hits, queries = (sum(table.rates.by_replica.get(part, {}).values()) for part in ("prefix_hits", "prefix_queries"))
    seen = "prefix_queries" in table.rates.by_replica
    absent: tuple[FigureStatus, str] = ("no_data" if seen else "not_scraped", "")
    ratio = hits / queries if queries else None
    return table.figure("replica_rates", ratio, "ratio", "derived", absent, None, "no lookups in the window")


def _hit_ratio(table: Table, replica: Replica, age: float | None) -> Figure:
    hits, queries = table.rates.of("prefix_hits", replica.key), table.rates.of("prefix_queries", replica.key)
    seen = "prefix_queries" in table.rates.by_replica
    absent = table.absent(replica, "prefix_cache_queries", seen)
    ratio = hits / queries if hits is not None and queries else None
    caveat = ""
    if replica.engine is not None and (
        metrics := replica.engine.dialect.signal("prefix_cache_queries", replica.engine.version)
    ):
        caveat = metrics[0].caveat
    return table.figure("replica_rates", ratio, "ratio", "derived", absent, age, "no lookups in the window", caveat)


def _capacity(table: Table, replica: Replica, part: str, signal: str, unit: str, age: float | None) -> Figure:
    absent = table.absent(replica, signal, True)
    missing = table.capacity_refused or "no stretch in the window in which work waited all the time"
    note = "highest sustained rate while work waited"
    return table.figure("capacity", table.capacity.of(part, replica.key), unit, "measured", absent, age, missing, note)


def _arrivals(table: Table, first: Figure, moved: float, age: float | None, preempted: float | None) -> Figure:
    query = (*first.promql, *table.promql.get("gauges", ()))
    if first.value is None:
        return Figure(first.status, None, "requests/s", "estimated", query, age, first.note, first.tainted)
    note = "first tokens + change of waiting; blind to aborts while waiting"
    if preempted:
        note += "; too high now, since preempted requests go back to the queue"
    told = figure(
        max(first.value + moved, 0.0), "requests/s", "estimated", promql=query, age_seconds=age, note=note,
        missing_note="the queue is not known at both ends of the window",
    )  # fmt: skip
    for reason in first.tainted:
        told = told.with_taint(reason)
    return told


def _drain(waiting: Figure, moved: float, first: Figure) -> Drain:
    if waiting.value is None:
        return Drain("unknown", None, None, f"unknown: {waiting.note or 'no data'}")
    return drain(waiting.value, moved, float("nan") if first.value is None else first.value)


def _rank_rows(table: Table, replica: Replica, age: float | None) -> tuple[RankRow, ...]:
    gauges, present = table.gauges, set(replica.ranks)
    found: dict[Rank, int | None] = {rank: None for rank in replica.ranks}
    for at in gauges.rows_of.get(replica.key, ()):
        found[gauges.owners[at][1]] = at
    rows = []
    for rank, row in sorted(found.items(), key=lambda item: (len(item[0].engine), item[0].engine, item[0].model)):

        def gauge(signal: str, unit: str, row: int | None = row) -> Figure:
            value = None if row is None else float(gauges.values[signal][row, -1])
            absent = table.absent(replica, signal, signal in gauges.seen)
            return table.figure("gauges", value, unit, "measured", absent, age)

        tokens = table.rates.by_rank.get("generation_tokens", {}).get((replica.key, rank.engine))
        absent = table.absent(replica, "generation_tokens", "generation_tokens" in table.rates.by_replica)
        rows.append(
            RankRow(
                rank.engine,
                rank.model,
                rank in present,
                gauge("requests_waiting", "requests"),
                gauge("requests_running", "requests"),
                gauge("kv_cache_usage", "ratio"),
                table.figure("replica_rates", tokens, "tokens/s", "measured", absent, age),
            )
        )
    return tuple(rows)


def _no_quantile(table: Table, replica: Replica, age: float | None) -> QuantileFigure:
    status, note = table.absent(replica, "time_to_first_token", len(table.first_token_buckets) > 0)
    window = duration_text(round(table.window_seconds * 1000))
    return QuantileFigure(
        status, None, "seconds", table.promql.get("replica_first_token", ()), age, note or f"no first token in the last {window}",
        table.tainted.get("replica_first_token", ()),
    )  # fmt: skip
