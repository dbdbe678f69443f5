"""One refresh of the Fleet page against Debian's Prometheus, beside the same numbers asked the usual way and beside vLLM's own dashboard.

    python benchmarks/fleet_refresh.py [--replicas 16 64] [--cpu-replicas 256] [--passes 5]

Prints one JSON line. Per number of replicas (1 h window, step 15 s, scrapes every 5 s):
  seconds, queries       one `fleet_picture` through the remote source: discovery first, the rest six at a time
  usual_ratio            our time / the same figures with one query per quantile, share, count and rate, one after the other
  board_ratio            our time / the 27 range queries of vLLM's own dashboard, one after the other (shared bench)
  sequential_seconds     ours with one query at a time, so that what fewer queries save shows apart from what asking together saves
  cpu_over_json          CPU of a whole refresh in this process / CPU of json.loads on the very same answers
  steady_cpu_over_json   the same without the HTTP client: the picture made from answers already decoded by the source, plus json.loads
  server_cpu_ratio       the server's CPU for ours / for the usual way; the figure to compare where other work shares the machine
Medians of interleaved passes whose end slides by a second each, so that no answer is a remembered one.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import sys
import time
import urllib.parse
from dataclasses import replace
from pathlib import Path
from typing import cast

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import collectors.asking  # noqa: E402
from benchmarks.fleet_samples import END_SECONDS, shared_module, write_to_prometheus  # noqa: E402
from collectors.fleet import fleet_picture  # noqa: E402
from collectors.fleet_picture import FleetPicture  # noqa: E402
from collectors.model import Frame, SourceInfo, Vector, Window  # noqa: E402
from collectors.prometheus import RemoteSource  # noqa: E402
from collectors.settings import Settings, SourceSettings  # noqa: E402
from collectors.source import Source  # noqa: E402
from tests.collectors.store.real_prometheus import RealPrometheus, binary_or_skip  # noqa: E402

WINDOW_SECONDS, STEP_SECONDS = 3600, 15
Query = tuple[str, bool]
"""PromQL, and whether it is a range query."""


class Asked:
    """One kept-alive connection, as a script would use."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=120)

    def body(self, query: Query, end_seconds: float) -> bytes:
        promql, ranged = query
        if ranged:
            path, when = (
                "query_range",
                {"start": end_seconds - WINDOW_SECONDS, "end": end_seconds, "step": STEP_SECONDS},
            )
        else:
            path, when = "query", {"time": end_seconds}
        form = urllib.parse.urlencode({"query": promql, **when})
        self._connection.request("POST", f"/api/v1/{path}", form, {"Content-Type": "application/x-www-form-urlencoded"})
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise SystemExit(f"{promql}: {body[:300]!r}")
        return body


def usual_queries() -> list[Query]:
    """The figures of the Fleet page as dashboards ask them: a query for each quantile, share, count and rate of each panel."""
    first, gap = "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds"
    counters = [
        "vllm:request_success_total",
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
        "vllm:num_preemptions_total",
    ]
    counters += ["vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", f"{first}_count"]
    asked: list[Query] = [
        ("up", False),
        ("process_start_time_seconds", False),
        ("timestamp(vllm:num_requests_running)", False),
    ]
    asked += [
        (f"vllm:{gauge}", True) for gauge in ("num_requests_waiting", "num_requests_running", "kv_cache_usage_perc")
    ]
    asked += [(f"sum(rate({counter}[1m]))", True) for counter in counters]
    asked += [(f"sum by (instance) (rate({counter}[1m]))", False) for counter in counters]
    asked += [
        (f"histogram_quantile({q}, sum by (le) (rate({h}_bucket[1m])))", True)
        for h in (first, gap)
        for q in (0.5, 0.95, 0.99)
    ]
    asked += [(f"sum(rate({h}_count[1m]))", True) for h in (gap,)]
    asked += [
        (f'sum(rate({h}_bucket{{le="{edge}"}}[1m])) / sum(rate({h}_count[1m]))', True)
        for h, edge in ((first, "2.5"), (gap, "0.1"))
    ]
    asked += [(f"histogram_quantile(0.99, sum by (instance, le) (rate({first}_bucket[1m])))", False)]
    asked += [(f"sum(rate({first}_count[1m])) + sum(deriv(vllm:num_requests_waiting[1m]))", True)]
    return asked


def board_queries() -> list[Query]:
    """vLLM's own dashboard, from the shared anchor."""
    module = shared_module("refresh_anchor")
    return [
        (promql, True) for promql in module.expressions("demo/model-8b", "1m", "vllm:time_per_output_token_seconds")
    ]


def refreshed(source: RemoteSource, end_seconds: float) -> tuple[FleetPicture, float, float]:
    """A picture, its wall time and the CPU time of this process."""
    end = round(end_seconds * 1000)
    window = Window(end - WINDOW_SECONDS * 1000, end, STEP_SECONDS * 1000)
    wall, cpu = time.perf_counter(), time.process_time()
    picture = fleet_picture(source, window, Settings())
    return picture, time.perf_counter() - wall, time.process_time() - cpu


def cpu_seconds(pid: int) -> float:
    """User and system CPU of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(replicas: int, passes: int) -> dict[str, float]:
    """All figures for one size of fleet."""
    with RealPrometheus(binary_or_skip("prometheus")) as server:
        write_to_prometheus(server.url, replicas, 1.25)
        source = RemoteSource.from_settings(SourceSettings(name="bench", url=server.url, timeout_seconds=120))
        asked = Asked(server.url)
        times: dict[str, list[float]] = {
            name: [] for name in ("ours", "one", "usual", "board", "cpu", "json", "made", "ours_cpu", "usual_cpu")
        }
        picture, _, _ = refreshed(source, END_SECONDS - 30)
        at_once = collectors.asking.AT_ONCE
        for number in range(passes):
            end = END_SECONDS - 20 + number
            before = cpu_seconds(server.pid)
            picture, wall, cpu = refreshed(source, end)
            times["ours_cpu"].append(cpu_seconds(server.pid) - before)
            times["ours"].append(wall)
            times["cpu"].append(cpu)
            collectors.asking.AT_ONCE = 1
            times["one"].append(refreshed(source, end + 0.25)[1])
            collectors.asking.AT_ONCE = at_once
            for name, queries in (("usual", usual_queries()), ("board", board_queries())):
                started, before = time.perf_counter(), cpu_seconds(server.pid)
                for query in queries:
                    json.loads(asked.body(query, end))
                times[name].append(time.perf_counter() - started)
                if name == "usual":
                    times["usual_cpu"].append(cpu_seconds(server.pid) - before)
            bodies = [asked.body((each.promql, each.kind == "range"), end) for each in picture.asked]
            cpu = time.process_time()
            for body in bodies:
                json.loads(body)
            times["json"].append(time.process_time() - cpu)
            remembering = Remembering(source)
            fleet_picture(cast(Source, remembering), picture.window, Settings())
            remembering.answered = True
            cpu = time.process_time()
            fleet_picture(cast(Source, remembering), picture.window, Settings())
            times["made"].append(time.process_time() - cpu)
        source.close()
    middle = {name: statistics.median(taken) for name, taken in times.items()}
    return {
        "seconds": round(middle["ours"], 4),
        "queries": len(picture.asked),
        "usual_ratio": round(middle["ours"] / middle["usual"], 3),
        "usual_queries": len(usual_queries()),
        "board_ratio": round(middle["ours"] / middle["board"], 3),
        "sequential_seconds": round(middle["one"], 4),
        "sequential_usual_ratio": round(middle["one"] / middle["usual"], 3),
        "server_cpu_ratio": round(statistics.mean(times["ours_cpu"]) / statistics.mean(times["usual_cpu"]), 3),
        "json_bytes": sum(map(len, bodies)),
        "cpu_over_json": round(middle["cpu"] / middle["json"], 2),
        "steady_cpu_over_json": round((middle["made"] + middle["json"]) / middle["json"], 2),
    }


class Remembering:
    """The remote source, remembering what it answered; `answered` then gives it again as decoded: what is left is making the picture."""

    def __init__(self, source: RemoteSource) -> None:
        self._source = source
        self._kept: dict[object, Vector | Frame] = {}
        self.answered = False

    def info(self) -> SourceInfo:
        info = self._source.info()
        return replace(info, kind="store") if self.answered else info

    def instant(self, promql: str, at_ms: int) -> Vector:
        if not self.answered:
            self._kept[promql, at_ms] = self._source.instant(promql, at_ms)
        answer = self._kept[promql, at_ms]
        assert isinstance(answer, Vector)
        return answer

    def range(self, promql: str, window: Window) -> Frame:
        if not self.answered:
            self._kept[promql, window] = self._source.range(promql, window)
        answer = self._kept[promql, window]
        assert isinstance(answer, Frame)
        return answer

    def __getattr__(self, name: str) -> object:
        return getattr(self._source, name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--replicas", type=int, nargs="*", default=[16, 64])
    parser.add_argument("--cpu-replicas", type=int, default=256)
    parser.add_argument("--passes", type=int, default=5)
    options = parser.parse_args()
    sizes = dict.fromkeys([*options.replicas, *([options.cpu_replicas] if options.cpu_replicas else [])])
    told = {str(size): measure(size, options.passes if size <= 64 else 3) for size in sizes}
    print(
        json.dumps(
            {
                "benchmark": "fleet_refresh",
                "window_seconds": WINDOW_SECONDS,
                "step_seconds": STEP_SECONDS,
                "replicas": told,
            }
        )
    )


if __name__ == "__main__":
    main()
