"""What the tests with a real headless Chromium share: the browser, a console in a process of its own, a visitor who keeps what it complained of."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from app import free_port
from tests.shared_data import ROOT

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
WAIT_MS = 60_000
DRAWN = """() => { const plots = [...document.querySelectorAll('.pw-plotly')]
  return plots.length > 0 && plots.every((plot) => plot.querySelector('.main-svg')) }"""


def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("chromium is not installed, and CI must not skip")
        pytest.skip("chromium is not installed")
    return found


@contextmanager
def started_console(source: str, folder: Path) -> Iterator[str]:
    """A console of its own process that nobody has asked anything of a page yet; its address."""
    port = free_port("127.0.0.1", 18_500 + os.getpid() % 400)
    environment = {**os.environ, "PAGEWATCH_INCIDENTS": str(folder / "incidents"), "PAGEWATCH_RECORDS": str(folder / "r.sqlite3"), "PYTHONUNBUFFERED": "1"}  # fmt: skip
    start = f"from app import run_ui; run_ui({source!r}, port={port})"
    with (folder / "log").open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-c", start], cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        address = _address(child, folder / "log")
        yield address
    finally:
        child.terminate()
        try:
            child.wait(15)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _address(child: subprocess.Popen[bytes], log: Path) -> str:
    """Where it listens in its own words (another process may have taken the port first), once it answers."""
    deadline = time.monotonic() + 120
    while True:
        said = log.read_text(errors="replace")
        if child.poll() is not None or time.monotonic() > deadline:
            pytest.fail(f"the console did not come up: {said[-2000:]}")
        found = re.search(r"pagewatch is on (http://[\w.]+:\d+)", said)
        if found is not None:
            try:
                urllib.request.urlopen(f"{found[1]}/healthz", timeout=2).close()
                return found[1]
            except (urllib.error.URLError, OSError):
                pass
        time.sleep(0.1)


def until(page: Any, act: Callable[[], object], holds: str) -> None:
    """Do it, again every few seconds as a hand would, until a JavaScript condition holds: what is done while a page still draws can be lost."""
    from playwright.sync_api import TimeoutError as TooLate

    deadline = time.monotonic() + WAIT_MS / 1000
    while True:
        act()
        try:
            page.wait_for_function(holds, timeout=5_000)
            return
        except TooLate:
            if time.monotonic() > deadline:
                raise


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

    def go(self, path: str, *, charts: bool = True) -> None:
        self.page.goto(self.address + path)
        self.page.wait_for_selector(".pw-source", timeout=WAIT_MS)
        if charts:
            self.page.wait_for_function(DRAWN, timeout=WAIT_MS)

    def keep(self, name: str) -> None:
        """All of the page as a picture: Streamlit scrolls inside the window, so the window grows for it."""
        folder = ROOT / "artifacts"
        folder.mkdir(exist_ok=True)
        size = self.page.viewport_size
        height = self.page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
        self.page.set_viewport_size({"width": size["width"], "height": min(4000, max(size["height"], height))})
        self.page.wait_for_timeout(400)
        self.page.screenshot(path=folder / f"{name}.png")
        self.page.set_viewport_size(size)
