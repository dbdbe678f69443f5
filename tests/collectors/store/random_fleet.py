"""Random samples of a small fleet: jitter, gaps, counter resets, NaN, restarts, replicas that are born and die."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from collectors.model import STALE, Samples

START_MS = 1_700_000_000_000
BOUNDS = ("0.1", "0.25", "0.5", "1.0", "2.5", "+Inf")

Scrape = tuple[str, int, list[dict[str, str]], list[float]]


class _Replica:
    def __init__(self, rng: np.random.Generator, number: int, start_ms: int, end_ms: int) -> None:
        self._rng = rng
        self.start_ms, self.end_ms = start_ms, end_ms
        self.base = {"instance": f"r{number}:8000", "job": "vllm" if number % 3 else "canary", "zone": "ab"[number % 2]}
        self._buckets = np.zeros(len(BOUNDS))
        self._sum = float(rng.integers(0, 50))
        self._tokens = float(rng.integers(0, 10_000))

    def step(self) -> tuple[list[dict[str, str]], list[float]]:
        rng = self._rng
        if rng.random() < 0.02:  # a restart
            self._buckets[:] = 0
            self._sum = self._tokens = 0.0
        seen = rng.multinomial(rng.poisson(6), [0.2, 0.3, 0.2, 0.15, 0.1, 0.05])
        self._buckets += np.cumsum(seen)
        self._sum += float(seen.sum()) * rng.random()
        self._tokens += float(rng.poisson(300))
        series = [{**self.base, "__name__": "lat_bucket", "le": bound} for bound in BOUNDS]
        values = self._buckets.tolist()
        waiting = float(rng.poisson(3)) if rng.random() > 0.05 else float("nan")
        for name, value in (
            ("lat_sum", self._sum),
            ("lat_count", float(self._buckets[-1])),
            ("tokens_total", self._tokens),
            ("waiting", waiting),
            ("usage", rng.random()),
            ("drift", float(rng.normal() * 1e3)),
        ):
            series.append({**self.base, "__name__": name})
            values.append(value)
        if rng.random() < 0.7:  # a series that comes and goes
            series.append({**self.base, "__name__": "flaky", "kind": "x"})
            values.append(float(rng.integers(-5, 5)))
        return series, values


def scrapes(seed: int, *, replicas: int = 6, minutes: int = 40, interval_ms: int = 15_000) -> Iterator[Scrape]:
    """(target, t_ms, label sets, values), in the order a scraper would append them, staleness markers included."""
    rng = np.random.default_rng(seed)
    length = minutes * 60_000
    for number in range(replicas):
        born = int(rng.integers(0, length // 2)) if rng.random() < 0.5 else 0
        dies = int(rng.integers(born + length // 4, length * 2))
        replica = _Replica(rng, number, born, min(dies, length))
        target = replica.base["instance"]
        phase = int(rng.integers(0, interval_ms))
        known: list[dict[str, str]] = []
        t = born + phase
        while t < replica.end_ms:
            at = START_MS + t + int(rng.integers(-40, 40))
            draw = rng.random()
            if draw < 0.04:  # nothing was scraped
                pass
            elif draw < 0.07:  # the scrape failed: all series end
                yield target, at, known, [STALE] * len(known)
                known = []
            else:
                series, values = replica.step()
                gone = [one for one in known if one not in series]
                yield target, at, series + gone, values + [STALE] * len(gone)
                known = series
            t += interval_ms
        if dies < length and known:
            yield target, START_MS + t + 100, known, [STALE] * len(known)


def as_series(all_scrapes: list[Scrape]) -> list[Samples]:
    """The same samples series by series."""
    found: dict[tuple[tuple[str, str], ...], tuple[list[int], list[float]]] = {}
    for _, t_ms, series, values in all_scrapes:
        for labels, value in zip(series, values, strict=True):
            times, kept = found.setdefault(tuple(sorted(labels.items())), ([], []))
            times.append(t_ms)
            kept.append(value)
    return [Samples(dict(k), np.array(t, dtype=np.int64), np.array(v)) for k, (t, v) in found.items()]
