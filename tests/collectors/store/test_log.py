"""The log of scrapes: what was written is read back bit for bit, up to the first damage."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.model import STALE
from collectors.store.log import MAGIC, LogEncoder, RowGroup
from collectors.store.log_reader import LogReader, merged
from collectors.store.rows import Row
from collectors.store.series import LabelSet

SERIES = [LabelSet({"__name__": f"m{number}", "x": "é\n" if number % 2 else 'q"'}) for number in range(12)]
LAYOUTS = [tuple(SERIES), tuple(SERIES[:5]), tuple(reversed(SERIES[3:9])), ()]
VALUES = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, STALE, float("nan"), float("inf"), 1.5e300]), st.integers(0, 10**15).map(float)
)
ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b\n"]), st.integers(-5, 2**41), st.sampled_from(LAYOUTS), st.lists(VALUES, min_size=12, max_size=12)
    ).map(lambda drawn: Row(drawn[0], drawn[1], drawn[2], np.array(drawn[3][: len(drawn[2])]))),
    max_size=20,
)  # fmt: skip


def bits(row: Row) -> object:
    return row.target, row.time_ms, row.series, np.asarray(row.values, dtype=np.float64).view(np.uint64).tolist()


def written(rows: list[Row]) -> list[bytes]:
    encoder = LogEncoder()
    return [MAGIC, *(encoder.encode(row) for row in rows)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log") / "one.log"


@settings(deadline=None, max_examples=60)
@given(ROWS)
def test_rows_come_back_bit_for_bit(path: Path, rows: list[Row]) -> None:
    path.write_bytes(b"".join(written(rows)))
    reader = LogReader(path)
    assert [bits(row) for row in reader.rows()] == [bits(row) for row in rows]
    assert reader.damage is None


@settings(deadline=None, max_examples=60)
@given(ROWS, st.data())
def test_a_log_cut_anywhere_gives_every_whole_row_before_the_cut(
    path: Path, rows: list[Row], data: st.DataObject
) -> None:
    parts = written(rows)
    whole = b"".join(parts)
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    reader = LogReader(path)
    read = [bits(row) for row in reader.rows()]
    ends = np.cumsum([len(part) for part in parts])
    expected = int((ends <= cut).sum()) - 1
    assert read == [bits(row) for row in rows[: max(expected, 0)]]
    if reader.damage is None:
        assert expected == len(read)
    else:
        assert reader.damage.at_byte <= cut
        path.write_bytes(whole[: reader.damage.at_byte])
        again = LogReader(path)
        assert [bits(row) for row in again.rows()] == read
        assert again.damage is None or reader.damage.at_byte == 0


@settings(deadline=None, max_examples=80)
@given(ROWS.filter(bool), st.data())
def test_a_changed_byte_never_gives_a_wrong_row(path: Path, rows: list[Row], data: st.DataObject) -> None:
    parts = written(rows)
    whole = bytearray(b"".join(parts))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(whole)
    reader = LogReader(path)
    read = [bits(row) for row in reader.rows()]
    assert read == [bits(row) for row in rows[: len(read)]]
    assert reader.damage is not None
    assert len(read) == max(0, int((np.cumsum([len(part) for part in parts]) <= at).sum()) - 1)


def test_a_length_that_claims_more_than_there_is_ends_the_log(path: Path) -> None:
    path.write_bytes(MAGIC + struct.pack("<IIB", 2**32 - 1, 0, 3) + b"x" * 100)
    reader = LogReader(path)
    assert list(reader.rows()) == []
    assert reader.damage is not None
    assert "cut short" in reader.damage.reason


def test_an_unchanged_scrape_takes_few_bytes() -> None:
    series = tuple(LabelSet({"__name__": "m", "n": str(number)}) for number in range(440))
    encoder = LogEncoder()
    encoder.encode(Row("t", 0, series, np.arange(440.0)))
    assert len(encoder.encode(Row("t", 5000, series, np.arange(440.0)))) < 50


def test_churn_of_whole_layouts_writes_each_series_once() -> None:
    encoder = LogEncoder()
    pool = [LabelSet({"__name__": "m", "pod": f"pod-{number:05d}"}) for number in range(10_000)]
    sizes = [len(encoder.encode(Row("t", at, tuple(pool[at : at + 400]), np.ones(400)))) for at in range(0, 9_600, 40)]
    assert sum(sizes) < 400_000


@settings(deadline=None, max_examples=50)
@given(ROWS)
def test_a_log_rewritten_in_groups_holds_the_same_rows(path: Path, rows: list[Row]) -> None:
    path.write_bytes(b"".join(written(rows)))
    reader, encoder = LogReader(path), LogEncoder()
    rewritten = b"".join([MAGIC, *(encoder.encode_group(group) for group in merged(reader.groups()))])
    path.write_bytes(rewritten)
    again = LogReader(path)
    assert again.intact()
    for target in ("a", "b\n"):
        assert [bits(row) for row in again.rows() if row.target == target] == [
            bits(row) for row in rows if row.target == target
        ]
    assert again.damage is None


def test_a_damaged_group_is_noticed_by_its_checksum(path: Path) -> None:
    rows = [Row("a", at, LAYOUTS[0], np.arange(12.0) * at) for at in range(600)]
    encoder = LogEncoder()
    groups = [RowGroup("a", LAYOUTS[0], np.array([row.time_ms]), row.values[:, None]) for row in rows]
    raw = bytearray(b"".join([MAGIC, *(encoder.encode_group(group) for group in merged(groups))]))
    assert len(raw) < 5000
    raw[-10] ^= 4
    path.write_bytes(raw)
    reader = LogReader(path)
    assert not reader.intact()
    assert len(list(LogReader(path).rows())) == 512
