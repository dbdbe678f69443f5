"""A real headless Chromium on a fresh server: the first request is a deep link to a runbook, then Fleet, then the replay."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app import free_port
from tests.pages.conftest import INSIDE
from tests.shared_data import ROOT

pytestmark = pytest.mark.browser

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
WAIT_MS = 60_000
DRAWN = """() => { const plots = [...document.querySelectorAll('.pw-plotly')]
  return plots.length > 0 && plots.every((plot) => plot.querySelector('.main-svg')) }"""
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


def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("chromium is not installed, and CI must not skip")
        pytest.skip("chromium is not installed")
    return found


@pytest.fixture(scope="module")
def console(capsule_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A console of its own process that nobody has asked anything of a page yet."""
    folder = tmp_path_factory.mktemp("console")
    port = free_port("127.0.0.1", 18_500)
    environment = {**os.environ, "PAGEWATCH_INCIDENTS": str(folder / "incidents"), "PAGEWATCH_RECORDS": str(folder / "r.sqlite3")}  # fmt: skip
    start = f"from app import run_ui; run_ui({str(capsule_path)!r}, port={port})"
    with (folder / "log").open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-c", start], cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        address = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 90
        while True:
            if child.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"the console did not come up: {(folder / 'log').read_text()[-2000:]}")
            try:
                urllib.request.urlopen(f"{address}/healthz", timeout=2).close()
                break
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        yield address
    finally:
        child.terminate()
        try:
            child.wait(15)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        yield running
        running.close()


class Visitor:
    """One browser context, what it complained of, and pictures into the ignored folder."""

    def __init__(self, browser: Any, address: str, **options: Any) -> None:
        self.address = address
        self.context = browser.new_context(**({"viewport": {"width": 1440, "height": 1000}} | options))
        self.page = self.context.new_page()
        self.faults: list[str] = []
        self.foreign: list[str] = []
        self.page.on("console", lambda m: self.faults.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("request", lambda r: None if r.url.startswith((address, "blob:", "data:")) else self.foreign.append(r.url))  # fmt: skip

    def go(self, path: str) -> None:
        self.page.goto(self.address + path)
        self.page.wait_for_selector(".pw-source", timeout=WAIT_MS)
        self.page.wait_for_function(DRAWN, timeout=WAIT_MS)

    def keep(self, name: str) -> None:
        folder = ROOT / "artifacts"
        folder.mkdir(exist_ok=True)
        self.page.screenshot(path=folder / f"{name}.png", full_page=True)


@pytest.fixture
def visitor(browser: Any, console: str) -> Iterator[Visitor]:
    someone = Visitor(browser, console)
    yield someone
    someone.context.close()


def test_the_first_request_of_a_fresh_server_is_a_deep_link_to_a_runbook(visitor: Visitor) -> None:
    visitor.go(f"/runbook?id=waiting_growth&instance=127.0.0.1:8000&at={INSIDE}")
    page = visitor.page
    page.wait_for_selector(".pw-steps li", timeout=WAIT_MS)
    assert page.locator(".pw-head h2").first.inner_text() == "Waiting grows"
    assert page.locator('[data-testid="stSidebarNavLink"]').count() >= 6, "the router did not run: no navigation"
    assert "02:38:20" in page.locator(".pw-mode").inner_text()
    page.locator(".pw-step-head").first.focus()
    page.keyboard.press("j")
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.dataset.id") == page.locator(".pw-step-head").nth(2).get_attribute("data-id")  # fmt: skip
    page.keyboard.press("Enter")
    page.wait_for_selector('.pw-step-head[aria-expanded="true"] >> nth=0', timeout=WAIT_MS)
    page.wait_for_url("**step=*", timeout=WAIT_MS)
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
