"""The threshold lab: what another threshold would have done to recorded incidents."""

from __future__ import annotations

import math
import tomllib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from collectors.capsule.manifest import Manifest, Mark
from collectors.settings import Settings
from collectors.source import QueryRejected
from runbooks.diagnosis import diagnose
from runbooks.lab import (
    Choice,
    Recording,
    config_lines,
    held,
    poisson_upper,
    threshold_names,
    try_detector,
    try_threshold,
)
from runbooks.lab_truth import Incident, healthy_ms, incidents_of, is_healthy
from runbooks.rules import RulesError, rules
from runbooks.thresholds import Thresholds
from tests.runbooks.shipped import NAMES, as_of, shipped

SETTINGS = Settings()


def recordings(*names: str) -> list[Recording]:
    return [Recording.of(shipped(name)) for name in names or NAMES]


def test_every_shipped_incident_is_known_by_place_and_time() -> None:
    for recording in recordings():
        [incident] = recording.incidents
        window = recording.capsule.manifest.window
        assert window.start_ms < incident.from_ms < incident.to_ms <= window.end_ms
        assert incident.causes
        assert incident.instances <= {replica.instance for replica in recording.capsule.manifest.replicas}


def test_a_longer_hold_and_a_higher_threshold_detect_later_until_they_miss() -> None:
    tried = try_detector(
        "waiting_growth.wait_seconds", [2.5, 20, 1e6], recordings(), SETTINGS, holds_seconds=[0, 30, 60]
    )
    by_choice = {(t.choice.value, t.choice.hold_seconds): t for t in tried}
    assert [(d.recording) for d in tried[0].detections] == ["seats_full"]
    for value in (2.5, 20.0):
        delays = [by_choice[value, hold].median_delay_seconds for hold in (0, 30, 60)]
        assert np.diff([d for d in delays if d is not None]) == pytest.approx([30.0, 30.0])
    slow, fast = by_choice[20, 0].median_delay_seconds, by_choice[2.5, 0].median_delay_seconds
    assert slow is not None
    assert fast is not None
    assert slow > fast
    assert [by_choice[1e6, hold].missed for hold in (0, 30, 60)] == [1, 1, 1]


def test_a_threshold_below_anything_pages_in_health_and_says_how_often_a_week() -> None:
    (eager, calm) = try_detector(
        "preemption.preemptions_per_first_token",
        [-1, 100],
        recordings("kv_pool_too_small"),
        SETTINGS,
        holds_seconds=[0],
    )
    assert calm.false_alarms == 0
    assert eager.false_alarms >= 1
    healthy_seconds = (1_796_000_300_000 - shipped("kv_pool_too_small").manifest.window.start_ms) / 1000
    assert eager.healthy_seconds == pytest.approx(healthy_seconds)
    assert eager.false_per_week == pytest.approx(eager.false_alarms * 604_800 / healthy_seconds)
    assert calm.false_per_week == 0
    assert calm.false_per_week_at_most == pytest.approx(2.9957 * 604_800 / healthy_seconds, rel=1e-4)


def test_the_delay_of_a_threshold_is_that_of_the_diagnosis_itself() -> None:
    """The lab's first alarm is the first instant at which `diagnose` with these settings raises the anomaly."""
    [recording] = recordings("replica_killed")
    [incident] = recording.incidents
    (quick, usual, slow) = try_threshold("pace", "hold_seconds", [5, 25, 60], [recording], SETTINGS)
    for tried in (quick, usual, slow):
        tuned = Settings(alerts={"thresholds": {"pace": {"hold_seconds": tried.choice.value}}})  # type: ignore[arg-type]
        [found] = tried.detections
        assert found.delay_seconds is not None
        at_ms = incident.from_ms + round(found.delay_seconds * 1000)
        before = at_ms - round(found.resolution_seconds * 1000)

        def fires(instant_ms: int, tuned: Settings = tuned) -> bool:
            seen = diagnose(as_of("replica_killed", instant_ms), instant_ms, tuned).anomalies
            return any(place.instance in incident.instances for anomaly in seen for place in anomaly.where.places)

        assert fires(at_ms)
        assert not fires(before)
    delays = [tried.median_delay_seconds for tried in (quick, usual, slow)]
    assert delays == sorted(delays)  # type: ignore[type-var]
    assert len(set(delays)) == 3


def test_only_incidents_that_the_detector_can_show_are_counted() -> None:
    [tried] = try_threshold(
        "admission_failure", "refused_ratio", [0.07], recordings("prompts_refused", "preemption_thrash"), SETTINGS
    )
    assert [found.recording for found in tried.detections] == ["prompts_refused"]
    assert tried.missed == 0
    [deaf] = try_threshold("admission_failure", "refused_ratio", [2.0], recordings("prompts_refused"), SETTINGS)
    assert (deaf.missed, deaf.median_delay_seconds) == (1, None)


def test_incidents_of_the_operator_replace_those_of_the_file() -> None:
    window = shipped("seats_full").manifest.window
    marked = Incident(window.start_ms, window.start_ms + 1000, frozenset({"seat_limited"}))
    [tried] = try_detector(
        "waiting_growth.wait_seconds", [2.5], [Recording.of(shipped("seats_full"), [marked])], SETTINGS
    )
    assert tried.detections[0].delay_seconds is not None  # within the time in which an incident settles
    assert tried.to_json()["incidents"][0]["causes"] == ["seat_limited"]


def test_marks_of_an_operator_tell_incidents_where_there_is_no_truth() -> None:
    manifest = Manifest(
        window={"start_ms": 0, "end_ms": 900_000},  # type: ignore[arg-type]
        marks=(
            Mark(at_ms=100_000, kind="incident", text="overload", instance="a:1"),
            Mark(at_ms=200_000, kind="incident_end"),
            Mark(at_ms=700_000, kind="incident", text="kv_limited"),
            Mark(at_ms=800_000, kind="incident", text="bad weather"),
        ),
    )
    assert incidents_of(manifest) == (
        Incident(100_000, 200_000, frozenset({"overload"}), frozenset({"a:1"})),
        Incident(700_000, 900_000, frozenset({"kv_limited"})),
    )


@pytest.mark.parametrize(
    "truth",
    [
        {"incidents": 5},
        {"incidents": None},
        {"incidents": {"from_ms": 1}},
        {"incidents": [None, 5, {}, {"from_ms": None}, {"from_ms": "x"}, {"from_ms": float("inf")}]},
        {"incidents": [{"cause_start": 1}, {"cause_start": [], "cause_end": 2}, {"cause_start": float("nan"), "cause_end": 1}]},
        {"incidents": [{"cause_start": 1, "cause_end": 2, "visible": [3]}, {"cause_start": 1, "cause_end": 2, "visible": 7}]},
        {"incidents": [{"from_ms": 1, "to_ms": {}}]},
        [{"from_ms": 1}],
        "x",
    ],
)  # fmt: skip
def test_a_truth_of_any_shape_tells_what_it_can(truth: object) -> None:
    assert incidents_of(Manifest(ground_truth=truth)) == ()


@pytest.mark.parametrize(
    "where", [[], 5, "x", {"replicas": 7}, {"replicas": [None, {"engine": "0"}, {"instance": "a"}]}]
)
def test_an_incident_at_a_strange_place_is_one_of_the_fleet_or_of_what_is_named(where: object) -> None:
    manifest = Manifest(ground_truth={"incidents": [{"from_ms": 1000, "cause": "overload", "where": where}]})
    (found,) = incidents_of(manifest)
    assert found.instances == (frozenset("a") if isinstance(where, dict) and where["replicas"] != 7 else frozenset())


def test_work_is_bounded_and_can_be_stopped() -> None:
    with pytest.raises(QueryRejected, match="values to try"):
        try_threshold("pace", "hold_seconds", list(range(1, 40)), recordings(), SETTINGS)
    with pytest.raises(QueryRejected, match=r"no pace\.nothing"):
        try_threshold("pace", "nothing", [1], recordings(), SETTINGS)
    with pytest.raises(QueryRejected, match="no detector"):
        try_detector("waiting_growth.nothing", [1], recordings(), SETTINGS)
    with pytest.raises(QueryRejected, match="finite"):
        try_detector("waiting_growth.wait_seconds", [math.nan], recordings(), SETTINGS)
    [tried] = try_threshold("pace", "hold_seconds", [25], recordings(), SETTINGS, stopped=lambda: True)
    assert (tried.detections, tried.healthy_seconds, tried.false_per_week) == ((), 0, None)


def test_the_choice_goes_to_the_config_file_and_does_there_what_it_did_here() -> None:
    table, name = "sequence_hog", "no_admission_seconds"
    assert (table, name) in threshold_names()
    read = Settings.model_validate(tomllib.loads(config_lines(Choice(table, name, 90.5))))
    assert Thresholds.of(read)(table, name) == 90.5
    choice = Choice("waiting_growth", "wait_seconds", 7.25, 45, "detector")
    read = Settings.model_validate(tomllib.loads(config_lines(choice)))
    [rule] = [r for r in rules(read) if (r.runbook.id, r.detector.name) == ("waiting_growth", "wait_seconds")]
    assert (rule.threshold, rule.detector.hold_seconds, rule.to_yaml()["for"]) == (7.25, 45, "45s")
    [usual] = [r for r in rules(SETTINGS) if (r.runbook.id, r.detector.name) == ("waiting_growth", "wait_seconds")]
    assert usual.detector.hold_seconds != 45
    with pytest.raises(RulesError, match="hold_seconds: no detector 'nobody'"):
        rules(Settings.model_validate({"alerts": {"hold_seconds": {"nobody": 1}}}))


@examples(deadline=None, max_examples=100)
@given(st.lists(st.booleans(), min_size=1, max_size=60), st.integers(0, 12))
def test_a_held_condition_fires_where_an_alerts_for_would(flags: list[bool], hold: int) -> None:
    at_ms = np.arange(len(flags), dtype=np.int64) * 5000
    firing = held(np.array(flags), at_ms, hold * 5000)
    for index in range(len(flags)):
        assert firing[index] == (index >= hold and all(flags[index - hold : index + 1]))


@examples(deadline=None, max_examples=60)
@given(st.integers(0, 60))
def test_the_upper_bound_is_where_so_few_become_rare(count: int) -> None:
    mean = poisson_upper(count)
    probability = sum(math.exp(-mean + k * math.log(mean) - math.lgamma(k + 1)) for k in range(count + 1))
    assert probability == pytest.approx(0.05, rel=1e-6)


@examples(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 900), st.integers(0, 200)), max_size=4))
def test_healthy_time_is_what_lies_in_no_incident(spans: list[tuple[int, int]]) -> None:
    incidents = [Incident(a * 1000, (a + n) * 1000, frozenset()) for a, n in spans]
    by_second = sum(is_healthy(second * 1000 + 500, incidents) for second in range(1000))
    assert healthy_ms(0, 1_000_000, incidents) / 1000 == by_second
