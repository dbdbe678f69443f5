"""What is cut out of tiles is what the lanes hold, whatever was asked before and whatever came since."""

from __future__ import annotations

import random

import numpy as np
import pytest

from collectors.model import STALE, Samples
from collectors.store import tiles
from collectors.store.blocks import Blocks
from collectors.store.embedded import EmbeddedSource
from collectors.store.lanes import SEAL_ROWS
from tests.collectors.store.test_strips import of_samples, of_strips

ROWS = 3 * SEAL_ROWS + 100
EVERYTHING = '{__name__=~"m.*"}'


def series(name: str, instance: str) -> dict[str, str]:
    return {"__name__": name, "job": "j", "instance": instance}


def recorded(rows: int = ROWS, metrics: int = 4, first_ms: int = 1000) -> list[Samples]:
    """Two targets out of step; counters, and one gauge with gaps and markers."""
    random_values = np.random.default_rng(rows)
    found = []
    for number, instance in enumerate("ab"):
        times = first_ms + 137 * number + np.arange(rows, dtype=np.int64) * 1000
        for metric in range(metrics):
            values = np.cumsum(random_values.integers(0, 5, rows)).astype(np.float64)
            found.append(Samples(series(f"m{metric}", instance), times, values))
        gaps = random_values.random(rows) < 0.01
        odd = np.where(random_values.random(rows) < 0.01, STALE, 1.0)
        found.append(Samples(series("mgaps", instance), times[~gaps], odd[~gaps]))
    return found


def source_of(blocks: Blocks) -> EmbeddedSource:
    return EmbeddedSource(blocks, name="store", clock=lambda: 0)


def same(source: EmbeddedSource, selector: str, start_ms: int, end_ms: int) -> None:
    assert of_strips(source.strips(selector, start_ms, end_ms)) == of_samples(
        source.samples(selector, start_ms, end_ms)
    )


@pytest.fixture(params=["whole chunks", "few rows"])
def small_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short looks into few series as they are, and as they are into many."""
    if request.param == "few rows":
        monkeypatch.setattr(tiles, "SMALL_BYTES", 0)


@pytest.mark.usefixtures("small_bytes")
@pytest.mark.parametrize("seed", range(4))
def test_looks_of_any_length_in_any_order(seed: int) -> None:
    rnd = random.Random(seed)
    blocks = Blocks()
    blocks.load(recorded())
    source = source_of(blocks)
    last_ms = ROWS * 1000
    for _ in range(250):
        start = rnd.randrange(-5000, last_ms + 5000)
        length = rnd.choice((0, 1, 900, 5000, 30_000, 400_000, last_ms))
        same(source, rnd.choice((EVERYTHING, "m1", '{__name__=~"m[01]"}', "mgaps")), start, start + length)


@pytest.mark.usefixtures("small_bytes")
@pytest.mark.parametrize("seed", range(3))
def test_a_store_that_grows_seals_and_forgets(seed: int) -> None:
    """What was sealed, dropped or appended since a tile was made shows at once, beside lanes that rest."""
    rnd = random.Random(seed)
    blocks = Blocks()
    blocks.load([s for s in recorded(700, 2) if s.labels["__name__"] != "mgaps"])
    source = source_of(blocks)
    grown = [[series(f"m{metric}", instance) for metric in range(3)] for instance in "cde"]
    now_ms = 300_000
    for scrape in range(2 * SEAL_ROWS + 200):
        now_ms += 1000
        for number, target in enumerate(grown):
            if scrape % (number + 1) == 0:
                blocks.append(f"t{number}", now_ms + number, target, [float(scrape)] * len(target))
        if scrape % 5 == 0:
            end = rnd.choice((now_ms - 300_000, now_ms - 20_000, now_ms - 2000, now_ms, now_ms + 5000))
            for back in (20_000, 20_500, 500_000):
                same(source, EVERYTHING, end - back, end)
        if scrape % 400 == 399:
            blocks.drop_before(now_ms - 350_000)


def test_a_cursor_never_shows_what_comes_later() -> None:
    blocks = Blocks()
    blocks.load(recorded())
    cursor = [10**9]
    source = EmbeddedSource(blocks, name="store", clock=lambda: cursor[0], until=lambda: cursor[0])
    for at in (10**9, 700_000, 1_400_000, 699_000, 3000):
        cursor[0] = at
        found = source.strips("m1", 0, 10**9)
        assert max(int(strip.times_ms[-1]) for strip in found.strips) <= at
        same(source, "m1", 0, 10**9)


def test_a_cursor_that_moves_gets_views() -> None:
    """Two looks that overlap share their memory, and nobody can write into it."""
    blocks = Blocks()
    blocks.load([s for s in recorded() if s.labels["__name__"] != "mgaps"])
    source = source_of(blocks)
    one, other = (source.strips(EVERYTHING, 100_000 + move, 1_400_000 + move) for move in (0, 20_000))
    for left, right in zip(one.strips, other.strips, strict=True):
        assert np.shares_memory(left.values, right.values)
        assert not left.values.flags.writeable
        assert not left.times_ms.flags.writeable


def test_a_single_short_look_into_many_series_decodes_only_its_rows() -> None:
    blocks = Blocks()
    blocks.load([s for s in recorded(metrics=300) if s.labels["__name__"] != "mgaps"])
    source = source_of(blocks)
    source.strips(EVERYTHING, 300_000, 320_000)
    assert blocks.tiles.nbytes == 0
    source.strips(EVERYTHING, 301_000, 321_000)
    assert 0 < blocks.tiles.nbytes < 600 * 100 * 8


def test_tiles_stay_within_their_bytes() -> None:
    blocks = Blocks()
    blocks.load([s for s in recorded(metrics=60) if s.labels["__name__"] != "mgaps"])
    blocks.tiles = tiles.Tiles(2 << 20)
    source = source_of(blocks)
    for metric in range(60):
        source.strips(f'{{__name__=~"m{metric}|m0"}}', 0, ROWS * 1000)
        assert blocks.tiles.nbytes <= 2 << 20
    source.strips(EVERYTHING, 0, ROWS * 1000)  # too big for a tile: answered all the same
    same(source, EVERYTHING, 0, ROWS * 1000)
    assert 0 < blocks.tiles.nbytes <= 2 << 20


def test_rows_sealed_after_a_tile_was_made_are_seen() -> None:
    """The first lane rests, the second seals its open rows once more than what the tile holds."""
    blocks = Blocks()
    blocks.load([s for s in recorded(100, 2) if s.labels["__name__"] != "mgaps"])
    source = source_of(blocks)

    def scrape(seconds: range) -> None:
        for t in seconds:
            blocks.append("t", t * 1000, [series("m0", "c")], [float(t)])

    scrape(range(1, SEAL_ROWS + 10))
    same(source, EVERYTHING, 0, 500_000)
    scrape(range(SEAL_ROWS + 10, 2 * SEAL_ROWS + 10))
    same(source, EVERYTHING, 0, 900_000)
    blocks.drop_before(600_000)
    same(source, EVERYTHING, 0, 900_000)
