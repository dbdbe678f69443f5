"""The Fleet page's data: one picture of all replicas at an instant, in at most a dozen queries whatever their number."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from collectors.asking import Answers, Question
from collectors.discovery import Discovery, discover
from collectors.figures import Figure, FigureStatus, Finding, Line, Panel
from collectors.fleet_gauges import GAUGES, RankGauges, instant_rates, just_missed, rank_gauges, without_stale_tails
from collectors.fleet_picture import FleetPicture
from collectors.fleet_rows import Table, hit_ratio, replica_rows
from collectors.fleet_sum import first_token_p99s, fleet_row
from collectors.fleet_totals import FleetSeries, fleet_totals
from collectors.flow import arrivals_per_second, waiting_change_per_second, whole_windows_from
from collectors.histograms import merged_histogram, missing_status, quantile_figure
from collectors.identity import FleetTree, vanished_ranks
from collectors.model import Floats, Window
from collectors.scraped import Key, key_text
from collectors.settings import Settings
from collectors.signals import SIGNAL, Part, Plan, duration_text, panel_window_ms, rate_window_ms
from collectors.source import Source

RATES = (
    Part("first_tokens", "time_to_first_token", "_count"),
    Part("finished", "requests_finished", keep=("finished_reason",)),
    Part("prompt_tokens", "prompt_tokens"),
    Part("generation_tokens", "generation_tokens"),
    Part("preemptions", "preemptions"),
    Part("prefix_queries", "prefix_cache_queries"),
    Part("prefix_hits", "prefix_cache_hits"),
)
CAPACITY = (Part("first_tokens", "time_to_first_token", "_count"), Part("generation_tokens", "generation_tokens"))


CAPACITY_POINTS = 60
"""How often within the window a sustained rate is looked for."""


def ends_on_step(window: Window) -> Window:
    """The window with its start moved up so that its last step is its end."""
    steps = (window.end_ms - window.start_ms) // window.step_ms
    return Window(window.end_ms - steps * window.step_ms, window.end_ms, window.step_ms)


def fleet_picture(source: Source, window: Window, settings: Settings) -> FleetPicture:
    """The fleet at `window.end_ms`, with the window before it. Raises SourceError when the source cannot answer.

    Figures and the replica table rest on rates over `rate_window_ms`, panels on the (longer or equal) range they name.
    """
    window = ends_on_step(window)
    answers = Answers(source)
    discovery = discover(answers, settings, window.end_ms, window.end_ms - window.start_ms)
    plan = discovery.plan()
    answers.ask(_questions(plan, discovery, window, settings))
    return _picture(source, window, settings, answers, discovery, plan)


def _questions(plan: Plan, discovery: Discovery, window: Window, settings: Settings) -> list[Question]:
    short = duration_text(rate_window_ms(discovery.scrape_interval_seconds))
    panel = duration_text(panel_window_ms(discovery.scrape_interval_seconds, window.step_ms))
    at = window.end_ms
    replica = plan.tree.replica_labels
    asked = [
        Question("gauges", plan.gauges(GAUGES), window=window),
        Question("fleet_rates", plan.chain(RATES, panel), window=window),
        Question("time_to_first_token", plan.buckets("time_to_first_token", panel), window=window),
        Question("inter_token_latency", plan.buckets("inter_token_latency", panel), window=window),
        Question("replica_rates", plan.chain(RATES, short, plan.rank_labels), at_ms=at),
        Question("replica_first_token", plan.buckets("time_to_first_token", short, replica), at_ms=at),
        Question(
            "layouts",
            plan.layouts(("time_to_first_token", "inter_token_latency"), looked_back_ms(window, plan.tree)),
            at_ms=at,
            optional=True,
        ),
        Question("capacity", _capacity_promql(plan, window, short), at_ms=at, optional=True),
    ]
    if isinstance(settings.desired_replicas, str):
        asked.append(Question("desired_replicas", settings.desired_replicas, at_ms=at, optional=True))
    return asked


def looked_back_ms(window: Window, tree: FleetTree) -> tuple[int, ...]:
    """Where bucket layouts are looked at: now, and during a rollout of versions in the middle of the window too."""
    middle = (window.end_ms - window.start_ms) // 2000 * 1000
    return (0, middle) if middle and len(tree.engines) > 1 else (0,)


def _capacity_promql(plan: Plan, window: Window, short: str) -> str:
    """Highest rate over the short range at any time at which work had waited through all of that range, per replica."""
    length = window.end_ms - window.start_ms
    by = ", ".join(plan.tree.replica_labels)
    waiting = plan.spellings("requests_waiting")
    if length <= 0 or not waiting:
        return ""
    step = max(window.step_ms, length // CAPACITY_POINTS // 1000 * 1000, 1000)
    queued = " or ".join(f"sum by ({by}) (min_over_time({plan.selector((name,))}[{short}])) > 0" for name in waiting)
    members = []
    for part in CAPACITY:
        rated = plan.rates(part.signal, part.suffix, short, plan.tree.replica_labels)
        if rated:
            inner = (
                f"max_over_time((({rated}) and on ({by}) ({queued}))[{duration_text(length)}:{duration_text(step)}])"
            )
            members.append(f'label_replace({inner}, "{SIGNAL}", "{part.name}", "", "")')
    return " or ".join(members)


def _picture(
    source: Source, window: Window, settings: Settings, answers: Answers, discovery: Discovery, plan: Plan
) -> FleetPicture:
    short_ms = rate_window_ms(discovery.scrape_interval_seconds)
    panel_ms = panel_window_ms(discovery.scrape_interval_seconds, window.step_ms)
    gauges = rank_gauges(answers.frame("gauges", window), plan)
    known = all(plan.tree.replica(key) is not None for key in gauges.rows_of)
    tree = plan.tree if known else discovery.tree(tuple(gauges.rows_of))
    times_seconds = window.times_ms() / 1000
    if discovery.scrape_interval_seconds is not None:
        gauges = without_stale_tails(gauges, tree, times_seconds, discovery.scrape_interval_seconds)
    promql = {name: answers.promql(name) for name in answers.names}
    tainted = {name: answers.taint(name) for name in answers.names}
    discovered = answers.taint("engines", "targets")
    tainted = {name: (*discovered, *reasons) for name, reasons in tainted.items()}
    table = Table(
        tree=tree,
        settings=settings,
        at_ms=window.end_ms,
        times_seconds=times_seconds,
        scrape_interval_seconds=discovery.scrape_interval_seconds,
        gauges=gauges,
        gauge_shift=panel_ms // window.step_ms,
        gauge_shift_seconds=panel_ms / 1000,
        rates=instant_rates(answers.vector("replica_rates"), plan),
        window_seconds=short_ms / 1000,
        capacity=instant_rates(answers.vector("capacity"), plan),
        capacity_refused=answers.refused.get("capacity", ""),
        first_token_buckets=answers.vector("replica_first_token"),
        promql=promql,
        tainted=tainted,
        keeps_up=any(target.up is not None for target in discovery.targets),
        just_missed=just_missed(gauges, tree, times_seconds, discovery.scrape_interval_seconds),
    )
    p99s = first_token_p99s(table)
    rows = replica_rows(table, p99s.by_replica)
    ages = [row.age_seconds for row in rows if row.age_seconds is not None and row.scraped in ("up", "unknown")]
    age = min(ages, default=None)
    extent = source.extent_ms()
    series = _fleet_series(
        answers, window, plan, gauges, panel_ms, promql, tainted, age, extent[0] if extent is not None else None
    )
    layouts = answers.vector("layouts")
    histograms = {
        signal: merged_histogram(answers, signal, signal, plan, window, panel_ms, layouts)
        for signal in ("time_to_first_token", "inter_token_latency")
    }
    first_token, token_gap = (histogram.panel() for histogram in histograms.values())
    totals = fleet_totals(
        rows,
        series,
        tuple(quantile_figure(first_token, q, age_seconds=age) for q in first_token.series.quantiles),
        quantile_figure(token_gap, 0.99, age_seconds=age),
        (
            histograms["time_to_first_token"].share(settings.slo.time_to_first_token, age),
            histograms["inter_token_latency"].share(settings.slo.inter_token_latency, age),
        ),
    )
    up = sum(row.scraped == "up" or (row.scraped == "unknown" and row.age_seconds is not None) for row in rows)
    desired = _desired(answers, settings)
    return FleetPicture(
        at_ms=window.end_ms,
        window=window,
        source=source.info(),
        engine_text=tree.engine_text,
        scrape_interval_seconds=discovery.scrape_interval_seconds,
        rate_window_ms=short_ms,
        replicas=rows,
        replicas_up=up,
        replicas_seen=len(rows),
        replicas_desired=desired,
        totals=totals,
        fleet=fleet_row(rows, p99s, hit_ratio(table)),
        waiting=_by_replica("waiting", "requests_waiting", "requests", gauges, gauges.total, window, plan, answers),
        running=_by_replica("running", "requests_running", "requests", gauges, gauges.total, window, plan, answers),
        kv_cache_usage=_by_replica(
            "kv_cache_usage", "kv_cache_usage", "ratio", gauges, gauges.highest, window, plan, answers
        ),
        flow=_flow_panel(series, window, panel_ms, plan, answers),
        time_to_first_token=first_token,
        inter_token_latency=token_gap,
        findings=(*tree.findings, *_window_findings(tree, gauges, desired, up)),
        warnings=(*answers.warnings(), *(f"{what}: {why}" for what, why in answers.refused.items())),
        asked=tuple(answers.asked),
    )


def _fleet_series(
    answers: Answers,
    window: Window,
    plan: Plan,
    gauges: RankGauges,
    panel_ms: int,
    promql: dict[str, tuple[str, ...]],
    tainted: dict[str, tuple[str, ...]],
    age: float | None,
    begin_ms: int | None,
) -> FleetSeries:
    frame = answers.frame("fleet_rates", window)
    nothing = np.full(window.steps, np.nan)
    waiting = gauges.values["requests_waiting"]
    queued = _total(waiting, nothing)
    if begin_ms is None and np.isnan(queued[0]) and np.isfinite(queued).any():
        begin_ms = window.start_ms + int(np.flatnonzero(np.isfinite(queued))[0]) * window.step_ms
    whole = whole_windows_from(begin_ms, window.start_ms, window.step_ms, panel_ms)
    # A store that just began, without one whole window, shows what it has.
    partial = np.arange(window.steps) < (whole if whole < window.steps else 0)
    rates = {
        labels.get(SIGNAL, ""): np.where(partial, np.nan, values)
        for labels, values in zip(frame.labels, frame.values, strict=True)
    }
    change = waiting_change_per_second(waiting, panel_ms // window.step_ms, panel_ms / 1000)
    first = rates.get("first_tokens", nothing)
    part_of = {part.signal: part.name for part in RATES}

    def absent(signal: str) -> tuple[FigureStatus, str]:
        there = signal in gauges.seen if signal in GAUGES else part_of.get(signal) in rates
        return missing_status(plan, signal, int(there))

    return FleetSeries(
        rates=rates,
        waiting=queued,
        running=_total(gauges.values["requests_running"], nothing),
        worst_kv=_highest(gauges.values["kv_cache_usage"], nothing),
        arrivals=arrivals_per_second(first, change) if len(change) else nothing,
        step_ms=window.step_ms,
        promql=promql,
        tainted=tainted,
        absent=absent,
        age_seconds=age,
    )


def _total(rows: Floats, nothing: Floats) -> Floats:
    return np.where(np.isnan(rows).all(axis=0), np.nan, np.nansum(rows, axis=0)) if len(rows) else nothing


def _highest(rows: Floats, nothing: Floats) -> Floats:
    if not len(rows):
        return nothing
    return np.where(np.isnan(rows).all(axis=0), np.nan, np.max(np.nan_to_num(rows, nan=-np.inf), axis=0))


def _by_replica(
    panel_id: str,
    signal: str,
    unit: str,
    gauges: RankGauges,
    pick: Callable[[str, Key], Floats],
    window: Window,
    plan: Plan,
    answers: Answers,
) -> Panel:
    status: FigureStatus = "value"
    note = ""
    if signal not in gauges.seen:
        status, note = missing_status(plan, signal, 0)
    lines = tuple(Line(key_text(key), pick(signal, key)) for key in sorted(gauges.rows_of)) if not note else ()
    return Panel(panel_id, unit, window, lines, answers.promql("gauges"), status, note, answers.taint("gauges"))


def _flow_panel(series: FleetSeries, window: Window, panel_ms: int, plan: Plan, answers: Answers) -> Panel:
    lines = [Line("arrivals", series.arrivals, "estimated")]
    lines += [
        Line(name, series.rates[part])
        for part, name in (("first_tokens", "first tokens"), ("finished", "completions"))
        if part in series.rates
    ]
    status: FigureStatus = "value"
    note = ""
    if len(lines) == 1:
        status, note = missing_status(plan, "requests_finished", 0)
        lines = []
    queries = ("fleet_rates", "gauges")
    return Panel(
        "flow",
        "requests/s",
        window,
        tuple(lines),
        answers.promql(*queries),
        status,
        note,
        answers.taint(*queries),
        panel_ms,
    )


def _desired(answers: Answers, settings: Settings) -> Figure:
    wanted = settings.desired_replicas
    if wanted is None:
        return Figure("no_data", None, "replicas", "configured", note="desired_replicas is not configured")
    if isinstance(wanted, int):
        return Figure("value", float(wanted), "replicas", "configured")
    told = answers.vector("desired_replicas")
    query = answers.promql("desired_replicas")
    if len(told) == 1 and not np.isnan(told.values[0]):
        return Figure("value", float(told.values[0]), "replicas", "measured", query)
    why = answers.refused.get("desired_replicas") or f"desired_replicas answers {len(told)} values where one is needed"
    return Figure("no_data", None, "replicas", "measured", query, note=why)


def _window_findings(tree: FleetTree, gauges: RankGauges, desired: Figure, up: int) -> list[Finding]:
    found = []
    for replica in tree.replicas:
        seen = [gauges.owners[row][1] for row in gauges.rows_of.get(replica.key, ())]
        gone = vanished_ranks(replica, seen)
        if gone:
            names = ", ".join(rank.engine or "(unnamed)" for rank in gone)
            found.append(
                Finding(
                    "rank_missing",
                    (replica.text,),
                    f"Rank {names} had samples in this window and has none now; sums are too low.",
                )
            )
    if desired.value is not None and up < desired.value:
        found.append(Finding("replicas_missing", (), f"{up} of {desired.value:g} desired replicas are scraped."))
    return found
