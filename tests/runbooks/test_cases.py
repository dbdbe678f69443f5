"""The diagnosis on every shared case and recording, at the named instants and at many more, as given and changed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runbooks.laws import GRAVE
from tests.runbooks.queue_cases import (
    Case,
    cases,
    diagnosed,
    dropped,
    faults,
    healthy,
    moved,
    moved_expectation,
    recording,
    thinned,
    with_neighbour,
)
from tests.runbooks.recorded_source import RecordedSource
from tests.shared_data import shared, shared_files

CASES = cases()
RECORDINGS = shared_files("recordings", "vllm-0.11.0-cpu", pattern="*.json.gz")
ACCEPTED_OF_KIND: dict[str, tuple[set[str], set[str]]] = {
    "waiting_growth": ({"overload", "seat_limited"}, {"replica_imbalance"}),
    "kv_cache_pressure_preemption": ({"kv_limited"}, {"overload", "metrics_untrustworthy"}),
    "admission_rejects_http_400": ({"admission_rejects"}, set()),
    "replica_down_and_restart": ({"replica_down", "replica_restarted"}, {"cold_prefix_cache", "metrics_missing"}),
    "client_aborts": ({"client_aborts"}, {"metrics_untrustworthy"}),
    "prefix_cache_cold_burst": ({"cold_prefix_cache"}, {"prefill_limited", "overload", "seat_limited"}),
    "stalled_worker": ({"engine_stalled", "stale_gauges"}, set()),
    "engine_core_dead": (
        {"replica_down", "engine_stalled"},
        {"kv_limited", "metrics_missing", "overload", "client_aborts"},
    ),
    "auth_abuse_http_401": (set(), set()),
}
"""Ground-truth kind -> right causes, causes that may stand beside them (recordings/README.md)."""


def names(case: Case) -> str:
    return case.name


@dataclass(frozen=True)
class Loaded:
    """A case with its recording, read once for all its tests."""

    case: Case
    source: RecordedSource


@pytest.fixture(scope="module", params=CASES, ids=names)
def loaded(request: pytest.FixtureRequest) -> Loaded:
    return Loaded(request.param, RecordedSource.read(request.param.path))


@pytest.fixture(scope="module", params=RECORDINGS, ids=lambda path: path.name.removesuffix(".json.gz"))
def real(request: pytest.FixtureRequest) -> tuple[Path, RecordedSource]:
    return request.param, RecordedSource.read(request.param)


@pytest.fixture(scope="module")
def neighbours() -> list[tuple[str, RecordedSource]]:
    """Two healthy recordings to stand beside a case."""
    calm = [case for case in healthy(CASES) if "idle" not in case.name][-2:]
    return [(case.name, RecordedSource.read(case.path)) for case in calm]


def test_the_shared_cases_are_found() -> None:
    shared("cases", "queue")
    shared("recordings")
    assert CASES
    assert RECORDINGS


def test_every_named_instant_is_judged_right(loaded: Loaded) -> None:
    case, source = loaded.case, loaded.source
    for label, at, incident in case.instants():
        assert faults(case.expected, diagnosed(source, at), incident) == [], f"{case.name} {label}"


def test_other_instants_are_judged_right_too(loaded: Loaded) -> None:
    case, source = loaded.case, loaded.source
    wrong = {
        round(at - case.expected["at"][next(iter(case.expected["at"]))]): found
        for at, incident in case.dense(source, step=113.0, lead_seconds=75)
        if (found := faults(case.expected, diagnosed(source, at), incident))
    }
    assert wrong == {}


@pytest.mark.parametrize(("ratio", "keep_every"), [(0.15, 1), (0.2, 3)])
def test_scrapes_that_were_left_out_change_nothing(loaded: Loaded, ratio: float, keep_every: int) -> None:
    case, source = loaded.case, dropped(thinned(loaded.source, keep_every), ratio, 7)
    wrong = {
        round(at): found
        for at, incident in case.dense(source, step=311.0, lead_seconds=max(75, 8 * 5 * keep_every))
        if (found := faults(case.expected, diagnosed(source, at), incident))
    }
    assert wrong == {}


@pytest.mark.parametrize("keep_every", [3, 6, 12])
def test_slower_scrapes_are_judged_alike(loaded: Loaded, keep_every: int) -> None:
    case, source = loaded.case, thinned(loaded.source, keep_every, offset=1)
    lead = max(75, 7 * 5 * keep_every)
    wrong = {
        round(at): found
        for at, incident in case.dense(source, step=307.0, lead_seconds=lead)
        if (found := faults(case.expected, diagnosed(source, at), incident))
    }
    assert wrong == {}


def test_names_and_dates_do_not_matter(loaded: Loaded) -> None:
    case, source = loaded.case, loaded.source
    instances = sorted({s.labels["instance"] for s in source.all_samples()})
    renamed = {old: f"10.1.2.{9 - number}:80{number}" for number, old in enumerate(instances)}
    shift_seconds = -86_400 * 700 + 3
    expected = moved_expectation(case.expected, renamed, shift_seconds)
    twin = Case(case.name, case.path, expected)
    changed = moved(source, renamed, shift_seconds * 1000)
    for label, at, incident in twin.instants():
        assert faults(expected, diagnosed(changed, at), incident) == [], f"{case.name} {label}"


def test_a_healthy_neighbour_changes_nothing(loaded: Loaded, neighbours: list[tuple[str, RecordedSource]]) -> None:
    case = loaded.case
    calm = next(source for name, source in neighbours if name != case.name)
    source = with_neighbour(loaded.source, calm, "neighbour:8000")
    for label, at, incident in case.instants():
        assert faults(case.expected, diagnosed(source, at), incident) == [], f"{case.name} {label}"


def test_no_law_is_broken_in_health(loaded: Loaded) -> None:
    case, source = loaded.case, loaded.source
    if case.expected["incidents"]:
        return
    for at, _ in case.dense(source, step=97.0, lead_seconds=75):
        broken = [law for law in diagnosed(source, at)["laws"] if law["status"] == "broken"]
        assert broken == [], f"{case.name} at {at}"


def real_asks(wrapper: dict[str, Any]) -> list[tuple[float, dict[str, Any] | None]]:
    """The instants at which recordings/score_real.py asks, and one every few seconds besides."""
    start, end = wrapper["start"], wrapper["end"]
    incidents = wrapper["ground_truth"]["incidents"]
    asks: list[tuple[float, dict[str, Any] | None]] = []
    for incident in incidents:
        low, high = incident.get("visible") or (incident["cause_start"], incident["cause_end"])
        high = min(high, end - 2)
        asks += [(low + (high - low) * share, incident) for share in (0.45, 0.5, 0.6, 0.75, 0.9)]
        asks += [(at, None) for at in (low - 6, low - 12, low - 20) if at - start > 25]
    if not incidents:
        asks += [(start + (end - start) * share / 20, None) for share in range(2, 20)]
    return asks


def test_recordings_of_a_real_engine_are_judged_right(real: tuple[Path, RecordedSource]) -> None:
    path, source = real
    for at, incident in real_asks(recording(path)):
        answer = diagnosed(source, at)
        likely = [v for v in answer["verdicts"] if v["confidence"] == "likely" and v["cause"] != "healthy"]
        if incident is None:
            assert (likely, answer["anomalies"]) == ([], [])
            continue
        right, beside = ACCEPTED_OF_KIND[incident["kind"]]
        place = incident["instance"]
        named = [v for v in answer["verdicts"] if v["cause"] in right and place in str(v["where"])]
        assert named or not right, f"{path.name} at {at}"
        assert [v["cause"] for v in likely if v["cause"] not in right | beside or place not in str(v["where"])] == []


def test_no_grave_law_is_broken_by_a_real_engine(real: tuple[Path, RecordedSource]) -> None:
    _, source = real
    start, end = source.extent_ms() or (0, 0)
    for at in range(start + 20_000, end, 11_000):
        laws = diagnosed(source, at / 1000)["laws"]
        assert [law for law in laws if law["status"] == "broken" and law["id"] in GRAVE] == []
