"""Every panel of every page in its four states: data, no data, source down with the last good picture, and not trusted.

A panel that a page shows with data must be there in the other states too, with a word, an age or a reason.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collectors.dialect import load_dialect
from collectors.source import SourceUnreachable
from pages.ui import charts, data, simulator_client
from pages.ui.console import configure
from runbooks import diagnosis as judged
from runbooks.verdicts import LawFinding, Place, Where
from tests.pages.conftest import Bench, components, html
from tests.pages.test_pages import bar, opened

BUSY = "127.0.0.1:8000"
REASON = "a check made up for this test"
ADDRESSES: dict[str, tuple[str, dict[str, str]]] = {
    "fleet": ("fleet.py", {}),
    "latency": ("latency.py", {}),
    "latency, gap": ("latency.py", {"histogram": "inter_token_latency"}),
    "replica": ("replica.py", {"instance": BUSY}),
    "diagnose": ("diagnose.py", {}),
    "runbooks": ("runbook.py", {}),
    "walk": ("runbook.py", {"id": "waiting_growth", "instance": BUSY, "step": "waiting"}),
    "incidents": ("incidents.py", {}),
    "simulator": ("simulator.py", {}),
}
QUANTILE_CHARTS = ["Time to first token", "Gap between tokens", "Time in the queue", "Prefill", "Decode", "End to end"]
CHARTS = {
    "fleet": ["Waiting", "KV cache usage", "Arrivals and completions", "Time to first token", "Running", "Gap between tokens"],
    "latency": [*QUANTILE_CHARTS, "Heat map", "Where the time goes"],
    "latency, gap": [*QUANTILE_CHARTS, "Heat map", "Where the time goes"],
    "replica": ["Waiting", "KV cache usage", "Running"],
    "walk": ["Waiting"],
}  # fmt: skip
TABLES = {
    "fleet": ["replicas"],
    "latency": ["ranking", "earlier"],
    "latency, gap": ["ranking", "earlier"],
    "diagnose": ["anomalies", "laws_unknown", "laws_kept", "states"],
    "runbooks": ["books_queue", "books_memory", "books_latency"],
    "simulator": ["simulated"],
}
FRAGMENTS = {
    "fleet": ["pw-status", "pw-tiles"],
    "replica": ["pw-card", "pw-tiles"],
    "diagnose": ["pw-card"],
    "walk": ["pw-card", "pw-numbers"],
    "simulator": ["pw-card"],
}
SIMULATED = {
    "scenario": "demo", "running_seconds": 60.0, "what": "a test", "profile": "p", "dial": 1.0, "faults": [], "available_faults": [],
    "ground_truth": [], "replicas": [{"instance": BUSY, "state": "up", "in_flight": 3, "engines": [
        {"running": 3, "waiting": 7, "kv_cache_usage_ratio": 0.25, "slowdown": 1.0, "halted": False}]}],
}  # fmt: skip


@dataclass
class Seen:
    """What a page shows: charts by title (header, rows), tables by key, the HTML that is no style sheet."""

    at: Any
    charts: dict[str, tuple[dict[str, Any], Any]] = field(default_factory=dict)
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    text: str = ""

    def fragment(self, class_: str) -> str:
        return "\n".join(part for part in self.text.split("\x00") if re.search(rf'class="{class_}[ "]', part))


def look(at: Any) -> Seen:
    seen = Seen(at)
    for _, raw in components(at, "live_chart"):
        header, rows = charts.unpack(raw)
        seen.charts[header["title"]] = (header, rows)
    for name, told in components(at, "table"):
        seen.tables[name.rpartition("-")[2]] = told
    parts = [element.proto.body for element in at.get("html")]
    seen.text = "\x00".join(part for part in parts if "<style" not in part)
    return seen


def shown(name: str) -> Seen:
    page, params = ADDRESSES[name]
    return look(opened(page, **params))


@pytest.fixture
def simulator(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A simulator that can be switched off."""
    switch: dict[str, Any] = {"down": False}

    def state() -> dict[str, Any]:
        if switch["down"]:
            raise SourceUnreachable(
                "the simulator does not answer: connection refused", "Start it with: pagewatch demo"
            )
        return json.loads(json.dumps(SIMULATED))  # type: ignore[no-any-return]

    monkeypatch.setattr(simulator_client, "state", state)
    return switch


@pytest.fixture
def with_simulator(bench: Bench, simulator: dict[str, Any]) -> dict[str, Any]:
    configure(replace(bench.console, simulator_url="http://127.0.0.1:1"))
    return simulator


def complete(seen: Seen, name: str) -> None:
    """Nothing that belongs to the page is missing, and nothing failed to be drawn."""
    assert "could not be drawn" not in seen.text, seen.text
    assert set(CHARTS.get(name, [])) <= seen.charts.keys()
    assert set(TABLES.get(name, [])) <= seen.tables.keys()
    for class_ in FRAGMENTS.get(name, []):
        assert seen.fragment(class_), class_


def texts(table: dict[str, Any]) -> list[list[str]]:
    return [[row["name"], *(cell["text"] for cell in row["cells"])] for row in table["rows"]]


@pytest.mark.parametrize("name", ADDRESSES)
def test_with_data_every_panel_draws_it_without_a_mark(bench: Bench, with_simulator: Any, name: str) -> None:
    bench.live()
    seen = shown(name)
    complete(seen, name)
    for title, (header, rows) in seen.charts.items():
        assert header["series"], title
        assert not header["notice"], title
        assert not header["dim"], title
        assert np.isfinite(rows).any(), title
        assert header["promql"], title
    for key, table in seen.tables.items():
        assert table["rows"], key
        assert not table.get("dim"), key
        if not key.startswith("laws"):
            assert not any(cell.get("doubt") for row in table["rows"] for cell in row["cells"]), key
    assert "pw-doubtful" not in seen.text
    assert "pw-dim" not in seen.text


BARE = ("up", "process_start_time_seconds", "vllm:num_requests_running")


@pytest.mark.parametrize("name", ADDRESSES)
def test_without_data_every_panel_says_so_in_words(bench: Bench, with_simulator: Any, name: str) -> None:
    """The replicas are scraped, but nothing but the running count arrives: the others say why they are empty."""
    bench.live(keep=lambda metric: metric in BARE)
    seen = shown(name)
    assert "could not be drawn" not in seen.text, seen.text
    there = {"Running", "running"}
    for title in CHARTS.get(name, []):
        assert title in seen.charts
        header, _ = seen.charts[title]
        if title not in there:
            assert header["notice"], f"{title} is blank"
            assert not header["series"], title
    for key, table in seen.tables.items():
        assert table["rows"], key
        for row in table["rows"]:
            for cell in row["cells"]:
                assert cell["text"] or key.startswith("laws"), (key, row)
    if name in ("fleet", "replica"):
        assert "not scraped" in seen.fragment("pw-tiles")
        assert ">0<" not in seen.fragment("pw-tiles")
    if name == "fleet":
        words = {cell for row in texts(seen.tables["replicas"]) for cell in row}
        assert "not scraped" in words
    if name in ("fleet", "diagnose"):
        assert "No incident now." not in seen.text
        assert "cannot be told" in seen.text


@pytest.mark.parametrize("name", ADDRESSES)
def test_before_the_first_sample_no_page_is_blank(bench: Bench, with_simulator: Any, name: str) -> None:
    bench.live()
    bench.clock.now_ms -= 7_200_000
    seen = shown(name)
    assert "could not be drawn" not in seen.text, seen.text
    assert seen.text.strip("\x00 ") or seen.tables
    assert bar(seen.at)["mode"] == ("paused" if name == "walk" else "starting")


@pytest.mark.parametrize("name", ADDRESSES)
def test_while_the_source_is_down_every_panel_keeps_its_last_good_picture_and_its_age(
    bench: Bench, with_simulator: dict[str, Any], name: str
) -> None:
    source = bench.live()
    before = shown(name)
    source.down = with_simulator["down"] = True
    bench.clock.now_ms += 42_000
    after = shown(name)
    complete(after, name)
    told = bar(after.at)
    if name == "walk":  # an instant was held, and what was found at it does not age
        assert told["mode"] in ("paused", "down")
    else:
        assert told["mode"] == "down"
        assert told["age_s"] >= 42
        assert told["cause"] == "connection refused"
    assert after.charts.keys() == before.charts.keys()
    for title, (header, rows) in after.charts.items():
        assert header["dim"] or name == "walk", title
        np.testing.assert_array_equal(rows, before.charts[title][1], err_msg=title)
    dimmed = {key for key, table in after.tables.items() if table.get("dim")}
    assert {"replicas", "ranking", "earlier", "simulated"} & after.tables.keys() <= dimmed
    for key in after.tables:
        if key == "library":
            continue
        then, now = (texts(t.tables[key]) for t in (before, after))
        if key == "replicas":  # the age grows, everything else stays
            assert [row[-1] for row in now] != [row[-1] for row in then]
            then, now = [row[:-1] for row in then], [row[:-1] for row in now]
        assert now == then, key
    if name in ("fleet", "replica"):
        assert "pw-dim" in after.fragment("pw-tiles")
    if name == "diagnose":
        assert "this is the diagnosis of 02:38:20 UTC" in after.text
    if name == "simulator":
        assert "this is what it said at 02:38:20 UTC" in after.text
        assert "as last seen at 2026-11-30T02:38:20" in after.text


SIGNALS = sorted({entry.signal for entry in load_dialect().entries})
UNMARKED_CELLS = {"replicas": {0, 9}, "ranking": {3}, "earlier": {3}, "anomalies": {0, 1, 3}, "states": {0, 1, 2}}
"""Cells that are no number of a metric: the state as a word, the age, a count of what was seen, since when."""


NOT_RECORDED = ("1 h ago", "1 d ago", "1 w ago")
"""The recording is of a few minutes: these rows say since when there are samples."""


def doubting(monkeypatch: pytest.MonkeyPatch, where: Where) -> None:
    real = judged.diagnose

    def diagnose(*args: Any, **kwargs: Any) -> Any:
        law = LawFinding("made_up", "broken", where, REASON, tuple(SIGNALS))
        found = real(*args, **kwargs)
        return replace(found, laws=(*found.laws, law))

    monkeypatch.setattr(data, "diagnose", diagnose)


@pytest.mark.parametrize("where", [Where("fleet", ()), Where("replica", (Place(BUSY),))], ids=["fleet", "replica"])
@pytest.mark.parametrize("name", [name for name in ADDRESSES if name != "incidents"])
def test_a_broken_check_marks_every_number_with_its_reason(
    bench: Bench, with_simulator: Any, monkeypatch: pytest.MonkeyPatch, name: str, where: Where
) -> None:
    doubting(monkeypatch, where)
    bench.live()
    seen = shown(name)
    complete(seen, name)
    for title, (header, _) in seen.charts.items():
        assert any(REASON in taint for taint in header["taints"]), f"{title} is not marked"
    for key, table in seen.tables.items():
        if key.startswith("laws") or key in ("simulated", "library") or key.startswith("books"):
            continue
        concerned = [
            row
            for row in table["rows"]
            if row["name"] not in NOT_RECORDED and (where.scope == "fleet" or row["name"] in (BUSY, "fleet", "now"))
        ]
        assert concerned or key == "anomalies", key
        for row in concerned:
            for place, cell in enumerate(row["cells"]):
                if place in UNMARKED_CELLS.get(key, ()) or cell["text"] in ("-", ""):
                    continue
                assert cell.get("doubt"), (key, row["name"], place, cell)
                assert REASON in cell["note"], (key, row["name"], place)
        if where.scope == "replica" and key == "replicas":  # no doubt is cast on the neighbour
            [other] = [row for row in table["rows"] if row["name"] not in (BUSY, "fleet")]
            assert not any(cell.get("doubt") for cell in other["cells"])
    if name in ("fleet", "replica"):
        tiles = seen.fragment("pw-tiles")
        assert tiles.count("pw-doubtful") == tiles.count("pw-tile-label")
    if name == "fleet":
        assert seen.fragment("pw-status").count("not trusted") == 3  # Serving is a judgement, not a number
    if name in ("replica", "diagnose", "walk", "simulator"):
        assert REASON in seen.fragment("pw-card")
    if name == "walk":
        assert seen.fragment("pw-numbers").count(REASON) >= 2
    if name == "runbooks":
        firing = [row for key, table in seen.tables.items() if key.startswith("books") for row in table["rows"] if "fires" in row["cells"][0]["text"]]  # fmt: skip
        assert firing
        assert all(REASON in row["cells"][0]["note"] for row in firing)


@pytest.mark.parametrize("name", ["fleet", "latency", "replica"])
def test_a_partial_answer_marks_what_rests_on_it(bench: Bench, with_simulator: Any, name: str) -> None:
    source = bench.live()
    real = source.inner

    class Partial:
        def __getattr__(self, asked: str) -> Any:
            told = getattr(real, asked)
            if asked not in ("instant", "range"):
                return told
            return lambda *args: replace(told(*args), warnings=("partial response: store b is away",))

    source.inner = Partial()  # type: ignore[assignment]
    seen = shown(name)
    complete(seen, name)
    for title, (header, _) in seen.charts.items():
        assert any("store b is away" in taint for taint in header["taints"]), title
    for key in TABLES.get(name, []):
        assert any(cell.get("doubt") for row in seen.tables[key]["rows"] for cell in row["cells"]), key
    if name != "latency":
        assert "store b is away" in seen.fragment("pw-tiles")


@pytest.mark.parametrize("name", ADDRESSES)
def test_a_diagnosis_that_breaks_takes_no_page_down(
    bench: Bench, with_simulator: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise KeyError("a mistake of ours")

    monkeypatch.setattr(data, "diagnose", broken)
    bench.live()
    seen = shown(name)
    assert "a mistake of ours" in seen.text
    if name in ("fleet", "latency", "latency, gap", "replica"):
        assert set(CHARTS[name]) <= seen.charts.keys()
        assert all(header["series"] for header, _ in seen.charts.values())


def test_an_empty_library_says_so_and_what_to_do(bench: Bench, tmp_path: Path) -> None:
    configure(replace(bench.console, source_spec="", shipped_folder=tmp_path, incidents_folder=tmp_path))
    bench.live()
    seen = look(opened("incidents.py"))
    assert "No incident file yet" in html(seen.at)
    assert "could not be drawn" not in seen.text


MEMORY = {
    "data": ("ERROR 11-30 02:00:00 torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 112.00 MiB. GPU 0 has a total capacity of 79.10 GiB of which 50.00 MiB is free.", "pw-card"),
    "no data": ("", "No log yet"),
    "not known": ("nothing of a log\n", "ndetermined"),
}  # fmt: skip


@pytest.mark.parametrize("state", MEMORY)
def test_the_memory_page_needs_no_source_and_says_what_it_does_not_know(bench: Bench, state: str) -> None:
    bench.live().down = True
    at = opened("memory.py")
    log, wanted = MEMORY[state]
    if log:
        at.text_area(key="memory_text").input(log).run()
    assert not at.exception
    assert wanted in html(at)
    assert "could not be drawn" not in html(at)
