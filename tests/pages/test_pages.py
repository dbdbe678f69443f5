"""Every page in its states, started from the router: fine, wrong, no data, source down, not trusted, hostile."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from collectors.instants import parse_instant_ms
from pages.ui import charts, data
from pages.ui.console import configure
from tests.pages.conftest import BEFORE, INSIDE, INSIDE_MS, Bench, components, html
from tests.shared_data import ROOT

PAGES = ["fleet.py", "latency.py", "replica.py", "diagnose.py", "runbook.py", "memory.py", "incidents.py", "simulator.py"]  # fmt: skip
WITH_SOURCE = [page for page in PAGES if page not in ("memory.py",)]
WATCHING = ["fleet.py", "latency.py", "replica.py", "diagnose.py"]


def opened(page: str, **params: str) -> Any:
    at = AppTest.from_file(str(ROOT / "pages" / "main.py"), default_timeout=60)
    if page != "fleet.py":
        at.switch_page(page)  # which empties the address: the parameters come after it
    for name, value in params.items():
        at.query_params[name] = value
    at.run()
    assert not at.exception, [e.value for e in at.exception]
    return at


def bar(at: Any) -> dict[str, Any]:
    [(_, told)] = components(at, "source_bar")
    return dict(told)


def panels(at: Any) -> dict[str, dict[str, Any]]:
    return {header["title"]: header for header in (charts.unpack(raw)[0] for _, raw in components(at, "live_chart"))}


def cells(at: Any, key: str = "replicas") -> list[dict[str, Any]]:
    [rows] = [told["rows"] for name, told in components(at, "table") if name.endswith(f"-{key}")]
    return [row for row in rows if row["name"] != "fleet"]  # the sum of the others


@pytest.mark.parametrize("page", PAGES)
def test_every_page_draws_inside_the_incident(bench: Bench, page: str) -> None:
    at = opened(page, at=INSIDE, id="waiting_growth", instance="127.0.0.1:8000")
    assert "could not be drawn" not in html(at)


@pytest.mark.parametrize("page", WITH_SOURCE)
def test_every_page_draws_where_nothing_was_recorded_yet(bench: Bench, page: str) -> None:
    at = opened(page, at="2026-11-30T02:36:47.400Z", id="waiting_growth")
    assert "could not be drawn" not in html(at)


def test_the_first_screen_answers_its_four_questions(bench: Bench) -> None:
    at = opened("fleet.py", at=INSIDE)
    told = html(at)
    for question in ("Serving", "Late", "Full", "Worse"):
        assert question in told
    assert "2 of 2" in told
    assert "TTFT p95" in told
    assert "over 30 s" in told
    told_bar = bar(at)
    assert told_bar["mode"] == "replay"
    assert told_bar["clock"] == "02:38:20"
    assert {"Waiting", "KV cache usage", "Arrivals and completions", "Time to first token"} <= panels(at).keys()
    assert [row["name"] for row in cells(at)][0] == "127.0.0.1:8000"  # worst first


def test_an_anomaly_leads_to_its_runbook_at_that_instant_and_place(bench: Bench) -> None:
    at = opened("fleet.py", at=INSIDE)
    assert "seats full on 127.0.0.1:8000" in html(at) or "overload on 127.0.0.1:8000" in html(at)
    [link] = [element.proto for element in at.get("page_link") if element.proto.label == "Open runbook"]
    assert link.page == "runbook"
    for part in ("id=waiting_growth", "instance=127.0.0.1%3A8000", "at=2026-11-30T02%3A38%3A20Z"):
        assert part in link.query_string


def test_before_the_incident_the_strip_is_calm(bench: Bench) -> None:
    at = opened("fleet.py", at=BEFORE)
    assert "No incident now." in html(at)
    assert not [element for element in at.get("page_link") if element.proto.label == "Open runbook"]


def test_a_replay_draws_no_sample_after_its_cursor(bench: Bench) -> None:
    at = opened("fleet.py", at=INSIDE)
    cursor = parse_instant_ms(INSIDE)
    for header in panels(at).values():
        assert header["start_ms"] + (header["points"] - 1) * header["step_ms"] <= cursor
    assert bar(at)["replay"]["at_ms"] == cursor


def test_a_walk_shows_every_step_with_its_finding_and_its_query(bench: Bench) -> None:
    at = opened("runbook.py", at=INSIDE, id="waiting_growth", instance="127.0.0.1:8000", step="seats")
    [(_, steps)] = components(at, "steps")
    assert steps["open"] == "seats"
    assert len(steps["steps"]) > 8
    assert {step["finding"] for step in steps["steps"]} >= {"yes", "no", "needs_answer"}
    assert any("num_requests_running" in "".join(header["promql"]) for header in panels(at).values())
    assert "Change to consider" in html(at)
    assert "Runner-up" in html(at)


def test_notes_begin_a_recorded_walk_that_can_be_exported(bench: Bench) -> None:
    at = opened("runbook.py", at=INSIDE, id="waiting_growth", instance="127.0.0.1:8000", step="seats")
    at.text_input(key="text_waiting_growth_seats").input("saw <b>16</b> of 16")
    at.button[[button.label for button in at.button].index("Add note")].click()
    at.run()
    assert not at.exception
    assert at.query_params["walk"] in (["1"], "1")
    assert "saw &lt;b&gt;16&lt;/b&gt; of 16" in html(at)
    assert "Export walk" in [element.proto.label for element in at.get("download_button")]


@pytest.mark.parametrize("wanted", ["<script>alert(1)</script>", "../../etc/passwd", "x" * 5000])
def test_an_unknown_runbook_is_said_and_shown_as_text(bench: Bench, wanted: str) -> None:
    at = opened("runbook.py", at=INSIDE, id=wanted)
    assert "Unknown runbook" in html(at)
    assert "<script>" not in html(at)


@pytest.mark.parametrize("instance", ['"}) or vector(1) #\n', "<img src=x onerror=alert(1)>"])
@pytest.mark.parametrize("page", ["replica.py", "runbook.py"])
def test_an_unknown_replica_is_said_and_shown_as_text(bench: Bench, page: str, instance: str) -> None:
    at = opened(page, at=INSIDE, id="waiting_growth", instance=instance)
    assert "Unknown replica" in html(at) or "This walk cannot be made" in html(at)
    assert "<img" not in html(at)


@pytest.mark.parametrize("page", ["fleet.py", "incidents.py"])
def test_an_address_that_cannot_be_read_is_said(bench: Bench, page: str) -> None:
    at = opened(page, at="yesterday<u>", range="9 years")
    assert "could not be read in full" in html(at)
    assert "<u>" not in html(at)


def test_an_unknown_source_names_the_way_back(bench: Bench) -> None:
    at = opened("fleet.py", source="../../secret.capsule")
    assert bar(at)["mode"] == "never"
    assert "no incident file" in html(at)


@pytest.mark.parametrize("page", WATCHING)
def test_when_the_source_goes_down_the_last_picture_stays_with_its_age(bench: Bench, page: str) -> None:
    source = bench.live()
    opened(page, instance="127.0.0.1:8000")
    source.down = True
    bench.clock.now_ms += 42_000
    at = opened(page, instance="127.0.0.1:8000")
    told = bar(at)
    assert told["mode"] == "down"
    assert told["cause"] == "connection refused"
    assert told["age_s"] >= 42
    assert told["clock"] == "02:38:20"
    assert "As last seen at 02:38:20 UTC:" in html(at)
    if page == "fleet.py":
        assert "pw-dim" in html(at)
        assert panels(at)["Waiting"]["dim"]
        assert cells(at)


@pytest.mark.parametrize("page", ["fleet.py", "diagnose.py"])
def test_a_source_that_never_answered_says_so(bench: Bench, page: str) -> None:
    bench.live().down = True
    at = opened(page)
    assert bar(at)["mode"] == "never"
    assert "connection refused" in html(at)
    assert "pagewatch doctor" in html(at)


def test_a_dead_source_is_not_asked_by_every_viewer(bench: Bench) -> None:
    source = bench.live()
    source.down = True
    opened("fleet.py")
    asked = source.asked
    for _ in range(3):
        opened("fleet.py")
    assert source.asked == asked


def test_viewers_of_one_page_share_one_set_of_queries(bench: Bench) -> None:
    source = bench.live()
    opened("fleet.py")
    asked = source.asked
    assert asked > 0
    for _ in range(4):
        opened("fleet.py")
    assert source.asked == asked
    bench.clock.now_ms += 60_000
    opened("fleet.py")
    assert source.asked > asked


def test_no_vllm_metrics_at_all_is_a_state_of_its_own(bench: Bench) -> None:
    bench.live(keep=lambda name: name.startswith("process_"))
    assert "No replica seen" in html(opened("fleet.py"))


def test_a_metric_that_is_not_there_is_neither_zero_nor_blank(bench: Bench) -> None:
    bench.live(keep=lambda name: name != "vllm:kv_cache_usage_perc")
    at = opened("fleet.py")
    notice = panels(at)["KV cache usage"]["notice"]
    assert notice
    assert not panels(at)["KV cache usage"]["series"]
    assert panels(at)["Waiting"]["series"]  # the others stand
    texts = {cell["text"] for row in cells(at) for cell in row["cells"]}
    assert texts & {"not scraped", "not in this engine version", "no data"}
    assert "KV 0 %" not in html(at)


def test_a_broken_check_marks_the_numbers_that_rest_on_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from runbooks import diagnosis as judged
    from runbooks.verdicts import LawFinding, Place, Where

    real = judged.diagnose

    def doubting(*args: Any, **kwargs: Any) -> Any:
        where = Where("replica", (Place("127.0.0.1:8000"),))
        law = LawFinding("usage_is_a_ratio", "broken", where, "usage reads 1.7", ("kv_cache_usage",))
        return replace(real(*args, **kwargs), laws=(law,))

    monkeypatch.setattr(data, "diagnose", doubting)
    bench.live()
    at = opened("fleet.py")
    assert "not trusted" in html(at)
    assert "usage reads 1.7" in panels(at)["KV cache usage"]["taints"][0]
    assert not panels(at)["Waiting"]["taints"]
    assert any(cell.get("doubt") for row in cells(at) for cell in row["cells"])
    assert "usage reads 1.7" in str(components(opened("diagnose.py"), "table"))


def test_label_values_with_markup_and_quotes_stay_text(bench: Bench) -> None:
    hostile = '<img src=x onerror=alert(1)>"}\\'
    bench.live(relabel={"127.0.0.1:8000": hostile})
    for page in ("fleet.py", "diagnose.py", "replica.py", "runbook.py"):
        at = opened(page, instance=hostile, id="waiting_growth")
        assert "<img" not in html(at)
        assert "could not be drawn" not in html(at)
    assert hostile in [row["name"] for row in cells(opened("fleet.py"))]


def test_one_broken_panel_leaves_the_rest_of_the_page(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from pages.ui import fleet_page

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise KeyError("nothing like that")

    monkeypatch.setattr(fleet_page, "tiles", broken)
    at = opened("fleet.py", at=INSIDE)
    assert "The tiles could not be drawn" in html(at)
    assert panels(at)
    assert cells(at)


def test_time_and_source_travel_with_every_link(bench: Bench) -> None:
    at = opened("fleet.py", at=INSIDE, range="1h")
    for row in cells(at):
        assert "at=2026-11-30T02%3A38%3A20Z" in row["href"]
        assert "range=1h" in row["href"]
    assert bar(at)["range"] == "1h"


def test_an_absolute_range_is_read_back_from_the_address(bench: Bench) -> None:
    bench.live()
    at = opened("fleet.py", **{"from": "2026-11-30T02:37:00Z", "to": "2026-11-30T02:38:00Z"})
    told = bar(at)
    assert told["mode"] == "paused"
    assert told["range"] == ""
    header = panels(at)["Waiting"]
    assert header["axis"] == [parse_instant_ms("2026-11-30T02:37:00Z"), parse_instant_ms("2026-11-30T02:38:00Z")]


def test_a_refusal_pasted_where_a_log_is_asked_for_is_decoded(bench: Bench) -> None:
    at = opened("memory.py")
    body = '{"error": {"message": "This model\'s maximum context length is 8192 tokens. However, you requested 8203 tokens (7691 in the messages, 512 in the completion). Please reduce the length of the messages or completion.", "code": 400}}'
    at.text_area(key="memory_text").input(body).run()
    assert not at.exception
    assert "Nothing of a start or out-of-memory log is in it: read as a refused request." in html(at)
    assert "over by 11" in html(at)


def test_a_pasted_step_can_be_read_with_the_first_click(bench: Bench) -> None:
    """The text reaches the server with the click that leaves the box: a button disabled until then swallowed it."""
    at = opened("runbook.py", id="out_of_memory_run", step="log", at=INSIDE)
    [read] = [button for button in at.button if button.label == "Read it"]
    assert not read.disabled
    read.click().run()
    assert "Paste the log first." in html(at)


def test_a_pasted_log_becomes_a_verdict(bench: Bench) -> None:
    at = opened("memory.py")
    log = "ERROR 11-30 02:00:00 torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 112.00 MiB. <script>x</script>"
    at.text_area(key="memory_text").input(log).run()
    assert not at.exception
    assert "pw-card" in html(at)
    assert "<script>" not in html(at)


def test_live_is_live_and_its_age_is_that_of_the_samples(bench: Bench) -> None:
    bench.live()
    told = bar(opened("fleet.py"))
    assert told["mode"] == "live"
    assert 0 <= told["age_s"] < 10
    bench.clock.now_ms = INSIDE_MS + 25_000


def test_a_scope_stands_in_every_query_and_in_every_link(bench: Bench) -> None:
    bench.live(jobs={"127.0.0.1:8000": "chat", "127.0.0.1:8001": "batch"})
    at = opened("fleet.py")
    assert len(cells(at)) == 2
    at.selectbox(key="scope_job").select("batch").run()
    assert not at.exception
    assert [row["name"] for row in cells(at)] == ["127.0.0.1:8001"]
    assert "only job=batch" in bar(at)["facts"]
    assert "No incident now." in html(at)  # the incident is on the other one
    assert "scope=job%3Dbatch" in cells(at)[0]["href"]
    again = opened("fleet.py", scope="job=batch")
    assert [row["name"] for row in cells(again)] == ["127.0.0.1:8001"]


def test_a_scope_that_is_none_is_said(bench: Bench) -> None:
    at = opened("fleet.py", at=INSIDE, scope='a"}=1&__name__=up')
    assert "is not a label name" in html(at)
    assert len(cells(at)) == 2


def test_an_incident_that_is_over_stays_on_the_time_axes(bench: Bench) -> None:
    bench.live()
    for step in range(0, 110, 5):
        bench.clock.now_ms = INSIDE_MS - 40_000 + step * 1000
        data.diagnosis(data.view_of({}, None))
    at = opened("fleet.py")
    assert "No incident now." in html(at)
    bands = [mark for mark in panels(at)["Waiting"]["marks"] if mark["tone"] == "muted" and not mark["line"]]
    assert [mark["label"] for mark in bands] in (["seats full"], ["overload"])
    assert bands[0]["to_ms"] < bench.clock.now_ms
    assert bands[0]["href"].startswith("diagnose?")


def test_a_replay_knows_nothing_of_what_comes_after_its_cursor(bench: Bench) -> None:
    from pages.ui import story

    while story.told("") is None:
        pass
    at = opened("fleet.py", at=BEFORE)
    assert not panels(at)["Waiting"]["marks"]
    assert bar(at)["replay"]["marks"], "the track is for navigation and shows the whole recording"


def test_who_opens_a_walk_from_a_live_page_is_live_again_when_leaving_it(bench: Bench) -> None:
    bench.live()
    at = opened("fleet.py")
    assert bar(at)["mode"] == "live"
    at.switch_page("runbook.py")
    at.query_params["id"] = "waiting_growth"
    at.run()
    assert bar(at)["mode"] == "paused", "figures of a walk must not move while they are read"
    at.switch_page("latency.py")
    at.query_params.clear()  # as a click on the navigation does
    at.run()
    assert bar(at)["mode"] == "live"
    at.query_params["at"] = INSIDE
    at.run()
    at.switch_page("fleet.py")
    at.query_params.clear()
    at.run()
    assert bar(at)["mode"] == "paused", "an instant that somebody chose stays"


def test_the_threshold_lab_tries_values_on_recordings(bench: Bench) -> None:
    from pages.ui import lab_job

    at = opened("incidents.py", tab="lab")
    at.selectbox(key="lab_name_threshold").select(
        "waiting_growth.wait_seconds"
        if "waiting_growth.wait_seconds" in at.selectbox(key="lab_name_threshold").options
        else at.selectbox(key="lab_name_threshold").options[0]
    ).run()
    at.button[[button.label for button in at.button].index("Try them")].click()
    at.run()
    assert not at.exception
    job = lab_job.current()
    assert job is not None
    deadline = time.monotonic() + 60
    while not job.done and time.monotonic() < deadline:
        time.sleep(0.05)
    at = opened("incidents.py", tab="lab")
    [answer] = [told for name, told in components(at, "table") if name.endswith("-lab_answer")]
    assert len(answer["rows"]) == 3
    lab_job.stop()


@pytest.mark.parametrize("text", ["a b", "1 2 3 4 5 6 7 8 9 10 11 12 13"])
def test_values_that_are_no_numbers_are_said(bench: Bench, text: str) -> None:
    at = opened("incidents.py", tab="lab")
    at.text_input[0].input(text).run()
    assert "cannot be read" in html(at)


def test_a_shipped_incident_tells_its_story(bench: Bench, tmp_path: Path) -> None:
    from dataclasses import replace

    (tmp_path / "b_waiting_growth.md").write_text("Told by those who were there.")
    configure(replace(bench.console, shipped_folder=bench.capsule_path.parent, stories_folder=tmp_path))
    at = opened("incidents.py", at=INSIDE)
    assert any("Told by those who were there." in element.value for element in at.markdown)


def test_a_replica_page_shows_its_own_flow_and_quantiles_and_says_what_its_queue_does(bench: Bench) -> None:
    busy = opened("replica.py", at=INSIDE, instance="127.0.0.1:8000")
    assert set(panels(busy)) == {"Waiting", "KV cache usage", "Running", "Arrivals and completions", "Time to first token", "Gap between tokens"}  # fmt: skip
    assert "this replica" in panels(busy)["Time to first token"]["unit_label"]
    assert "Queuenever" not in html(busy).replace("</dt><dd>", "")
    assert "does not clear" in html(busy)
    calm = opened("replica.py", at=INSIDE, instance="127.0.0.1:8001")
    arrivals = [
        charts.unpack(raw)[1]
        for at in (busy, calm)
        for _, raw in components(at, "live_chart")
        if charts.unpack(raw)[0]["title"] == "Arrivals and completions"
    ]
    assert float(arrivals[0][-1][-1]) > 2 * float(arrivals[1][-1][-1]), "the flow of one replica is not the fleet's"


def test_a_live_page_opens_with_five_minutes_until_there_is_more_to_show(bench: Bench) -> None:
    bench.live()  # it holds a minute and a half
    assert bar(opened("fleet.py"))["range"] == "5m"
    bench.clock.now_ms += 7 * 60_000
    assert bar(opened("fleet.py"))["range"] == "5m"
    bench.clock.now_ms += 3 * 60_000
    assert bar(opened("fleet.py"))["range"] == "15m"
    assert bar(opened("fleet.py", range="1h"))["range"] == "1h"


def test_a_source_that_does_not_answer_or_holds_nothing_yet_is_asked_again_how_far_back_it_goes(bench: Bench) -> None:
    source = bench.live()
    source.down = True
    assert bar(opened("fleet.py"))["range"] == "15m"
    source.down = False
    bench.clock.now_ms += 20_000
    assert bar(opened("fleet.py"))["range"] == "5m"
