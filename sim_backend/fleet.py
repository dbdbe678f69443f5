"""Real time: N replicas on loopback ports, the load inside, one control port; until SIGINT or SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim_backend.cluster import Cluster
from sim_backend.live import LiveFleet
from sim_backend.scenario import Scenario, ScenarioError, load_scenario

HOST = "127.0.0.1"
PORTS_TRIED = 2000
WATCH_SECONDS = 0.25
"""How often a replica's state is compared with whether its port listens."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the fleet listens."""

    replicas: tuple[str, ...]
    control: str


def listening_socket(wanted: int, taken: Sequence[int] = ()) -> socket.socket:
    """A listening loopback socket on `wanted` or the next free port after it; 0 lets the system choose. Raises ScenarioError."""
    for port in range(wanted, min(wanted + PORTS_TRIED, 65536)) if wanted else (0,):
        if port in taken:
            continue
        probe = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen(128)
        except OSError:
            probe.close()
            continue
        return probe
    raise ScenarioError(f"no free port from {wanted} on. Choose another with --port")


def serve(
    scenario: str | Scenario = "demo",
    replicas: int | None = None,
    port: int = 8000,
    *,
    seed: int = 1,
    targets_file: Path | None = None,
    control_port: int | None = None,
    keys: dict[str, str] | None = None,
    say: Callable[[str], None] | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM. Replica i listens on `port + i` (the next free one when taken; 0: any), the control face after them.

    Writes `targets_file` (Prometheus file_sd JSON) when all listen. `keys` maps API keys to tenants (default: the scenario's). Raises ScenarioError.
    """
    chosen = scenario if isinstance(scenario, Scenario) else load_scenario(scenario)
    tell = say or (lambda line: print(line, file=sys.stderr, flush=True))
    asyncio.run(_serve(chosen, replicas, port, seed, targets_file, control_port, keys or {}, tell))


async def _serve(
    scenario: Scenario,
    replicas: int | None,
    port: int,
    seed: int,
    targets_file: Path | None,
    control_port: int | None,
    keys: dict[str, str],
    tell: Callable[[str], None],
) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    async with running_fleet(scenario, replicas, port, seed=seed, control_port=control_port, keys=keys) as (_, where):
        for index, address in enumerate(where.replicas):
            moved = "" if not port or address.endswith(f":{port + index}") else f" ({port + index} is taken)"
            tell(f"replica {index}: http://{address}{moved}")
        tell(f"control: http://{where.control}/state")
        if targets_file is not None:
            write_targets(targets_file, where)
        await stopping.wait()
    tell("stopped")


def write_targets(path: Path, where: Addresses) -> None:
    """file_sd JSON, replaced in one move so that a reader never sees half of it."""
    content = json.dumps([{"targets": list(where.replicas), "labels": {"job": "vllm"}}], indent=1)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(content + "\n", encoding="utf-8")
    partial.replace(path)


@contextlib.asynccontextmanager
async def running_fleet(
    scenario: Scenario,
    replicas: int | None = None,
    port: int = 0,
    *,
    seed: int = 1,
    control_port: int | None = None,
    keys: dict[str, str] | None = None,
) -> Any:
    """A live fleet inside the current loop: yields (LiveFleet, Addresses); everything is closed at the end."""
    from sim_backend.control import control_app
    from sim_backend.server import replica_app

    count = replicas if replicas is not None else scenario.fleet.replicas
    sockets: list[socket.socket] = []
    try:
        for index in range(count):
            sockets.append(listening_socket(port + index if port else 0, [item.getsockname()[1] for item in sockets]))
        ports = [item.getsockname()[1] for item in sockets]
        wanted = control_port if control_port is not None else (port + count if port else 0)
        control_socket = listening_socket(wanted, ports)
    except ScenarioError:
        for item in sockets:
            item.close()
        raise
    where = Addresses(tuple(f"{HOST}:{number}" for number in ports), f"{HOST}:{control_socket.getsockname()[1]}")
    cluster = Cluster(
        scenario, seed=seed, replicas=count, instances=where.replicas, epoch_seconds=time.time(), paced=True
    )
    live = LiveFleet(cluster, time.monotonic)
    doors = [
        Door(
            replica_app(live, index, control_url=f"http://{where.control}", keys=keys or scenario.fleet.keys),
            sockets[index],
            ports[index],
        )
        for index in range(count)
    ]
    control = Door(control_app(live), control_socket, control_socket.getsockname()[1])
    for door in (*doors, control):
        await door.open()
    tasks = [asyncio.create_task(live.drive()), asyncio.create_task(_watch(live, doors))]
    try:
        yield live, where
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for replica in cluster.replicas:  # open streams end with an error, so that nothing has to be cut off
            if replica.state != "down":
                replica.crash(live.now())
        await asyncio.gather(*(door.close() for door in (*doors, control)))


async def _watch(live: LiveFleet, doors: list[Door]) -> None:
    """A replica that is down does not listen; one that came back listens again on its port."""
    while True:
        for door, replica in zip(doors, live.cluster.replicas, strict=True):
            if replica.state == "down" and door.is_open:
                await door.close()
            elif replica.state != "down" and not door.is_open:
                await door.open()
        await asyncio.sleep(WATCH_SECONDS)


class Door:
    """One uvicorn server on one port that can be shut and opened again."""

    def __init__(self, app: Any, ready: socket.socket | None, port: int) -> None:
        self._app = app
        self._socket = ready
        self._port = port
        self._server: Any = None
        self._task: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        return self._task is not None

    async def open(self) -> None:
        import uvicorn

        if self._task is not None:
            return
        ready = self._socket or _bind_again(self._port)
        if ready is None:
            return
        self._socket = None
        config = uvicorn.Config(
            self._app,
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
            ws="none",
            server_header=True,
        )
        self._server = _quiet_server(config)
        self._task = asyncio.create_task(self._server.serve(sockets=[ready]))
        while not self._server.started and not self._task.done():
            await asyncio.sleep(0.005)

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is None:
            return
        self._server.should_exit = True
        await asyncio.gather(task, return_exceptions=True)


def _bind_again(port: int) -> socket.socket | None:
    try:
        found = listening_socket(port)
    except ScenarioError:
        return None
    if found.getsockname()[1] == port:
        return found
    found.close()
    return None


def _quiet_server(config: Any) -> Any:
    """A uvicorn server that leaves the signals to us."""
    import uvicorn

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    return Server(config)
