"""Our own dashboards and rule files, in the handed format, under tests/data/lint: schemas, variables and near misses."""

import json
from pathlib import Path

import pytest

from runbooks.lint import lint_files

CASES = sorted((Path(__file__).parents[2] / "data" / "lint").glob("*.expect.json"))


def test_there_are_cases() -> None:
    assert CASES


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.removesuffix(".expect.json"))
def test_a_file_gets_its_findings_and_no_other_error(case: Path) -> None:
    expected = json.loads(case.read_text(encoding="utf-8"))
    found = lint_files([case.with_name(expected["file"])])["findings"]
    wanted = {(one["rule"], one["expr_index"], one["severity"]) for one in expected["findings"]}
    assert wanted <= {(one["rule"], one["expr_index"], one["severity"]) for one in found}
    blamed = {index for _, index, _ in wanted}
    errors = [one for one in found if one["severity"] == "error" and one["expr_index"] not in blamed]
    assert errors == []
    for one in found:
        if one["expr_index"] is not None:  # a dashboard variable has no place among the queries
            assert one["expr"] == expected["exprs"][one["expr_index"]]
