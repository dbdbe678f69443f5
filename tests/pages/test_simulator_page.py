"""The Simulator page over a live simulated fleet: dial, faults, the truth beside the conclusion, and the Learn section."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from streamlit.testing.v1 import AppTest

from pages.ui.console import configure
from pages.ui.simulator_page import standing
from tests.pages.conftest import Bench, html
from tests.shared_data import ROOT
from tests.sim_backend.live_fleet import Fleet, quiet, until


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    load = {"arrivals": {"rate": 20}, "prompt": {"mean": 200}, "output": {"mean": 400}}
    running = Fleet(quiet(fleet={"replicas": 2}, load=[load]), 2, {})
    yield running
    running.close()


@pytest.fixture
def page(bench: Bench, fleet: Fleet) -> Any:
    configure(dataclasses.replace(bench.console, simulator_url=fleet.control))
    at = AppTest.from_file(str(ROOT / "pages" / "main.py"), default_timeout=60)
    at.switch_page("simulator.py")
    return at.run()


def state(fleet: Fleet) -> Any:
    return httpx.get(f"{fleet.control}/state").json()


def test_the_truth_stands_beside_the_conclusion(page: Any) -> None:
    assert not page.exception
    told = html(page)
    assert "nothing is wrong" in told
    assert "What pagewatch concluded" in told


def test_the_dial_turns_the_load(page: Any, fleet: Fleet) -> None:
    page.slider(key="dial").set_value(2.5).run()
    assert state(fleet)["dial"] == 2.5
    page.slider(key="dial").set_value(1.0).run()
    assert state(fleet)["dial"] == 1.0


def test_there_is_a_button_for_every_fault_and_one_to_end_it(page: Any, fleet: Fleet) -> None:
    kinds = [fault["kind"] for fault in state(fleet)["available_faults"]]
    assert {f"begin_{kind}" for kind in kinds} <= {button.key for button in page.button}
    page.button(key="begin_slow").click().run()
    [fault] = state(fleet)["faults"]
    assert (fault["kind"], fault["replicas"]) == ("slow", [0])
    page.run()
    told = html(page)
    assert f"slow on {fleet.where.replicas[0]}" in told
    assert "engine slower than before" in told
    page.button(key=f"clear_{fault['id']}").click().run()
    assert state(fleet)["faults"] == []


def test_learning_shows_a_block_table_and_the_arithmetic(page: Any, fleet: Fleet) -> None:
    until(lambda: httpx.get(f"{fleet.control}/blocks").status_code == 200)
    page.session_state["learn"] = True
    page.run()
    told = html(page)
    assert "Wasted slots" in told
    assert "50 tokens take 4 blocks, 64 slots, 14 of them free; the next token goes to offset 2 of block 4" in told
    assert "27 %" in told or "26.9 %" in told
    assert "copies 1 and takes 1, 3 stay shared" in told
    page.number_input(key="paging_low").set_value(3000).run()
    assert "do not go together" in html(page)


def test_what_is_over_is_told_apart_from_what_holds() -> None:
    def incident(begin: int, end: int | None) -> dict[str, Any]:
        return {"cause": "overload", "from_ms": begin, "to_ms": end}

    first, open_, planned, last = incident(1, 5), incident(2, None), incident(3, 50), incident(4, 9)
    assert standing([first, open_, planned, last], 10) == ([open_, planned], [last, first])
