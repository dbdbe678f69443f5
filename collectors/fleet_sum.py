"""The fleet as one more row: what the replica table adds up to over the same range, and what averaging its p99s would say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collectors.figures import Figure, QuantileFigure
from collectors.fleet_picture import FleetRow, ReplicaRow
from collectors.fleet_rows import Table
from collectors.fleet_totals import sum_of
from collectors.histograms import fleet_buckets, replica_columns
from collectors.quantiles import mean_of_quantiles, quantile_series
from collectors.scraped import Key
from collectors.signals import duration_text


@dataclass(frozen=True)
class FirstTokenP99s:
    """The 99th percentile of the time to first token over the table's range, from one answer."""

    by_replica: Mapping[Key, QuantileFigure]
    """Replicas with an observation that are scraped."""
    fleet: QuantileFigure
    """From the replicas' buckets added up."""
    mean_of_p99s: Figure


def first_token_p99s(table: Table) -> FirstTokenP99s:
    """Every replica's p99, the fleet's own, and the mean of the former, which is no p99 of anything."""
    keys, bounds, grid = replica_columns(table.first_token_buckets, table.tree)
    seconds = table.window_seconds
    series = quantile_series(bounds, grid, seconds, (0.99,))
    query, tainted = table.promql.get("replica_first_token", ()), table.tainted.get("replica_first_token", ())
    found = {}
    for column, key in enumerate(keys):
        interval = series.at(0.99, column)
        replica = table.tree.replica(key)
        if interval is not None and replica is not None and (replica.up is not False or key in table.just_missed):
            found[key] = QuantileFigure("value", interval, "seconds", query, None, "", tainted)
    fleet = fleet_buckets(bounds, grid).quantile(0.99, seconds) if len(keys) else None
    note = "" if fleet is not None else f"no first token in the last {duration_text(round(seconds * 1000))}"
    mean = mean_of_quantiles(series.estimate[0]) if len(keys) else None
    return FirstTokenP99s(
        found,
        QuantileFigure("value" if fleet is not None else "no_data", fleet, "seconds", query, None, note, tainted),
        Figure(
            "value" if mean is not None else "no_data", mean, "seconds", "derived", query, None,
            "averaging quantiles is wrong; shown to say so", tainted,
        ),
    )  # fmt: skip


def fleet_row(rows: Sequence[ReplicaRow], p99s: FirstTokenP99s, prefix_hit_ratio: Figure) -> FleetRow:
    """Sums of the rows, the fleet's own p99, and the replica whose p99 is highest."""
    waiting = sum_of(rows, lambda row: row.waiting)
    worst = max(
        (row for row in rows if row.time_to_first_token_p99.interval is not None),
        key=lambda row: (row.time_to_first_token_p99.interval.hi, row.time_to_first_token_p99.interval.estimate),  # type: ignore[union-attr]
        default=None,
    )
    return FleetRow(
        waiting=waiting,
        running=sum_of(rows, lambda row: row.running),
        seats=sum_of(rows, lambda row: row.seats),
        prompt_tokens=sum_of(rows, lambda row: row.prompt_tokens),
        generation_tokens=sum_of(rows, lambda row: row.generation_tokens),
        first_tokens=sum_of(rows, lambda row: row.first_tokens),
        preemptions=sum_of(rows, lambda row: row.preemptions),
        prefix_hit_ratio=prefix_hit_ratio,
        time_to_first_token_p99=p99s.fleet,
        worst_p99_key=worst.key if worst is not None else "",
        worst_p99=worst.time_to_first_token_p99 if worst is not None else p99s.fleet,
        mean_of_p99s=p99s.mean_of_p99s,
    )
