"""A real headless Chromium on a fresh server: the first request is a deep link to a runbook, then Fleet, then the replay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pages.browsing import DRAWN, WAIT_MS, Visitor, started_console, until
from tests.pages.conftest import INSIDE

pytestmark = pytest.mark.browser

WATCH = """() => {
  const now = () => [...document.querySelectorAll('.pw-plotly')]
  const nodes = now()
  const seen = { frames: 0, blank: 0, cursors: new Set() }
  const frame = () => {
    seen.frames++
    if (now().length < nodes.length || now().some((node) => !node.querySelector('.main-svg'))) seen.blank++
    seen.cursors.add(document.querySelector('.pw-mode').textContent)
    requestAnimationFrame(frame)
  }
  window.watched = () => ({ charts: nodes.length, kept: nodes.filter((node) => node.isConnected).length,
    frames: seen.frames, blank: seen.blank, refreshes: seen.cursors.size - 1 })
  frame()
}"""


@pytest.fixture(scope="module")
def console(capsule_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with started_console(str(capsule_path), tmp_path_factory.mktemp("console")) as address:
        yield address


@pytest.fixture
def visitor(browser: Any, console: str) -> Iterator[Visitor]:
    someone = Visitor(browser, console)
    yield someone
    someone.context.close()


def test_the_first_request_of_a_fresh_server_is_a_deep_link_to_a_runbook(visitor: Visitor) -> None:
    visitor.go(f"/runbook?id=waiting_growth&instance=127.0.0.1:8000&at={INSIDE}", charts=False)
    page = visitor.page
    page.wait_for_selector(".pw-steps li", timeout=WAIT_MS)
    assert page.locator(".pw-head h2").first.inner_text() == "Waiting grows"
    assert page.locator('[data-testid="stSidebarNavLink"]').count() >= 6, "the router did not run: no navigation"
    assert "02:38:20" in page.locator(".pw-mode").inner_text()
    page.locator(".pw-step-head").first.focus()
    page.keyboard.press("j")
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.dataset.id") == page.locator(".pw-step-head").nth(2).get_attribute("data-id")  # fmt: skip
    until(page, lambda: page.locator(".pw-step-head").nth(2).press("Enter"), "() => location.search.includes('step=')")
    page.wait_for_selector('.pw-step-head[aria-expanded="true"] >> nth=0', timeout=WAIT_MS)
    visitor.keep("runbook")

    page.locator('[data-testid="stSidebarNavLink"]', has_text="Fleet").click()
    page.wait_for_selector(".pw-status", timeout=WAIT_MS)
    page.wait_for_function(DRAWN, timeout=WAIT_MS)
    assert "02:38:20" in page.locator(".pw-mode").inner_text(), "the instant was lost on the way"
    assert "at=2026-11-30T02" in page.url
    visitor.keep("fleet")
    assert visitor.faults == []
    assert visitor.foreign == []


def test_charts_keep_their_nodes_while_a_replay_plays(visitor: Visitor) -> None:
    visitor.go(f"/?at={INSIDE}")
    page = visitor.page
    page.wait_for_selector(".pw-track-mark", timeout=WAIT_MS)  # the recording has been judged
    page.wait_for_timeout(1500)
    page.evaluate(WATCH)
    before = page.locator(".pw-cursor-time").inner_text()
    page.get_by_role("button", name="Play or stop").click()
    page.wait_for_function("() => window.watched().refreshes >= 4", timeout=WAIT_MS)
    report = page.evaluate("window.watched()")
    assert report["charts"] >= 4
    assert report["kept"] == report["charts"]
    assert report["blank"] == 0
    page.get_by_role("button", name="Play or stop").click()
    page.wait_for_function("() => document.querySelector('.pw-play').textContent === 'Play'", timeout=WAIT_MS)
    assert page.locator(".pw-cursor-time").inner_text() != before
    shown = page.locator(".pw-cursor-time").inner_text().split(" ")[0]
    page.wait_for_function(f"() => decodeURIComponent(location.search).includes('{shown}')", timeout=WAIT_MS)
    page.get_by_role("button", name="One scrape back").click()
    page.wait_for_function(f"() => !document.querySelector('.pw-cursor-time').textContent.startsWith('{shown}')", timeout=WAIT_MS)  # fmt: skip
    page.get_by_role("button", name="To the mark before").click()
    page.wait_for_timeout(500)
    visitor.keep("replay")
    assert visitor.faults == []


def test_a_reason_that_was_opened_stays_open_when_its_block_is_written_anew(visitor: Visitor) -> None:
    visitor.go(f"/?at={INSIDE}")
    page = visitor.page
    block = """() => { const block = document.getElementById('block') ?? document.body.appendChild(document.createElement('div'))
      block.id = 'block'
      block.innerHTML = '<details class="pw-why" data-fold="tile Wait"><summary>!</summary>why</details>' }"""
    turn = """() => new Promise((told) => { const fold = document.querySelector('#block details')
      fold.addEventListener('toggle', () => told(fold.open), { once: true })
      fold.querySelector('summary').click() })"""
    page.evaluate(block)
    assert page.evaluate(turn)
    page.evaluate(block)
    page.wait_for_function("() => document.querySelector('#block details').open", timeout=WAIT_MS)
    assert not page.evaluate(turn)
    page.evaluate(block)
    page.evaluate("() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
    assert not page.evaluate("document.querySelector('#block details').open"), "closed by hand means closed"
    assert visitor.faults == []


def test_a_click_on_a_chart_moves_the_cursor_and_a_row_opens_the_replica(visitor: Visitor) -> None:
    visitor.go(f"/?at={INSIDE}")
    page = visitor.page
    frame = page.locator(".pw-plot").first
    frame.focus()
    for _ in range(6):
        page.keyboard.press("ArrowLeft")
    assert page.locator(".pw-tip b").first.inner_text().endswith("UTC")
    page.keyboard.press("Enter")
    page.wait_for_function("() => !document.querySelector('.pw-mode').textContent.includes('02:38:20')", timeout=WAIT_MS)  # fmt: skip
    page.locator(".pw-table tbody a").first.click()
    page.wait_for_url("**/replica?*instance=*", timeout=WAIT_MS)
    page.wait_for_selector(".pw-head h2", timeout=WAIT_MS)
    assert visitor.faults == []


@pytest.mark.parametrize(
    ("name", "options"),
    [("dark", {"color_scheme": "dark"}), ("phone", {"viewport": {"width": 390, "height": 844}})],
)
def test_it_can_be_read_in_the_dark_and_on_a_phone(browser: Any, console: str, name: str, options: Any) -> None:
    someone = Visitor(browser, console, **options)
    try:
        someone.go(f"/?at={INSIDE}")
        wide = someone.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, "the page scrolls sideways"
        someone.keep(f"fleet-{name}")
        someone.page.goto(f"{console}/diagnose?at={INSIDE}")
        someone.page.wait_for_selector(".pw-card", timeout=WAIT_MS)
        someone.keep(f"diagnose-{name}")
        assert someone.faults == []
    finally:
        someone.context.close()
