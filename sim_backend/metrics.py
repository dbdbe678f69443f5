"""The `vllm:` families of one replica, exactly as 0.11.0 exports them, oddities included."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from sim_backend.exposition import Family, Histogram, LabelPairs, Page, histogram_samples
from sim_backend.request import FinishReason
from sim_backend.scheduler import SchedulerStats

REASONS: tuple[FinishReason, ...] = ("stop", "length", "abort")


@cache
def surface() -> Mapping[str, Any]:
    """The data file: families in order, bucket edges, default cache labels."""
    data: dict[str, Any] = tomllib.loads((files("sim_backend") / "surface.toml").read_text("utf-8"))
    return data


def token_buckets(max_model_len: int) -> list[int]:
    """Edges of the token-count histograms: 1-2-5 per decade, up to max_model_len."""
    edges: list[int] = []
    decade = 1
    while True:
        for mantissa in (1, 2, 5):
            edge = mantissa * decade
            if edge > max_model_len:
                return edges
            edges.append(edge)
        decade *= 10


def bucket_bounds(name: str, max_model_len: int) -> Sequence[float]:
    bounds: Sequence[float] = surface()["buckets"][name]
    return token_buckets(max_model_len) if name == "request_tokens" else bounds


@dataclass(slots=True)
class FinishedRequest:
    """What is observed when a sequence ends. Seconds; on the engine clock but for `e2e_latency`."""

    finish_reason: FinishReason
    e2e_latency: float
    num_prompt_tokens: int
    num_generation_tokens: int
    max_tokens_param: int | None
    queued_time: float
    prefill_time: float
    inference_time: float
    decode_time: float
    mean_time_per_output_token: float


@dataclass(slots=True)
class IterationStats:
    """What the front end derives from one message of an engine that carried outputs."""

    num_prompt_tokens: int = 0
    num_generation_tokens: int = 0
    num_preempted: int = 0
    times_to_first_token: list[float] = field(default_factory=list)
    inter_token_latencies: list[tuple[float, int]] = field(default_factory=list)
    """(seconds, how many consecutive records had exactly this gap)."""
    finished: list[FinishedRequest] = field(default_factory=list)
    max_num_generation_tokens: list[int] = field(default_factory=list)
    n_params: list[int] = field(default_factory=list)


class EngineMetrics:
    """Counters, gauges and histograms of one engine (the `engine` label)."""

    __slots__ = (
        "e2e_request_latency",
        "generation_tokens",
        "inter_token_latency",
        "iteration_tokens",
        "kv_cache_usage_ratio",
        "num_running",
        "num_waiting",
        "preemptions",
        "prefix_hits",
        "prefix_queries",
        "prompt_tokens",
        "request_decode_time",
        "request_generation_tokens",
        "request_inference_time",
        "request_max_num_generation_tokens",
        "request_params_max_tokens",
        "request_params_n",
        "request_prefill_time",
        "request_prompt_tokens",
        "request_queue_time",
        "request_time_per_output_token",
        "success",
        "time_to_first_token",
    )

    def __init__(self, max_model_len: int) -> None:
        self.num_running = 0
        self.num_waiting = 0
        self.kv_cache_usage_ratio = 0.0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.preemptions = 0
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.success: dict[FinishReason, int] = dict.fromkeys(REASONS, 0)
        for family in surface()["family"]:
            if family["type"] == "histogram":
                setattr(self, family["field"], Histogram(bucket_bounds(family["buckets"], max_model_len)))

    request_prompt_tokens: Histogram
    request_generation_tokens: Histogram
    iteration_tokens: Histogram
    request_max_num_generation_tokens: Histogram
    request_params_n: Histogram
    request_params_max_tokens: Histogram
    time_to_first_token: Histogram
    inter_token_latency: Histogram
    """Also what the deprecated time_per_output_token shows: it is given the same values."""
    request_time_per_output_token: Histogram
    e2e_request_latency: Histogram
    request_queue_time: Histogram
    request_inference_time: Histogram
    request_prefill_time: Histogram
    request_decode_time: Histogram

    def record(self, scheduler: SchedulerStats | None, iteration: IterationStats | None) -> None:
        """One message of the engine: gauges and prefix counters of the scheduler, then what its outputs said (None: it carried none)."""
        if scheduler is not None:
            self.num_running = scheduler.num_running
            self.num_waiting = scheduler.num_waiting
            self.kv_cache_usage_ratio = scheduler.kv_cache_usage_ratio
            self.prefix_queries += scheduler.prefix.queries
            self.prefix_hits += scheduler.prefix.hits
        if iteration is None:
            return
        self.preemptions += iteration.num_preempted
        self.prompt_tokens += iteration.num_prompt_tokens
        self.generation_tokens += iteration.num_generation_tokens
        self.iteration_tokens.observe(iteration.num_prompt_tokens + iteration.num_generation_tokens)
        for seconds in iteration.times_to_first_token:
            self.time_to_first_token.observe(seconds)
        for seconds, count in iteration.inter_token_latencies:
            self.inter_token_latency.observe(seconds, count)
        self.record_finished(iteration)

    def record_finished(self, iteration: IterationStats) -> None:
        """The finish observations of one message alone."""
        for tokens in iteration.max_num_generation_tokens:
            self.request_max_num_generation_tokens.observe(tokens)
        for n in iteration.n_params:
            self.request_params_n.observe(n)
        for finished in iteration.finished:
            self._finish(finished)

    def _finish(self, finished: FinishedRequest) -> None:
        self.success[finished.finish_reason] += 1
        self.e2e_request_latency.observe(finished.e2e_latency)
        self.request_queue_time.observe(finished.queued_time)
        self.request_prefill_time.observe(finished.prefill_time)
        self.request_inference_time.observe(finished.inference_time)
        self.request_decode_time.observe(finished.decode_time)
        self.request_prompt_tokens.observe(finished.num_prompt_tokens)
        self.request_generation_tokens.observe(finished.num_generation_tokens)
        self.request_time_per_output_token.observe(finished.mean_time_per_output_token)
        if finished.max_tokens_param:
            self.request_params_max_tokens.observe(finished.max_tokens_param)


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """What `vllm:cache_config_info` shows as labels. `num_gpu_blocks` is the sum over the data-parallel engines, null blocks included."""

    num_gpu_blocks: int
    block_size: int
    enable_prefix_caching: bool
    gpu_memory_utilization: float = 0.9
    others: Mapping[str, str] = field(default_factory=dict)
    """Labels that differ from those of a GPU host."""

    def labels(self) -> dict[str, str]:
        return {
            **surface()["cache_config"],
            "num_gpu_blocks": str(self.num_gpu_blocks),
            "block_size": str(self.block_size),
            "enable_prefix_caching": str(self.enable_prefix_caching),
            "gpu_memory_utilization": str(self.gpu_memory_utilization),
            **self.others,
        }


class ReplicaMetrics:
    """The `vllm:` page of one API server with its engines. Everything exists at 0 from the start."""

    def __init__(
        self, model_name: str, max_model_len: int, engines: Sequence[int], cache: CacheConfig, created_seconds: float
    ) -> None:
        self.engines = {index: EngineMetrics(max_model_len) for index in engines}
        self.created_seconds = created_seconds
        self._plan: list[tuple[str, str, EngineMetrics, FinishReason | None]] = []
        self.families = (*self._lay_out(model_name), _cache_family(cache, engines))
        self._num_cache_series = len(engines)

    def _lay_out(self, model_name: str) -> list[Family]:
        families = []
        for entry in surface()["family"]:
            name, kind, attribute = entry["name"], entry["type"], entry["field"]
            samples: list[tuple[str, LabelPairs]] = []
            for reason in REASONS if attribute == "success" else (None,):
                for index, engine in self.engines.items():
                    labels: LabelPairs = (("model_name", model_name), ("engine", str(index)))
                    if reason is not None:
                        labels = (*labels, ("finished_reason", reason))
                    self._plan.append((kind, attribute, engine, reason))
                    samples += _samples(name, kind, labels, engine, attribute)
            families.append(Family(name, kind, entry["help"], tuple(samples)))
        return families

    def page(self) -> Page:
        """The samples as of now."""
        values: list[float] = []
        created = self.created_seconds
        for kind, attribute, engine, reason in self._plan:
            state = getattr(engine, attribute)
            if kind == "histogram":
                values += state.values(created)
            elif kind == "gauge":
                values.append(float(state))
            else:
                values += (float(state[reason] if reason is not None else state), created)
        values += [1.0] * self._num_cache_series
        return Page(self.families, values)


def _samples(
    name: str, kind: str, labels: LabelPairs, engine: EngineMetrics, attribute: str
) -> list[tuple[str, LabelPairs]]:
    if kind == "histogram":
        return histogram_samples(name, labels, getattr(engine, attribute).bounds)
    if kind == "counter":
        return [(f"{name}_total", labels), (f"{name}_created", labels)]
    return [(name, labels)]


def _cache_family(cache: CacheConfig, engines: Sequence[int]) -> Family:
    samples = tuple(
        ("vllm:cache_config_info", tuple(sorted({**cache.labels(), "engine": str(index)}.items()))) for index in engines
    )
    return Family("vllm:cache_config_info", "gauge", "The cache configuration, as labels.", samples)
