"""`pagewatch demo`: a simulated fleet, the embedded store and the console as three children of one process.

The children talk to each other over HTTP only, exactly as a real fleet, a real Prometheus and this console would. Each child holds the read
end of a pipe whose write end lives in this process: when this process ends, however it ends, the pipe closes and the child stops itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

LIFELINE = "PAGEWATCH_LIFELINE_FD"
START_SECONDS = 120.0
GRACE_SECONDS = 8.0
FOLDER_PREFIX = "pagewatch-demo-"
OWNER = "owner"
"""A file that the demo holds locked while it runs."""


def hold_lifeline(environment: dict[str, str]) -> None:
    """In a child: end this process when the parent is gone. Does nothing when there is no lifeline."""
    text = environment.get(LIFELINE, "")
    if not text.isdigit():
        return
    descriptor = int(text)

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(descriptor, 1):
                pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


def free_port(wanted: int, count: int = 1, taken: Sequence[int] = ()) -> int:
    """The first port from `wanted` on where `count` consecutive loopback ports are free; OSError when there is none."""
    for first in range(wanted, min(wanted + 2000, 65536 - count)):
        if all(port not in taken and _is_free(port) for port in range(first, first + count)):
            return first
    raise OSError(f"no {count} free ports in a row from {wanted} to {wanted + 2000}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    with socket.socket() as probe:  # a server on all interfaces does not stop the bind above everywhere
        probe.settimeout(0.2)
        return probe.connect_ex(("127.0.0.1", port)) != 0


class DemoStopped(Exception):
    """A child ended, or the operator pressed Ctrl-C, before everything was up."""


class Family:
    """The children of the demo, started in order and ended together by their own pids."""

    def __init__(self, log_folder: Path, say: Callable[[str], None]) -> None:
        self._log_folder = log_folder
        self._say = say
        self._children: list[tuple[str, subprocess.Popen[bytes]]] = []
        self._lifeline_read, self._lifeline_write = os.pipe()
        self.stopping = threading.Event()

    def start(self, name: str, arguments: Sequence[str], **more_environment: str) -> None:
        log = (self._log_folder / f"{name}.log").open("wb")
        with log:
            child = subprocess.Popen(
                [sys.executable, "-m", "cli", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[self._lifeline_read],
                env={**os.environ, LIFELINE: str(self._lifeline_read), "PYTHONUNBUFFERED": "1", **more_environment},
                cwd=Path(__file__).resolve().parent,
                start_new_session=True,  # Ctrl-C reaches this process only, which then ends the children in order
            )
        self._children.append((name, child))

    def await_http(self, url: str, what: str) -> None:
        """Until `url` answers 200; DemoStopped when a child ends or the time is up."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            ended = self.ended()
            if ended or self.stopping.is_set():
                raise DemoStopped(f"{ended or 'start'} ended before {what} was up")
            try:
                with urllib.request.urlopen(url, timeout=2) as answer:
                    if answer.status == 200:
                        return
            except (urllib.error.URLError, OSError):
                pass
            self.stopping.wait(0.15)
        raise DemoStopped(f"{what} did not answer within {START_SECONDS:.0f} s")

    def ended(self) -> str | None:
        """Name of the first child that is no longer running."""
        return next((name for name, child in self._children if child.poll() is not None), None)

    def last_lines(self, name: str, count: int = 5) -> list[str]:
        text = (self._log_folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")
        return text.strip().splitlines()[-count:]

    def stop(self) -> None:
        for _, child in reversed(self._children):
            if child.poll() is None:
                child.terminate()
        deadline = time.monotonic() + GRACE_SECONDS
        for _, child in reversed(self._children):
            try:
                child.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        os.close(self._lifeline_write)
        os.close(self._lifeline_read)


@contextlib.contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Marks a folder as in use for as long as this process lives: the kernel drops the lock however it ends."""
    with (folder / OWNER).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def remove_abandoned(place: Path) -> list[Path]:
    """Remove the folders of demos that were killed before they could clean up; those removed. One that is in use, or another user's, stays."""
    removed = []
    for folder in sorted(place.glob(f"{FOLDER_PREFIX}*")):
        try:
            mine = not folder.is_symlink() and folder.stat().st_uid == os.getuid()
            if not mine:
                continue
            with (folder / OWNER).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # in use, without a mark (just being made), or gone meanwhile
            continue
        removed.append(folder)
    return removed


def run_demo(*, replicas: int, scenario: str, port: int, say: Callable[[str], None] | None = None) -> int:
    """Runs until Ctrl-C, SIGTERM or the end of a child. Returns the exit code: 0 after a wanted stop, 1 when a child ended by itself."""
    tell = say or (lambda line: print(line, flush=True))
    remove_abandoned(Path(tempfile.gettempdir()))
    with (
        tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX, ignore_cleanup_errors=True) as folder,
        owned(Path(folder)),
    ):
        family = Family(Path(folder), tell)

        def stop(number: int, frame: FrameType | None) -> None:
            family.stopping.set()

        previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            return _run(family, Path(folder), replicas, scenario, port, tell)
        except OSError as error:
            tell(f"pagewatch demo: {error}. Close what uses those ports, or choose another with --port")
            return 1
        finally:
            family.stop()
            for number, handler in previous.items():
                signal.signal(number, handler)


def _run(family: Family, folder: Path, replicas: int, scenario: str, port: int, tell: Callable[[str], None]) -> int:
    targets = folder / "targets.json"
    console_port = free_port(port)
    if console_port != port:
        tell(f"port {port} is taken, the console will be on {console_port}")
    replica_port = free_port(8000, replicas + 1, taken=[console_port])
    replica_ports = range(replica_port, replica_port + replicas + 1)
    control_port = replica_ports[-1]
    store_port = free_port(9090, taken=[console_port, *replica_ports])
    try:
        tell(
            f"1/3 starting {replicas} simulated vLLM {'replica' if replicas == 1 else 'replicas'} (scenario {scenario}) on 127.0.0.1:{replica_port} ..."
        )
        family.start(
            "simulator",
            [
                "sim",
                "serve",
                "--scenario",
                scenario,
                "--replicas",
                str(replicas),
                "--port",
                str(replica_port),
                "--control-port",
                str(control_port),
                "--targets-file",
                str(targets),
            ],
        )
        _await_file(family, targets)
        first = json.loads(targets.read_text())[0]["targets"][0]
        family.await_http(f"http://{first}/health", "the simulator")
        tell(f"2/3 starting the store on 127.0.0.1:{store_port} ...")
        family.start(
            "store",
            [
                "store",
                "serve",
                "--targets",
                str(targets),
                "--port",
                str(store_port),
                "--data",
                str(folder / "data"),
                "--interval",
                "2",
            ],
        )
        store_url = f"http://127.0.0.1:{store_port}"
        family.await_http(f"{store_url}/-/ready", "the store")
        tell("3/3 starting the console ...")
        family.start(
            "console",
            ["ui", "--source", store_url, "--port", str(console_port)],
            PAGEWATCH_SIMULATOR=f"http://127.0.0.1:{control_port}",
        )
        family.await_http(f"http://127.0.0.1:{console_port}/healthz", "the console")
    except DemoStopped as reason:
        if family.stopping.is_set():
            tell("stopped")
            return 0
        ended = family.ended()
        tell(f"pagewatch demo: {reason}")
        for line in family.last_lines(ended) if ended else []:
            tell(f"  {ended}: {line}")
        return 1
    tell(
        f"\npagewatch is on  http://127.0.0.1:{console_port}\nthe store is on  {store_url}  (Prometheus API: point Grafana at it)\nCtrl-C stops everything."
    )
    while not family.stopping.wait(0.5):
        ended = family.ended()
        if ended:
            tell(f"pagewatch demo: the {ended} ended; stopping the rest")
            for line in family.last_lines(ended):
                tell(f"  {ended}: {line}")
            return 1
    tell("stopped")
    return 0


def _await_file(family: Family, path: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not path.exists():
        ended = family.ended()
        if ended or family.stopping.is_set() or time.monotonic() > deadline:
            raise DemoStopped(f"{ended or 'start'} ended before the simulator said where its replicas are")
        family.stopping.wait(0.1)
