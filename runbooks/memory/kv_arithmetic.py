"""How many bytes a token's keys and values take, and how far a pool of blocks goes (vLLM 0.11.0's own formulas)."""

from __future__ import annotations

import math
from dataclasses import dataclass

GIB = 2**30
DTYPE_BYTES = {
    "auto": 2,
    "bfloat16": 2,
    "float16": 2,
    "half": 2,
    "float32": 4,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "fp8_ds_mla": 1,
}
FP8_DS_MLA_BYTES = 656
"""Bytes per token and layer of the sparse fp8 layout of latent attention."""


@dataclass(frozen=True)
class Attention:
    """What decides the KV bytes: from a model's config.json."""

    layers: int
    kv_heads: int
    head_size: int
    kv_lora_rank: int = 0
    rope_head_dim: int = 0

    @property
    def latent(self) -> bool:
        return self.kv_lora_rank > 0


def kv_bytes_per_token(
    attention: Attention,
    *,
    kv_dtype: str = "auto",
    model_dtype: str = "bfloat16",
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
) -> int:
    """Bytes of KV cache per token on one device.

    Grouped-query heads are divided by the tensor-parallel size and replicated below one; a latent (MLA) vector is held whole by every rank and
    has no factor two. Layers are those of the largest pipeline stage.
    """
    element = DTYPE_BYTES[model_dtype if kv_dtype == "auto" else kv_dtype]
    layers = math.ceil(attention.layers / pipeline_parallel)
    if attention.latent:
        if kv_dtype == "fp8_ds_mla":
            return FP8_DS_MLA_BYTES * layers
        return (attention.kv_lora_rank + attention.rope_head_dim) * element * layers
    heads = max(1, attention.kv_heads // tensor_parallel)
    return 2 * heads * attention.head_size * element * layers


def blocks_in(kv_bytes: float, bytes_per_token: int, block_size: int, layers: int = 1) -> int:
    """floor(floor(bytes / page bytes) / layers): the number of blocks that the pool is divided into, the null block included."""
    page_bytes = bytes_per_token * block_size / layers
    return max(0, math.floor(math.floor(kv_bytes / page_bytes) / layers)) if page_bytes > 0 else 0


def concurrency(num_gpu_blocks: int, max_model_len: int, block_size: int) -> float:
    """Full-length requests that fit at once, as the log prints it."""
    return num_gpu_blocks / math.ceil(max_model_len / block_size)


def longest_window(kv_bytes: float, bytes_per_token: int, block_size: int) -> int:
    """Largest max_model_len that the start-up check accepts: whole blocks, the null block not subtracted."""
    return math.floor(kv_bytes / (bytes_per_token * block_size)) * block_size


def roundest_between(low: float, high: float) -> int | None:
    """The integer in [low, high] with the largest power of two in it; None when there is no integer.

    KV bytes per token are a product of layer count, head count, head size and element size, so the true figure is highly even; the printed
    figures only bound it.
    """
    low_integer, high_integer = math.ceil(low), math.floor(high)
    if low_integer > high_integer or low_integer <= 0:
        return None
    power = 1
    while True:
        candidate = math.ceil(low_integer / (power * 2)) * power * 2
        if candidate > high_integer:
            return math.ceil(low_integer / power) * power
        power *= 2
