"""What does not parse: a mistake, or another dialect of the query language that this parser does not know."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from runbooks.lint.finding import Finding, Subject
from runbooks.lint.query import kind, metric_of, parse_query, selectors, unwrap, visits

ELSEWHERE = {
    "Prometheus 2": ("holt_winters",),
    "MetricsQL": (
        "aggr_over_time", "count_eq_over_time", "count_gt_over_time", "count_le_over_time", "count_ne_over_time", "default_rollup", "histogram", "histogram_over_time",
        "histogram_share", "increase_prometheus", "increase_pure", "interpolate", "keep_last_value", "keep_next_value", "label_copy", "label_del", "label_keep",
        "label_lowercase", "label_map", "label_match", "label_mismatch", "label_move", "label_set", "label_transform", "label_uppercase", "label_value", "lag", "lifetime",
        "limit_offset", "limitk", "median", "median_over_time", "mode", "outliers_iqr", "outliersk", "prometheus_buckets", "quantiles", "quantiles_over_time",
        "range_avg", "range_first", "range_last", "range_max", "range_median", "range_min", "range_quantile", "range_sum", "rate_over_sum", "rate_prometheus",
        "remove_resets", "rollup", "rollup_delta", "rollup_increase", "rollup_rate", "running_avg", "running_max", "running_min", "running_sum", "scrape_interval",
        "share", "share_gt_over_time", "share_le_over_time", "sum2", "timestamp_with_name", "tlast_over_time", "topk_avg", "topk_last", "topk_max", "topk_median",
        "topk_min", "ttf", "union", "with", "zscore", "zscore_over_time", "alias", "any", "avg_prometheus", "now", "rand", "ru", "smooth_exponential", "step",
    ),
}  # fmt: skip
"""Functions that a server other than Prometheus 3 knows."""
_UNKNOWN_FUNCTION = re.compile(r"unknown function with name '(?P<name>\w+)'")
_EXPERIMENTAL = re.compile(
    r"\]?\s*\b(?:anchored|smoothed)\b|\[[^\]]*[0-9a-z]\s*[-+*/]\s*[^\]]*\]|\b(?:fill|fill_left|fill_right)\s*\("
)
_RATE_OF_AGGREGATE = re.compile(r"\b(?:rate|irate|increase)\s*\(\s*(?:sum|avg|max|min)\b")


def unparsed(text: str, reason: str) -> Iterator[Finding]:
    """parse_error for a query that the parser refused; a warning where another server would take it."""
    unknown = _UNKNOWN_FUNCTION.search(reason)
    home = next((place for place, names in ELSEWHERE.items() if unknown and unknown["name"] in names), "")
    if home and unknown:
        yield Finding(
            "parse_error",
            "warning",
            f"{unknown['name']}() is known to {home} only: the rest of the query was not checked",
        )
    elif _EXPERIMENTAL.search(text):
        yield Finding("parse_error", "warning", f"experimental syntax that is not checked here ({reason})")
    else:
        yield Finding("parse_error", "error", reason)
    if (
        _RATE_OF_AGGREGATE.search(text)
        or "expected type matrix" in reason
        and "got vector" in reason
        and "(sum" in text
    ):
        yield Finding(
            "rate_of_sum",
            "error",
            "a rate needs the raw series with a window, not a sum of them",
            "sum(rate(x[5m])): first the rate, then the sum",
        )


def range_as_result(subject: Subject) -> Iterator[Finding]:
    """parse_error: an alert or recording rule whose result would be a range vector, which no server evaluates."""
    if subject.expression.kind != "panel" and kind(unwrap(subject.query.root)) in ("MatrixSelector", "SubqueryExpr"):
        yield Finding(
            "parse_error",
            "error",
            "the result is a range vector; a rule needs one value per series",
            "a function over it, for example max_over_time()",
        )


def watched_absent(texts: Iterable[str]) -> frozenset[str]:
    """Metrics inside absent() or absent_over_time() in any of the queries."""
    names: set[str] = set()
    for text in texts:
        if "absent" not in text:
            continue
        try:
            root = parse_query(text).root
        except ValueError:
            continue
        for visit in visits(root):
            if kind(visit.node) == "Call" and visit.node.func.name.startswith("absent"):
                names |= {metric_of(inner.node) for inner in selectors(visit.node)}
    return frozenset(names)
