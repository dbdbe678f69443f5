"""The demo's process family: ports, the lifeline, an end that leaves nothing behind."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from demo import LIFELINE, Family, free_port
from tests.shared_data import ROOT


def test_a_taken_port_is_stepped_over() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert free_port(port) > port
        first = free_port(port - 1 if port > 2000 else port, 3)
        assert not first <= port < first + 3


def wait_until(condition: object, seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():  # type: ignore[operator]
            return True
        time.sleep(0.05)
    return False


PARENT = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
import subprocess, os
from pathlib import Path
import demo
class Sleepers(demo.Family):
    pass
family = demo.Family(Path(sys.argv[1]), print)
child = "import os, sys; sys.path.insert(0, {str(ROOT)!r}); import demo, time; demo.hold_lifeline(dict(os.environ)); time.sleep(120)"
proc = subprocess.Popen([sys.executable, "-c", child], pass_fds=[family._lifeline_read], env={{**os.environ, demo.LIFELINE: str(family._lifeline_read)}}, start_new_session=True)
print(proc.pid, flush=True)
time.sleep(120)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals and inherited pipes of POSIX")
def test_a_child_ends_when_its_parent_is_killed_outright(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    assert child.is_running()
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait(10)
    parent.stdout.close()
    assert wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def test_a_child_that_ends_is_named_with_its_last_lines(tmp_path: Path) -> None:
    family = Family(tmp_path, print)
    try:
        family.start("simulator", ["sim", "serve", "--replicas", "0"])
        assert wait_until(lambda: family.ended() is not None)
        assert family.ended() == "simulator"
        assert any("replicas" in line for line in family.last_lines("simulator", 20))
    finally:
        family.stop()
    assert LIFELINE not in os.environ
