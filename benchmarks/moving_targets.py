"""A fleet to scrape: N targets on consecutive ports that expose a recorded vLLM exposition whose numbers move as under load.

    python benchmarks/moving_targets.py --port 19000 --replicas 64 --round-seconds 5

Counters and histograms grow with requests that finish in each round; gauges wander; what stands still in a real vLLM (`_created`, `python_info`, the bounds'
far buckets) stands still. All targets show the same round at the same time to everyone who asks.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from pathlib import Path

EXPOSITION = Path(__file__).resolve().parent.parent / "tests" / "data" / "expositions" / "vllm-0.11.0-loaded.txt"
REQUESTS_A_ROUND = 25


class MovingExposition:
    """One target: the recorded lines, and a rule for each that moves."""

    def __init__(self, text: str, seed: int) -> None:
        self._random = random.Random(seed)
        self._lines = text.splitlines()
        self._histograms: dict[str, list[tuple[int, float, str, float]]] = {}
        self._rising: list[tuple[int, str, float]] = []
        self._wandering: list[tuple[int, str]] = []
        self._values: dict[int, float] = {}
        self._round = 0
        kinds = {line.split()[2]: line.split()[3] for line in self._lines if line.startswith("# TYPE")}
        for place, line in enumerate(self._lines):
            if line.startswith("#") or not line:
                continue
            head, _, value = line.rpartition(" ")
            name = head.partition("{")[0]
            self._values[place] = float(value)
            if name.endswith("_bucket"):
                bound = float(head.split('le="')[1].split('"')[0])
                key = head.split('le="')[0]
                self._histograms.setdefault(key, []).append((place, bound, head, 0.0))
            elif name.endswith(("_created", "_info")) or name == "process_start_time_seconds":
                continue
            elif name.endswith("_count"):
                self._rising.append((place, head, 1.0))
            elif name.endswith("_sum") or kinds.get(name) == "counter":
                self._rising.append((place, head, self._random.choice([0.0, 1.0, 180.0, 0.37])))
            elif kinds.get(name) == "gauge" and name.startswith(("vllm:", "process_resident")):
                self._wandering.append((place, head))
        self._centres = {
            key: self._random.uniform(0.3, 0.7) * len(buckets) for key, buckets in self._histograms.items()
        }

    def advance_to(self, wanted: int) -> None:
        """Move the numbers to a round."""
        while self._round < wanted:
            self._round += 1
            self._advance()

    def _advance(self) -> None:
        draw = self._random
        finished = max(0, int(draw.gauss(REQUESTS_A_ROUND, 5)))
        for key, buckets in self._histograms.items():
            centre = self._centres[key]
            hits = sorted(int(draw.gauss(centre, 1.5)) for _ in range(finished))
            seen = 0
            for index, (place, _bound, head, _) in enumerate(buckets):
                while seen < len(hits) and hits[seen] <= index:
                    seen += 1
                if seen:
                    self._set(place, head, self._values[place] + seen)
        for place, head, weight in self._rising:
            if weight:
                self._set(place, head, self._values[place] + round(finished * weight * draw.uniform(0.9, 1.1), 6))
        for place, head in self._wandering:
            self._set(
                place, head, max(0.0, round(self._values[place] * draw.uniform(0.8, 1.2) + draw.random() * 0.01, 6))
            )

    def _set(self, place: int, head: str, value: float) -> None:
        self._values[place] = value
        self._lines[place] = f"{head} {value!r}"

    def body(self) -> bytes:
        """The exposition as it stands."""
        return ("\n".join(self._lines) + "\n").encode()


async def serve(port: int, replicas: int, round_seconds: float) -> None:
    """Answer on `replicas` ports from `port` on until cancelled."""
    text = EXPOSITION.read_text()
    began = time.monotonic()
    targets = [MovingExposition(text, seed) for seed in range(replicas)]

    async def converse(target: MovingExposition, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                target.advance_to(int((time.monotonic() - began) / round_seconds))
                body = target.body()
                head = (
                    f"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {len(body)}\r\n\r\n"
                )
                writer.write(head.encode() + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def answering(target: MovingExposition):  # type: ignore[no-untyped-def]
        return lambda reader, writer: converse(target, reader, writer)

    servers = [
        await asyncio.start_server(answering(target), "127.0.0.1", port + offset)
        for offset, target in enumerate(targets)
    ]
    print("ready", flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", type=int, default=19000)
    parser.add_argument("--replicas", type=int, default=64)
    parser.add_argument("--round-seconds", type=float, default=5.0)
    options = parser.parse_args()
    asyncio.run(serve(options.port, options.replicas, options.round_seconds))


if __name__ == "__main__":
    main()
