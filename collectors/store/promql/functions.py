"""Every PromQL function by name: how its arguments are read and what becomes of the metric name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from collectors.model import Floats
from collectors.remembered import of_labels
from collectors.store.promql import histograms, over_time, rates, regression, relabelling
from collectors.store.promql.elementwise import DATES, MATH, date_part, rounded
from collectors.store.promql.errors import failed
from collectors.store.promql.grids import Grid, Mask, ScalarRow, Value, grid, nameless, spread
from collectors.store.promql.nodes import Call, MatrixSelector, Node, VectorSelector
from collectors.store.promql.windows import Windows
from collectors.store.series import EMPTY, METRIC_NAME, LabelSet

if TYPE_CHECKING:
    from collectors.store.promql.evaluator import Evaluator, Steps

Function = Callable[["Evaluator", Call, "Steps"], Value]

_NATIVE = "needs native histograms, which are not supported"
UNSUPPORTED: dict[str, str] = {
    **{
        name: f"the function {name}() {_NATIVE}"
        for name in ("histogram_count", "histogram_sum", "histogram_avg", "histogram_stddev", "histogram_stdvar")
    },
    **{
        name: f"the function {name}() is experimental and not supported"
        for name in (
            "info",
            "histogram_quantiles",
            "start",
            "end",
            "range",
            "step",
            "max_of",
            "min_of",
            "start_timestamp",
        )
    },
}


# ---- functions of a range vector


def _over_windows(
    windows: Windows, values: Floats, known: Mask | None, steps: Steps, *, keep_name: bool = False
) -> Grid:
    found = grid(windows.selection.labels, values, known)
    return spread(found if keep_name else nameless(found, per_step=False), steps.count)


def _rate(counter: bool, per_second: bool) -> Function:
    def call(ev: Evaluator, node: Call, steps: Steps) -> Value:
        windows = ev.windows(node.args[0], steps)
        if not windows.selection.labels:
            return Grid((), np.zeros((0, steps.count)))
        if counter:
            labels = windows.selection.labels
            for name in of_labels(labels, "names", lambda: sorted({one.get(METRIC_NAME) for one in labels})):
                ev.notes.not_a_counter(name)
        zero: rates.ZeroCut | None = None if not counter else "first" if ev.legacy else "last"
        values, known = rates.extrapolated(windows, zero=zero, per_second=per_second)
        return _over_windows(windows, values, known, steps)

    return call


def _last_two(counter: bool, per_second: bool) -> Function:
    def call(ev: Evaluator, node: Call, steps: Steps) -> Value:
        windows = ev.windows(node.args[0], steps)
        if not windows.selection.labels:
            return Grid((), np.zeros((0, steps.count)))
        values, known = rates.last_two(windows, counter=counter, per_second=per_second)
        return _over_windows(windows, values, known, steps)

    return call


def _over_time(name: str) -> Function:
    compute = over_time.OVER_TIME[name]

    def call(ev: Evaluator, node: Call, steps: Steps) -> Value:
        windows = ev.windows(node.args[0], steps)
        if not windows.selection.labels:
            return Grid((), np.zeros((0, steps.count)))
        keep = name in ("last_over_time", "first_over_time")
        return _over_windows(windows, compute(windows), windows.count > 0, steps, keep_name=keep)

    return call


def _warn_of_quantiles(ev: Evaluator, q: Floats) -> None:
    outside = q[~((q >= 0) & (q <= 1))]
    if outside.size:  # np.unique loads numpy.ma, a tenth of the start of a new process
        for value in np.unique(outside).tolist():
            ev.notes.bad_quantile(value)


def _quantile_over_time(ev: Evaluator, node: Call, steps: Steps) -> Value:
    q = ev.scalar(node.args[0], steps)
    windows = ev.windows(node.args[1], steps, spread=True)
    if not windows.selection.labels:
        return Grid((), np.zeros((0, steps.count)))
    _warn_of_quantiles(ev, q)
    return _over_windows(windows, over_time.quantile_over_time(windows, q), windows.count > 0, steps)


def _mad_over_time(ev: Evaluator, node: Call, steps: Steps) -> Value:
    windows = ev.windows(node.args[0], steps)
    if not windows.selection.labels:
        return Grid((), np.zeros((0, steps.count)))
    return _over_windows(windows, over_time.mad_over_time(windows), windows.count > 0, steps)


def _time_of(pick: str) -> Function:
    def call(ev: Evaluator, node: Call, steps: Steps) -> Value:
        windows = ev.windows(node.args[0], steps)
        if not windows.selection.labels:
            return Grid((), np.zeros((0, steps.count)))
        seconds = over_time.time_of_extreme(windows, pick) / 1000
        return _over_windows(windows, seconds, windows.count > 0, steps, keep_name=pick in ("first", "last"))

    return call


def _deriv(ev: Evaluator, node: Call, steps: Steps) -> Value:
    windows = ev.windows(node.args[0], steps)
    if not windows.selection.labels:
        return Grid((), np.zeros((0, steps.count)))
    slope, _, known = regression.linear_regression(windows, None)
    return _over_windows(windows, slope, known, steps)


def _predict_linear(ev: Evaluator, node: Call, steps: Steps) -> Value:
    windows = ev.windows(node.args[0], steps, spread=True)
    ahead = ev.scalar(node.args[1], steps)
    if not windows.selection.labels:
        return Grid((), np.zeros((0, steps.count)))
    slope, intercept, known = regression.linear_regression(windows, steps.times_ms())
    with np.errstate(invalid="ignore", over="ignore"):
        return _over_windows(windows, slope * ahead + intercept, known, steps)


def _smoothing(ev: Evaluator, node: Call, steps: Steps) -> Value:
    windows = ev.windows(node.args[0], steps, spread=True)
    smoothing, trend = ev.scalar(node.args[1], steps), ev.scalar(node.args[2], steps)
    if not windows.selection.labels:
        return Grid((), np.zeros((0, steps.count)))
    for name, factor, short in (("smoothing", smoothing, "sf"), ("trend", trend, "tf")):
        wrong = factor[(factor <= 0) | (factor >= 1)]
        if len(wrong):
            raise failed(f"invalid {name} factor. Expected: 0 < {short} < 1, got: {wrong[0]:f}")
    values, known = regression.double_exponential_smoothing(windows, smoothing, trend)
    return _over_windows(windows, values, known, steps)


def _absent_over_time(ev: Evaluator, node: Call, steps: Steps) -> Value:
    windows = ev.windows(node.args[0], steps, spread=True)
    return _absent_grid(
        node.args[0], np.asarray((windows.count > 0).any(axis=0)) if len(windows.selection.labels) else None, steps
    )


MATRIX_FUNCTIONS: dict[str, Function] = {
    "rate": _rate(counter=True, per_second=True),
    "increase": _rate(counter=True, per_second=False),
    "delta": _rate(counter=False, per_second=False),
    "irate": _last_two(counter=True, per_second=True),
    "idelta": _last_two(counter=False, per_second=False),
    **{name: _over_time(name) for name in over_time.OVER_TIME},
    **{f"ts_of_{pick}_over_time": _time_of(pick) for pick in ("first", "last", "min", "max")},
    "quantile_over_time": _quantile_over_time,
    "mad_over_time": _mad_over_time,
    "deriv": _deriv,
    "predict_linear": _predict_linear,
    "double_exponential_smoothing": _smoothing,
    "holt_winters": _smoothing,
    "absent_over_time": _absent_over_time,
}


# ---- functions of an instant vector or a scalar


def _math(name: str) -> Function:
    compute = MATH[name]

    def call(ev: Evaluator, node: Call, steps: Steps) -> Value:
        source = ev.vector(node.args[0], steps)
        with np.errstate(all="ignore"):
            return nameless(source.with_values(np.asarray(compute(source.values), dtype=np.float64)))

    return call


def _date(name: str) -> Function:
    def call(ev: Evaluator, node: Call, steps: Steps) -> Value:
        if not node.args:
            return Grid((EMPTY,), date_part(name, steps.times_ms() / 1000)[None, :])
        source = ev.vector(node.args[0], steps)
        return nameless(source.with_values(date_part(name, source.values)))

    return call


def _time(ev: Evaluator, node: Call, steps: Steps) -> Value:
    return ScalarRow(steps.times_ms() / 1000)


def _pi(ev: Evaluator, node: Call, steps: Steps) -> Value:
    return ScalarRow(np.full(steps.count, np.pi))


def _vector(ev: Evaluator, node: Call, steps: Steps) -> Value:
    return Grid((EMPTY,), ev.scalar(node.args[0], steps)[None, :])


def _scalar(ev: Evaluator, node: Call, steps: Steps) -> Value:
    source = ev.vector(node.args[0], steps)
    mask = source.mask()
    single = mask.sum(axis=0) == 1
    values = np.full(steps.count, np.nan)
    if single.any():
        row = mask.argmax(axis=0)
        values[single] = source.values[row[single], np.flatnonzero(single)]
    return ScalarRow(values)


def _absent(ev: Evaluator, node: Call, steps: Steps) -> Value:
    source = ev.vector(node.args[0], steps)
    return _absent_grid(node.args[0], np.asarray(source.mask().any(axis=0)) if len(source.labels) else None, steps)


def _absent_grid(arg: Node, there: np.ndarray | None, steps: Steps) -> Grid:
    """1 at the steps where nothing is there, with the labels that a selector asks for by equality."""
    selector = arg.vector if isinstance(arg, MatrixSelector) else arg
    labels: dict[str, str] = {}
    if isinstance(selector, VectorSelector):
        seen: set[str] = set()
        for matcher in selector.matchers:
            if matcher.name == METRIC_NAME:
                continue
            if matcher.op == "=" and matcher.name not in seen:
                labels[matcher.name] = matcher.value
                seen.add(matcher.name)
            else:
                labels.pop(matcher.name, None)
    missing = np.ones((1, steps.count), dtype=bool) if there is None else ~there[None, :]
    return grid((LabelSet(labels),), np.ones((1, steps.count)), missing)


def _timestamp(ev: Evaluator, node: Call, steps: Steps) -> Value:
    arg = node.args[0]
    if not isinstance(arg, VectorSelector):
        source = ev.vector(arg, steps)
        return nameless(source.with_values(np.broadcast_to(steps.times_ms() / 1000, source.values.shape).copy()))
    windows, found = ev.newest(arg, steps)
    if not found.labels:
        return Grid((), np.zeros((0, steps.count)))
    of_lines = windows.time_of_line_row(np.maximum(windows.line_high - 1, 0)) / 1000
    values = np.array(windows.by_series(of_lines), dtype=np.float64)
    return nameless(spread(grid(found.labels, values, found.present), steps.count))


def _sort(descending: bool) -> Function:
    def call(ev: Evaluator, node: Call, steps: Steps) -> Value:
        source = ev.vector(node.args[0], steps)
        if steps.count != 1:
            return source
        values = source.values[:, 0]
        key = -values if descending else values
        chosen = source.at(np.lexsort((np.where(np.isnan(key), 0.0, key), np.isnan(values))))
        return Grid(chosen.labels, chosen.values, chosen.present, ordered=True)

    return call


def _sort_by_label(descending: bool) -> Function:
    def call(ev: Evaluator, node: Call, steps: Steps) -> Value:
        source = ev.vector(node.args[0], steps)
        names = tuple(ev.text(arg) for arg in node.args[1:])
        return source if steps.count != 1 else relabelling.sorted_by_labels(source, names, descending=descending)

    return call


def _clamp(which: str) -> Function:
    def call(ev: Evaluator, node: Call, steps: Steps) -> Value:
        source = ev.vector(node.args[0], steps)
        bounds = [ev.scalar(arg, steps) for arg in node.args[1:]]
        low = bounds[0] if which in ("clamp", "clamp_min") else np.full(steps.count, -np.inf)
        high = bounds[-1] if which in ("clamp", "clamp_max") else np.full(steps.count, np.inf)
        with np.errstate(invalid="ignore"):
            values = np.maximum(low, np.minimum(high, source.values))
            impossible = high < low
        present = source.mask() & ~impossible if impossible.any() else source.present
        return nameless(grid(source.labels, values, present))

    return call


def _round(ev: Evaluator, node: Call, steps: Steps) -> Value:
    source = ev.vector(node.args[0], steps)
    nearest = ev.scalar(node.args[1], steps) if len(node.args) > 1 else np.ones(steps.count)
    return nameless(source.with_values(rounded(source.values, nearest)))


def _label_replace(ev: Evaluator, node: Call, steps: Steps) -> Value:
    target, replacement, origin, pattern = (ev.text(arg) for arg in node.args[1:])
    source = ev.vector(node.args[0], steps)
    return relabelling.label_replace(source, target, replacement, origin, pattern, utf8=not ev.legacy)


def _label_join(ev: Evaluator, node: Call, steps: Steps) -> Value:
    target, separator, *origins = (ev.text(arg) for arg in node.args[1:])
    return relabelling.label_join(ev.vector(node.args[0], steps), target, separator, tuple(origins), utf8=not ev.legacy)


def _histogram_quantile(ev: Evaluator, node: Call, steps: Steps) -> Value:
    q = ev.scalar(node.args[0], steps)
    _warn_of_quantiles(ev, q)
    source = ev.vector(node.args[1], steps)
    tolerance = 0.0 if ev.legacy else histograms.SMALL_DELTA
    return histograms.over_histograms(
        source,
        ev.notes,
        lambda bounds, counts, columns: histograms.quantile(q[columns], bounds, counts, ev.notes, tolerance=tolerance),
    )


def _histogram_fraction(ev: Evaluator, node: Call, steps: Steps) -> Value:
    lower, upper = ev.scalar(node.args[0], steps), ev.scalar(node.args[1], steps)
    source = ev.vector(node.args[2], steps)
    return histograms.over_histograms(
        source,
        ev.notes,
        lambda bounds, counts, columns: histograms.fraction(lower[columns], upper[columns], bounds, counts),
    )


FUNCTIONS: dict[str, Function] = {
    **{name: _math(name) for name in MATH},
    **{name: _date(name) for name in DATES},
    **{name: _clamp(name) for name in ("clamp", "clamp_min", "clamp_max")},
    "time": _time,
    "pi": _pi,
    "vector": _vector,
    "scalar": _scalar,
    "absent": _absent,
    "timestamp": _timestamp,
    "sort": _sort(descending=False),
    "sort_desc": _sort(descending=True),
    "sort_by_label": _sort_by_label(descending=False),
    "sort_by_label_desc": _sort_by_label(descending=True),
    "round": _round,
    "label_replace": _label_replace,
    "label_join": _label_join,
    "histogram_quantile": _histogram_quantile,
    "histogram_fraction": _histogram_fraction,
}
