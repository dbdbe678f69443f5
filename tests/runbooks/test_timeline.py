"""Diagnoses along a recording, folded into episodes."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from runbooks.timeline import MOST_INSTANTS, fold, instants
from runbooks.verdicts import Anomaly, Diagnosis, LawFinding, Place, RankState, Verdict, Where

HERE = Where("replica", (Place("a:1"),))


def diagnosis(at_ms: int, *causes: str, law: str = "kept") -> Diagnosis:
    return Diagnosis(
        at_ms=at_ms,
        source="s",
        window_start_ms=0,
        interval_ms=2000,
        replicas=(RankState(Place("a:1", "0"), "serving", 0),),
        laws=(LawFinding("usage_is_a_ratio", law, HERE, ""),),  # type: ignore[arg-type]
        anomalies=tuple(Anomaly("waiting_growth", "page", 0, HERE, "waiting_growth", cause=cause) for cause in causes[:1]),
        verdicts=tuple(Verdict(cause, "likely", HERE) for cause in causes) or (Verdict("healthy", "likely", HERE),),
    )  # fmt: skip


def test_what_holds_at_neighbouring_instants_is_one_episode() -> None:
    told = fold([diagnosis(0), diagnosis(2, "overload"), diagnosis(4, "overload"), diagnosis(6), diagnosis(8, "overload")])  # fmt: skip
    assert [(e.id, e.from_ms, e.to_ms) for e in told.of("verdict")] == [("overload", 2, 4), ("overload", 8, 8)]
    assert [(e.severity, e.from_ms, e.to_ms) for e in told.of("anomaly")] == [("page", 2, 4), ("page", 8, 8)]
    [state] = told.of("state")
    assert (state.place, state.from_ms, state.to_ms) == ("a:1 rank 0", 0, 8)
    assert told.of("check") == ()


def test_a_broken_check_is_an_episode_and_healthy_is_none() -> None:
    told = fold([diagnosis(0, law="broken"), diagnosis(2, law="broken"), diagnosis(4)])
    assert [(e.id, e.from_ms, e.to_ms) for e in told.of("check")] == [("usage_is_a_ratio", 0, 2)]
    assert told.of("verdict") == ()


@settings(deadline=None, max_examples=200)
@given(
    st.integers(0, 10**12),
    st.integers(0, 10**9),
    st.sampled_from([1000, 2000, 5000, 15000, 60000]),
)
def test_instants_stand_on_scrapes_end_at_the_end_and_are_bounded(start: int, length: int, scrape: int) -> None:
    found = instants(start, start + length, scrape)
    assert found[-1] == start + length
    assert len(found) <= MOST_INSTANTS
    assert list(found) == sorted(set(found))
    assert all((at - start) % scrape == 0 for at in found[:-1])


def said(at_ms: int, since_ms: int | None, where: Where = HERE, confidence: str = "likely") -> Diagnosis:
    verdict = Verdict("overload", confidence, where, since_ms)  # type: ignore[arg-type]
    return replace(diagnosis(at_ms), verdicts=(verdict,), anomalies=())


def test_an_episode_begins_when_it_was_first_shown_and_keeps_since_when_it_was_said_to_hold_then() -> None:
    [episode] = fold([diagnosis(0), said(20, 10), said(22, 14), said(24, 18)]).of("verdict")
    assert (episode.from_ms, episode.since_ms, episode.began_ms, episode.to_ms) == (20, 10, 10, 24)
    [unknown] = fold([said(20, None)]).of("verdict")
    assert unknown.began_ms == 20


def test_a_change_of_confidence_is_kept_with_its_instant() -> None:
    told = fold([said(2, 1, confidence="possible"), said(4, 1), said(6, 1), said(8, 1, confidence="undetermined")])
    [episode] = told.of("verdict")
    assert episode.turns == ((2, "possible"), (4, "likely"), (8, "undetermined"))
    assert (episode.confidence, episode.surest) == ("undetermined", "likely")
    assert told.bands(8, 2)[0].to_ms == 8, "what was likely once is no mere suspicion afterwards"


def test_a_band_of_a_past_incident_begins_where_the_running_one_did() -> None:
    both = Where("fleet", (Place("a:1"), Place("b:1")))
    judged = [said(20, 10), said(22, 10), said(24, 10, both), diagnosis(26), said(28, 27), diagnosis(30), diagnosis(90)]
    told = fold(judged)
    for until in (20, 22, 24, 28, 90):  # while it runs, after it moved, after it paused, after it is over
        band = told.bands(until, 4)[0]
        assert (band.from_ms, band.shown_ms) == (10, 20)
        assert band.to_ms == min(until, 28)
    assert told.bands(19, 4) == (), "nothing is known before it was first shown"
    assert [(b.from_ms, b.to_ms) for b in told.bands(90, 1)] == [(10, 24), (27, 28)]
    assert fold([said(20, 10, confidence="undetermined")]).bands(90, 4) == ()
