"""The store as a process: it starts, is killed, answers from disk at the next start, and ends when it is told to."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from collectors.store.server import ServerError, bound_socket
from collectors.store.targets import TargetsError
from tests.collectors.store.exposing import Exposing, eventually, listening
from tests.real_programs import answers, free_port
from tests.shared_data import ROOT

SERVE = "import sys, pathlib; from collectors.store.server import serve_store; serve_store(sys.argv[1], port=int(sys.argv[2]), data_dir=pathlib.Path(sys.argv[3]), interval_seconds=0.2)"  # fmt: skip


@contextlib.contextmanager
def serving(targets: str, folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    port = free_port()
    child = subprocess.Popen(
        [sys.executable, "-c", SERVE, targets, str(port), str(folder)], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    try:
        url = f"http://127.0.0.1:{port}"
        eventually(lambda: answers(f"{url}/-/ready"), 30, "ready")
        yield child, url
    finally:
        if child.poll() is None:
            child.kill()
        child.wait()
        assert child.stderr is not None
        child.stderr.close()


def value(url: str, promql: str) -> float | None:
    with urllib.request.urlopen(f"{url}/api/v1/query?{urllib.parse.urlencode({'query': promql})}", timeout=10) as got:
        result = json.load(got)["data"]["result"]
    return float(result[0]["value"][1]) if result else None


def test_a_killed_store_answers_from_disk_at_once_and_ends_cleanly_when_told(tmp_path: Path) -> None:
    target = Exposing(b"# HELP a Seven.\n# TYPE a gauge\na 7\n")
    with listening(target) as address:
        with serving(address, tmp_path) as (child, url):
            eventually(lambda: (value(url, "count_over_time(a[1h])") or 0) >= 5)
            before = value(url, "count_over_time(a[1h])") or 0
            child.send_signal(signal.SIGKILL)
            child.wait()
        target.behaviour = lambda connection, request: connection.shutdown(socket.SHUT_RDWR)
        with serving(address, tmp_path) as (child, url):
            assert (value(url, "count_over_time(a[1h])") or 0) >= before
            child.send_signal(signal.SIGTERM)
            assert child.wait(15) == 0
    assert json.loads((tmp_path / "metadata.json").read_text())["a"]["help"] == "Seven."


def test_an_interrupt_ends_it_too(tmp_path: Path) -> None:
    with listening(Exposing(b"a 7\n")) as address, serving(address, tmp_path) as (child, url):
        eventually(lambda: value(url, "a") == 7)
        child.send_signal(signal.SIGINT)
        assert child.wait(15) == 0


def test_a_taken_port_is_one_line_before_anything_is_scraped() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(ServerError, match=r"cannot listen on .*--port"),
    ):
        bound_socket("127.0.0.1", taken.getsockname()[1])


def test_wrong_targets_leave_nothing_behind(tmp_path: Path) -> None:
    from collectors.store.server import serve_store

    for _ in range(2):
        with pytest.raises(TargetsError, match="has no valid port"):
            serve_store("a:x", port=free_port(), data_dir=tmp_path)


def test_starting_is_quick_enough_to_watch() -> None:
    began = time.monotonic()
    code = "import collectors.store.server, sys; print([m for m in ('pandas', 'pyarrow', 'streamlit') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, env=dict(os.environ))
    assert done.stdout.strip() == "[]", done.stderr
    assert time.monotonic() - began < 20
