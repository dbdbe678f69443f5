"""Which broken checks speak against a number: by its signal, its place, its query, and over a whole recording."""

from __future__ import annotations

from pathlib import Path

from collectors.aligned import Side, aligned
from collectors.capsule import CapsuleSource, read_capsule
from collectors.settings import Settings
from pages.ui import doubts
from pages.ui.compare import Party, charts, lay
from pages.ui.diagnose_view import anomaly_rows, card
from runbooks.diagnosis import diagnose
from runbooks.laws.model import all_laws
from runbooks.timeline import Episode, Timeline
from runbooks.verdicts import Diagnosis, LawFinding, Place, Where
from tests.shared_data import ROOT

A, B = Where("replica", (Place("a:1"),)), Where("rank", (Place("b:1", "0"),))


def broken(where: Where, *signals: str, id: str = "x") -> LawFinding:
    return LawFinding(id, "broken", where, "it reads 1.7", signals)


def test_a_check_speaks_where_it_is_broken_and_for_the_fleet_always() -> None:
    laws = [broken(A, "requests_waiting"), broken(Where("fleet", ()), "kv_cache_usage", id="y")]
    assert doubts.by_signal(laws).keys() == {"requests_waiting", "kv_cache_usage"}
    assert doubts.by_signal(laws, doubts.near(B)).keys() == {"kv_cache_usage"}
    assert doubts.by_signal(laws, doubts.near(A))["requests_waiting"] == ("a:1: it reads 1.7 (check x)",)
    assert len(doubts.at_place(laws, Where("fleet", ()))) == 2
    [said] = doubts.at_place([broken(A, "requests_waiting", "requests_running")], A)
    assert said == "requests waiting, requests running: a:1: it reads 1.7 (check x)"


def test_a_judgement_is_doubted_by_what_it_rests_on() -> None:
    """A hit ratio that counts retries says nothing against a full cache."""
    laws = [broken(A, "prefix_cache_hits"), broken(A, "requests_waiting", id="y")]
    assert [said.partition(":")[0] for said in doubts.at_place(laws, A, {"requests_waiting"})] == ["requests waiting"]
    assert doubts.at_place(laws, A, {"kv_cache_usage"}) == ()
    assert len(doubts.at_place(laws, A)) == 2


def test_a_full_cache_is_not_doubted_by_the_hit_ratio_that_its_retries_spoil() -> None:
    source = CapsuleSource(read_capsule(ROOT / "incidents" / "kv_pool_too_small.capsule"))
    start, _ = source.extent_ms()
    found = diagnose(source, start + 420_000, Settings())
    assert {law.id for law in doubts.broken(found)} == {"hit_ratio_readable"}
    assert found.verdicts[0].cause == "kv_limited"
    assert len(found.anomalies) >= 6
    for told in (found.verdicts[0], *found.anomalies):
        assert not doubts.at_place(doubts.broken(found), told.where, told.reads)
    assert "not trusted" not in card(found, found.verdicts[0], 0)
    assert not any(cell.doubt for row in anomaly_rows(found) for cell in row.cells)


def test_only_broken_checks_speak() -> None:
    kept = LawFinding("k", "kept", A, "", ("requests_waiting",))
    unknown = LawFinding("u", "unknown", A, "", ("requests_waiting",))
    found = Diagnosis(0, "s", 0, 5000, (), (kept, unknown, broken(A, "requests_waiting")), (), ())
    assert [law.id for law in doubts.broken(found)] == ["x"]
    assert doubts.broken(None) == ()


def test_a_query_is_doubted_by_the_metrics_it_reads_in_any_spelling() -> None:
    against = doubts.by_signal([broken(A, "time_to_first_token"), broken(A, "kv_cache_usage", id="y")])
    for query in (
        'histogram_quantile(0.9, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket{a="vllm:kv"}[1m])))',
        "rate(ray_vllm_time_to_first_token_seconds_count[1m])",
    ):
        assert doubts.of_query(against, query) == ("a:1: it reads 1.7 (check x)",), query
    assert doubts.of_query(against, "vllm:num_requests_running") == ()
    assert doubts.of_query(against, "") == ()
    both = doubts.of_query(against, "vllm:kv_cache_usage_perc / on () rate(vllm:time_to_first_token_seconds_sum[1m])")
    assert len(both) == 2


def test_a_recording_is_doubted_where_and_when_a_check_was_broken() -> None:
    law = next(law for law in all_laws().values() if law.taints)
    told = Timeline(
        (0, 60_000),
        (Episode("check", law.id, "a:1", 0, 60_000), Episode("check", "gone_since", "a:1", 0, 1), Episode("verdict", "overload", "a:1", 0, 1)),
    )  # fmt: skip
    found = doubts.of_timeline(told)
    assert found.keys() == set(law.taints)
    [said] = found[law.taints[0]]
    assert said.startswith("a:1, 00:00:00 to 00:01:00 UTC: ")
    assert f"(check {law.id})" in said


def test_two_recordings_side_by_side_carry_the_doubts_of_each(capsule_path: Path) -> None:
    capsule = read_capsule(capsule_path)
    start, end = capsule.manifest.window.start_ms, capsule.manifest.window.end_ms
    laid = lay(Party("A", "a", start, end, None), Party("B", "b", start, end, None), "start")
    side = aligned(
        [Side(CapsuleSource(capsule), laid.zeros[0])], Settings(), before_ms=laid.before_ms, after_ms=laid.after_ms, step_ms=laid.step_ms
    ).sides[0]  # fmt: skip
    told: list[doubts.Doubts] = [{}, {"requests_waiting": ("never moves",)}]
    drawn = {chart.title: chart for chart in charts([side, side], laid, None, {}, told)}
    assert drawn["Waiting"].taints == ("B: never moves",)
    assert drawn["Running"].taints == ()
