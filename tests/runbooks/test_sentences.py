"""No sentence of any runbook speaks against its own numbers, another step, or the diagnosis, whatever is looked at and when."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectors.observations import observe
from collectors.settings import Settings
from runbooks.diagnosis import diagnose
from runbooks.engine import walk
from runbooks.findings import Finding, Number
from runbooks.library import library
from tests.runbooks.contradictions import contradictions, untrue
from tests.runbooks.numbers_said import figures
from tests.runbooks.recorded_walks import recorded
from tests.shared_data import shared_files

SETTINGS = Settings()
FILES = [
    *shared_files("recordings", "vllm-0.11.0-cpu", pattern="*.json.gz"),
    *shared_files("cases", "queue", pattern="*.json.gz"),
]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name.removesuffix(".json.gz"))
def test_no_walk_speaks_against_itself(file: Path) -> None:
    """Each runbook once a recording, at an instant of its own: over all files every runbook is walked at some fifty."""
    source, _ = recorded(file)
    start, end = source.extent_ms() or (0, 0)
    place = FILES.index(file)
    found = []
    for share in ((place * 0.37) % 0.7 + 0.25, 0.55):
        at_ms = start + round((end - start) * share)
        seen = observe(source, at_ms, SETTINGS)
        judged = diagnose(source, at_ms, SETTINGS, seen)
        for number, runbook in enumerate(library()):
            if (number + place) % 2 == (share == 0.55):
                made = walk(runbook, source, at_ms, SETTINGS, observations=seen, diagnosis=judged)
                found += [f"{at_ms}: {fault}" for fault in contradictions(made, judged)]
    assert found == []


def test_a_false_claim_is_noticed() -> None:
    lookups = Number("looked_up_tokens_per_second", "lookups", 39_683.0, "tokens/s", "measured", "a")
    admitted = Number("admitted_tokens_per_second", "admitted", 2_778.0, "tokens/s", "measured", "b")
    step = Finding(
        "head", "?", "automatic", "no", (lookups, admitted), None, "Lookups are in proportion to what gets in."
    )
    assert list(untrue(step))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1,914 tokens/s, p95 within 2.5 s and 4xx of /v1/chat", ["1,914", "2.5"]),
        ("0.619 % of 16.", ["0.619", "16"]),
        ("vllm-0:8000 at 12:03", []),
    ],
)
def test_figures_of_a_sentence(text: str, found: list[str]) -> None:
    assert [one for one in figures(text) if one not in {"8000", "12", "03"}] == found
