"""The codec of series lines: nothing is lost, and same samples give same bytes."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.model import STALE, Samples, is_stale
from collectors.series_lines import SeriesLineError, encode_series, line_name, read_series_lines, write_series_lines

VALUES = st.one_of(
    st.floats(allow_nan=False),
    st.just(float("nan")),
    st.just(STALE),
    st.integers(-(2**53), 2**53).map(float),
    st.sampled_from([0.0, -0.0, 1e300, 5e-324, 0.1]),
)
LABELS = st.dictionaries(
    st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
    max_size=4,
)


def line(**fields: object) -> bytes:
    return (
        json.dumps({"metric": {"__name__": "up"}, "values": [1], "timestamps": [1_796_000_000_000], **fields}).encode()
        + b"\n"
    )


@settings(deadline=None, max_examples=200)
@given(LABELS, st.lists(st.tuples(st.integers(1, 10**9), VALUES), max_size=30))
def test_a_series_reads_back_as_it_was_written(labels: dict[str, str], steps: list[tuple[int, float]]) -> None:
    times = np.cumsum(np.array([1_796_000_000_000, *(step for step, _ in steps)], dtype=np.int64))[1:]
    values = np.array([value for _, value in steps], dtype=np.float64)
    samples = Samples({"__name__": "x", **labels}, times, values)
    text = encode_series(samples)
    (read,) = read_series_lines(io.BytesIO(text))
    assert dict(read.labels) == dict(samples.labels)
    assert read.times_ms.tolist() == times.tolist()
    assert is_stale(read.values).tolist() == is_stale(values).tolist()
    same = (read.values == values) & (np.signbit(read.values) == np.signbit(values))
    assert (same | (np.isnan(read.values) & np.isnan(values))).all()
    assert encode_series(read) == text
    assert json.loads(text)["timestamps"] == times.tolist()


def test_lines_are_canonical() -> None:
    samples = Samples(
        {"z": "1", "a": "2", "__name__": "x", "empty": ""}, np.array([1_796_000_000_000]), np.array([3.0])
    )
    assert (
        encode_series(samples)
        == b'{"metric":{"__name__":"x","a":"2","z":"1"},"values":[3],"timestamps":[1796000000000]}\n'
    )


def test_the_lines_of_another_program_are_read() -> None:
    text = (
        b'{"timestamps":[1796000000000,1796000001000],"values":[1e3,"Infinity"],"metric":{"__name__":"x","a":""}}\n\n'
    )
    (read,) = read_series_lines(io.BytesIO(text))
    assert dict(read.labels) == {"__name__": "x"}
    assert read.values.tolist() == [1000.0, np.inf]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (line(timestamps=[1_796_000_000]), "cannot be milliseconds. Seconds, perhaps?"),
        (line(timestamps=[1_796_000_000_000_000_000]), "Micro- or nanoseconds"),
        (line(values=[1, 2], timestamps=[1_796_000_001_000, 1_796_000_000_000]), "out of order"),
        (line(values=[1, 2], timestamps=[1_796_000_000_000] * 2), "stands twice"),
        (line(values=[1, 2]), "differ in number"),
        (line(values=["one"]), "'one' is not a value"),
        (line(values=[[1]]), "not a value"),
        (line(values=[True]), "not a value"),
        (line(values={}), "differ in number"),
        (line(timestamps=[1.5]), "whole numbers"),
        (line(timestamps=["1"]), "whole numbers"),
        (line(timestamps=[2**80]), "whole numbers"),
        (line(timestamps=5), "not a list"),
        (line(metric={"__name__": 5}), "object of texts"),
        (line(metric=[]), "object of texts"),
        (b"{}\n", "not a series"),
        (b"[1]\n", "not a series"),
        (line()[:-20] + b"\n", "line 2"),
        (b"\xff\xfe\n", "not JSON"),
    ],
)
def test_a_damaged_line_is_named_with_its_number(text: bytes, words: str) -> None:
    with pytest.raises(SeriesLineError) as caught:
        list(read_series_lines(io.BytesIO(line() + text)))
    assert "line 2" in str(caught.value)
    assert words in str(caught.value)
    canonical = text.replace(b'", "', b'","').replace(b": ", b":").replace(b"}, ", b"},").replace(b"], ", b"],")
    with pytest.raises(SeriesLineError):
        list(read_series_lines(io.BytesIO(canonical)))


def test_a_label_that_looks_like_the_marks_of_a_line_does_no_harm() -> None:
    evil = Samples(
        {"__name__": "x", "a": '},"values":[9],"timestamps":[1]'}, np.array([1_796_000_000_000]), np.array([1.0])
    )
    out = io.BytesIO()
    assert write_series_lines(out, [evil, evil]) == 2
    for read in read_series_lines(io.BytesIO(out.getvalue())):
        assert dict(read.labels) == dict(evil.labels)
    assert line_name(out.getvalue()) == "x"
