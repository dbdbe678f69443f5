"""The data folder: what was acknowledged is there after a restart, whatever happened to the process or the disk."""

from __future__ import annotations

import errno
import gzip
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.capsule import read_capsule
from collectors.capsule.convert import import_file
from collectors.model import MetricMeta, is_stale
from collectors.series_lines import read_series_lines
from collectors.store.blocks import Blocks
from collectors.store.disk import Disk, StoreError
from collectors.store.log import MAGIC, LogEncoder, RowGroup
from collectors.store.log_reader import merged
from collectors.store.log_writer import DiskCalls, LogWriter
from collectors.store.matchers import Matcher
from collectors.store.rows import Row
from collectors.store.sealing import SealingProcess, series_of
from collectors.store.series import LabelSet
from collectors.store.store import Store

START_MS = 1_796_000_000_000
SERIES = tuple(LabelSet({"__name__": f"m{number}", "job": "vllm", "instance": "a:1"}) for number in range(20))


class Clock:
    """A wall clock that tests set."""

    def __init__(self) -> None:
        self.at_ms = START_MS

    def now_ms(self) -> int:
        return self.at_ms

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing is scraped here")


def row(number: int, target: str = "a", series: tuple[LabelSet, ...] = SERIES) -> Row:
    return Row(target, START_MS + 5000 * number, series, np.arange(float(len(series))) * number)


def opened(folder: Path | None, clock: Clock | None = None, **options: object) -> Store:
    options.setdefault("disk_calls", DiskCalls())  # seals in this process
    return Store.open(folder, clock=clock or Clock(), **options)  # type: ignore[arg-type]


def held(store: Store) -> dict[str, list[tuple[int, float | None]]]:
    """Every sample by metric name; None for a marker."""
    out: dict[str, list[tuple[int, float | None]]] = {}
    for samples in store.blocks.samples((), -(2**60), 2**60):
        stale = is_stale(samples.values)
        out.setdefault(samples.labels["__name__"], []).extend(
            (int(t), None if gone else float(v))
            for t, v, gone in zip(samples.times_ms, samples.values, stale, strict=True)
        )
    return {name: sorted(points) for name, points in out.items()}


def append(store: Store, numbers: range | list[int]) -> None:
    for number in numbers:
        store.append([row(number)], {})


def test_a_restart_has_every_sample_and_the_metadata(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.append([row(1)], {"m1": MetricMeta("gauge", "help")})
    append(store, range(2, 100))
    before = held(store)
    store.stop()
    again = opened(tmp_path)
    assert held(again) == before
    assert again.blocks.metadata()["m1"] == MetricMeta("gauge", "help")
    append(again, range(100, 110))
    again.stop()
    last = opened(tmp_path)
    assert len(held(last)["m1"]) == 109
    last.stop()


def test_what_was_appended_is_in_the_file_before_stop(tmp_path: Path) -> None:
    store = opened(tmp_path / "live")
    append(store, range(1, 50))
    shutil.copytree(tmp_path / "live", tmp_path / "copy")
    copy = opened(tmp_path / "copy")
    assert held(copy) == held(store)
    store.stop()
    copy.stop()


def test_a_second_store_on_the_folder_is_refused(tmp_path: Path) -> None:
    store = opened(tmp_path)
    with pytest.raises(StoreError, match=rf"in use by another store \(process {os.getpid()}\)"):
        opened(tmp_path)
    store.stop()
    opened(tmp_path).stop()


def test_a_folder_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot use .*choose a folder"):
        opened(tmp_path / "file")


def test_a_damaged_tail_is_cut_off_with_a_message_and_the_rest_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(tmp_path)
    append(store, range(1, 50))
    store.stop()
    (log_file,) = (tmp_path / "log").iterdir()
    with log_file.open("ab") as file:
        file.write(b"\x07garbage that a crash left")
    again = opened(tmp_path)
    assert len(held(again)["m1"]) == 49
    assert "the last 26 bytes are cut off, the rest is kept" in caplog.text
    again.stop()
    caplog.clear()
    last = opened(tmp_path)
    assert len(held(last)["m1"]) == 49
    assert "cut off" not in caplog.text
    last.stop()


def test_a_closed_span_is_sealed_as_series_lines_of_an_incident_file(tmp_path: Path) -> None:
    clock = Clock()
    store = opened(tmp_path, clock, retention_seconds=3600)
    append(store, range(1, 400))  # a span is a quarter of the retention: two files
    store.upkeep()
    assert len(list((tmp_path / "segments").iterdir())) == 2  # the third is not complete
    store.stop()
    again = opened(tmp_path, clock, retention_seconds=3600)
    before = held(again)
    again.upkeep()
    again.stop()
    sealed = sorted((tmp_path / "segments").iterdir())
    assert len(sealed) == 3
    points: dict[str, list[tuple[int, float | None]]] = {}
    for path in sealed:
        with gzip.open(path) as file:
            series = list(read_series_lines(file))  # type: ignore[arg-type]
        names = [one.labels["__name__"] for one in series]
        assert names == sorted(names)
        for one in series:
            points.setdefault(one.labels["__name__"], []).extend(
                zip(one.times_ms.tolist(), one.values.tolist(), strict=True)
            )
    assert points == before


def test_a_damaged_log_is_replaced_by_its_segment(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = opened(tmp_path)
    append(store, range(1, 50))
    store.stop()
    again = opened(tmp_path)
    before = held(again)
    again.upkeep()
    again.stop()
    log_file = tmp_path / "log" / "00000001.log"
    raw = bytearray(log_file.read_bytes())
    raw[len(raw) // 2] ^= 1
    log_file.write_bytes(raw)
    last = opened(tmp_path)
    assert held(last) == before
    assert "its sealed segment is used instead" in caplog.text
    last.stop()
    log_file.unlink()
    without = opened(tmp_path)
    assert held(without) == before
    without.stop()


def test_a_damaged_segment_without_a_log_is_left_out_with_a_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "segments").mkdir()
    (tmp_path / "segments" / f"00000001-{START_MS}-{START_MS + 9}.jsonl.gz").write_bytes(b"\x1f\x8bnonsense")
    store = opened(tmp_path)
    append(store, [1])
    assert "is damaged and left out" in caplog.text
    store.stop()


def test_retention_by_time_drops_samples_logs_and_segments(tmp_path: Path) -> None:
    clock = Clock()
    for first in (1, 1000, 2000, 3000):
        clock.at_ms = START_MS + 5000 * (first + 200)
        store = opened(tmp_path, clock, retention_seconds=7200)
        append(store, range(first, first + 200))
        store.upkeep()
        store.stop()
    last = opened(tmp_path, clock, retention_seconds=7200)
    last.upkeep()
    cutoff_ms = clock.at_ms - 7_200_000
    assert {path.name[:8] for path in (tmp_path / "log").iterdir()} == {"00000003", "00000004"}
    assert {path.name[:8] for path in (tmp_path / "segments").iterdir()} == {"00000003", "00000004"}
    assert min(t for t, _ in held(last)["m1"]) >= cutoff_ms
    assert len(held(last)["m1"]) == 400
    last.stop()


def test_retention_by_bytes_drops_the_oldest(tmp_path: Path) -> None:
    clock = Clock()
    for first in range(1, 2000, 200):
        store = opened(tmp_path, clock, retention_seconds=10**6)
        append(store, range(first, first + 200))
        store.stop()
    kept = sum(path.stat().st_size for path in (tmp_path / "log").iterdir())
    kept //= 3
    store = opened(tmp_path, clock, retention_seconds=10**6, retention_bytes=kept)
    store.upkeep()
    assert store.disk is not None
    assert store.disk.disk_bytes() <= kept
    assert 0 < len(held(store)["m1"]) < 2000
    assert held(store)["m1"][-1][0] == START_MS + 5000 * 2000
    store.stop()


def test_retention_by_bytes_without_a_folder_bounds_the_memory() -> None:
    clock = Clock()
    store = opened(None, clock, retention_seconds=10**7, retention_bytes=200_000)
    for number in range(1, 20_000):
        store.append([row(number)], {})
        if number % 200 == 0:
            clock.at_ms = START_MS + 5000 * number
            store.upkeep()
    assert store.blocks.nbytes < 400_000
    assert held(store)["m1"][-1][0] == START_MS + 5000 * 19_999
    store.stop()


class FullDisk:
    """System calls of a disk that can be full: `room` counts the bytes that still fit, None for enough."""

    def __init__(self) -> None:
        self.room: int | None = None
        self.refused = 0

    def calls(self) -> DiskCalls:
        real = DiskCalls()

        def open_append(path: Path) -> int:
            self._check(1)
            return real.open_append(path)

        def write(descriptor: int, data: bytes) -> int:
            self._check(1)
            taken = len(data) if self.room is None else min(self.room, len(data))
            if self.room is not None:
                self.room -= taken
            return real.write(descriptor, data[:taken])

        return DiskCalls(open_append, write, real.truncate, real.fsync, real.replace)

    def _check(self, wanted: int) -> None:
        if self.room is not None and self.room < wanted:
            self.refused += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collectors.store.log_writer.RETRY_SECONDS", 0.0)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("room", [0, 1, 22, 23, 24, 30, 100, 300, 333, 500, 700, 1000, 1500])
def test_a_disk_that_fills_at_any_byte_loses_nothing_once_it_has_room(
    tmp_path: Path, room: int, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FullDisk()
    disk.room = room
    store = opened(tmp_path / "live", disk_calls=disk.calls())
    append(store, range(1, 60))
    assert disk.refused > 0
    assert store.problem == "the data folder refuses writes: No space left on device; samples wait in memory"
    assert len(held(store)["m1"]) == 59
    assert caplog.text.count("No space left on device. Samples are kept in memory") == 1
    shutil.copytree(tmp_path / "live", tmp_path / "crashed")
    crashed = opened(tmp_path / "crashed")  # killed while full: what reached the disk is whole rows
    assert held(crashed).get("m1", []) == held(store)["m1"][: len(held(crashed).get("m1", []))]
    crashed.stop()
    disk.room = None
    append(store, range(60, 70))
    assert store.problem == ""
    assert "takes writes again" in caplog.text
    shutil.copytree(tmp_path / "live", tmp_path / "copy")
    copy = opened(tmp_path / "copy")
    assert held(copy) == held(store)
    copy.stop()
    store.stop()


@pytest.mark.usefixtures("impatient")
def test_a_disk_that_stays_full_bounds_what_waits_and_is_sealed_from_memory_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LogWriter, "__init__", limited_writer(3000))
    disk = FullDisk()
    store = opened(tmp_path / "live", disk_calls=disk.calls())
    append(store, range(1, 20))
    disk.room = 0
    append(store, range(20, 300))
    assert store.disk is not None
    assert store.disk.pending_bytes <= 3000
    store.upkeep()
    disk.room = None
    append(store, range(300, 310))
    store.upkeep()
    assert store.problem == ""
    append(store, range(310, 320))
    shutil.copytree(tmp_path / "live", tmp_path / "copy")
    copy = opened(tmp_path / "copy")
    assert held(copy) == held(store)
    assert len(held(copy)["m1"]) == 319
    copy.stop()
    store.stop()


def limited_writer(limit: int) -> Callable[..., None]:
    original = LogWriter.__init__

    def init(self: LogWriter, path: Path, calls: DiskCalls) -> None:
        original(self, path, calls, pending_limit_bytes=limit)

    return init


@pytest.mark.usefixtures("impatient")
def test_sealing_on_a_full_disk_leaves_nothing_behind_and_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(tmp_path)
    append(store, range(1, 50))
    store.stop()
    disk = FullDisk()
    again = opened(tmp_path, disk_calls=disk.calls())
    disk.room = 100
    again.upkeep()
    assert list((tmp_path / "segments").iterdir()) == []
    assert "cannot seal in" in caplog.text
    disk.room = None
    again.upkeep()
    assert len(list((tmp_path / "segments").iterdir())) == 1
    again.stop()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.usefixtures("impatient")
def test_a_real_full_file_system_loses_nothing_once_it_has_room(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 40_000)
    store = opened(small_disk / "data")
    number = 0
    while not store.problem:
        number += 1
        append(store, [number])
        assert number < 10_000
    append(store, range(number + 1, number + 50))
    ballast.unlink()
    append(store, range(number + 50, number + 55))
    assert store.problem == ""
    before = held(store)
    store.stop()
    again = opened(small_disk / "data")
    assert held(again) == before
    assert len(before["m1"]) == number + 54
    again.stop()


def test_ten_thousand_churning_series_stay_bounded_on_disk_and_in_memory(tmp_path: Path) -> None:
    clock = Clock()
    store = opened(tmp_path, clock, retention_seconds=600)
    for number in range(1, 400):
        at = number * 40
        pods = tuple(
            LabelSet({"__name__": "m", "pod": f"p{pod}", "job": "j", "instance": "i"}) for pod in range(at, at + 400)
        )
        clock.at_ms = START_MS + 5000 * number
        store.append([row(number, series=pods)], {})
        if number % 10 == 0:
            store.upkeep()
    assert store.disk is not None
    assert len(store.blocks.index) < 12_000  # of 16,000 that have been
    newest = store.blocks.samples((Matcher("pod", "=", f"p{399 * 40 + 399}"),), 0, 2**60)
    assert [(s.times_ms.tolist(), s.values.tolist()) for s in newest] == [([START_MS + 5000 * 399], [399.0 * 399])]
    for samples in store.blocks.samples((), START_MS + 5000 * 300, 2**60):
        pod = int(samples.labels["pod"][1:])
        numbers = [(int(t) - START_MS) // 5000 for t in samples.times_ms]
        assert samples.values.tolist() == [float((pod - number * 40) * number) for number in numbers]
    assert store.disk.disk_bytes() < 2_000_000
    assert store.blocks.nbytes < 60_000_000
    store.stop()


def test_messages_name_the_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    store = opened(tmp_path)
    append(store, range(1, 5))
    store.stop()
    opened(tmp_path).stop()
    assert re.search(r"80 samples of 20 series read back", caplog.text)


def test_a_log_of_another_kind_is_put_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "00000007.log").write_bytes(b"something else")
    disk = Disk(tmp_path)
    rows: list[RowGroup] = []
    disk.replay(0, rows.append, list)
    assert rows == []
    assert "does not begin as a scrape log" in caplog.text
    assert (tmp_path / "log" / "00000007.damaged").read_bytes() == b"something else"
    disk.close()


def test_what_a_kill_left_half_written_is_removed_at_the_next_start(tmp_path: Path) -> None:
    opened(tmp_path).stop()
    (tmp_path / "log" / "00000001.part").write_bytes(b"half")
    (tmp_path / "segments" / "00000001-1-2.jsonl.part").write_bytes(b"half")
    opened(tmp_path).stop()
    assert list(tmp_path.glob("*/*.part")) == []


def test_a_log_is_rewritten_smaller_once_it_is_complete_and_reads_the_same(tmp_path: Path) -> None:
    store = opened(tmp_path)
    append(store, range(1, 300))
    store.stop()
    log_file = tmp_path / "log" / "00000001.log"
    before_bytes = log_file.stat().st_size
    again = opened(tmp_path)
    before = held(again)
    again.upkeep()
    assert log_file.stat().st_size < before_bytes / 3
    again.stop()
    last = opened(tmp_path)
    assert held(last) == before
    unchanged = log_file.stat().st_mtime_ns
    last.upkeep()
    assert log_file.stat().st_mtime_ns == unchanged
    append(last, range(300, 310))
    assert len(held(last)["m1"]) == 309
    last.stop()


def test_sealing_in_a_process_of_its_own_gives_the_same_files(tmp_path: Path) -> None:
    for name, options in (("here", {}), ("child", {"disk_calls": None})):
        store = opened(tmp_path / name, retention_seconds=3600, **options)
        append(store, range(1, 400))
        store.upkeep()
        store.stop()
    files = [sorted(path.relative_to(tmp_path / "here") for path in (tmp_path / "here").glob("*/0*")) for _ in range(2)]
    assert len(files[0]) == 5
    for path in files[0]:
        assert (tmp_path / "here" / path).read_bytes() == (tmp_path / "child" / path).read_bytes()


def test_a_refusal_in_the_sealing_process_is_said_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "segments").write_text("in the way")
    (tmp_path / "00000001.log").write_bytes(b"".join([MAGIC, LogEncoder().encode(row(1))]))
    with pytest.raises(OSError, match="Not a directory"):
        SealingProcess().complete([tmp_path / "00000001.log"], tmp_path / "segments")


def test_a_folder_that_is_cleared_under_a_running_store_is_made_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(tmp_path)
    append(store, range(1, 50))
    for name in ("log", "segments"):
        shutil.rmtree(tmp_path / name)
    store.upkeep()
    assert "is gone; a new log is begun" in caplog.text
    append(store, range(50, 60))
    store.upkeep()
    assert len(held(store)["m1"]) == 59
    store.stop()
    again = opened(tmp_path)
    assert len(held(again)["m1"]) == 10
    again.stop()


def test_a_folder_that_cannot_be_used_for_a_while_is_used_again_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(tmp_path, retention_seconds=3600, disk_calls=None)
    append(store, range(1, 400))
    shutil.rmtree(tmp_path / "segments")
    (tmp_path / "segments").write_text("in the way")
    store.upkeep()
    assert re.search("cannot use the folders in .*: File exists; trying again", caplog.text)
    (tmp_path / "segments").unlink()
    store.upkeep()
    assert len(list((tmp_path / "segments").iterdir())) == 2
    store.stop()
    store.upkeep()  # after the end nothing is started any more


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(-5, 20), st.integers(0, 3)), min_size=1, max_size=40))
def test_a_segment_holds_what_memory_held_when_the_clock_stepped(steps: list[tuple[int, int]]) -> None:
    layouts = [SERIES[:4], SERIES[2:6], SERIES[4:8], SERIES[:1]]
    blocks, groups, at_ms = Blocks(), [], START_MS
    for number, (step, layout) in enumerate(steps):
        at_ms += 1000 * step
        values = np.full(len(layouts[layout]), float(number))
        blocks.append("a", at_ms, layouts[layout], values)
        groups.append(RowGroup("a", layouts[layout], np.array([at_ms]), values[:, None]))
    sealed = [(s.labels["__name__"], s.times_ms.tolist(), s.values.tolist()) for s in series_of(merged(groups))]
    assert sealed == [
        (s.labels["__name__"], s.times_ms.tolist(), s.values.tolist()) for s in blocks.samples((), 0, 2**60)
    ]


def test_a_sealed_segment_is_the_body_of_an_incident_file(tmp_path: Path) -> None:
    store = opened(tmp_path / "data", retention_seconds=3600)
    append(store, range(1, 200))
    store.upkeep()
    (segment,) = (tmp_path / "data" / "segments").iterdir()
    import_file(segment, tmp_path / "one.capsule")
    read = {s.labels["__name__"]: (s.times_ms.tolist(), s.values.tolist()) for s in read_capsule(tmp_path / "one.capsule").blocks.samples((), 0, 2**60)}  # fmt: skip
    last_ms = int(segment.name.split("-")[2].split(".")[0])
    kept = {
        s.labels["__name__"]: (s.times_ms.tolist(), s.values.tolist()) for s in store.blocks.samples((), 0, last_ms)
    }
    assert read == kept
    store.stop()
