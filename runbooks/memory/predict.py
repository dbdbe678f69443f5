"""Predicts the ledger from a model's config.json and the flags, with the same arithmetic that the engine uses; for the planner and the fixes.

What a config cannot tell (activation peak, non-torch memory) is an input: taken from a measured start where there is one, else estimated and marked so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from runbooks.memory.kv_arithmetic import (
    DTYPE_BYTES,
    GIB,
    blocks_in,
    concurrency,
    kv_bytes_per_token,
    longest_window,
)
from runbooks.memory.model_shape import ConfigError, ModelShape

__all__ = [
    "ConfigError",
    "Flags",
    "ModelShape",
    "Plan",
    "estimated_activation_gib",
    "plan",
    "predict",
    "smallest_utilization",
]

ORDINARY_NON_TORCH_GIB = 0.3
MOST_SAFE_UTILIZATION = 0.95


@dataclass(frozen=True)
class Flags:
    """The settings that the planner's sliders move."""

    total_gib: float
    gpu_memory_utilization: float = 0.9
    max_model_len: int = 8192
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    kv_cache_dtype: str = "auto"
    tensor_parallel_size: int = 1
    block_size: int = 16


@dataclass(frozen=True)
class Plan:
    """A predicted start. GiB per device; `fits` is the engine's own start-up check, `full_length_fits` subtracts the null block as well."""

    requested_gib: float
    weights_gib: float
    activation_peak_gib: float
    non_torch_gib: float
    kv_gib: float
    bytes_per_token: int
    num_gpu_blocks: int
    kv_capacity_tokens: int
    usable_kv_tokens: int
    concurrency: float
    longest_window: int
    slack_gib: float
    fits: bool
    full_length_fits: bool


def predict(
    flags: Flags,
    *,
    weights_gib: float,
    bytes_per_token: int,
    activation_peak_gib: float,
    non_torch_gib: float = ORDINARY_NON_TORCH_GIB,
) -> Plan:
    """requested - weights - peak - non-torch = KV; blocks, tokens and concurrency follow (vLLM 0.11.0). Pure; the same function serves fixes and planner."""
    requested = flags.total_gib * flags.gpu_memory_utilization
    kv = requested - weights_gib - activation_peak_gib - non_torch_gib
    kv_bytes = max(kv, 0.0) * GIB
    blocks = blocks_in(kv_bytes, bytes_per_token, flags.block_size)
    window = longest_window(kv_bytes, bytes_per_token, flags.block_size)
    return Plan(
        requested_gib=requested,
        weights_gib=weights_gib,
        activation_peak_gib=activation_peak_gib,
        non_torch_gib=non_torch_gib,
        kv_gib=kv,
        bytes_per_token=bytes_per_token,
        num_gpu_blocks=blocks,
        kv_capacity_tokens=blocks * flags.block_size,
        usable_kv_tokens=max(blocks - 1, 0) * flags.block_size,
        concurrency=concurrency(blocks, flags.max_model_len, flags.block_size),
        longest_window=window,
        slack_gib=flags.total_gib - requested,
        fits=flags.max_model_len <= window,
        full_length_fits=math.ceil(flags.max_model_len / flags.block_size) <= max(blocks - 1, 0),
    )


def estimated_activation_gib(shape: ModelShape, flags: Flags) -> float:
    """A rough activation peak: hidden and intermediate states of one layer for the token budget, and float32 logits of the sampler for every seat.

    An estimate for planning only; a measured peak (debug log) always replaces it.
    """
    element = DTYPE_BYTES[shape.dtype]
    widest = 4 * shape.hidden + 2 * (shape.expert_intermediate or shape.intermediate) / flags.tensor_parallel_size
    layer = flags.max_num_batched_tokens * widest * element
    logits = 3 * flags.max_num_seqs * shape.vocabulary * 4
    return (layer + logits) / GIB


def plan(
    shape: ModelShape,
    flags: Flags,
    *,
    measured_activation_peak_gib: float | None = None,
    measured_non_torch_gib: float | None = None,
) -> Plan:
    """The plan for a model and flags; measured figures replace the estimates."""
    return predict(
        flags,
        weights_gib=shape.weights_bytes(flags.tensor_parallel_size) / GIB,
        bytes_per_token=kv_bytes_per_token(
            shape.attention,
            kv_dtype=flags.kv_cache_dtype,
            model_dtype=shape.dtype,
            tensor_parallel=flags.tensor_parallel_size,
        ),
        activation_peak_gib=estimated_activation_gib(shape, flags)
        if measured_activation_peak_gib is None
        else measured_activation_peak_gib,
        non_torch_gib=ORDINARY_NON_TORCH_GIB if measured_non_torch_gib is None else measured_non_torch_gib,
    )


def smallest_utilization(
    flags: Flags,
    *,
    weights_gib: float,
    bytes_per_token: int,
    activation_peak_gib: float,
    non_torch_gib: float = ORDINARY_NON_TORCH_GIB,
) -> float | None:
    """Smallest utilization in hundredths at which one request of the window fits; None when none up to 0.95 does."""
    for hundredths in range(1, round(MOST_SAFE_UTILIZATION * 100) + 1):
        tried = replace(flags, gpu_memory_utilization=hundredths / 100)
        if predict(
            tried,
            weights_gib=weights_gib,
            bytes_per_token=bytes_per_token,
            activation_peak_gib=activation_peak_gib,
            non_torch_gib=non_torch_gib,
        ).fits:
            return hundredths / 100
    return None
