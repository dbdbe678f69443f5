"""Files made to last for ever, or to hold what no parser expects: one finding that says so, never a traceback or a loop."""

from pathlib import Path

import pytest

from runbooks.lint import lint_files
from runbooks.lint.documents import LARGEST_BYTES


def _doublings(leaf: str, level: str) -> str:
    lines = [f"a: &a {leaf}"]
    lines += [f"{chr(98 + i)}: &{chr(98 + i)} {level % ', '.join(['*' + chr(97 + i)] * 9)}" for i in range(9)]
    return "\n".join(lines) + "\n"


def _rule(expr: str) -> str:
    return f"groups:\n- name: x\n  rules:\n  - alert: a\n    expr: '{expr}'\n"


UNREADABLE = {
    "aliases that multiply.yaml": _doublings("{expr: up}", "{panels: [%s]}") + "panels: [*j]\n",
    "a panel inside itself.yaml": "panels: &p\n- panels: *p\n  targets: [{expr: up}]\n",
    "a list inside itself.yaml": "kind: List\nitems: &i\n- kind: List\n  items: *i\n",
    "one group many times.yaml": "x: &x {rules: [{alert: a, expr: up}]}\ngroups: [" + ",".join(["*x"] * 30_000) + "]\n",
    "no such day.yaml": "groups: []\nday: 2024-13-45\n",
    "a tag of another kind.yaml": "a: !!bool x\n",
    "a long number.yaml": "a: " + "9" * 5000 + "\n",
    "a long number.json": '{"panels": ' + "9" * 5000 + "}",
    "deep.json": '{"panels":' * 50_000 + "1" + "}" * 50_000,
    "deep.yaml": "a: " + "[" * 50_000 + "]" * 50_000,
    "a command.yaml": "!!python/object/apply:os.system [echo]\n",
    "a template never closed.yaml": "a: " + "{{" * 100_000,
    "tabs.yaml": "groups:\n\t- name: x\n",
}
UNPARSED = {
    "parentheses": "(" * 5_000 + "up" + ")" * 5_000,
    "a long sum": "up + " * 5_000 + "up",
    "signs": "-" * 5_000 + "up",
    "a long label": 'up{a="' + "x" * 200_000 + '"}',
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_beyond_measure_is_one_finding(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(UNREADABLE[name], encoding="utf-8")
    (finding,) = lint_files([file])["findings"]
    assert finding["rule"] == "unreadable_file"
    assert "\n" not in finding["message"]
    assert finding["suggestion"]


@pytest.mark.parametrize("name", UNPARSED)
def test_a_query_beyond_measure_is_one_finding(name: str, tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(_rule(UNPARSED[name]), encoding="utf-8")
    (finding,) = lint_files([file])["findings"]
    assert finding["rule"] == "parse_error"


def test_a_query_that_a_person_might_write_is_not_beyond_measure(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(_rule(" + ".join(["sum(rate(vllm:prompt_tokens_total[5m]))"] * 200)), encoding="utf-8")
    assert lint_files([file])["findings"] == []


def test_a_file_larger_than_any_dashboard_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "large.json"
    with file.open("wb") as out:
        out.truncate(LARGEST_BYTES + 1)
    (finding,) = lint_files([file])["findings"]
    assert finding["rule"] == "unreadable_file"


def test_other_objects_beside_the_rules_are_no_fault_and_none_at_all_is(tmp_path: Path) -> None:
    service = "kind: Service\nmetadata: {name: a}\n"
    beside, alone = tmp_path / "beside.yaml", tmp_path / "alone.yaml"
    beside.write_text(f"{service}---\n{_rule('rate(vllm:num_requests_running[5m])')}", encoding="utf-8")
    alone.write_text(service, encoding="utf-8")
    assert [one["rule"] for one in lint_files([beside])["findings"]] == ["rate_of_gauge"]
    assert [one["rule"] for one in lint_files([alone])["findings"]] == ["unreadable_file"]


def test_triggers_in_a_charts_values_are_scaling_queries_with_their_threshold(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(
        "models:\n- keda:\n    triggers:\n    - type: prometheus\n      metadata:\n"
        "        query: avg(vllm:kv_cache_usage_perc)\n        threshold: '80'\n    - type: cpu\n      metadata: {value: '60'}\n",
        encoding="utf-8",
    )
    (finding,) = lint_files([file])["findings"]
    assert finding["rule"] == "wrong_unit"
    assert finding["expr"] == "avg(vllm:kv_cache_usage_perc)"


def test_a_playbooks_template_is_read_around_its_control_lines(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(
        "groups:\n- name: x\n  rules:\n{% if alerts %}\n  - alert: A\n"
        "    expr: rate(vllm:num_requests_running[5m]) > {{ limit }}\n{% endif %}\n",
        encoding="utf-8",
    )
    assert [one["rule"] for one in lint_files([file])["findings"]] == ["rate_of_gauge"]


def test_a_config_map_may_hold_other_files_beside_a_dashboard(tmp_path: Path) -> None:
    file = tmp_path / "map.yaml"
    board = '{"panels": [{"targets": [{"expr": "rate(vllm:num_requests_running[5m])"}]}]}'
    file.write_text(f"kind: ConfigMap\ndata:\n  other.yaml: 'a: b'\n  d.json: '{board}'\n", encoding="utf-8")
    assert [one["rule"] for one in lint_files([file])["findings"]] == ["rate_of_gauge"]
