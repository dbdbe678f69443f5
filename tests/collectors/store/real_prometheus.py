"""A Prometheus of the system, started empty on a free port and ended by its own process."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

import pytest


def binary_or_skip(name: str) -> str:
    """The path of a system binary; without it the test is skipped with the reason, or fails under CI."""
    found = shutil.which(name)
    if found is None:
        reason = f"{name} is not installed (apt-get install prometheus)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RealPrometheus:
    """`with RealPrometheus(binary) as server:` answers at `server.url`; data in `data_dir` when one is given."""

    def __init__(self, binary: str, data_dir: str | None = None) -> None:
        self._binary = binary
        self._own = tempfile.mkdtemp(prefix="pagewatch-prometheus-")
        self._data = data_dir or os.path.join(self._own, "data")
        self.url = f"http://127.0.0.1:{free_port()}"

    def __enter__(self) -> RealPrometheus:
        config = os.path.join(self._own, "prometheus.yml")
        with open(config, "w") as file:
            file.write("global: {}\n")
        with open(os.path.join(self._own, "log"), "w") as log:
            self._process = subprocess.Popen(
                [
                    self._binary,
                    f"--config.file={config}",
                    f"--storage.tsdb.path={self._data}",
                    f"--web.listen-address={self.url.removeprefix('http://')}",
                    "--web.enable-remote-write-receiver",
                    "--storage.tsdb.retention.time=100y",
                    "--log.level=error",
                ],
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        deadline = time.monotonic() + 60
        while True:
            if self._process.poll() is not None:
                with open(os.path.join(self._own, "log")) as log:
                    raise RuntimeError(f"prometheus ended: {log.read()[-500:]}")
            try:
                urllib.request.urlopen(f"{self.url}/-/ready", timeout=2).read()
                return self
            except OSError:
                if time.monotonic() > deadline:
                    self.__exit__()
                    raise
                time.sleep(0.05)

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._own, ignore_errors=True)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, path: str, **parameters: str) -> tuple[int, dict[str, Any]]:
        """Status and JSON body of one API request."""
        body = urllib.parse.urlencode(parameters).encode()
        try:
            with urllib.request.urlopen(f"{self.url}{path}", body, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as refused:
            return refused.code, json.loads(refused.read())
