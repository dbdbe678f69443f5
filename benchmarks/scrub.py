"""Moving the cursor of a replay, against the time a real Prometheus takes for the same queries on the same samples.

    python benchmarks/scrub.py [--replicas 64] [--hours 1] [--range-minutes 60] [--moves 8] [--folder DIR]

Prints one JSON line. A cursor move is everything that the Fleet page shows of another instant, computed in this process: `fleet_picture` (the
range that the console takes for such a file, 1 h) and `diagnose` (the states in its table and strip, its doubts and marks). Nothing else is asked
when a cursor moves; figures drawn of it are not in it. "The same queries" are those that these two put to the source, noted as they are put.
  move_seconds         median over moves to instants spread over its second half (warm: the metrics a page needs are in memory)
  first_seconds        the first move after opening, which reads them from the file
  prometheus_seconds   Debian's Prometheus answers every query of that move, six at a time, bodies received and not decoded; median, interleaved
  move_ratio           move_seconds / prometheus_seconds; target: at most 0.2
  cpu_ratio            the same of CPU: this process's for the moves / the server's for the queries; steadier where other work shares the machine
                       (wall time favours the server there: six threads of it wait for a core, one of ours does)
  picture_*, diagnosis_*   the two parts of it, each against its own queries; the judging, which no server does, is inside ours
  sequential_ratio     move_seconds / the same queries one after the other on one connection
  console_ratio        move_seconds / the same page data made from that Prometheus by the remote source
  play_x60             cursor positions shown per refresh (every 5 s of wall time at x60 = 5 min of recording): how much of a refresh
                       the slowest of ten moves in a row takes; under 1 it keeps up with its clock
With --folder the incident file and Prometheus' data are kept there and taken again.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import sys
import tempfile
import threading
import time
import urllib.parse
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import cast

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.fleet_refresh import cpu_seconds  # noqa: E402
from benchmarks.fleet_samples import fleet, write_to_prometheus  # noqa: E402
from collectors.asking import AT_ONCE  # noqa: E402
from collectors.capsule import CapsuleSource, read_capsule, write_capsule  # noqa: E402
from collectors.capsule.facts import FactCollector, engine_facts  # noqa: E402
from collectors.capsule.manifest import Manifest  # noqa: E402
from collectors.fleet import fleet_picture  # noqa: E402
from collectors.model import Frame, Labels, Samples, Vector, Window  # noqa: E402
from collectors.prometheus import RemoteSource  # noqa: E402
from collectors.settings import Settings, SourceSettings  # noqa: E402
from collectors.source import Source  # noqa: E402
from collectors.strips import Strips, strips_of  # noqa: E402
from runbooks.diagnosis import diagnose  # noqa: E402
from tests.collectors.store.real_prometheus import RealPrometheus, binary_or_skip  # noqa: E402

STEP_MS = 15_000
REFRESH_SECONDS = 5.0
SPEED = 60
PLAYED = 10
SETTINGS = Settings()


@dataclass(frozen=True)
class Request:
    """One request of the Prometheus query API."""

    path: str
    form: str


class Noted:
    """A source that notes, as requests, what it is asked."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.requests: list[Request] = []

    def _note(self, path: str, **form: object) -> None:
        self.requests.append(Request(path, urllib.parse.urlencode(form, doseq=True)))

    def instant(self, promql: str, at_ms: int) -> Vector:
        self._note("query", query=promql, time=at_ms / 1000)
        return self._source.instant(promql, at_ms)

    def range(self, promql: str, window: Window) -> Frame:
        self._note(
            "query_range",
            query=promql,
            start=window.start_ms / 1000,
            end=window.end_ms / 1000,
            step=window.step_ms / 1000,
        )
        return self._source.range(promql, window)

    def samples(self, selector: str, start_ms: int, end_ms: int) -> list[Samples]:
        self._note("query", query=f"{selector}[{end_ms - start_ms}ms]", time=end_ms / 1000)
        return self._source.samples(selector, start_ms, end_ms)

    def strips(self, selector: str, start_ms: int, end_ms: int) -> Strips:
        self._note("query", query=f"{selector}[{end_ms - start_ms}ms]", time=end_ms / 1000)
        return strips_of(self._source, selector, start_ms, end_ms)

    def series(self, matchers: list[str], start_ms: int, end_ms: int) -> list[Labels]:
        self._note("series", **{"match[]": matchers, "start": start_ms / 1000, "end": end_ms / 1000})
        return self._source.series(matchers, start_ms, end_ms)

    def __getattr__(self, name: str) -> object:
        return getattr(self._source, name)


class Asker:
    """Kept-alive connections, one for each of the threads that ask at once."""

    def __init__(self, url: str) -> None:
        self._host = url.removeprefix("http://")
        self._local = threading.local()
        self._pool = ThreadPoolExecutor(AT_ONCE)

    def all(self, requests: list[Request]) -> int:
        """Bytes of all answers."""
        return sum(self._pool.map(self.one, requests))

    def one(self, request: Request) -> int:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = http.client.HTTPConnection(self._host, timeout=120)
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        connection.request("POST", f"/api/v1/{request.path}", request.form, form)
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise SystemExit(f"{request}: {body[:300]!r}")
        return len(body)


def make_capsule(path: Path, replicas: int, hours: float) -> None:
    """The shared fleet generator's samples as an incident file."""
    facts = FactCollector()

    def passing() -> Iterator[Samples]:
        for _, times, labels, values in fleet(replicas, hours):
            for one, row in zip(labels, values, strict=True):
                each = Samples(one, times, row)
                facts.see(each)
                yield each

    manifest = Manifest.model_validate({"engine": engine_facts("", frozenset()).model_dump()})
    write_capsule(path, manifest, passing(), finish=lambda made: made.model_copy(update=facts.fields({})))


def pictured(source: Source, at_ms: int, range_ms: int) -> float:
    """Seconds of wall time for the Fleet page's picture at an instant."""
    began = time.perf_counter()
    fleet_picture(source, Window(at_ms - range_ms, at_ms, STEP_MS), SETTINGS)
    return time.perf_counter() - began


def diagnosed(source: Source, at_ms: int) -> float:
    """Seconds of wall time for the diagnosis of an instant."""
    began = time.perf_counter()
    diagnose(source, at_ms, SETTINGS)
    return time.perf_counter() - began


def moved(source: Source, at_ms: int, range_ms: int) -> float:
    """Seconds of wall time for the page data at an instant."""
    return pictured(source, at_ms, range_ms) + diagnosed(source, at_ms)


def requests_of(source: Source, at_ms: int, range_ms: int) -> tuple[list[Request], list[Request]]:
    """What the picture asks at an instant, and what the diagnosis asks."""
    noted = Noted(source)
    pictured(cast(Source, noted), at_ms, range_ms)
    count = len(noted.requests)
    diagnosed(cast(Source, noted), at_ms)
    return noted.requests[:count], noted.requests[count:]


def measure(folder: Path, replicas: int, hours: float, range_ms: int, moves: int) -> dict[str, object]:
    path = folder / f"scrub-{replicas}-{hours:g}.capsule"
    data = folder / f"scrub-{replicas}-{hours:g}-prometheus"
    if not path.exists():
        make_capsule(path, replicas, hours)
    began = time.perf_counter()
    capsule = read_capsule(path)
    source = CapsuleSource(capsule)
    start_ms, end_ms = capsule.manifest.window.start_ms, capsule.manifest.window.end_ms
    middle_ms = (start_ms + end_ms) // 2
    room_ms = end_ms - 2 * moves * 1000 - middle_ms
    first = moved(source, end_ms - 1000, range_ms)
    opened = time.perf_counter() - began

    taken: dict[str, list[float]] = defaultdict(list)
    fresh = not data.exists()
    with RealPrometheus(binary_or_skip("prometheus"), str(data)) as server:
        if fresh:
            write_to_prometheus(server.url, replicas, hours)
        remote = RemoteSource.from_settings(SourceSettings(name="bench", url=server.url, timeout_seconds=120))
        asker = Asker(server.url)
        for number in range(moves):
            # to and fro, as a hand drags it; every instant once
            share = (number * 5 % moves) / max(1, moves - 1)
            at_ms = middle_ms + round(share * room_ms) + number * 1000
            picture, diagnosis = requests_of(source, at_ms + 500, range_ms)
            requests_of(source, at_ms - 500, range_ms)  # nothing that is timed was asked just before
            began = time.process_time()
            taken["picture"].append(pictured(source, at_ms, range_ms))
            taken["diagnosis"].append(diagnosed(source, at_ms))
            taken["cpu"].append(time.process_time() - began)
            taken["move"].append(taken["picture"][-1] + taken["diagnosis"][-1])
            size, used = 0, cpu_seconds(server.pid)
            for name, requests in (("their_picture", picture), ("their_diagnosis", diagnosis)):
                began = time.perf_counter()
                size += asker.all(requests)
                taken[name].append(time.perf_counter() - began)
            taken["their_cpu"].append(cpu_seconds(server.pid) - used)
            taken["prometheus"].append(taken["their_picture"][-1] + taken["their_diagnosis"][-1])
            again = requests_of(source, at_ms + 250, range_ms)
            began = time.perf_counter()
            for request in (*again[0], *again[1]):
                asker.one(request)
            taken["sequential"].append(time.perf_counter() - began)
            taken["console"].append(moved(remote, at_ms, range_ms))
        remote.close()
    step_ms = round(REFRESH_SECONDS * SPEED * 1000)
    played = [moved(source, end_ms - (PLAYED - n) * step_ms, range_ms) for n in range(PLAYED)]
    middle = {name: statistics.median(values) for name, values in taken.items()}
    return {
        "benchmark": "scrub",
        "replicas": replicas,
        "hours": hours,
        "series": capsule.manifest.body.series,
        "samples": capsule.manifest.body.samples,
        "file_bytes": path.stat().st_size,
        "opened_seconds": round(opened, 3),
        "first_seconds": round(first, 3),
        "move_seconds": round(middle["move"], 4),
        "prometheus_seconds": round(middle["prometheus"], 4),
        "queries": [len(picture), len(diagnosis)],
        "answer_bytes": size,
        "move_ratio": round(middle["move"] / middle["prometheus"], 3),
        "move_cpu_seconds": round(middle["cpu"], 4),
        "prometheus_cpu_seconds": round(middle["their_cpu"], 4),
        "cpu_ratio": round(middle["cpu"] / middle["their_cpu"], 3),
        "picture_seconds": round(middle["picture"], 4),
        "picture_ratio": round(middle["picture"] / middle["their_picture"], 3),
        "diagnosis_seconds": round(middle["diagnosis"], 4),
        "diagnosis_ratio": round(middle["diagnosis"] / middle["their_diagnosis"], 3),
        "sequential_ratio": round(middle["move"] / middle["sequential"], 3),
        "console_ratio": round(middle["move"] / middle["console"], 3),
        "play_x60": round(max(played) / REFRESH_SECONDS, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--replicas", type=int, default=64)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--range-minutes", type=float, default=60.0)
    parser.add_argument("--moves", type=int, default=8)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    range_ms = round(options.range_minutes * 60_000)
    with tempfile.TemporaryDirectory(prefix="pagewatch-scrub-") as own:
        folder = options.folder or Path(own)
        folder.mkdir(parents=True, exist_ok=True)
        print(json.dumps(measure(folder, options.replicas, options.hours, range_ms, options.moves)))


if __name__ == "__main__":
    main()
