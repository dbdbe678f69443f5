"""Predicts the ledger from a model's config.json and the flags, with the same arithmetic that the engine uses; for the planner and the fixes.

What a config cannot tell (activation peak, non-torch memory) is an input: taken from a measured start where there is one, else estimated and marked so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from runbooks.memory.kv_arithmetic import (
    DTYPE_BYTES,
    GIB,
    Attention,
    blocks_in,
    concurrency,
    kv_bytes_per_token,
    longest_window,
)

QUANTIZED_BITS = {
    "awq": 4,
    "gptq": 4,
    "gptq_marlin": 4,
    "awq_marlin": 4,
    "mxfp4": 4.25,
    "fp8": 8,
    "fbgemm_fp8": 8,
    "modelopt": 8,
    "bitsandbytes": 4,
    "compressed-tensors": 8,
}
"""Bits per quantised weight by method; 4-bit group formats carry about a quarter of a bit more for their scales."""
ORDINARY_NON_TORCH_GIB = 0.3
MOST_SAFE_UTILIZATION = 0.95


class ConfigError(ValueError):
    """A config.json that lacks what the prediction needs; the message names the field."""


@dataclass(frozen=True)
class ModelShape:
    """What a config.json says of a decoder's size."""

    attention: Attention
    hidden: int
    intermediate: int
    vocabulary: int
    heads: int
    dtype: str = "bfloat16"
    tied: bool = False
    experts: int = 0
    expert_intermediate: int = 0
    dense_layers: int = 0
    quantized_bits: float = 0.0
    longest: int = 0

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ModelShape:
        """Reads a Hugging Face config.json (its text part for multimodal models). Raises ConfigError naming the field."""
        text = config.get("text_config")
        if isinstance(text, Mapping):
            config = {**config, **text}
        layers, hidden, heads = (
            _whole(config, name) for name in ("num_hidden_layers", "hidden_size", "num_attention_heads")
        )
        head_size = _whole(config, "head_dim", hidden // heads)
        quantization = config.get("quantization_config")
        bits = 0.0
        if isinstance(quantization, Mapping):
            bits = float(quantization.get("bits") or QUANTIZED_BITS.get(str(quantization.get("quant_method", "")), 8))
        dtype = str(config.get("torch_dtype") or config.get("dtype") or "bfloat16").removeprefix("torch.")
        return cls(
            attention=Attention(
                layers=layers,
                kv_heads=_whole(config, "num_key_value_heads", heads),
                head_size=head_size,
                kv_lora_rank=_whole(config, "kv_lora_rank", 0),
                rope_head_dim=_whole(config, "qk_rope_head_dim", 0),
            ),
            hidden=hidden,
            intermediate=_whole(config, "intermediate_size", 4 * hidden),
            vocabulary=_whole(config, "vocab_size"),
            heads=heads,
            dtype=dtype if dtype in DTYPE_BYTES else "bfloat16",
            tied=bool(config.get("tie_word_embeddings", False)),
            experts=_whole(
                config, "n_routed_experts", _whole(config, "num_local_experts", _whole(config, "num_experts", 0))
            ),
            expert_intermediate=_whole(config, "moe_intermediate_size", 0),
            dense_layers=_whole(config, "first_k_dense_replace", 0),
            quantized_bits=bits,
            longest=_whole(config, "max_position_embeddings", 0),
        )

    @property
    def parameters(self) -> tuple[int, int]:
        """(embedding and head, everything else), counted from the shapes. Norms and biases are left out: under 0.1 %."""
        attention = self.attention
        if attention.latent:
            projection = (
                self.hidden * (attention.kv_lora_rank + attention.rope_head_dim)
                + 3 * self.hidden * self.heads * attention.head_size
            )
        else:
            projection = (
                2 * self.hidden * self.heads * attention.head_size
                + 2 * self.hidden * attention.kv_heads * attention.head_size
            )
        dense = 3 * self.hidden * self.intermediate
        mixture = (
            3 * self.hidden * (self.expert_intermediate or self.intermediate) * self.experts if self.experts else dense
        )
        dense_layers = self.dense_layers if self.experts else attention.layers
        body = attention.layers * projection + dense_layers * dense + (attention.layers - dense_layers) * mixture
        return self.vocabulary * self.hidden * (1 if self.tied else 2), body

    def weights_bytes(self, tensor_parallel: int = 1) -> int:
        """Bytes of weights on one device: quantised layers at their bits, embeddings and head at the model's dtype, both divided by the tensor-parallel size."""
        embedding, body = self.parameters
        element = DTYPE_BYTES[self.dtype]
        per_weight = self.quantized_bits / 8 if self.quantized_bits else element
        return round((embedding * element + body * per_weight) / tensor_parallel)


def _whole(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = config.get(name)
    if value is None:
        if default is None:
            raise ConfigError(f"config.json has no {name}; paste the whole file")
        return default
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or value < 0
        or value != int(value)
        or value > 10**9
    ):
        raise ConfigError(f"config.json: {name} is {value!r}, a whole number was expected")
    return int(value)


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
