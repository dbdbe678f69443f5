"""Lines of an incident file's body: nothing is lost, same samples give same bytes, and damage is named."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.capsule.lines import LineDecoder, decode_times, encode_line, encode_times
from collectors.model import STALE, Samples
from collectors.series_lines import SeriesLineError, encode_series

START_MS = 1_796_000_000_000
RUNS = st.lists(
    st.tuples(
        st.integers(1, 40),
        st.one_of(
            st.floats(allow_nan=False),
            st.just(float("nan")),
            st.just(STALE),
            st.integers(-(2**53), 2**53).map(float),
            st.integers(-(10**9), 10**9).map(lambda number: number / 1000),
            st.sampled_from([0.0, -0.0, 1.0, 2.0**52, -(2.0**52), 1e300, 5e-324, 0.1, 0.30000000000000004]),
        ),
    ),
    max_size=12,
)


def made(values: list[float], times: list[int] | None = None, **labels: str) -> Samples:
    stamps = START_MS + 5_000 * np.arange(len(values)) if times is None else np.array(times)
    return Samples({"__name__": "x", **labels}, stamps.astype(np.int64), np.array(values, dtype=np.float64))


def read_back(samples: Samples) -> Samples:
    times = decode_times(encode_times(samples.times_ms), "table line 0")
    return LineDecoder([times].__getitem__).decode(encode_line(samples, 0), 1)


def canonical(values: np.ndarray) -> list[str]:
    """Bits of values; a NaN that is no marker is a NaN, whatever its payload."""
    odd = np.isnan(values) & (values.view(np.uint64) != np.float64(STALE).view(np.uint64))
    return ["nan" if odd[place] else value.tobytes().hex() for place, value in enumerate(values)]


@settings(deadline=None, max_examples=300)
@given(RUNS)
def test_any_series_reads_back_bit_by_bit(runs: list[tuple[int, float]]) -> None:
    samples = made([value for count, value in runs for _ in range(count)])
    back = read_back(samples)
    assert canonical(back.values) == canonical(samples.values)
    assert back.times_ms.tolist() == samples.times_ms.tolist()
    assert dict(back.labels) == dict(samples.labels)
    assert encode_line(back, 0) == encode_line(samples, 0)


@settings(deadline=None, max_examples=200)
@given(st.integers(10**11, 10**13), st.lists(st.tuples(st.integers(1, 60), st.integers(1, 10**8)), max_size=8))
def test_any_times_read_back(first: int, runs: list[tuple[int, int]]) -> None:
    steps = [step for count, step in runs for _ in range(count)]
    times = first + np.cumsum([0, *steps])
    line = encode_times(times)
    assert decode_times(line, "line").tolist() == times.tolist()
    assert encode_times(decode_times(line, "line")) == line
    assert decode_times(encode_times(times[:0]), "line").size == 0


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([5, 7, 7, 9], {"deltas": [5, 2, 0, 2]}),
        ([1.0] * 50 + [0.0] * 50, {"at": [0, 50], "deltas": [1, -1]}),
        ([0.25, 0.5, 0.75], {"digits": 2, "deltas": [25, 25, 25]}),
        ([1.5] * 8 + [STALE] + [1.5] * 7, {"digits": 1, "at": [0, 8, 1], "deltas": [15, None, 0]}),
        ([0.1 + 0.2, float("nan"), float("inf")], {"values": [0.1 + 0.2, "NaN", "+Inf"]}),
        ([-0.0, 1.0], {"values": [-0.0, 1.0]}),
        ([], {"deltas": []}),
    ],
)
def test_lines_say_what_changed(values: list[float], said: dict[str, object]) -> None:
    line = json.loads(encode_line(made(values, z="1", a="2"), 3))
    assert line == {"metric": {"__name__": "x", "a": "2", "z": "1"}, **said, "times": 3}


def test_a_regular_table_line_is_as_short_for_a_day_as_for_a_minute() -> None:
    day = START_MS + 5_000 * np.arange(17_280)
    assert encode_times(day) == b'{"count":17280,"first":1796000000000,"at":[0],"steps":[5000]}\n'
    assert len(encode_line(Samples({"__name__": "up"}, day, np.ones(day.size)), 0)) < 70


def test_lines_of_the_first_schema_are_read_too() -> None:
    samples = made([1, STALE, 2.5], quote='],"timestamps":[1')
    for line in (encode_series(samples), json.dumps(json.loads(encode_series(samples))).encode()):
        back = LineDecoder([].__getitem__).decode(line, 1)
        assert canonical(back.values) == canonical(samples.values)
        assert back.times_ms.tolist() == samples.times_ms.tolist()
    assert canonical(read_back(samples).values) == canonical(samples.values)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"deltas": [1, 2]}, "2 entries stand for 4 samples"),
        ({"deltas": [1, 2, 3, "x"]}, "not a value"),
        ({"deltas": [1, 2, 3, 0.5]}, "whole numbers"),
        ({"deltas": [1, [2], 3, 4]}, "whole numbers"),
        ({"deltas": [2**62, 2**62, 2**62, 2**62]}, "whole numbers"),
        ({"deltas": [10**30, 0, 0, 0]}, "whole numbers"),
        ({"deltas": [2**53 - 1, 2**53 - 1, 0, 0]}, "add up"),
        ({"deltas": {}}, "neither"),
        ({"deltas": None, "values": [1, 2, 3, 4]}, "neither"),
        ({"at": [0, 1], "deltas": [1]}, "differ in number"),
        ({"at": [1], "deltas": [1]}, "rise from the first"),
        ({"at": [0, 0], "deltas": [1, 1]}, "rise from the first"),
        ({"at": [0, 2, 2], "deltas": [1, 1, 1]}, "behind the last of 4"),
        ({"at": [0, 2**62, 2**62], "deltas": [1, 1, 1]}, "whole numbers"),
        ({"at": [], "deltas": []}, "rise from the first"),
        ({"at": "0", "deltas": [1]}, "differ in number"),
        ({"digits": -1}, "digits is -1"),
        ({"digits": 400}, "digits is 400"),
        ({"digits": "2"}, "digits is '2'"),
        ({"metric": 5}, "metric"),
        ({"metric": {"a": 5}}, "metric"),
        ({"times": "0"}, "is not a series"),
        ({"times": True}, "is not a series"),
    ],
)
def test_a_damaged_line_is_named_with_its_number(changes: dict[str, object], words: str) -> None:
    line = {"metric": {"__name__": "x"}, "deltas": [1, 1, 1, 1], "times": 0} | changes
    decoder = LineDecoder([np.arange(4) + START_MS].__getitem__)
    with pytest.raises(SeriesLineError, match="^line 7") as error:
        decoder.decode(json.dumps(line).encode(), 7)
    assert words in error.value.cause


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"[1]", "not a JSON object"),
        (b"{", "not JSON"),
        (b"{}", "count, first and steps"),
        (b'{"count":9000000,"first":1796000000000,"at":[0],"steps":[1]}', "more than"),
        (b'{"count":-1,"first":1796000000000,"steps":[]}', "more than"),
        (b'{"count":3,"first":1796000000000,"steps":[5,0]}', "twice"),
        (b'{"count":3,"first":1796000000000,"steps":[5,-5]}', "out of order"),
        (b'{"count":3,"first":1796000000,"steps":[5,5]}', "Seconds"),
        (b'{"count":3,"first":1796000000000,"steps":[5]}', "1 entries stand for 2"),
        (b'{"count":8000000,"first":1796000000000,"at":[0],"steps":[9007199254740991]}', "leave what milliseconds"),
        (b'{"count":1,"first":1e12,"steps":[]}', "count, first and steps"),
        (b'{"count":1,"first":9999999999999999,"steps":[]}', "cannot be milliseconds"),
    ],
)
def test_a_damaged_table_line_is_named(line: bytes, words: str) -> None:
    with pytest.raises(SeriesLineError) as error:
        decode_times(line, "table line 2")
    assert words in f"{error.value.cause} {error.value.next_step}"
    assert "table line 2" in error.value.cause
