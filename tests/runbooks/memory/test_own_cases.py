"""Our own cases, in the handed format, under tests/data: the kinds that the handed ones do not cover."""

from pathlib import Path

import pytest

from runbooks.memory import admission, ledger
from tests.runbooks.memory.judge import judged

DATA = Path(__file__).parents[2] / "data"
MEMORY = sorted((DATA / "memory").glob("*.log"))
ADMISSION = sorted((DATA / "admission").glob("*.log"))


def test_there_are_cases() -> None:
    assert MEMORY
    assert ADMISSION


@pytest.mark.parametrize("case", MEMORY, ids=lambda case: case.stem)
def test_a_log_is_accounted_for(case: Path) -> None:
    assert judged(case, ledger) == []


@pytest.mark.parametrize("case", ADMISSION, ids=lambda case: case.stem)
def test_a_refusal_is_explained(case: Path) -> None:
    assert judged(case, admission) == []
