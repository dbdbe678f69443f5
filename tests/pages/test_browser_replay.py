"""A recording's whole way in a real Chromium: uploaded, scrubbed, judged, walked, exported, compared; and recorded from a live source."""

from __future__ import annotations

import base64
import json
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from collectors.capsule import read_capsule
from collectors.model import Samples
from collectors.store.blocks import Blocks
from collectors.store.server import bound_socket, samples_app
from pages.ui.console import wall_clock_ms
from tests.pages.browsing import DRAWN, WAIT_MS, Visitor, started_console, until
from tests.runbooks.shipped import path_of

pytestmark = pytest.mark.browser

DARK = {"color_scheme": "dark"}
PHONE = {"viewport": {"width": 390, "height": 844}}
DROP = """([name, text]) => {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0))
  const carried = new DataTransfer()
  carried.items.add(new File([bytes], name, { type: 'application/zip' }))
  const zone = document.querySelector('[data-testid="stFileUploaderDropzone"]')
  for (const kind of ['dragenter', 'dragover', 'drop']) zone.dispatchEvent(new DragEvent(kind, { dataTransfer: carried, bubbles: true, cancelable: true }))
}"""


@pytest.fixture(scope="module")
def console(capsule_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with started_console(str(capsule_path), tmp_path_factory.mktemp("console")) as address:
        yield address


def shown_time(page: Any) -> str:
    return str(page.locator(".pw-cursor-time").inner_text()).split(" ")[0]


def until_time(page: Any, before: str) -> None:
    page.wait_for_function(f"() => !document.querySelector('.pw-cursor-time').textContent.startsWith('{before}')", timeout=WAIT_MS)  # fmt: skip


CALM = """() => !(document.querySelector('.st-key-anomaly')?.textContent ?? '').toLowerCase().includes('seats full')"""


def drawn_at(time_of_day: str) -> str:
    """That the page itself, not only its cursor, shows an instant."""
    return f"() => document.querySelector('.pw-mode')?.innerText.includes('at {time_of_day}')"


@pytest.mark.parametrize(("mode", "options"), [("light", {}), ("dark", DARK)])
def test_an_uploaded_incident_is_scrubbed_walked_and_its_walk_exported(
    browser: Any, console: str, tmp_path: Path, mode: str, options: Any
) -> None:
    someone = Visitor(browser, console, **options)
    page = someone.page
    file = tmp_path / f"night-{mode}.capsule"
    shutil.copy(path_of("seats_full"), file)
    try:
        someone.page.goto(f"{console}/incidents")
        page.wait_for_selector('[data-testid="stExpander"]', timeout=WAIT_MS)
        page.get_by_text("Add a recording").click()
        page.wait_for_selector('[data-testid="stFileUploaderDropzone"]', timeout=WAIT_MS)
        if mode == "light":
            page.locator('[data-testid="stFileUploader"] input[type="file"]').set_input_files(str(file))
        else:
            page.evaluate(DROP, [file.name, base64.b64encode(file.read_bytes()).decode()])
        add = page.get_by_role("button", name="Add it to the library")
        add.wait_for(timeout=WAIT_MS)
        until(
            page,
            lambda: add.is_visible() and add.click(),
            f"() => location.search.includes('source=night-{mode}.capsule')",
        )
        page.wait_for_function(DRAWN, timeout=WAIT_MS)
        assert "A queue behind sixteen seats" in page.locator(".pw-mode").inner_text()

        # scrub: to the beginning, where nothing is wrong; then to where the seats are said to be full
        page.wait_for_selector(".pw-track-mark >> nth=0", timeout=WAIT_MS)
        until(page, lambda: page.get_by_label("Cursor").press("Home"), drawn_at("02:36:4"))
        page.wait_for_function(CALM, timeout=WAIT_MS)
        mark = page.locator('.pw-track-mark[aria-label^="seats full"]').first
        instant = str(mark.get_attribute("aria-label")).rsplit(" ", 1)[-1]
        until(page, mark.click, drawn_at(instant))
        page.wait_for_selector('.st-key-anomaly:has-text("seats full")', timeout=WAIT_MS)
        assert shown_time(page) == instant
        page.wait_for_url(f"**at=2026-11-30T{instant.replace(':', '%3A')}*", timeout=WAIT_MS)
        page.wait_for_function(DRAWN, timeout=WAIT_MS)
        someone.keep(f"replay-fleet-{mode}")

        # the verdict, and its runbook at that instant
        page.locator('[data-testid="stSidebarNavLink"]', has_text="Diagnose").click()
        page.wait_for_selector('.pw-card:has-text("seats full")', timeout=WAIT_MS)
        page.wait_for_selector(".pw-lanes .pw-span >> nth=0", timeout=WAIT_MS)
        someone.keep(f"replay-diagnose-{mode}")
        page.get_by_text("Open runbook at this instant").first.click()
        page.wait_for_selector(".pw-steps li", timeout=WAIT_MS)
        assert instant in page.locator(".pw-mode").inner_text()
        assert page.locator(".pw-head h2").first.inner_text() == "Waiting grows"
        walked = page.locator(".pw-step-head").count()
        assert walked >= 4
        for _ in range(walked):  # step by step, as one reads it
            page.keyboard.press("j")
        page.locator(".pw-step-head").nth(1).click()
        page.wait_for_selector('.pw-step-head[aria-expanded="true"]', timeout=WAIT_MS)
        record = page.get_by_role("button", name="Record this walk")
        until(page, lambda: record.is_visible() and record.click(), "() => location.search.includes('walk=')")
        downloads: list[Any] = []
        page.on("download", lambda download: downloads.append(download))
        export = page.get_by_role("button", name="Export walk")
        for _ in range(6):
            export.click(timeout=WAIT_MS)
            page.wait_for_timeout(2_000 if not downloads else 0)
            if downloads:
                break
            page.wait_for_timeout(8_000)
        assert downloads, "the walk was not handed over"
        told = Path(downloads[0].path()).read_text(encoding="utf-8")
        assert told.startswith("# ")
        assert "Waiting grows" in told
        assert f"2026-11-30T{instant}" in told or f"2026-11-30 {instant}" in told
        assert "seat" in told.lower()
        someone.keep(f"replay-walk-{mode}")
        assert someone.faults == []
        assert someone.foreign == []
    finally:
        someone.context.close()


def test_a_file_that_is_no_recording_is_refused_in_words_and_the_page_stands(browser: Any, console: str) -> None:
    someone = Visitor(browser, console)
    page = someone.page
    try:
        page.goto(f"{console}/incidents")
        page.wait_for_selector('[data-testid="stExpander"]', timeout=WAIT_MS)
        page.get_by_text("Add a recording").click()
        page.locator('[data-testid="stFileUploader"] input[type="file"]').set_input_files(
            [{"name": "holiday.capsule", "mimeType": "application/zip", "buffer": b"PK\x03\x04 not a recording"}]
        )
        page.get_by_role("button", name="Add it to the library").click(timeout=WAIT_MS)
        page.wait_for_selector('.pw-trouble:has-text("holiday.capsule was not added")', timeout=WAIT_MS)
        assert page.locator(".pw-table").count() >= 1
        assert someone.faults == []
    finally:
        someone.context.close()


@pytest.mark.parametrize(("mode", "options"), [("light", {}), ("dark", DARK), ("phone", PHONE)])
def test_two_incidents_lie_side_by_side_and_the_link_shows_the_same(
    browser: Any, console: str, mode: str, options: Any
) -> None:
    someone, colleague = Visitor(browser, console, **options), Visitor(browser, console, **options)
    page = someone.page
    try:
        page.goto(f"{console}/incidents?source=seats_full.capsule")
        page.wait_for_selector(".pw-lanes .pw-span >> nth=0", timeout=WAIT_MS)
        page.get_by_text("Compare with another incident").click()
        page.wait_for_url("**tab=compare*", timeout=WAIT_MS)
        box = page.get_by_role("combobox", name=re.compile("Compare with"))
        box.click(timeout=WAIT_MS)
        page.get_by_role("option", name="Requests chase each other out of the KV pool").click(timeout=WAIT_MS)
        page.wait_for_url("**with=preemption_thrash.capsule*", timeout=WAIT_MS)
        page.wait_for_function("() => document.querySelectorAll('.pw-plotly .main-svg').length >= 6", timeout=WAIT_MS)
        page.wait_for_selector(".pw-lane-group >> nth=1", timeout=WAIT_MS)
        page.wait_for_selector('.pw-span[aria-label^="KV cache full"]', timeout=WAIT_MS)
        before = shown_time(page)
        page.locator('.pw-span[aria-label^="seats full"]').first.click()
        until_time(page, before)
        page.wait_for_selector(f'.st-key-compare_A:has-text("cursor at {shown_time(page)}")', timeout=WAIT_MS)
        frame = page.locator(".pw-plot").first
        frame.focus()
        page.keyboard.press("ArrowRight")
        tip = page.locator(".pw-tip").first.inner_text()
        assert tip.startswith("+")
        assert re.search(r"A \d\d:\d\d:\d\d UTC", tip)
        assert re.search(r"B \d\d:\d\d:\d\d UTC", tip)
        cursors = page.evaluate(
            "[...document.querySelectorAll('.pw-plot .pw-cursor')].map((c) => getComputedStyle(c).display)"
        )
        assert set(cursors) == {"block"}, "one cursor across all charts"
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Start of both").or_(page.get_by_role("radio", name="Start of both")).click()
        page.wait_for_url("**align=start*", timeout=WAIT_MS)
        page.wait_for_selector('.st-key-compare_B:has-text("02:52:16")', timeout=WAIT_MS)
        page.wait_for_timeout(500)
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, "the page scrolls sideways"
        someone.keep(f"compare-{mode}")

        colleague.page.goto(page.url)
        colleague.page.wait_for_selector(".pw-lane-group >> nth=1", timeout=WAIT_MS)
        for part in (".st-key-compare_A .pw-anomaly", ".st-key-compare_B .pw-anomaly"):
            assert colleague.page.locator(part).inner_text() == page.locator(part).inner_text()
        assert someone.faults == colleague.faults == []
    finally:
        someone.context.close()
        colleague.context.close()


@contextmanager
def served(blocks: Blocks) -> Iterator[str]:
    """The samples behind a Prometheus API on loopback, on the wall's clock."""
    import uvicorn

    listening = bound_socket("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(samples_app(blocks, wall_clock_ms), log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(15)
        listening.close()


def test_the_last_half_hour_of_a_live_source_is_recorded_and_opens(browser: Any, tmp_path: Path) -> None:
    capsule = read_capsule(path_of("seats_full"))
    late_ms = wall_clock_ms() - (capsule.manifest.window.end_ms - 75_000)  # its incident is not over yet
    blocks = Blocks()
    blocks.load(Samples(each.labels, each.times_ms + late_ms, each.values) for each in capsule.samples())
    with served(blocks) as source, started_console(source, tmp_path) as address:
        someone = Visitor(browser, address)
        page = someone.page
        try:
            page.goto(f"{address}/incidents")
            page.wait_for_selector('.pw-source[data-mode="live"]', timeout=WAIT_MS)
            page.get_by_role("button", name="Record the last 30 min").click(timeout=WAIT_MS)
            page.wait_for_selector('.st-key-recorded:has-text("Recorded as")', timeout=WAIT_MS)
            someone.keep("record")
            [file] = (tmp_path / "incidents").glob("*.capsule")
            page.locator(".st-key-recorded a").click()
            page.wait_for_url(f"**source={file.name}*", timeout=WAIT_MS)
            page.wait_for_selector('.pw-source[data-mode="replay"]', timeout=WAIT_MS)
            page.wait_for_function(DRAWN, timeout=WAIT_MS)
            page.get_by_role("button", name="Leave this recording").click()
            page.wait_for_selector('.pw-source[data-mode="live"]', timeout=WAIT_MS)
            assert someone.faults == []
        finally:
            someone.context.close()
    manifest = read_capsule(file).manifest
    assert manifest.window.end_ms - manifest.window.start_ms < 10 * 60_000, "an empty beginning was recorded"
    assert json.dumps(manifest.diagnosis).count("seat_limited") >= 1
    assert abs(manifest.window.end_ms - wall_clock_ms()) < 3_600_000
