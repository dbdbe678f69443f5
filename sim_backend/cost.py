"""How long one engine step takes, and how many KV blocks a device has: a roofline over a profile in a data file."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from sim_backend.scheduler import SchedulerConfig

GIB = 1 << 30


class ProfileError(Exception):
    """A profile that does not exist or does not add up; the message names it and the next step."""


@dataclass(frozen=True, slots=True)
class Model:
    params: float
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    weight_bytes_per_param: float = 2
    kv_bytes_per_element: float = 2


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator; `count` of them share the model by tensor parallelism. Ratios are achieved shares of the peak."""

    bandwidth_bytes_per_second: float
    peak_flops_per_second: float
    achieved_bandwidth_ratio: float
    achieved_flops_ratio: float
    host_link_bytes_per_second: float
    count: int = 1
    link_bytes_per_second: float = math.inf
    link_latency_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Memory:
    """Per accelerator, GiB. `num_gpu_blocks` fixes the pool where no ledger is known."""

    device_gib: float = 0.0
    utilization_ratio: float = 0.9
    activation_peak_gib: float = 0.0
    non_torch_gib: float = 0.0
    graphs_gib: float = 0.0
    num_gpu_blocks: int | None = None


@dataclass(frozen=True, slots=True)
class StepOverhead:
    """Seconds that a step costs beside the model: scheduling, launch, sampling. Eager launch applies above `graph_max_tokens`."""

    overhead_seconds: float
    per_sequence_seconds: float = 0.0
    eager_per_layer_seconds: float = 0.0
    graph_max_tokens: int = 0
    idle_seconds: float = 0.0005


@dataclass(frozen=True, slots=True)
class Frontend:
    """Seconds between the front end and the engine: input processing before the queue, handling of an output after the step."""

    input_seconds: float = 0.0
    output_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Profile:
    """A model on a device, with where its numbers come from."""

    name: str
    title: str
    sources: tuple[str, ...]
    served_model_name: str
    model: Model
    device: Device
    memory: Memory
    step: StepOverhead
    frontend: Frontend
    engine: dict[str, Any]

    @property
    def weight_bytes(self) -> float:
        """Weights per accelerator."""
        return self.model.params * self.model.weight_bytes_per_param / self.device.count

    @property
    def kv_bytes_per_token(self) -> float:
        """KV bytes of one token per accelerator: 2 x layers x KV heads here x head size x element size."""
        model = self.model
        heads_here = max(1, model.kv_heads // self.device.count)
        return 2 * model.layers * heads_here * model.head_size * model.kv_bytes_per_element

    def ledger_gib(self) -> dict[str, float]:
        """The start-up account of one accelerator: what is asked for, what is taken, what is left for KV blocks. GiB."""
        memory = self.memory
        requested = memory.device_gib * memory.utilization_ratio
        weights = self.weight_bytes / GIB
        return {
            "requested": requested,
            "weights": weights,
            "activation_peak": memory.activation_peak_gib,
            "non_torch": memory.non_torch_gib,
            "available_kv": requested - weights - memory.activation_peak_gib - memory.non_torch_gib,
            "graphs": memory.graphs_gib,
        }

    def num_gpu_blocks(self, block_size: int) -> int:
        """Blocks of the pool, null block included: floor(floor(available / page) / layers). Raises ProfileError when none is left."""
        if self.memory.num_gpu_blocks is not None:
            return self.memory.num_gpu_blocks
        available = self.ledger_gib()["available_kv"] * GIB
        page_bytes = self.kv_bytes_per_token / self.model.layers * block_size
        blocks = int(available // page_bytes) // self.model.layers
        if blocks < 1:
            raise ProfileError(
                f"profile {self.name}: no available memory for the cache blocks ({available / GIB:.2f} GiB left). Raise utilization_ratio or take a larger device"
            )
        return blocks

    def scheduler_config(self, **overrides: Any) -> SchedulerConfig:
        """The engine's settings: the profile's, then `overrides`; `num_gpu_blocks_override` replaces the sized pool."""
        settings = {**self.engine, **overrides}
        override = settings.pop("num_gpu_blocks_override", None)
        block_size = settings.get("block_size", 16)
        settings.setdefault("num_gpu_blocks", override if override is not None else self.num_gpu_blocks(block_size))
        config = SchedulerConfig(**settings)
        config.validate()
        return config


class StepCost:
    """Seconds of one step as max(memory, compute) + communication + overhead, from integers, so that equal steps take equal time."""

    __slots__ = (
        "_eager",
        "_graph_max",
        "flops",
        "idle",
        "kv",
        "overhead",
        "pair",
        "sequence",
        "slowdown",
        "token",
        "weights",
    )

    def __init__(self, profile: Profile, *, enforce_eager: bool = False) -> None:
        model, device, step = profile.model, profile.device, profile.step
        bandwidth = device.bandwidth_bytes_per_second * device.achieved_bandwidth_ratio
        flops = device.peak_flops_per_second * device.achieved_flops_ratio * device.count
        self.weights = profile.weight_bytes / bandwidth
        self.kv = profile.kv_bytes_per_token / bandwidth
        self.flops = 2 * model.params / flops
        # Two products (QK, PV) of 2 FLOPs; `pairs` below counts them twice.
        self.pair = 4 * model.layers * model.heads * model.head_size / flops / 2
        reduces = 2 * model.layers if device.count > 1 else 0
        share = 2 * (device.count - 1) / device.count
        self.overhead = step.overhead_seconds + reduces * device.link_latency_seconds
        self.token = reduces * share * model.hidden * 2 / device.link_bytes_per_second if reduces else 0.0
        self.sequence = step.per_sequence_seconds
        self.idle = step.idle_seconds
        self._graph_max = 0 if enforce_eager else step.graph_max_tokens
        self._eager = step.eager_per_layer_seconds * model.layers
        self.slowdown = 1.0
        """A throttled or disturbed device takes this many times longer."""

    def seconds(self, tokens: int, sequences: int, context: int, pairs: int) -> float:
        """One step: `tokens` scheduled over `sequences`; `context` = sum of their lengths after the step (KV read once each);
        `pairs` = sum of n x (2 x length after - n): twice the number of query-key pairs."""
        if not tokens:
            return self.idle
        memory = self.weights + self.kv * context
        compute = self.flops * tokens + self.pair * pairs
        busy = memory if memory > compute else compute
        launch = self.overhead if tokens <= self._graph_max else self.overhead + self._eager
        return (busy + launch + self.token * tokens + self.sequence * sequences) * self.slowdown


def recompute_or_swap(
    cached_tokens: int, profile: Profile, *, swap_overhead_seconds: float = 0.001
) -> tuple[float, float, str]:
    """Bring back the KV of a preempted sequence: (seconds to recompute, seconds to swap out and in, the cheaper one's name).

    Recompute is one prefill of its tokens; swap moves the cache twice over the host link: 2 x bytes / bandwidth + overhead. vLLM 0.11.0 always recomputes.
    """
    recompute = StepCost(profile).seconds(cached_tokens, 1, cached_tokens, cached_tokens * cached_tokens)
    swap = 2 * cached_tokens * profile.kv_bytes_per_token / profile.device.host_link_bytes_per_second
    swap += swap_overhead_seconds
    return recompute, swap, "recompute" if recompute <= swap else "swap"


def load_profile(name: str) -> Profile:
    """A profile by name (bundled) or by path to its TOML file. Raises ProfileError."""
    path = Path(name)
    if path.suffix == ".toml" and path.exists():
        text = path.read_text("utf-8")
    else:
        entry = files("sim_backend") / "profiles" / f"{name}.toml"
        if not entry.is_file():
            raise ProfileError(f"no profile {name!r}. Choose one of: {', '.join(profile_names())}")
        text = entry.read_text("utf-8")
    try:
        return parse_profile(path.stem if path.suffix == ".toml" else name, tomllib.loads(text))
    except (tomllib.TOMLDecodeError, TypeError, KeyError) as error:
        raise ProfileError(f"profile {name}: {error}. Compare it with a bundled one") from error


def parse_profile(name: str, data: dict[str, Any]) -> Profile:
    return Profile(
        name=name,
        title=data["title"],
        sources=tuple(data["sources"]),
        served_model_name=data["served_model_name"],
        model=Model(**data["model"]),
        device=Device(**data["device"]),
        memory=Memory(**data["memory"]),
        step=StepOverhead(**data["step"]),
        frontend=Frontend(**data["frontend"]),
        engine=dict(data["engine"]),
    )


def profile_names() -> list[str]:
    """The bundled profiles."""
    folder = files("sim_backend") / "profiles"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))
