"""What scraping costs: the embedded store beside Debian's Prometheus, on the same moving fleet in the same run.

    python benchmarks/ingest.py [--replicas 64] [--seconds 60] [--every 0.5]

Both scrape the same targets, faster than in life (`--every` instead of 5 s) so that a short run holds many rounds; CPU is given per round and as the share of a
core that a round every 5 s takes. Prints one JSON line:
  cpu_share_ratio             CPU of the store's process for a round of all targets / 5 s (log on disk included)
  prometheus_cpu_share_ratio  the same of Prometheus
  library_parser_ratio        prometheus_client's parser alone on the same expositions, per round / 5 s
  bytes_a_sample              of the store's samples in memory, this run only; `packed` for six hours of one replica at 5 s
  *_rss_bytes_a_sample        growth of each process's resident memory over the run / samples taken
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.moving_targets import EXPOSITION, MovingExposition  # noqa: E402

ROUND_SECONDS = 5.0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--replicas", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=0.5, help="scrape interval of this run, seconds")
    parser.add_argument("--port", type=int, default=21000, help="first port of the targets; two more are used below it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pagewatch-ingest-") as folder:
        print(json.dumps(measure(Path(folder), options.replicas, options.seconds, options.every, options.port)))


def measure(folder: Path, replicas: int, seconds: float, every: float, port: int) -> dict[str, float | int | str]:
    """Run targets, store and Prometheus for a while and take the figures."""
    children: list[subprocess.Popen[bytes]] = []
    addresses = [f"127.0.0.1:{port + offset}" for offset in range(replicas)]
    try:
        targets = start([sys.executable, str(ROOT / "benchmarks/moving_targets.py"), "--port", str(port),
                         "--replicas", str(replicas), "--round-seconds", str(every)], children, subprocess.PIPE)  # fmt: skip
        assert targets.stdout is not None
        targets.stdout.readline()
        store = start([sys.executable, "-m", "cli", "store", "serve", "--targets", ",".join(addresses),
                       "--port", str(port - 1), "--data", str(folder / "store"), "--interval", str(every)], children)  # fmt: skip
        peers = {"": (store, port - 1)}
        if shutil.which("prometheus"):
            config = {"scrape_configs": [{"job_name": "vllm", "scrape_interval": f"{round(every * 1000)}ms",
                                          "scrape_timeout": f"{round(every * 1000)}ms", "static_configs": [{"targets": addresses}]}]}  # fmt: skip
            (folder / "prometheus.yml").write_text(json.dumps(config))
            peers["prometheus_"] = (start(["prometheus", f"--config.file={folder / 'prometheus.yml'}",
                                           f"--storage.tsdb.path={folder / 'tsdb'}",
                                           f"--web.listen-address=127.0.0.1:{port - 2}"], children), port - 2)  # fmt: skip
        time.sleep(5 + 4 * every)  # both know every target and every line by now
        before = {name: figures(child, at) for name, (child, at) in peers.items()}
        time.sleep(seconds)
        after = {name: figures(child, at) for name, (child, at) in peers.items()}
        out: dict[str, float | int | str] = {
            "benchmark": "ingest",
            "replicas": replicas,
            "seconds": seconds,
            "every": every,
        }
        for name in peers:
            cpu, rss, taken = (after[name][i] - before[name][i] for i in range(3))
            rounds = taken / replicas / series_a_target()
            out[f"{name}cpu_ms_a_round"] = round(1000 * cpu / rounds, 2)
            out[f"{name}cpu_share_ratio"] = round(cpu / rounds / ROUND_SECONDS, 4)
            out[f"{name}rss_bytes_a_sample"] = round(rss / taken, 2)
            out[f"{name}rss_bytes"] = int(after[name][1])
            out[f"{name}samples"] = int(after[name][2])
        held = own_metric(port - 1, "pagewatch_store_bytes")
        out["bytes_a_sample"] = round(held / after[""][2], 2)
        out["disk_bytes_a_sample"] = round(own_metric(port - 1, "pagewatch_store_disk_bytes") / after[""][2], 2)
    finally:
        for child in reversed(children):
            child.terminate()
            child.wait(30)
    out["library_parser_ratio"] = round(library_parser_seconds() * replicas / ROUND_SECONDS, 4)
    out["packed_bytes_a_sample"] = round(packed_bytes_a_sample(), 2)
    return out


def start(
    command: list[str], children: list[subprocess.Popen[bytes]], stdout: int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    """Start a child that `measure` ends."""
    child = subprocess.Popen(command, cwd=ROOT, stdout=stdout, stderr=subprocess.DEVNULL)
    children.append(child)
    return child


def figures(child: subprocess.Popen[bytes], port: int) -> tuple[float, float, float]:
    """CPU seconds and resident bytes of a process, and the samples it has taken in."""
    process = psutil.Process(child.pid)
    names = ("pagewatch_store_samples_appended_total", "prometheus_tsdb_head_samples_appended_total")
    taken = sum(own_metric(port, name) for name in names)
    times = process.cpu_times()
    return times.user + times.system, float(process.memory_info().rss), taken


def own_metric(port: int, name: str) -> float:
    """One figure of a server's own /metrics; 0 when it has none of that name."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.partition("{")[0].partition(" ")[0] == name)


def series_a_target() -> int:
    """Series of the recorded exposition and the five that a scrape adds."""
    lines = EXPOSITION.read_text().splitlines()
    return sum(bool(line) and not line.startswith("#") for line in lines) + 5


def library_parser_seconds() -> float:
    """prometheus_client's parser on one exposition, best of five."""
    from prometheus_client.parser import text_string_to_metric_families

    text = EXPOSITION.read_text()
    best = float("inf")
    for _ in range(5):
        began = time.process_time()
        for family in text_string_to_metric_families(text):
            len(family.samples)
        best = min(best, time.process_time() - began)
    return best


def packed_bytes_a_sample() -> float:
    """The default retention of one replica, through the parser, the rows and the blocks."""
    from collectors.store.blocks import Blocks
    from collectors.store.line_memory import LineMemory
    from collectors.store.rows import TargetRows
    from collectors.store.targets import target_of

    blocks, memory = Blocks(), LineMemory()
    rows = TargetRows(target_of("127.0.0.1:8000", {}, "vllm"))
    moving = MovingExposition(EXPOSITION.read_text(), 1)
    for number in range(round(6 * 3600 / ROUND_SECONDS)):
        moving.advance_to(number)
        for row in rows.scraped(
            memory.parse(moving.body(), openmetrics=False), round(number * ROUND_SECONDS * 1000), 0.002
        ):
            blocks.append(row.target, row.time_ms, row.series, row.values)
    return blocks.nbytes / blocks.sample_count


if __name__ == "__main__":
    main()
