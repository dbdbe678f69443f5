"""What a killed demo leaves behind goes with the next start; what is in use stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from demo import OWNER, owned, remove_abandoned
from tests.shared_data import ROOT

HOLD = """
import sys, time
from pathlib import Path
from demo import owned
with owned(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(120)
"""


def folder_of(place: Path, name: str) -> Path:
    folder = place / f"pagewatch-demo-{name}"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "log").write_text("samples")
    return folder


def test_the_folder_of_a_killed_demo_goes_and_that_of_a_running_one_stays(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "killed")
    child = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        assert remove_abandoned(tmp_path) == []
        assert (folder / "data" / "log").exists()
        os.kill(child.pid, signal.SIGKILL)
        child.wait(30)
        deadline = time.monotonic() + 30
        while folder.exists() and time.monotonic() < deadline:
            remove_abandoned(tmp_path)
        assert not folder.exists()
    finally:
        child.kill()
        child.wait()
        child.stdout.close()  # type: ignore[union-attr]


def test_only_marked_folders_of_demos_are_removed(tmp_path: Path) -> None:
    unmarked, other = folder_of(tmp_path, "being-made"), tmp_path / "pagewatch-other"
    other.mkdir()
    (other / OWNER).touch()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / OWNER).touch()
    (tmp_path / "pagewatch-demo-link").symlink_to(outside)
    abandoned = folder_of(tmp_path, "old")
    (abandoned / OWNER).touch()
    with owned(folder_of(tmp_path, "mine")):
        assert remove_abandoned(tmp_path) == [abandoned]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outside", "pagewatch-demo-being-made", "pagewatch-demo-link", "pagewatch-demo-mine", "pagewatch-other"]  # fmt: skip
    assert unmarked.exists()
