"""Two sides on one clock: what is laid on zero, what a side may not know yet, and that nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest

from collectors.aligned import Side, aligned
from collectors.capsule import CapsuleSource
from collectors.fleet import fleet_picture
from collectors.model import Window
from collectors.settings import Settings
from collectors.source import QueryRejected
from tests.collectors.fleet_data import START_MS, PretendReplica, embedded, pretend
from tests.runbooks.shipped import shipped

SETTINGS = Settings()
MINUTE_MS = 60_000


def source(until_ms: int = 20 * MINUTE_MS, **shape: object):  # type: ignore[no-untyped-def]
    return embedded(pretend(PretendReplica("a:8000", **shape)), START_MS + until_ms)  # type: ignore[no-untyped-call]


def test_both_sides_share_a_grid_and_zero_is_each_sides_own_instant() -> None:
    early, late = START_MS + 8 * MINUTE_MS, START_MS + 12 * MINUTE_MS
    growing = {"waiting": 1.0, "waiting_growth": 0.5}
    both = aligned(
        [Side(source(**growing), early), Side(source(**growing), late)],
        SETTINGS,
        before_ms=4 * MINUTE_MS,
        after_ms=3 * MINUTE_MS,
    )
    assert both.offsets_ms.tolist() == list(range(-240_000, 180_001, 15_000))
    zero = int(np.flatnonzero(both.offsets_ms == 0)[0])
    first, second = (side.panel("waiting") for side in both.sides)
    assert first is not None
    assert second is not None
    assert first.window.times_ms()[zero] == early
    assert second.window.times_ms()[zero] == late
    # the same queue four minutes later: 0.5 requests/s more
    assert second.lines[0].values - first.lines[0].values == pytest.approx(np.full(len(both.offsets_ms), 120.0))


def test_a_side_is_the_picture_of_that_window_by_itself() -> None:
    zero = START_MS + 10 * MINUTE_MS
    (side,) = aligned([Side(source(), zero)], SETTINGS, before_ms=5 * MINUTE_MS, after_ms=5 * MINUTE_MS).sides
    alone = fleet_picture(source(), Window(zero - 5 * MINUTE_MS, zero + 5 * MINUTE_MS, 15_000), SETTINGS)
    for panel in (alone.waiting, alone.running, alone.kv_cache_usage, alone.flow):
        found = side.panel(panel.id)
        assert found is not None
        assert [line.key for line in found.lines] == [line.key for line in panel.lines]
        for mine, other in zip(found.lines, panel.lines, strict=True):
            np.testing.assert_array_equal(mine.values, other.values)
    for mine_q, other_q in zip(
        side.quantile_panels, (alone.time_to_first_token, alone.inter_token_latency), strict=True
    ):
        np.testing.assert_array_equal(mine_q.series.estimate, other_q.series.estimate)


def test_a_replay_beside_another_shows_nothing_after_its_cursor() -> None:
    capsule = shipped("seats_full")
    window = capsule.manifest.window
    zero = (window.start_ms + window.end_ms) // 2
    around = {"before_ms": zero - window.start_ms, "after_ms": window.end_ms - zero}
    cursor = zero + 20_000
    cut, whole = aligned(
        [Side(CapsuleSource(capsule, cursor), zero), Side(CapsuleSource(capsule), zero)],
        SETTINGS,
        step_ms=5_000,
        **around,
    ).sides
    seen = zero + int(np.floor(20_000 / 5_000)) * 5_000
    assert cut.picture is not None
    assert cut.picture.at_ms == seen
    for mine, other in zip(cut.panels, whole.panels, strict=True):
        known = mine.window.times_ms() <= cursor
        assert known.sum() == cut.known_steps < whole.known_steps
        for line in mine.lines:
            assert np.isnan(line.values[~known]).all()
            twin = other.line(line.key)
            if mine.rate_window_ms == 0 and twin is not None:
                np.testing.assert_array_equal(line.values[known], twin.values[known])
    for panel in cut.quantile_panels:
        assert panel.series.estimate.shape[-1] == panel.window.steps
        assert np.isnan(panel.series.estimate[:, cut.known_steps :]).all()


def test_a_side_whose_window_has_not_begun_is_empty_and_the_other_stands() -> None:
    ahead, there = aligned(
        [Side(source(), START_MS + 60 * MINUTE_MS), Side(source(), START_MS + 10 * MINUTE_MS)],
        SETTINGS,
        before_ms=MINUTE_MS,
        after_ms=MINUTE_MS,
    ).sides
    assert (ahead.known_steps, ahead.panels, ahead.fleet, ahead.picture) == (0, (), (), None)
    assert there.panel("running") is not None


def test_the_fleet_lines_are_sums_and_the_fullest_rank_of_the_replicas_lines() -> None:
    capsule = shipped("seats_full")
    window = capsule.manifest.window
    zero = window.start_ms + 60_000
    around = {"before_ms": 60_000, "after_ms": window.end_ms - zero}
    (side,) = aligned([Side(CapsuleSource(capsule), zero)], SETTINGS, step_ms=5_000, **around).sides
    for panel_id, fold in (("waiting", np.nansum), ("running", np.nansum), ("kv_cache_usage", np.nanmax)):
        lines, fleet = side.panel(panel_id), side.of_fleet(panel_id)
        assert lines is not None
        assert fleet is not None
        rows = np.array([line.values for line in lines.lines])
        known = ~np.isnan(rows).all(axis=0)
        np.testing.assert_allclose(fleet.lines[0].values[known], fold(rows[:, known], axis=0))
        assert len(fleet.lines[0].values) == len(side.quantile_panels[0].series.estimate[0])
    preemptions = side.of_fleet("preemptions")
    assert preemptions is not None
    assert (preemptions.unit, preemptions.rate_window_ms > 0) == ("per minute", True)
    assert side.quantiles("time_to_first_token") is not None


def test_a_fleet_that_is_gone_at_the_end_keeps_its_lines_before_it() -> None:
    (side,) = aligned(
        [Side(source(up_until=600.0), START_MS + 5 * MINUTE_MS)],
        SETTINGS,
        before_ms=4 * MINUTE_MS,
        after_ms=14 * MINUTE_MS,
    ).sides
    waiting = side.of_fleet("waiting")
    assert waiting is not None
    assert np.isfinite(waiting.lines[0].values[:16]).all()
    assert np.isnan(waiting.lines[0].values[-8:]).all()


@pytest.mark.parametrize(("before_ms", "after_ms", "step_ms"), [(0, 0, 15_000), (-1, 60_000, 15_000), (60_000, 0, 0)])
def test_a_window_without_a_step_is_refused(before_ms: int, after_ms: int, step_ms: int) -> None:
    with pytest.raises(QueryRejected, match="shorter than a step"):
        aligned([], SETTINGS, before_ms=before_ms, after_ms=after_ms, step_ms=step_ms)
