"""What the pure halves of the pages make of numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from collectors.capsule import CapsuleSource, read_capsule
from collectors.fleet import fleet_picture
from collectors.fleet_picture import FleetPicture
from collectors.latency_picture import HeatMap
from collectors.model import Window
from collectors.settings import Settings
from pages.ui.charts import Heat, Line, pack, unpack
from pages.ui.fleet_answers import answers, capacity_text, tiles
from pages.ui.fleet_charts import panels
from pages.ui.fleet_scene import Scene
from pages.ui.fleet_table import averaging_text, fleet_line, rows
from pages.ui.latency_view import heat_chart
from pages.ui.memory_view import device_bar, fix_text, number_rows, verdict_card
from pages.ui.runbook_view import conclusion_html, instruction_html, numbers_html, outcome_html
from pages.ui.story_view import lanes_of, places_text
from pages.ui.words import digits
from runbooks.diagnosis import diagnose
from runbooks.engine import walk
from runbooks.evidence import log_numbers
from runbooks.timeline import Episode, Timeline
from runbooks.verdicts import LawFinding, Place, Where
from tests.pages.conftest import INSIDE_MS

QUIET_MS = INSIDE_MS - 60_000


def scene_at(path: Path, at_ms: int, **more: object) -> Scene:
    source = CapsuleSource(read_capsule(path), at_ms)
    window = Window(at_ms - 120_000, at_ms, 2000)
    picture = fleet_picture(source, window, Settings())
    slots = {row.key: place for place, row in enumerate(picture.replicas)}
    parts = {"settings": Settings(), "slots": slots, "axis": (window.start_ms, at_ms), "kept": {}} | more
    return Scene(picture, diagnose(source, at_ms, Settings()), **parts)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def incident(capsule_path: Path) -> Scene:
    return scene_at(capsule_path, INSIDE_MS)


@pytest.fixture(scope="module")
def quiet(capsule_path: Path) -> Scene:
    return scene_at(capsule_path, QUIET_MS)


def test_the_four_answers_tell_an_incident_from_a_quiet_fleet(incident: Scene, quiet: Scene) -> None:
    assert [a.level for a in answers(quiet)] == ["ok", "ok", "ok", "ok"]
    told = {a.question: a for a in answers(incident)}
    assert told["Serving"].level == "ok"
    assert told["Late"].level == "warn"
    assert told["Worse"].level == "warn"
    assert "growing by" in told["Worse"].detail


def test_tiles_name_what_they_compare_with(incident: Scene) -> None:
    told = {tile.label: tile for tile in tiles(incident)}
    assert told["Waiting"].change.endswith("ago")
    assert told["Waiting"].change.startswith("+")
    assert told["Wait now, worst"].kind == "derived"
    assert "arriving" in told["Finished"].unit
    assert told["Preemptions"].value == "0"  # zero is a value


def with_broken_law(scene: Scene, where: Where) -> Scene:
    assert scene.found is not None
    law = LawFinding("frozen", "broken", where, "nothing moves", ("requests_waiting",))
    return replace(scene, found=replace(scene.found, laws=(law,)))


def test_a_broken_law_of_one_replica_casts_no_doubt_on_the_row_of_another(incident: Scene) -> None:
    keys = [row.key for row in incident.picture.replicas]
    assert len(keys) > 1
    waiting = 2
    one = {
        row.name: row.cells[waiting].doubt
        for row in rows(with_broken_law(incident, Where("rank", (Place(keys[1], "0"),))))
    }
    assert one == {key: key == keys[1] for key in keys}
    assert all(row.cells[waiting].doubt for row in rows(with_broken_law(incident, Where("fleet", ()))))
    told = {tile.label: tile for tile in tiles(with_broken_law(incident, Where("replica", (Place(keys[1]),))))}
    assert told["Waiting"].doubt  # a sum over the fleet holds the doubtful one


def test_a_replica_that_makes_no_progress_stands_first(quiet: Scene) -> None:
    last = quiet.picture.replicas[-1].key
    assert quiet.found is not None
    stalled = tuple(replace(s, state="stalled") if s.place.instance == last else s for s in quiet.found.replicas)
    assert rows(replace(quiet, found=replace(quiet.found, replicas=stalled)))[0].name == last
    assert [row.name for row in rows(quiet)] == [row.key for row in quiet.picture.replicas]


def test_the_line_of_the_fleet_adds_up_and_compares_with_no_partial_sum(incident: Scene) -> None:
    line = fleet_line(incident)
    assert line is not None
    keys = incident.picture.replicas
    assert line.cells[2].text == digits(sum(row.waiting.value or 0.0 for row in keys))
    assert sum(row.seats.known for row in keys) == 1
    assert line.cells[3].text.endswith(" / ?"), "the seats of one of two replicas are not the fleet's"
    said = averaging_text(incident)
    assert f"worst {incident.picture.fleet.worst_p99_key}" in said
    assert "a mean of p99s would say" in said
    alone = replace(incident, picture=replace(incident.picture, replicas=incident.picture.replicas[:1]))
    assert fleet_line(alone) is None
    assert averaging_text(alone) == ""


def test_measured_capacity_says_of_how_many_replicas_it_is(incident: Scene, quiet: Scene) -> None:
    assert capacity_text(incident).endswith("of 1 of 2 replicas")
    assert capacity_text(quiet) == ""
    [flow] = [panel for panel in panels(incident) if panel.title == "Arrivals and completions"]
    assert not flow.limits, "a part of the fleet's capacity is no line to hold its arrivals against"


def test_the_chart_shows_what_the_picture_holds(incident: Scene) -> None:
    [waiting] = [panel for panel in panels(incident) if panel.title == "Waiting"]
    header, drawn = unpack(pack(waiting))
    busy = next(s for s in header["series"] if s["name"] == "127.0.0.1:8000")
    line = incident.picture.waiting.line("127.0.0.1:8000")
    assert line is not None
    np.testing.assert_array_equal(drawn[busy["row"]], line.values.astype("<f4"))


def test_beyond_the_palette_the_rest_is_grey_and_counted(capsule_path: Path) -> None:
    scene = scene_at(capsule_path, INSIDE_MS, slots={"127.0.0.1:8000": 0, "127.0.0.1:8001": None})
    [waiting] = [panel for panel in panels(scene) if panel.title == "Waiting"]
    assert waiting.aside == "1 more in grey"
    grey = [line for line in waiting.series if isinstance(line, Line) and line.tone == "quiet"]
    assert [line.name for line in grey] == ["127.0.0.1:8001"]
    assert not grey[0].legend


def test_the_table_ages_an_old_picture(incident: Scene) -> None:
    fresh, old = rows(incident)[0].cells[-1], rows(incident, older_seconds=300.0)[0].cells[-1]
    assert fresh.text.endswith(" s")
    assert old.text.startswith("5 min")


def heat(slo: float | None) -> HeatMap:
    bounds = np.array([0.1, 0.25, 0.5, 1.0, 2.5, 5.0, np.inf])
    rates = np.zeros((7, 4))
    rates[2], rates[3], rates[4] = 1.0, [0, 1, np.nan, 2], 0.5
    return HeatMap("time_to_first_token", "seconds", Window(0, 6000, 2000), bounds, rates, slo, ())


def test_a_heat_map_leaves_out_empty_buckets_and_puts_the_slo_between_rows() -> None:
    chart = heat_chart(heat(1.0), (0, 6000), ())
    [drawn] = chart.series
    assert isinstance(drawn, Heat)
    assert drawn.buckets == ("250 ms to 500 ms", "500 ms to 1 s", "1 s to 2.5 s")
    assert drawn.limit_row == 1.5  # above the bucket that ends at one second
    header, values = unpack(pack(chart))
    assert np.isnan(values[1][2])
    assert header["limits"][0]["label"] == "SLO 1 s"


def test_an_slo_far_from_what_was_seen_is_not_drawn_in_a_heat_map() -> None:
    assert heat_chart(heat(0.1), (0, 6000), ()).limits == ()
    assert heat_chart(heat(None), (0, 6000), ()).limits == ()


def test_lanes_hold_what_is_not_plain() -> None:
    told = Timeline(
        (0, 2, 4),
        (
            Episode("verdict", "overload", "a:1", 0, 4, "likely"),
            Episode("state", "serving", "a:1", 0, 4),
            Episode("state", "stalled", "b:1", 2, 4),
            Episode("check", "usage_is_a_ratio", "a:1", 2, 2),
        ),
    )
    names = [lane.name for lane in lanes_of(told)]
    assert names == ["overload · a:1", "check: usage is a ratio · a:1", "state: stalled · b:1"]
    assert lanes_of(Timeline((0,), ()))[0].spans == ()


def test_the_device_bar_says_what_is_unknown_and_what_is_too_much() -> None:
    def part(name: str, gib: float | None) -> dict[str, object]:
        return {"rank": "<r>", "name": name, "gib": gib, "origin": "read"}

    known = {"ledger": [part("total", 80.0), part("requested", 72.0), part("weights", 15.0), part("graphs", None)]}
    bar = device_bar(known)
    assert bar is not None
    assert "unknown or free 65.00" in bar
    assert "requested share 72.00 GiB" in bar
    assert "&lt;r&gt;" in bar
    told = device_bar({**known, "numbers": {"free_gib": 0.05}})
    assert told is not None
    assert "in use, not told by what 64.95, free 0.05" in told
    over = device_bar({"ledger": [part("total", 10.0), part("weights", 15.0)]})
    assert over is not None
    assert "more than the device holds by 5.00" in over
    assert device_bar({"ledger": [part("total", None), part("weights", 15.0)]}) is None


def test_figures_of_a_log_come_with_their_unit_and_options_with_their_name() -> None:
    numbers = {"available_kv_gib": 3.76, "max_tokens": 512, "max_model_len_tokens": 40000}
    assert [(row.name, *(cell.text for cell in row.cells)) for row in number_rows({"numbers": numbers})] == [
        ("available KV", "3.76", "GiB"),
        ("max_tokens", "512", "tokens"),
        ("max model len", "40,000", "tokens"),
    ]
    told = [(number.label, number.words) for number in log_numbers({"numbers": numbers})]
    assert told == [("available KV", "3.76 GiB"), ("max_tokens", "512"), ("max model len", "40,000 tokens")]


def test_words_of_a_log_stand_out_in_an_instruction() -> None:
    assert "look for <code>fatal &lt;error&gt;</code>." in instruction_html("look for `fatal <error>`.")


def test_what_all_figures_of_a_step_have_in_common_is_said_once() -> None:
    read = log_numbers({"numbers": {f"part{which}_gib": 1.5 for which in range(6)}})
    assert numbers_html(read).count("read from the pasted log") == 1
    assert numbers_html(read[:2]).count("read from the pasted log") == 2


def test_an_outcome_without_a_cause_of_the_metrics_says_what_it_found(capsule_path: Path) -> None:
    walked = walk("out_of_memory_run", CapsuleSource(read_capsule(capsule_path), INSIDE_MS), INSIDE_MS, Settings())
    assert walked.outcome.cause is None
    for card in (outcome_html(walked), conclusion_html(walked)):
        assert "no single cause" not in card
        assert "Undetermined: Without the error message" in card
        assert card.count("Without the error message") == 1


def test_a_verdict_card_shows_text_as_text() -> None:
    card = verdict_card({"class": "no_kv_blocks", "says": ["<b>x</b>"], "fixes": [{"change": {"enforce_eager": True}, "predicted": {"graphs_gib": 0.0}, "price": "slower"}]})  # fmt: skip
    assert "&lt;b&gt;x&lt;/b&gt;" in card
    assert "enforce eager: True. Predicted: graphs 0 GiB. Price: slower" in card
    assert fix_text({"change": {"max_model_len_at_most": 16368}}) == "max model len at most: 16,368"


def test_a_picture_without_replicas_has_answers_too(capsule_path: Path) -> None:
    source = CapsuleSource(read_capsule(capsule_path), INSIDE_MS - 10**7)
    window = Window(INSIDE_MS - 10**7 - 60_000, INSIDE_MS - 10**7, 2000)
    picture: FleetPicture = fleet_picture(source, window, Settings())
    scene = Scene(picture, None, Settings(), {}, (window.start_ms, window.end_ms), {})
    assert {a.level for a in answers(scene)} == {"unknown"}
    assert rows(scene) == []
    assert all(pack(panel) for panel in panels(scene))


def test_places_over_time_are_said_once() -> None:
    assert places_text(("a:1",)) == "a:1"
    assert places_text(("a:1", "the fleet", "b:1")) == "the fleet"
    assert places_text(("a", "b", "c", "d", "e")) == "a, b, c and 2 more"
    assert places_text(("a", "a, b", "b, c")) == "a, b, c"


def test_a_lane_shows_each_confidence_and_since_when_but_nothing_twice() -> None:
    episodes = (
        Episode("verdict", "overload", "a:1", 20_000, 60_000, "likely", since_ms=5_000, turns=((20_000, "possible"), (40_000, "likely"))),
        Episode("verdict", "overload", "a:1", 80_000, 90_000, "likely", since_ms=50_000, turns=((80_000, "likely"),)),
    )  # fmt: skip
    [lane] = lanes_of(Timeline((0, 90_000), episodes))
    assert [(s.since_ms, s.from_ms, s.to_ms, s.text) for s in lane.spans] == [
        (5_000, 20_000, 40_000, "possible"),
        (None, 40_000, 60_000, "likely"),
        (60_000, 80_000, 90_000, "likely"),
    ]
    assert "since 00:00:05" in lane.spans[0].label
    moved = lane.moved(-20_000, "A")
    assert (moved.group, moved.spans[0].since_ms, moved.spans[0].from_ms) == ("A", -15_000, 0)


def test_a_cause_that_moves_stays_in_its_lane_without_a_hole() -> None:
    def said(place: str, first: int, last: int, since: int) -> Episode:
        return Episode(
            "verdict", "cold_prefix_cache", place, first, last, "likely", since_ms=since, turns=((first, "likely"),)
        )

    told = Timeline(
        tuple(range(0, 100, 10)),
        (said("a", 20, 30, 5), said("the fleet", 40, 40, 5), said("a", 50, 50, 5), said("b", 50, 50, 5), said("a", 70, 80, 65)),
    )  # fmt: skip
    [lane] = lanes_of(told)
    assert lane.name == "prefix cache cold"
    assert [(s.since_ms, s.from_ms, s.to_ms) for s in lane.spans] == [(5, 20, 40), (None, 40, 50), (None, 50, 50), (65, 70, 80)]  # fmt: skip
    assert [s.label.split(",")[0] for s in lane.spans] == ["prefix cache cold on a", "prefix cache cold on the fleet", "prefix cache cold on a", "prefix cache cold on a"]  # fmt: skip
    assert "on a, b, likely" in lane.spans[2].label
