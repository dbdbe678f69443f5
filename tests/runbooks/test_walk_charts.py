"""A walk with its pictures: PNGs made without a browser, in a zip or inside one Markdown file."""

from __future__ import annotations

import base64
import io
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from collectors.model import Frame, Window
from collectors.settings import Settings
from collectors.source import Source, SourceUnreachable
from runbooks.chart_png import HEIGHT, PALETTE, WIDTH, Chart, Line, chart_png, ticks, time_ticks
from runbooks.engine import walk
from runbooks.findings import Walk
from runbooks.walk_bundle import export_walk, markdown_with_charts, unrecorded, zipped
from runbooks.walk_charts import charts_of
from tests.runbooks.recorded_walks import recorded
from tests.shared_data import shared

BASE_MS = 1_796_000_000_000


@pytest.fixture(scope="module")
def walked() -> tuple[Walk, Source]:
    source, wrapper = recorded(shared("recordings", "vllm-0.11.0-cpu", "b_waiting_growth.json.gz"))
    at_ms = round((float(wrapper["start"]) + 93) * 1000)
    return walk("waiting_growth", source, at_ms, Settings()), source


def line(label: str, values: list[float]) -> Line:
    return Line(label, BASE_MS + 5_000 * np.arange(len(values), dtype=np.int64), np.array(values))


def chart(*lines: Line, unit: str = "requests/s", left_out: int = 0) -> Chart:
    return Chart("first tokens", unit, BASE_MS, BASE_MS + 300_000, BASE_MS + 150_000, lines, left_out)


def colours(png: bytes) -> set[tuple[int, int, int]]:
    image = Image.open(io.BytesIO(png)).convert("RGB")
    assert image.size == (WIDTH, HEIGHT)
    return {colour for _, colour in image.getcolors(WIDTH * HEIGHT) or ()}


def near(colour: str, seen: set[tuple[int, int, int]]) -> bool:
    wanted = tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return any(max(abs(a - b) for a, b in zip(wanted, one, strict=True)) <= 12 for one in seen)


def test_every_line_keeps_its_own_colour() -> None:
    lines = [line(f"replica {n}", [float(n), n + 1.0] * 30) for n in range(len(PALETTE))]
    seen = colours(chart_png(chart(*lines)))
    assert [colour for colour in PALETTE if not near(colour, seen)] == []


def test_the_same_chart_is_the_same_picture_and_a_gap_is_not_bridged() -> None:
    whole, holed = line("a", [5.0] * 40), line("a", [5.0] * 10 + [float("nan")] * 20 + [5.0] * 10)
    assert chart_png(chart(whole)) == chart_png(chart(whole))

    def painted(one: Line) -> int:
        image = np.asarray(Image.open(io.BytesIO(chart_png(chart(one)))).convert("RGB")).astype(int)
        return int((np.abs(image - np.array([0, 0x72, 0xB2])).max(axis=2) < 40).sum())

    assert painted(holed) < 0.75 * painted(whole)


@example([1.5e308], "", "requests/s")
@example([1.5e306, -1.7e308], "", "ratio")
@example([5e-324], "", "seconds")
@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True, width=64), min_size=1, max_size=8),
    st.text(max_size=300),
    st.sampled_from(["requests/s", "ratio", "seconds", "bytes", ""]),
)
@settings(deadline=None, max_examples=25)
def test_any_values_and_names_can_be_drawn(values: list[float], label: str, unit: str) -> None:
    colours(chart_png(chart(line(label, values), unit=unit, left_out=3)))


@given(st.floats(-1e12, 1e12), st.floats(1e-9, 1e12))
def test_ticks_span_the_values_with_round_steps(low: float, span: float) -> None:
    high = low + span
    if not high > low or span < abs(low) * 1e-9:
        return
    found = ticks(low, high)
    assert found[0] <= low + 1e-9 * abs(low) + 1e-6 * span
    assert found[-1] >= high - 1e-9 * abs(high) - 1e-6 * span
    assert 2 <= len(found) <= 9


@given(st.integers(0, 4_000_000_000_000), st.integers(1_000, 10 * 86_400_000))
def test_time_ticks_lie_inside_and_are_few(start_ms: int, length_ms: int) -> None:
    found = time_ticks(start_ms, start_ms + length_ms)
    assert len(found) <= 8
    assert all(start_ms <= t <= start_ms + length_ms for t in found)


def test_each_step_of_the_path_that_asked_has_its_picture(walked: tuple[Walk, Source]) -> None:
    made, source = walked
    charts = charts_of(made, source)
    asked = {f.step_id for f in made.path if any(n.promql and n.kind != "configured" for n in f.numbers)}
    assert {one.step_id for one in charts} == asked
    assert len({one.name for one in charts}) == len(charts)
    assert all(one.png.startswith(b"\x89PNG") or one.problem for one in charts)
    assert sum(bool(one.png) for one in charts) >= len(asked)


def test_the_zip_holds_every_picture_that_the_text_shows(walked: tuple[Walk, Source], tmp_path: Path) -> None:
    made, source = walked
    kept = unrecorded(made, "jo", made.at_ms)
    assert export_walk(kept, source, tmp_path / "walk.zip") > 5
    with zipfile.ZipFile(tmp_path / "walk.zip") as archive:
        text = archive.read("walk.md").decode()
        shown = re.findall(r"\]\((charts/[^)]+)\)", text)
        assert sorted(shown) == sorted(set(archive.namelist()) - {"walk.md"})
        assert all(archive.read(name).startswith(b"\x89PNG") for name in shown)
    charts = charts_of(made, source)
    assert zipped(kept, charts) == zipped(kept, charts)


def test_one_markdown_file_carries_its_pictures(walked: tuple[Walk, Source], tmp_path: Path) -> None:
    made, source = walked
    kept = unrecorded(made, "jo", made.at_ms)
    count = export_walk(kept, source, tmp_path / "walk.md")
    text = (tmp_path / "walk.md").read_text(encoding="utf-8")
    inside = re.findall(r"\]\(data:image/png;base64,([A-Za-z0-9+/=]+)\)", text)
    assert len(inside) == count
    assert all(base64.b64decode(one).startswith(b"\x89PNG") for one in inside)
    assert text.startswith("# Waiting grows\n")


def test_a_query_that_fails_is_said_in_place_of_its_picture(walked: tuple[Walk, Source]) -> None:
    made, source = walked

    class Broken:
        def __getattr__(self, name: str) -> object:
            return getattr(source, name)

        def range(self, promql: str, window: Window) -> Frame:
            raise SourceUnreachable("nobody *answers* <b>")

    charts = charts_of(made, Broken())  # type: ignore[arg-type]
    assert charts
    assert all(not one.png and "nobody" in one.problem for one in charts)
    text = markdown_with_charts(unrecorded(made, "jo", made.at_ms), charts)
    assert "No picture of " in text
    assert "<b>" not in text
