"""What is remembered must never change what is read."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.store.exposition import ExpositionError
from collectors.store.line_memory import Exposition, LineMemory
from tests.collectors.store.test_exposition import REFUSED_TEXT

HEADS = [b"a", b'a{x="1"}', b'a{x="2"}', b'b{y="p q"}', b'b{y="p q",z=""}', b"c"]
VALUES = [
    b"0",
    b"1",
    b"1.5",
    b"-3e4",
    b"NaN",
    b"+Inf",
    b"-Inf",
    b"1_0",
    b"nope",
    b"",
    b"1 5",
    b"1 5 6",
    b"\t7",
    b"7\t",
    b"7\r",
    b"1e999",
    b"+nan",
]
OTHER = [b"", b"# HELP a x", b"# HELP a y", b"# TYPE a gauge", b"# comment", b"# EOF", *REFUSED_TEXT]
LINES = st.one_of(
    st.tuples(st.sampled_from(HEADS), st.sampled_from(VALUES)).map(b" ".join),
    st.sampled_from(OTHER),
)
EASY = st.tuples(st.sampled_from(HEADS), st.integers(0, 5)).map(lambda pair: b"%b %d" % pair)


def outcome(memory: LineMemory, body: bytes, openmetrics: bool) -> object:
    try:
        read: Exposition = memory.parse(body, openmetrics=openmetrics, sample_limit=8)
    except ExpositionError as error:
        return str(error), error.samples, error.samples_kept
    series = [dict(labels) for labels in read.layout.series]
    return (
        series,
        np.asarray(read.values).view(np.uint64).tolist(),
        read.times_ms,
        read.layout.samples,
        dict(read.metadata),
    )


@settings(deadline=None, max_examples=400)
@given(
    st.lists(st.lists(st.one_of(EASY, EASY, EASY, LINES), max_size=9), min_size=2, max_size=6),
    st.booleans(),
    st.sampled_from([b"", b"\n", b"\n# EOF\n"]),
)
def test_a_memory_reads_every_exposition_like_a_fresh_parser(bodies, openmetrics: bool, end: bytes) -> None:
    memory = LineMemory()
    for lines in bodies:
        body = b"\n".join(lines) + end
        assert outcome(memory, body, openmetrics) == outcome(LineMemory(), body, openmetrics)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(VALUES)), max_size=3), min_size=1, max_size=8))
def test_changed_values_of_the_same_lines_are_read_anew(changes) -> None:
    memory = LineMemory()
    values = [b"1"] * len(HEADS)
    for change in changes:
        for place, value in change:
            values[place] = value
        body = b"\n".join(b"%b %b" % pair for pair in zip(HEADS, values, strict=True)) + b"\n"
        assert outcome(memory, body, False) == outcome(LineMemory(), body, False)


def test_the_layout_is_the_same_object_as_long_as_the_series_are_the_same() -> None:
    memory = LineMemory()
    first = memory.parse(b"a 1\nb 2\n", openmetrics=False)
    assert memory.parse(b"a 5\nb 2\n", openmetrics=False).layout is first.layout
    assert memory.parse(b"# comment\na 5\nb 3\n", openmetrics=False).layout is first.layout
    assert memory.parse(b"a 5\nc 3\n", openmetrics=False).layout is not first.layout


def test_a_refused_exposition_leaves_the_memory_as_it_was() -> None:
    memory = LineMemory()
    first = memory.parse(b"a 1\nb 2\n", openmetrics=False)
    assert isinstance(outcome(memory, b"a 7\nb x\n", False)[0], str)
    again = memory.parse(b"a 1\nb 3\n", openmetrics=False)
    assert again.layout is first.layout
    assert list(again.values) == [1, 3]


def test_earlier_answers_keep_their_values() -> None:
    memory = LineMemory()
    first = memory.parse(b"a 1\n", openmetrics=False)
    memory.parse(b"a 2\n", openmetrics=False)
    assert list(first.values) == [1]


def test_lines_that_are_gone_are_forgotten() -> None:
    memory = LineMemory()
    for start in range(0, 10_000, 50):
        body = b"".join(b'm{pod="p%d"} 1\n' % number for number in range(start, start + 400))
        assert memory.parse(body, openmetrics=False).layout.samples == 400
    assert len(memory._known) == 400
