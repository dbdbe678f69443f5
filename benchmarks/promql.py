"""Queries: the embedded engine beside Debian's Prometheus on the same samples in the same run, both over HTTP.

    python benchmarks/promql.py [--passes 7] [--growth]

Prints one JSON line; every `*_ratio` is Prometheus's time over ours (above 1: we are faster), medians of interleaved passes. Each pass
asks another window (its end slides by a second), so that no answer is a remembered one.
  fleet_p99_ratio     histogram_quantile over 16 replicas x 22 buckets, 6 h at 5 s, 360 steps
  refresh_ratio       the 27 range queries of one refresh of vLLM's own dashboard, 64 replicas, 1 h, step 15 s, one after the other
  refresh_wide_ratio  the same, six at a time as a browser asks
  worst_query_ms      the query in which we lose most (negative: we win every one)
  first_*_ratio       the very first pass, with nothing decoded or remembered
--growth adds how the fleet p99 grows with replicas (1 h) and with range (16 replicas): milliseconds on both sides.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import http.client
import json
import statistics
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.fleet_samples import END_SECONDS, shared_module, write_to_prometheus  # noqa: E402
from tests.collectors.store.real_prometheus import RealPrometheus, free_port  # noqa: E402

P99 = "histogram_quantile(0.99, sum by(le) (rate(vllm:time_to_first_token_seconds_bucket[1m])))"
BUCKETS = "time_to_first_token_seconds_bucket"
Query = tuple[str, int, int]  # text, window, step (seconds)


class Asked:
    """One server, asked over kept-alive connections, one per thread."""

    def __init__(self, url: str) -> None:
        self._address = url.removeprefix("http://")
        self._local = threading.local()

    def seconds(self, query: Query, back_seconds: float) -> float:
        """Time of one range query whose window ends `back_seconds` before the data does. Raises when it fails."""
        text, window, step = query
        end = END_SECONDS - back_seconds
        body = urllib.parse.urlencode({"query": text, "start": end - window, "end": end, "step": step})
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = http.client.HTTPConnection(self._address, timeout=120)
        begun = time.perf_counter()
        connection.request("POST", "/api/v1/query_range", body, {"Content-Type": "application/x-www-form-urlencoded"})
        answer = connection.getresponse()
        data = answer.read()
        taken = time.perf_counter() - begun
        if answer.status != 200 or b'"result":[{' not in data:
            raise SystemExit(f"{self._address} answers {answer.status}: {data[:200]!r} to {text}")
        return taken


@contextmanager
def both(replicas: int, hours: float, only: str = "") -> Iterator[tuple[Asked, Asked]]:
    """(ours, Prometheus), serving the same fleet."""
    port = free_port()
    command = [sys.executable, str(ROOT / "benchmarks/fleet_samples.py"), "--port", str(port), "--replicas", str(replicas),
               "--hours", str(hours), "--only", only]  # fmt: skip
    with RealPrometheus("prometheus") as server, subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as ours:
        try:
            write_to_prometheus(server.url, replicas, hours, only)
            assert ours.stdout is not None
            if not ours.stdout.readline().startswith("ready"):
                raise SystemExit("the store did not start")
            yield Asked(f"http://127.0.0.1:{port}"), Asked(server.url)
        finally:
            ours.terminate()


def passes(
    sides: tuple[Asked, Asked], queries: Sequence[Query], count: int, workers: int = 1
) -> list[list[list[float]]]:
    """[side][pass][query] in seconds (with workers, [side][pass] holds the wall time of the whole pass)."""
    taken: list[list[list[float]]] = [[], []]
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        for number in range(count):
            for side, asked in enumerate(sides):
                begun = time.perf_counter()
                back = 60.0 + number + workers * 100
                times = list(pool.map(lambda q, asked=asked, back=back: asked.seconds(q, back), queries))
                taken[side].append(times if workers == 1 else [time.perf_counter() - begun])
    return taken


def total(times: list[list[float]]) -> float:
    return statistics.median(sum(one) for one in times)


def growth(count: int) -> dict[str, list[list[float]]]:
    """[replicas or minutes, our ms, Prometheus's ms] rows."""
    out: dict[str, list[list[float]]] = {"replicas": [], "range_minutes": []}
    for replicas in (4, 16, 64, 256):
        with both(replicas, 1.05, BUCKETS) as sides:
            ours, theirs = passes(sides, [(P99, 3600, 10)], count)
            out["replicas"].append([replicas, round(1e3 * total(ours), 2), round(1e3 * total(theirs), 2)])
    with both(16, 24.1, BUCKETS) as sides:
        for minutes in (15, 60, 180, 360, 720, 1440):
            ours, theirs = passes(sides, [(P99, 60 * minutes, max(1, minutes // 6))], count)
            out["range_minutes"].append([minutes, round(1e3 * total(ours), 2), round(1e3 * total(theirs), 2)])
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--passes", type=int, default=7)
    parser.add_argument("--growth", action="store_true")
    options = parser.parse_args()
    report: dict[str, object] = {}
    with both(16, 6.1, BUCKETS) as sides:
        ours, theirs = passes(sides, [(P99, 6 * 3600, 60)], options.passes)
        report["fleet_p99_ms"] = [round(1e3 * total(x), 2) for x in (ours, theirs)]
        report["fleet_p99_ratio"] = round(total(theirs) / total(ours), 2)
        report["first_fleet_p99_ratio"] = round(sum(theirs[0]) / sum(ours[0]), 2)
    texts = shared_module("refresh_anchor").expressions("demo/model-8b", "1m", "vllm:time_per_output_token_seconds")
    refresh: list[Query] = [(text, 3600, 15) for text in texts]
    with both(64, 1.1) as sides:
        ours, theirs = passes(sides, refresh, options.passes)
        report["refresh_ms"] = [round(1e3 * total(x), 1) for x in (ours, theirs)]
        report["refresh_ratio"] = round(total(theirs) / total(ours), 2)
        report["first_refresh_ratio"] = round(sum(theirs[0]) / sum(ours[0]), 2)
        lost = [
            statistics.median(p[i] for p in ours) - statistics.median(p[i] for p in theirs) for i in range(len(refresh))
        ]
        report["worst_query_ms"] = round(1e3 * max(lost), 2)
        report["worst_query"] = refresh[lost.index(max(lost))][0]
        ours, theirs = passes(sides, refresh, options.passes, workers=6)
        report["refresh_wide_ms"] = [round(1e3 * total(x), 1) for x in (ours, theirs)]
        report["refresh_wide_ratio"] = round(total(theirs) / total(ours), 2)
    if options.growth:
        report["growth_ms"] = growth(options.passes)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
