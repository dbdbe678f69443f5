"""desired_replicas: a number or a query, and never a silent guess when the query fails."""

from __future__ import annotations

import pytest

from collectors.settings import Settings
from runbooks.diagnosis import diagnose
from runbooks.wanted import wanted_replicas
from tests.runbooks.recorded_walks import recorded
from tests.shared_data import shared


@pytest.fixture(scope="module")
def calm():  # type: ignore[no-untyped-def]
    source, _ = recorded(shared("cases", "queue", "healthy_steady_two_replicas.json.gz"))
    return source, (source.extent_ms() or (0, 0))[1] - 5_000


def test_a_query_tells_the_number_at_the_instant(calm) -> None:  # type: ignore[no-untyped-def]
    source, at_ms = calm
    found = diagnose(source, at_ms, Settings(desired_replicas="count(up)"))
    assert found.healthy
    assert "2 of 2 wanted replicas are scraped" in found.verdicts[0].evidence
    assert found.warnings == ()


def test_fewer_than_wanted_is_said_without_naming_a_replica(calm) -> None:  # type: ignore[no-untyped-def]
    source, at_ms = calm
    for wanted in (3, "count(up) + 1"):
        first = diagnose(source, at_ms, Settings(desired_replicas=wanted)).verdicts[0]
        assert (first.cause, first.confidence, first.where.scope, first.where.places) == (
            "replica_down",
            "possible",
            "fleet",
            (),
        )
        assert first.evidence[0] == "2 of 3 wanted replicas are scraped"
        assert first.since_ms is not None


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("count(", "the query of desired_replicas failed: "),
        ("nothing_of_that_name", "the query of desired_replicas answers 0 values where one is needed"),
        ("up", "the query of desired_replicas answers 2 values where one is needed"),
        ("vector(2.5)", "the query of desired_replicas answers 2.5, which is no number of replicas"),
        ("vector(0)/0", "the query of desired_replicas answers nan, which is no number of replicas"),
        ("vector(-1)", "the query of desired_replicas answers -1, which is no number of replicas"),
    ],
)
def test_what_is_no_number_is_unknown_with_the_reason(calm, query: str, why: str) -> None:  # type: ignore[no-untyped-def]
    source, at_ms = calm
    told = wanted_replicas(source, at_ms, Settings(desired_replicas=query))
    assert told.replicas is None
    assert told.why.startswith(why)
    found = diagnose(source, at_ms, Settings(desired_replicas=query))
    assert found.healthy
    assert found.warnings == (told.why,)
