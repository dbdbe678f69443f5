"""The latency picture on data whose numbers are known."""

import numpy as np
import pytest

from collectors.dialect import UnknownSignal
from collectors.latency import HOUR_MS, SIGNALS, latency_picture
from collectors.model import Window
from collectors.settings import Settings
from tests.collectors.fleet_data import START_MS, PretendReplica, embedded, pretend

END_MS = START_MS + 1_200_000


def latency(*replicas, chosen="time_to_first_token", **more):
    source = embedded(pretend(*replicas), END_MS)
    return latency_picture(source, Window(END_MS - 900_000, END_MS, 15_000), Settings(), chosen, **more)


@pytest.mark.parametrize("interval", [2, 5, 15, 30, 60])
def test_quantiles_means_and_ranking_at_every_scrape_interval(interval):
    slow = PretendReplica("slow:8000", interval_seconds=interval, latencies=(6.0,), first_tokens=1.0)
    fast = PretendReplica("fast:8000", interval_seconds=interval, latencies=(0.05,), first_tokens=199.0)
    seen = latency(slow, fast)
    first = seen.panel("time_to_first_token").series
    assert first.at(0.5).text("s") == "0.04-0.06 s"
    assert first.at(0.99).text("s") == "0.04-0.06 s"
    assert first.mean[-1] == pytest.approx((6.0 + 199 * 0.05) / 200)
    assert first.observations[-1] == pytest.approx(200 * seen.rate_window_ms / 1000)
    assert [r.key for r in seen.ranking.replicas] == ["slow:8000", "fast:8000"]
    assert seen.ranking.replicas[0].p99.interval.text("s") == "5-7.5 s"
    assert seen.ranking.replicas[0].mean.value == pytest.approx(6.0)
    assert seen.ranking.fleet_p99.interval.text("s") == "0.04-0.06 s"
    assert seen.ranking.mean_of_p99s.value > 3
    assert "a mean of p99s would say 3.77 s; the fleet's p99 is 0.04-0.06 s" in seen.ranking.text
    assert seen.slo.share.value == pytest.approx(199 / 200)
    lines = {line.key: line.values[-1] for line in seen.where_time_goes.lines}
    assert list(lines) == ["queue", "prefill", "decode", "end to end"]
    assert lines["queue"] == pytest.approx((6.0 + 199 * 0.05) / 200)


def test_the_heat_map_adds_up_to_all_observations():
    seen = latency(PretendReplica("a:8000", latencies=(0.03, 0.3, 3.0, 9000.0), first_tokens=4.0))
    heat = seen.heat_map
    assert heat.rates[:, -1].sum() == pytest.approx(4.0)
    assert heat.rates[np.flatnonzero(heat.bounds == 5.0)[0], -1] == pytest.approx(1.0)
    assert heat.rates[-1, -1] == pytest.approx(1.0)
    assert heat.slo_threshold == 2.5
    assert seen.panel("time_to_first_token").series.at(0.99).text("s") == "> 2560 s"


def test_the_whole_window_counts_every_observation_once():
    seen = latency(PretendReplica("a:8000", first_tokens=3.0))
    assert seen.whole[0].interval.observations == pytest.approx(3 * 900, rel=0.1)


def test_an_earlier_window_is_compared_where_there_is_one():
    replica = PretendReplica("a:8000", seconds=1200 + 3600)
    at = START_MS + (1200 + 3600) * 1000
    source = embedded(pretend(replica), at)
    seen = latency_picture(source, Window(at - 900_000, at, 15_000), Settings())
    hour, day, week = seen.earlier
    assert (hour.label, day.label, week.label) == ("1 h ago", "1 d ago", "1 w ago")
    assert hour.shift_ms == HOUR_MS
    assert hour.quantiles[1].interval.text() == seen.whole[1].interval.text()
    assert {figure.status for figure in week.quantiles} == {"no_data"}


def test_any_histogram_may_be_chosen_and_nothing_else():
    seen = latency(PretendReplica("a:8000", latencies=(700.0,)), chosen="request_prompt_tokens")
    assert seen.heat_map.unit == "tokens"
    assert seen.whole[0].interval.text("tokens") == "500-1000 tokens"
    assert seen.slo is None
    assert {panel.id for panel in seen.panels} == set(SIGNALS)
    with pytest.raises(UnknownSignal, match="time_to_first_token"):
        latency(PretendReplica("a:8000"), chosen="requests_running")


def test_no_traffic_is_no_data_and_an_old_engine_says_so():
    idle = latency(PretendReplica("a:8000", first_tokens=0.0, tokens=0.0))
    assert idle.panel("inter_token_latency").status == "no_data"
    assert idle.ranking.fleet_p99.status == "no_data"
    assert idle.ranking.text == ""
    old = latency(PretendReplica("a:8000", version="0.6.6"), chosen="request_time_per_output_token")
    assert old.whole[0].status == "not_in_version"
    assert old.panel("inter_token_latency").status == "value"
