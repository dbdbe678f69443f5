"""Real Prometheus, VictoriaMetrics and promtool for tests: found, started on loopback ports of their own, ended by their own pid."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

START_SECONDS = 30.0


def program(name: str) -> str:
    """Path of a system program; without it the test is skipped with the reason, or fails under CI."""
    found = shutil.which(name)
    if found is None:
        if os.environ.get("CI"):
            pytest.fail(f"{name} is not installed; CI needs it")
        pytest.skip(f"{name} is not installed")
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(url: str, timeout_seconds: float = 2.0) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=timeout_seconds) as response:
            return bool(response.status < 300)
    except (urllib.error.URLError, OSError):
        return False


@contextmanager
def running(command: list[str], ready_url: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A server process that answers `ready_url`; ended, then killed, by its own pid."""
    with open(log, "wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not answers(ready_url):
            if process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"{command[0]} did not start: {log.read_text(errors='replace')[-1500:]}")
            time.sleep(0.05)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def prometheus(folder: Path, *extra: str, config: str = "scrape_configs: []\n") -> Iterator[str]:
    """The address of a Prometheus on the data in `folder` (kept for a hundred years, so that old incidents stay)."""
    port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    configuration = folder.parent / f"{folder.name}.yml"
    configuration.write_text(config, encoding="utf-8")
    command = [
        program("prometheus"),
        f"--config.file={configuration}",
        f"--storage.tsdb.path={folder}",
        "--storage.tsdb.retention.time=100y",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
        *extra,
    ]
    prefix = next((arg.partition("=")[2] for arg in extra if arg.startswith("--web.route-prefix=")), "")
    with running(command, f"http://127.0.0.1:{port}{prefix}/-/ready", folder.parent / f"{folder.name}.log"):
        yield f"http://127.0.0.1:{port}{prefix}"


@contextmanager
def victoria_metrics(folder: Path, *extra: str, latency_offset: str = "1ms") -> Iterator[str]:
    """The address of a VictoriaMetrics whose data lie in `folder`; by default it would hide the last 30 s."""
    port = free_port()
    command = [
        program("victoria-metrics"),
        f"-storageDataPath={folder}",
        f"-httpListenAddr=127.0.0.1:{port}",
        "-retentionPeriod=100y",
        f"-search.latencyOffset={latency_offset}",
        "-loggerLevel=WARN",
        *extra,
    ]
    with running(command, f"http://127.0.0.1:{port}/health", folder.parent / f"{folder.name}.log"):
        yield f"http://127.0.0.1:{port}"


def import_lines(address: str, lines: bytes) -> None:
    """Give series lines to a VictoriaMetrics and make them visible."""
    for path, body in (("/api/v1/import", lines), ("/internal/force_flush", b"")):
        request = urllib.request.Request(address + path, data=body or None, method="POST" if body else "GET")
        with urllib.request.urlopen(request, timeout=30) as response:
            assert response.status in (200, 204)


def backfill(openmetrics: Path, folder: Path) -> None:
    """Make Prometheus blocks from an OpenMetrics text."""
    done = subprocess.run(
        [program("promtool"), "tsdb", "create-blocks-from", "openmetrics", str(openmetrics), str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
