"""Fleet data for tests: recordings read and thinned to longer scrape intervals, and a made-up fleet whose numbers are known."""

import gzip
import json
from pathlib import Path

import numpy as np

from collectors.dialect import load_dialect
from collectors.model import Samples
from collectors.store.blocks import Blocks
from collectors.store.embedded import EmbeddedSource

START_MS = 1_796_000_000_000


def read_recording(path):
    """(samples, start ms, end ms) of a recording's wrapper, gzipped or plain."""
    raw = Path(path).read_bytes()
    recording = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
    samples = [
        Samples(
            entry["metric"],
            np.array([round(float(t) * 1000) for t, _ in entry["values"]], dtype=np.int64),
            np.array([float(v) for _, v in entry["values"]]),
        )
        for entry in recording["result"]
    ]
    return samples, round(recording["start"] * 1000), round(recording["end"] * 1000)


def thinned(samples, every):
    """What a scrape interval `every` times as long would have kept of each target."""
    kept = {}
    for one in samples:
        if one.labels["__name__"] == "up":
            kept[one.labels.get("instance"), one.labels.get("job")] = one.times_ms[::every]
    thin = []
    for one in samples:
        chosen = np.isin(one.times_ms, kept[one.labels.get("instance"), one.labels.get("job")])
        if chosen.any():
            thin.append(Samples(one.labels, one.times_ms[chosen], one.values[chosen]))
    return thin


def embedded(samples, at_ms, **options):
    """The samples as a source of the house, whose now is `at_ms`."""
    blocks = Blocks()
    blocks.load(samples)
    return EmbeddedSource(blocks, name="test", clock=lambda: at_ms, **options)


class PretendReplica:
    """One target scraped at a fixed interval, with counters that grow evenly: every figure of it is known beforehand."""

    def __init__(self, instance, *, interval_seconds=5, seconds=1200, version="0.11.0", prefix="vllm:", job="vllm", target=None,
                 model="chat", ranks=("0",), running=8.0, waiting=0.0, waiting_growth=0.0, kv=0.3, kv_growth=0.0, first_tokens=3.0,
                 tokens=900.0, prompt=300.0, preemptions=0.0, queries=100.0, hits=25.0, latencies=(0.2,), bounds=None, started=None,
                 up_until=None, from_seconds=0, phase_ms=0, mute=False):  # fmt: skip
        self.__dict__.update(locals())
        self.dialect = load_dialect()
        steps = int(seconds // interval_seconds)
        times = START_MS + phase_ms + (np.arange(steps + 1) * interval_seconds * 1000).astype(np.int64)
        self.times = times[times >= START_MS + from_seconds * 1000]
        self.age = (self.times - START_MS) / 1000.0
        self.up = np.ones(len(self.times)) if up_until is None else (self.age <= up_until).astype(float)

    def samples(self):
        target = {"instance": self.instance, "job": self.job, **(self.target or {})}
        yield Samples({"__name__": "up", **target}, self.times, self.up)
        alive = self.up > 0
        started = self.started if self.started is not None else START_MS / 1000 - 500
        if started is not False:
            yield self._one("process_start_time_seconds", target, np.full(len(self.times), started), alive)
        if self.mute:
            return
        for rank in self.ranks:
            yield from self._rank(rank, target, alive)

    def _one(self, name, labels, values, alive):
        return Samples({"__name__": name, **labels}, self.times[alive], np.asarray(values, dtype=float)[alive])

    def _rank(self, rank, target, alive):
        present = self.dialect.metrics(self.version, hidden=False)
        labels = {**target, "model_name": self.model} | (
            {"engine": rank} if tuple(map(int, self.version.split("."))) >= (0, 9) else {}
        )
        n = len(self.ranks)
        gauges = {
            "requests_running": np.full(len(self.times), self.running / n),
            "requests_waiting": self.waiting / n + self.waiting_growth / n * self.age,
            "kv_cache_usage": self.kv + self.kv_growth * self.age,
        }
        counters = {
            "prompt_tokens": self.prompt, "generation_tokens": self.tokens, "preemptions": self.preemptions,
            "prefix_cache_queries": self.queries, "prefix_cache_hits": self.hits,
        }  # fmt: skip
        for metric in present.values():
            if not metric.always or not metric.name.startswith("vllm:"):
                continue
            name = self.dialect.respell(metric.name, self.prefix)
            if metric.type == "gauge":
                yield self._one(name, labels, gauges.get(metric.signal, np.ones(len(self.times))), alive)
            elif metric.signal == "requests_finished":
                for reason in ("stop", "length", "abort"):
                    share = {"stop": 0.75, "length": 0.25, "abort": 0.0}[reason]
                    grown = 50 + self.first_tokens / n * share * self.age
                    yield self._one(name, {**labels, "finished_reason": reason}, grown, alive)
            elif metric.type == "counter":
                yield self._one(name, labels, 100 + counters.get(metric.signal, 0.0) / n * self.age, alive)
            elif metric.type == "histogram":
                yield from self._histogram(metric, name, labels, n, alive)

    def _histogram(self, metric, name, labels, n, alive):
        rate = {"inter_token_latency": self.tokens}.get(metric.signal, self.first_tokens) / n
        bounds = [*(self.bounds or metric.buckets or (0.1, 1.0)), float("inf")]
        seen = np.asarray(self.latencies)
        for bound in bounds:
            share = float(np.mean(seen <= bound))
            le = "+Inf" if bound == float("inf") else repr(float(bound))
            yield self._one(name + "_bucket", {**labels, "le": le}, share * (40 + rate * self.age), alive)
        yield self._one(name + "_count", labels, 40 + rate * self.age, alive)
        yield self._one(name + "_sum", labels, float(seen.mean()) * (40 + rate * self.age), alive)


def pretend(*replicas):
    return [one for replica in replicas for one in replica.samples()]


class Listened:
    """A source that counts what it is asked and adds warnings or refusals to chosen queries."""

    def __init__(self, inner, *, warn=None, refuse=None):
        self.inner, self.warn, self.refuse, self.asked = inner, warn, refuse, []

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def instant(self, promql, at_ms):
        return self._told(promql, self.inner.instant, at_ms)

    def range(self, promql, window):
        return self._told(promql, self.inner.range, window)

    def _told(self, promql, ask, *arguments):
        from dataclasses import replace

        self.asked.append(promql)
        if self.refuse and (refusal := self.refuse(promql)):
            raise refusal
        answer = ask(promql, *arguments)
        warnings = self.warn(promql) if self.warn else ()
        return replace(answer, warnings=(*answer.warnings, *warnings))
