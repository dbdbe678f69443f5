"""The linter against the handed cases, and against what a file from outside can hold."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from cli import app
from runbooks.lint import lint_files, lint_text
from tests.runbooks.prepared import judged
from tests.shared_data import shared, shared_files


def test_every_handed_case_is_found_and_nothing_clean_is_blamed(tmp_path: Path) -> None:
    cases = shared("cases", "lint")
    files = [
        cases / json.loads(case.read_text(encoding="utf-8"))["file"] for case in sorted(cases.glob("*.expect.json"))
    ]
    summary = judged("lint", files, lambda file: lint_files([file]), tmp_path)
    assert summary["files"] > 0
    assert summary["found"] == summary["expected"], summary["output"]
    assert summary["false_error_files"] == summary["clean_with_errors"] == 0, summary["output"]


def rules_of(tmp_path: Path, expr: str, unit: str = "") -> list[str]:
    if unit:
        file = tmp_path / "board.json"
        file.write_text(
            json.dumps(
                {
                    "panels": [
                        {
                            "title": "p",
                            "fieldConfig": {"defaults": {"unit": unit}},
                            "targets": [{"expr": expr, "refId": "A"}],
                        }
                    ]
                }
            )
        )
    else:
        file = tmp_path / "rules.yaml"
        file.write_text(json.dumps({"groups": [{"name": "g", "rules": [{"alert": "A", "expr": expr}]}]}))
    return sorted({finding["rule"] for finding in lint_files([file])["findings"]})


RIGHT = [
    "histogram_quantile(0.99, sum by (le, model_name) (rate(vllm:inter_token_latency_seconds_bucket[1m]))) > 0.5",
    "sum without (engine) (rate(vllm:generation_tokens_total[1m]))",
    'sum(rate(vllm:time_to_first_token_seconds_bucket{le="2.5"}[5m])) / sum(rate(vllm:time_to_first_token_seconds_count[5m])) < 0.95',
    "max by (instance) (avg_over_time(vllm:kv_cache_usage_perc[5m])) > 0.9",
    "count(vllm:num_requests_waiting > 5)",
    "deriv(vllm:num_requests_waiting[5m]) > 0 and vllm:num_requests_waiting > 10",
    "changes(process_start_time_seconds[10m]) > 0",
    'sum(rate(http_requests_total{status="4xx"}[5m])) / sum(rate(http_requests_total[5m])) > 0.05',
    "vllm:kv_cache_usage_perc * on (instance) group_left (num_gpu_blocks) vllm:cache_config_info",
    "increase(vllm:num_preemptions_total[10m]) > 0",
    "up == 0 or absent(up)",
    "sum(vllm:kv_cache_usage_perc) > 3",
    "sum_over_time(vllm:kv_cache_usage_perc[1h]) > 12",
    "sum by (pod) (vllm:num_requests_running) / on (pod) group_left () kube_pod_info",
]


@pytest.mark.parametrize("expr", RIGHT)
def test_right_queries_are_left_alone(tmp_path: Path, expr: str) -> None:
    assert rules_of(tmp_path, expr) == []


WRONG = [
    ("rate(sum(vllm:generation_tokens_total)[5m:15s])", "rate_of_sum"),
    ("rate(sum(vllm:generation_tokens_total))", "parse_error"),
    ("irate(vllm:kv_cache_usage_perc[1m])", "rate_of_gauge"),
    (
        "sum(histogram_quantile(0.9, sum by (le, pod) (rate(vllm:e2e_request_latency_seconds_bucket[5m]))))",
        "sum_of_quantiles",
    ),
    ("vllm:kv_cache_usage_perc * 100 > 9500", "wrong_unit"),
    ("sum(vllm:kv_cache_usage_perc) > 90", "wrong_unit"),
    ("histogram_quantile(95, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket[5m])))", "wrong_unit"),
    ("vllm:time_to_first_token_seconds", "unknown_metric"),
    ("vllm:generation_tokens", "counter_missing_total"),
    ("sum by (model) (vllm:num_requests_running)", "label_not_on_metric"),
    ('rate(http_requests_total{status="500"}[5m])', "label_not_on_metric"),
    ('rate(vllm:request_success_total{finish_reason="stop"}[5m])', "label_not_on_metric"),
    ('rate(vllm:time_to_first_token_seconds_bucket{le="2"}[5m])', "label_not_on_metric"),
    ("vllm:spec_decode_draft_acceptance_rate", "removed_metric"),
    ("vllm:gpu_cache_usage_perc", "hidden_metric"),
    ("histogram_quantile(0.9, min by (le) (rate(vllm:e2e_request_latency_seconds_bucket[5m])))", "max_over_buckets"),
    (
        "histogram_quantile(0.9, sum without (le) (rate(vllm:e2e_request_latency_seconds_bucket[5m])))",
        "quantile_without_le",
    ),
    ("vllm:num_requests_waiting or vector(0)", "or_vector_zero_hides_no_data"),
    ("avg_over_time((vllm:num_requests_waiting > 0)[1h:1m])", "comparison_without_bool"),
    (
        "rate(vllm:e2e_request_latency_seconds_sum[5m]) / rate(vllm:time_to_first_token_seconds_count[5m])",
        "ratio_of_unlike_counters",
    ),
    ('count(up{job="vllm"} == 1) < 3', "absent_not_covered"),
    ("rate(vllm:prompt_tokens_total[15s])", "rate_window_too_short"),
    ("vllm:e2e_request_latency_seconds_count > 100", "raw_counter"),
]


@pytest.mark.parametrize(("expr", "rule"), WRONG)
def test_wrong_queries_are_named(tmp_path: Path, expr: str, rule: str) -> None:
    assert rule in rules_of(tmp_path, expr)


@pytest.mark.parametrize(
    ("expr", "unit", "wrong"),
    [
        ("vllm:kv_cache_usage_perc", "percent", True),
        ("vllm:kv_cache_usage_perc * 100", "percent", False),
        ("vllm:kv_cache_usage_perc", "percentunit", False),
        ("100 * vllm:kv_cache_usage_perc", "percentunit", True),
        (
            "sum(rate(vllm:prefix_cache_hits_total[5m])) / sum(rate(vllm:prefix_cache_queries_total[5m]))",
            "percent",
            True,
        ),
        (
            "1000 * histogram_quantile(0.9, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket[5m])))",
            "ms",
            False,
        ),
        ("1000 * histogram_quantile(0.9, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket[5m])))", "s", True),
        (
            "rate(vllm:e2e_request_latency_seconds_sum[5m]) / rate(vllm:e2e_request_latency_seconds_count[5m])",
            "ms",
            True,
        ),
        ("vllm:num_requests_running", "short", False),
    ],
)
def test_units_of_panels(tmp_path: Path, expr: str, unit: str, wrong: bool) -> None:
    assert ("wrong_unit" in rules_of(tmp_path, expr, unit)) is wrong


def test_a_recorded_quantile_is_still_a_quantile(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(
        "groups:\n- name: g\n  rules:\n  - record: vllm:ttft:p95\n    expr: histogram_quantile(0.95, sum by (le, instance) (rate(vllm:time_to_first_token_seconds_bucket[5m])))\n"
        "  - alert: Late\n    expr: avg(vllm:ttft:p95) > 5\n"
    )
    findings = lint_files([file])["findings"]
    assert [(finding["rule"], finding["expr_index"]) for finding in findings] == [("mean_of_quantiles", 1)]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.json", "{", "not JSON"),
        ("a.yaml", "groups: [", "not YAML"),
        ("a.yaml", "- 1\n- 2\n", "neither"),
        ("a.json", "[" * 100_000, "not JSON"),
        ("a.yaml", "a: 1\n", "neither"),
    ],
)
def test_files_that_are_neither_are_one_finding(tmp_path: Path, name: str, content: str, said: str) -> None:
    file = tmp_path / name
    file.write_text(content)
    (finding,) = lint_files([file])["findings"]
    assert finding["rule"] == "unreadable_file"
    assert said in finding["message"] or "deep" in finding["message"]
    assert "\n" not in finding["message"]


def test_missing_binary_and_hostile_files(tmp_path: Path) -> None:
    binary = tmp_path / "b.json"
    binary.write_bytes(b"\x80\x81\x00")
    hostile = tmp_path / "h.yaml"
    hostile.write_text(
        "groups:\n- name: \"\\e[31m<b>\"\n  rules:\n  - alert: !!python/object/apply:os.system ['true']\n    expr: up\n"
    )
    answer = lint_files([tmp_path / "none.json", binary, hostile])
    assert [finding["rule"] for finding in answer["findings"]] == ["unreadable_file"] * 3
    assert "\x1b" not in lint_text(answer)


SEEDS = [path.read_text(encoding="utf-8") for path in shared_files("cases", "lint", pattern="*.yaml")] or ["groups: []"]


@settings(max_examples=150, deadline=None)
@given(
    seed=st.sampled_from(SEEDS),
    cuts=st.lists(st.tuples(st.integers(0, 600), st.integers(0, 10), st.text(max_size=8)), max_size=4),
)
def test_a_damaged_file_never_raises(
    tmp_path_factory: pytest.TempPathFactory, seed: str, cuts: list[tuple[int, int, str]]
) -> None:
    for position, length, replacement in cuts:
        position %= len(seed) + 1
        seed = seed[:position] + replacement + seed[position + length :]
    file = tmp_path_factory.mktemp("lint") / "d.yaml"
    file.write_text(seed, encoding="utf-8", errors="replace")
    json.dumps(lint_files([file]), allow_nan=False)


BOARDS = [path for path in (Path(__file__).parents[2] / "data" / "lint").glob("*.json") if ".expect." not in path.name]
SCALARS = st.sampled_from([None, True, 0, -1.5, "", "x", "$y", [], {}, [1], {"expr": 3}, {"expr": "up{"}])


def _damaged(draw: st.DrawFn, node: Any) -> Any:
    if draw(st.integers(0, 30)) == 0:
        return draw(SCALARS)
    if isinstance(node, dict):
        return {key: _damaged(draw, child) for key, child in node.items()}
    return [_damaged(draw, child) for child in node] if isinstance(node, list) else node


@st.composite
def damaged_boards(draw: st.DrawFn) -> Any:
    return _damaged(draw, json.loads(draw(st.sampled_from(BOARDS)).read_text(encoding="utf-8")))


@settings(max_examples=150, deadline=None)
@given(board=damaged_boards())
def test_a_board_with_anything_anywhere_never_raises(tmp_path_factory: pytest.TempPathFactory, board: Any) -> None:
    file = tmp_path_factory.mktemp("lint") / "d.json"
    file.write_text(json.dumps(board), encoding="utf-8")
    json.dumps(lint_files([file]), allow_nan=False)


PIECES = st.sampled_from(
    ["$a", "${b:csv}", "[[c]]", "{{ .d }}", "x", "sum", "(", ")", "[", "]", "{", "}", ":", "5m", " by ", "offset", "@", "=~", '"', "`", "'", ",", "vllm:", "or", "1", "rate(", "histogram_quantile("]
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES, max_size=15))
def test_any_query_text_at_all_is_answered(tmp_path_factory: pytest.TempPathFactory, pieces: list[str]) -> None:
    file = tmp_path_factory.mktemp("lint") / "q.json"
    file.write_text(json.dumps({"panels": [{"targets": [{"refId": "A", "expr": "".join(pieces)}]}]}), encoding="utf-8")
    json.dumps(lint_files([file]), allow_nan=False)


@pytest.mark.parametrize("dialect", ["sglang", "vllm 0.11", "vllm-newest", ""])
def test_an_unknown_dialect_is_one_line_and_exit_code_2(tmp_path: Path, dialect: str) -> None:
    file = tmp_path / "r.yaml"
    file.write_text("groups: []")
    result = CliRunner().invoke(app, ["lint", str(file), "--dialect", dialect])
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "dialect" in result.stderr
