"""However samples came in - scrape by scrape, whole series at once, or half and half - queries answer the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from collectors.model import Samples, Window
from collectors.store.blocks import Blocks
from collectors.store.matchers import Matcher
from collectors.store.promql import Engine, PromQLError
from collectors.store.promql.evaluator import Semantics
from tests.collectors.store.random_fleet import START_MS, as_series, scrapes
from tests.collectors.store.random_queries import Queries
from tests.collectors.store.test_against_prometheus import difference, window_of

SEED = 11


def scraped() -> Blocks:
    blocks = Blocks()
    for target, t_ms, series, values in scrapes(SEED):
        blocks.append(target, t_ms, series, values)
    return blocks


def loaded() -> Blocks:
    blocks = Blocks()
    blocks.load(as_series(list(scrapes(SEED))))
    return blocks


def half_and_half() -> Blocks:
    """The first half loaded series by series without job and instance in common (own timelines), the rest scraped."""
    blocks = Blocks()
    cut = START_MS + 20 * 60_000
    for one in as_series(list(scrapes(SEED))):
        old = one.times_ms < cut
        if old.any():
            blocks.load([Samples(one.labels, one.times_ms[old], one.values[old])])
    for target, t_ms, series, values in scrapes(SEED):
        if t_ms >= cut:
            assert blocks.append(target, t_ms, series, values).accepted == len(series)
    return blocks


def answer(blocks: Blocks, query: str, window: Window, semantics: Semantics) -> dict[str, Any] | str:
    try:
        return Engine(blocks, semantics=semantics).range(query, window).data()
    except PromQLError as why:
        return why.kind


@pytest.mark.parametrize("semantics", ["3.x", "2.x"])
def test_queries_do_not_tell_how_samples_came_in(semantics: Semantics) -> None:
    first, *others = scraped(), loaded(), half_and_half()
    assert first.sample_count == others[0].sample_count == others[1].sample_count
    wrong = []
    for number, query in enumerate(Queries(SEED).some(150)):
        window = window_of(number)
        want = answer(first, query, window, semantics)
        for other in others:
            got = answer(other, query, window, semantics)
            if isinstance(want, str) or isinstance(got, str):
                why = None if want == got else f"{want} against {got}"
            else:
                why = difference(got, want, 1e6)
            if why:
                wrong.append(f"{query}: {why}")
    assert not wrong, wrong[:10]


def test_raw_samples_are_the_same() -> None:
    want = {tuple(sorted(one.labels.items())): one for one in as_series(list(scrapes(SEED)))}
    for blocks in (scraped(), loaded(), half_and_half()):
        found = blocks.samples([Matcher("instance", "=~", ".+")], START_MS - 60_000, START_MS + 3_600_000)
        assert len(found) == len(want)
        for one in found:
            expected = want[tuple(sorted(one.labels.items()))]
            assert (one.times_ms == expected.times_ms).all()
            assert (one.values.view(np.uint64) == expected.values.view(np.uint64)).all()
