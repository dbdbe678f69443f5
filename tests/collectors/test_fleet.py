"""The fleet picture on data whose numbers are known: every figure, every state, every double."""

import threading

import numpy as np
import pytest

from collectors.fleet import fleet_picture
from collectors.model import STALE, Window
from collectors.refresh import PictureCache
from collectors.settings import Engine, Settings
from collectors.source import QueryRejected, SourceUnreachable
from tests.collectors.fleet_data import START_MS, Listened, PretendReplica, embedded, pretend

END_MS = START_MS + 1_200_000
INTERVALS = (2, 5, 15, 30, 60)
WINDOWS = {2: 30_000, 5: 60_000, 15: 60_000, 30: 120_000, 60: 240_000}


def picture(*replicas, settings=None, step_ms=15_000, source=None, length_ms=900_000):
    source = source or embedded(pretend(*replicas), END_MS)
    return fleet_picture(source, Window(END_MS - length_ms, END_MS, step_ms), settings or Settings())


@pytest.mark.parametrize("interval", INTERVALS)
def test_every_figure_at_every_scrape_interval(interval):
    busy = PretendReplica(
        "b:8000", interval_seconds=interval, waiting=120, running=16, kv=0.3, kv_growth=0.0005, preemptions=0.1
    )
    idle = PretendReplica(
        "a:8000", interval_seconds=interval, running=0, tokens=0, first_tokens=0, prompt=0, queries=0, hits=0
    )
    seen = picture(busy, idle)
    assert seen.scrape_interval_seconds == interval
    assert seen.rate_window_ms == WINDOWS[interval]
    assert seen.engine_text == "vLLM 0.11"
    worst, calm = seen.replicas
    assert (worst.key, calm.key) == ("b:8000", "a:8000")
    assert worst.wait.value == pytest.approx(40)
    assert worst.wait.evidence == "derived"
    assert worst.first_tokens.value == pytest.approx(3)
    assert worst.generation_tokens.value == pytest.approx(900)
    assert worst.prompt_tokens.value == pytest.approx(300)
    assert worst.finished.value == pytest.approx(3)
    assert worst.preemptions.value == pytest.approx(6)
    assert worst.preemptions.unit == "per minute"
    assert worst.prefix_hit_ratio.value == pytest.approx(0.25)
    assert worst.seats.value == 16
    assert worst.seats.evidence == "inferred"
    assert worst.capacity_requests.value == pytest.approx(3)
    assert worst.capacity_tokens.value == pytest.approx(900)
    assert worst.arrivals.value == pytest.approx(3)
    assert worst.arrivals.evidence == "estimated"
    assert worst.drain.kind == "never"
    assert worst.time_to_first_token_p99.interval.text("s") == "0.1-0.25 s"
    assert worst.kv_forecast.kind == "fills"
    assert worst.kv_forecast.seconds == pytest.approx((1 - 0.9) / 0.0005, abs=2 * interval)
    assert 0 <= worst.age_seconds <= interval
    assert worst.waiting.promql
    assert calm.waiting.value == 0
    assert calm.preemptions.value == 0
    assert calm.wait.status == "no_data"
    assert calm.time_to_first_token_p99.status == "no_data"
    assert calm.prefix_hit_ratio.status == "no_data"
    totals = seen.totals
    assert totals.waiting.value == 120
    assert totals.worst_wait_key == "b:8000"
    assert totals.first_tokens.value == pytest.approx(3)
    assert totals.arrivals.value == pytest.approx(3)
    assert totals.worst_kv_cache_usage.value == pytest.approx(0.9, abs=0.0005 * interval)
    assert totals.waiting.earlier == 120
    assert totals.waiting.earlier_ms == 900_000
    assert totals.time_to_first_token_slo.share.value == 1
    assert totals.time_to_first_token_slo.inside
    assert totals.kv_forecast_key == "b:8000"
    assert len(seen.asked) <= 12


@pytest.mark.parametrize("step_ms", [5_000, 15_000, 60_000, 300_000])
def test_panels_hold_at_every_step(step_ms):
    seen = picture(PretendReplica("a:8000", waiting=10, waiting_growth=0.5), step_ms=step_ms, length_ms=1_200_000)
    for name, expected in (("arrivals", 3.5), ("first tokens", 3), ("completions", 3)):
        line = seen.flow.line(name).values
        known = line[~np.isnan(line)][-3:]
        assert len(known) >= 2, name
        assert known == pytest.approx(expected, rel=0.01), name
    assert seen.flow.rate_window_ms % step_ms == 0
    assert seen.totals.drain.text == "never: arrivals exceed completions by 0.5/s"
    assert seen.waiting.line("a:8000").values[-1] == 10 + 0.5 * 1200


def test_a_queue_that_shrinks_says_when_it_is_gone():
    seen = picture(PretendReplica("a:8000", waiting=1420, waiting_growth=-1.0))
    assert seen.totals.drain.text == "clears in 3 m 40 s"
    assert seen.replicas[0].arrivals.value == pytest.approx(2)


def test_the_four_states_never_look_alike():
    down = PretendReplica("down:8000", up_until=1000)
    old = PretendReplica("old:8000", version="0.6.6")
    silent = PretendReplica("silent:8000", mute=True)
    seen = picture(down, old, silent, PretendReplica("ok:8000", waiting=0))
    rows = {row.key: row for row in seen.replicas}
    assert rows["ok:8000"].waiting.value == 0
    assert rows["old:8000"].prefix_hit_ratio.status == "not_in_version"
    assert rows["old:8000"].prefix_hit_ratio.note == "not in this engine version"
    assert rows["old:8000"].engine_text == "vLLM 0.6.6 to 0.8.4"
    assert rows["down:8000"].scraped == "down"
    assert rows["down:8000"].waiting.status == "not_scraped"
    assert rows["down:8000"].waiting.note == "the last scrape failed"
    assert rows["ok:8000"].time_to_first_token_p99.known
    assert "silent:8000" not in rows
    assert [f.id for f in seen.findings] == ["no_engine_metrics"]
    assert seen.replicas[0].key == "down:8000"
    assert (seen.replicas_up, seen.replicas_seen) == (2, 3)
    assert seen.totals.running.value == 16  # the dead one's last sample is not the present


def test_a_missed_scrape_only_ages_the_numbers():
    missed = pretend(PretendReplica("a:8000", waiting=120, kv=0.5))
    last = END_MS
    samples = []
    for one in missed:
        if one.labels["__name__"] == "up":
            samples.append(type(one)(one.labels, one.times_ms, np.where(one.times_ms == last, 0.0, one.values)))
        else:  # the series end with a staleness marker, as Prometheus writes it
            samples.append(type(one)(one.labels, one.times_ms, np.where(one.times_ms == last, STALE, one.values)))
    seen = picture(source=embedded([*samples, *pretend(PretendReplica("b:8000"))], END_MS))
    row = seen.replica("a:8000")
    assert row.scraped == "up"
    assert row.waiting.value == 120
    assert row.wait.value == pytest.approx(40)
    assert row.kv_cache_usage.value == 0.5
    assert row.engine_text == "vLLM 0.11"
    assert row.age_seconds >= 5
    assert seen.replicas_up == 2
    assert row.time_to_first_token_p99.known


def test_nothing_scraped_is_not_zero():
    seen = picture(source=embedded(pretend(PretendReplica("app:1", mute=True)), END_MS))
    assert seen.replicas == ()
    assert seen.totals.waiting.status == "not_scraped"
    assert seen.totals.finished.status == "not_scraped"
    assert seen.time_to_first_token.status == "not_scraped"
    assert seen.totals.time_to_first_token[0].status == "not_scraped"
    assert seen.totals.time_to_first_token_slo.inside is None
    assert seen.totals.drain.kind == "unknown"


def test_doubles_are_counted_once():
    twice = [
        PretendReplica("a:8000", target={"prometheus_replica": x}, waiting=10, phase_ms=i * 700)
        for i, x in enumerate("xy")
    ]
    seen = picture(*twice, PretendReplica("b:8000", waiting=5, target={"prometheus_replica": "x"}))
    assert [f.id for f in seen.findings] == ["counted_twice"]
    assert seen.totals.waiting.value == 15
    assert seen.totals.first_tokens.value == pytest.approx(6)
    assert seen.totals.time_to_first_token[0].interval.observations == pytest.approx(6 * 60)
    assert [row.first_tokens.value for row in seen.replicas] == pytest.approx([3, 3])


def test_a_router_that_repeats_metrics_adds_nothing():
    real = [PretendReplica(f"{name}:8000", waiting=10) for name in "ab"]
    echo = [
        PretendReplica("router:80", job="router", target={"server": f"http://{name}:8000"}, waiting=10) for name in "ab"
    ]
    seen = picture(*real, *echo)
    assert {row.key for row in seen.replicas} == {"a:8000", "b:8000"}
    assert seen.totals.waiting.value == 20
    assert seen.totals.first_tokens.value == pytest.approx(6)


@pytest.mark.parametrize("prefix", ["ray_vllm:", "ray_vllm_", "kserve_vllm:"])
def test_deployment_prefixes_give_the_same_picture(prefix):
    usual, renamed = (picture(PretendReplica("a:8000", waiting=120, prefix=p)) for p in ("vllm:", prefix))
    assert renamed.engine_text == usual.engine_text
    assert renamed.totals.worst_wait.value == usual.totals.worst_wait.value == pytest.approx(40)
    assert renamed.totals.inter_token_latency_p99.interval == usual.totals.inter_token_latency_p99.interval


def test_a_rollout_of_versions_is_one_fleet():
    fleet = [PretendReplica(f"{v}:8000", version=v) for v in ("0.6.6", "0.10.0", "0.11.0", "0.14.0", "0.32.0")]
    seen = picture(*fleet)
    assert seen.totals.generation_tokens.value == pytest.approx(5 * 900)
    gaps = seen.totals.inter_token_latency_p99.interval
    assert gaps.observations == pytest.approx(5 * 900 * 60, rel=1e-6)  # neither name twice, none left out
    assert seen.totals.worst_kv_cache_usage.value == pytest.approx(0.3)
    assert all(row.kv_cache_usage.known for row in seen.replicas)


def test_the_configured_version_is_used_and_shown():
    seen = picture(PretendReplica("a:8000"), settings=Settings(engine=Engine(version="0.11.2", seats=16)))
    assert seen.engine_text == "vLLM 0.11.2"
    assert (seen.replicas[0].seats.value, seen.replicas[0].seats.evidence) == (16, "configured")


def test_ranks_are_added_up_and_the_fullest_cache_counts():
    seen = picture(PretendReplica("a:8000", ranks=("0", "1", "2"), waiting=30, running=24))
    (row,) = seen.replicas
    assert [rank.engine for rank in row.ranks] == ["0", "1", "2"]
    assert row.waiting.value == 30
    assert row.kv_cache_usage.value == pytest.approx(0.3)
    assert row.seats.value == 24
    assert row.first_tokens.value == pytest.approx(3)
    assert sum(rank.generation_tokens.value for rank in row.ranks) == pytest.approx(900)


def test_a_rank_that_stops_is_missing():
    both = PretendReplica("a:8000", ranks=("0", "1"), waiting=30)
    samples = pretend(both)
    cut = START_MS + 600_000
    shortened = []
    for one in samples:
        keep = one.times_ms <= cut if one.labels.get("engine") == "1" else one.times_ms > 0
        shortened.append(type(one)(one.labels, one.times_ms[keep], one.values[keep]))
    seen = picture(source=embedded(shortened, END_MS))
    assert [f.id for f in seen.findings] == ["rank_missing"]
    assert seen.replicas[0].waiting.value == 15
    assert [rank.present for rank in seen.replicas[0].ranks] == [True, False]


def test_a_replica_that_left_keeps_its_line_and_not_its_numbers():
    leaver = PretendReplica("gone:8000", seconds=300)
    seen = picture(leaver, PretendReplica("a:8000"), length_ms=1_200_000)
    rows = {row.key: row for row in seen.replicas}
    assert rows["gone:8000"].scraped == "gone"
    assert rows["gone:8000"].waiting.status == "not_scraped"
    assert seen.totals.running.value == 8
    assert np.nanmax(seen.running.line("gone:8000").values) == 8
    assert np.isnan(seen.running.line("gone:8000").values[-1])


def test_desired_replicas_may_be_a_number_or_a_query():
    fleet = [PretendReplica("a:8000")]
    by_number = picture(*fleet, settings=Settings(desired_replicas=2))
    assert by_number.replicas_desired.value == 2
    assert [f.id for f in by_number.findings] == ["replicas_missing"]
    by_query = picture(*fleet, settings=Settings(desired_replicas="count(up)"))
    assert by_query.replicas_desired.value == 1
    assert picture(*fleet, settings=Settings(desired_replicas="nothing")).replicas_desired.status == "no_data"
    assert picture(*fleet).replicas_desired.status == "no_data"


def test_mixed_layouts_are_merged_and_said():
    fleet = [PretendReplica("a:8000", bounds=(0.1, 0.25, 0.5)), PretendReplica("b:8000", bounds=(0.15, 0.25, 1.0))]
    seen = picture(*fleet)
    interval = seen.totals.time_to_first_token[2].interval
    assert "mixed_layouts" in interval.flags
    assert interval.text("s") == "<= 0.25 s"
    assert seen.time_to_first_token.note


def test_the_number_of_queries_does_not_grow_with_replicas():
    counts = []
    for size in (1, 12):
        source = Listened(embedded(pretend(*(PretendReplica(f"r{i}:8000") for i in range(size))), END_MS))
        fleet_picture(source, Window(END_MS - 900_000, END_MS, 15_000), Settings(desired_replicas="count(up)"))
        counts.append(len(source.asked))
    assert counts[0] == counts[1] <= 12


def test_a_partial_response_taints_what_rests_on_it_and_nothing_else():
    def warn(promql):
        return (
            ("receive series from Addr: store-3: timeout",)
            if promql.startswith('{__name__=~"vllm:num_requests_waiting|')
            else ()
        )

    source = Listened(embedded(pretend(PretendReplica("a:8000", waiting=120)), END_MS), warn=warn)
    seen = picture(source=source)
    row = seen.replicas[0]
    assert seen.warnings == ("receive series from Addr: store-3: timeout",)
    for tainted in (
        row.waiting,
        row.running,
        row.kv_cache_usage,
        row.wait,
        seen.totals.waiting,
        seen.totals.arrivals,
        seen.waiting,
    ):
        assert any("store-3" in reason for reason in tainted.tainted), tainted
    for clean in (row.generation_tokens, row.first_tokens, seen.totals.generation_tokens, seen.time_to_first_token):
        assert clean.tainted == ()


def test_hints_of_the_source_taint_nothing():
    def warn(promql):
        return ("PromQL info: metric might not be a counter",)

    seen = picture(source=Listened(embedded(pretend(PretendReplica("a:8000")), END_MS), warn=warn))
    assert seen.warnings == ()


def test_a_backend_without_subqueries_still_gives_a_picture():
    def refuse(promql):
        return QueryRejected("subqueries are not supported") if "max_over_time" in promql else None

    seen = picture(source=Listened(embedded(pretend(PretendReplica("a:8000", waiting=120)), END_MS), refuse=refuse))
    assert seen.totals.worst_wait.value == pytest.approx(40)
    assert seen.replicas[0].capacity_requests.status == "no_data"
    assert "subqueries" in seen.replicas[0].capacity_requests.note


def test_a_source_that_is_down_fails_the_whole_picture():
    source = Listened(embedded([], END_MS), refuse=lambda promql: SourceUnreachable("connection refused"))
    with pytest.raises(SourceUnreachable):
        picture(source=source)


def test_twenty_viewers_cost_one_set_of_queries():
    source = Listened(embedded(pretend(PretendReplica("a:8000")), END_MS))
    cache, start, shown = PictureCache(lambda: END_MS), threading.Barrier(20), []
    window = Window(END_MS - 900_000, END_MS, 15_000)

    def view():
        start.wait(10)
        shown.append(cache.get("fleet", window.end_ms, lambda: fleet_picture(source, window, Settings())))

    viewers = [threading.Thread(target=view) for _ in range(20)]
    for viewer in viewers:
        viewer.start()
    for viewer in viewers:
        viewer.join(30)
    assert len(shown) == 20
    assert len({id(one.picture) for one in shown}) == 1
    assert len(source.asked) == len(shown[0].picture.asked) <= 12


@pytest.mark.parametrize("step_ms", [5_000, 15_000])
def test_where_the_data_begin_rates_are_shown_from_the_first_whole_window_on(step_ms):
    """A rate over a window that the data fill only partly made every replay begin with traffic that seems to rise from nothing."""
    begins = PretendReplica("a:8000", interval_seconds=5)
    seen = picture(begins, step_ms=step_ms, length_ms=1_260_000)  # a minute longer than the data
    for line in (seen.flow.line("completions").values, seen.totals.generation_tokens.history):
        known = line[~np.isnan(line)]
        assert known.min() == pytest.approx(known.max(), rel=0.02)
        assert len(known) >= 1_100_000 // step_ms
    assert seen.totals.generation_tokens.earlier == pytest.approx(seen.totals.generation_tokens.value, rel=0.02)


def test_a_store_that_just_began_shows_what_it_has():
    source = embedded(pretend(PretendReplica("a:8000", interval_seconds=5)), START_MS + 25_000)
    seen = fleet_picture(source, Window(START_MS - 275_000, START_MS + 25_000, 5_000), Settings())
    assert seen.totals.generation_tokens.value > 0
    assert np.isfinite(seen.flow.line("completions").values[-1])
