"""Raw samples as strips are the raw samples: same series, same times, same bits, from every source."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.model import STALE, Samples
from collectors.scope import ScopedSource
from collectors.source import Source
from collectors.store.blocks import Blocks
from collectors.store.embedded import EmbeddedSource
from collectors.strips import Strips, strips_of
from tests.runbooks.recorded_source import RecordedSource

Plain = dict[tuple[tuple[str, str], ...], tuple[bytes, bytes]]
SELECTOR = '{__name__=~"m.*"}'


def of_samples(found: list[Samples]) -> Plain:
    return {tuple(sorted(s.labels.items())): (s.times_ms.tobytes(), s.values.tobytes()) for s in found}


def of_strips(found: Strips) -> Plain:
    return {
        tuple(sorted(found.labels[place].items())): (strip.times_ms.tobytes(), row.tobytes())
        for strip in found.strips
        for place, row in zip(strip.places.tolist(), strip.values, strict=True)
    }


@st.composite
def recordings(draw: st.DrawFn) -> list[Samples]:
    """Series of two targets with gaps, markers, ends and pieces that come later."""
    value = st.sampled_from([0.0, 1.0, -0.0, float("nan"), STALE, 1e300])
    found = []
    for number in range(draw(st.integers(1, 6))):
        times = sorted(draw(st.sets(st.integers(1, 40), min_size=1, max_size=20)))
        labels = {"__name__": f"m{number}", "job": "j", "instance": draw(st.sampled_from(["a", "b"]))}
        bits = np.array(draw(st.lists(value, min_size=len(times), max_size=len(times))))
        found.append(Samples(labels, np.array(times, dtype=np.int64) * 1000, bits))
    return found


@settings(deadline=None, max_examples=150)
@given(recordings(), st.integers(0, 40), st.integers(0, 40), st.booleans())
def test_strips_hold_what_samples_hold(recorded: list[Samples], start: int, end: int, late: bool) -> None:
    blocks = Blocks()
    blocks.load(recorded)
    if late:  # a second lane for a series
        blocks.append("other", 50_000, [recorded[0].labels], [7.0])
    source: Source = EmbeddedSource(blocks, name="store", clock=lambda: 0)
    for asked in (source, ScopedSource(source, {"instance": "a"}), RecordedSource(recorded)):
        for span in ((start * 1000, end * 1000), (0, 60_000)):
            assert of_strips(strips_of(asked, SELECTOR, *span)) == of_samples(asked.samples(SELECTOR, *span))


def test_a_cursor_caps_strips_and_the_labels_stay_the_same_tuple() -> None:
    blocks = Blocks()
    blocks.load([Samples({"__name__": "m", "instance": "a"}, np.arange(5) * 1000, np.arange(5.0))])
    cursor = [2000]
    source = EmbeddedSource(blocks, name="store", clock=lambda: cursor[0], until=lambda: cursor[0])
    earlier = source.strips("m", -1, 9000)
    assert earlier.strips[0].values.tolist() == [[0, 1, 2]]
    cursor[0] = 3000
    later = source.strips("m", -1, 9000)
    assert later.strips[0].values.tolist() == [[0, 1, 2, 3]]
    assert earlier.labels is later.labels
    blocks.append("a", 9000, [{"__name__": "m", "instance": "b"}], [1.0])
    assert source.strips("m", -1, 9000).labels is not later.labels
