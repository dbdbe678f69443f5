"""A decoder's size from its config.json: parameters, bytes of weights, and what decides the KV bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runbooks.memory.kv_arithmetic import DTYPE_BYTES, Attention

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
UNGATED = frozenset(
    {"opt", "gpt2", "gpt_neo", "gpt_neox", "gptj", "bloom", "falcon", "phi", "starcoder2", "gpt_bigcode", "mpt", "nemotron", "stablelm_epoch"}
)  # fmt: skip
"""Model types whose feed-forward part has two matrices instead of three."""
TIED_BY_DEFAULT = frozenset(
    {"gemma", "gemma2", "gemma3", "gemma3_text", "gemma3n_text", "gpt2", "opt", "cohere", "cohere2"}
)
"""Model types that share embedding and head unless their config.json says otherwise."""
LEARNED_POSITIONS = frozenset({"opt", "gpt2", "gpt_bigcode"})
_OTHER_NAMES = {
    "num_hidden_layers": ("n_layer", "num_layers", "n_layers"),
    "hidden_size": ("n_embd", "d_model"),
    "num_attention_heads": ("n_head", "n_heads"),
    "intermediate_size": ("n_inner", "ffn_dim"),
    "max_position_embeddings": ("n_positions", "max_seq_len"),
    "num_key_value_heads": ("num_kv_heads", "n_head_kv"),
}


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
    model_type: str = ""
    shared_intermediate: int = 0
    """Width of the experts that every token passes."""
    query_rank: int = 0
    nope_head_dim: int = 0
    value_head_dim: int = 0
    """The three are of latent attention: rank of the query's own compression, and the head sizes without rotation and of the values."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ModelShape:
        """Reads a Hugging Face config.json (its text part for multimodal models). Raises ConfigError naming the field."""
        text = config.get("text_config")
        if isinstance(text, Mapping):
            config = {**config, **text}
        config = {
            **{name: config[other] for name, others in _OTHER_NAMES.items() for other in others if other in config},
            **config,
        }
        model_type = str(config.get("model_type", ""))
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
            tied=bool(config.get("tie_word_embeddings", model_type in TIED_BY_DEFAULT)),
            experts=_whole(
                config, "n_routed_experts", _whole(config, "num_local_experts", _whole(config, "num_experts", 0))
            ),
            expert_intermediate=_whole(config, "moe_intermediate_size", 0),
            dense_layers=_whole(config, "first_k_dense_replace", 0),
            quantized_bits=bits,
            longest=_whole(config, "max_position_embeddings", 0),
            model_type=model_type,
            shared_intermediate=_whole(config, "shared_expert_intermediate_size", 0)
            or _whole(config, "n_shared_experts", 0) * _whole(config, "moe_intermediate_size", 0),
            query_rank=_whole(config, "q_lora_rank", 0),
            nope_head_dim=_whole(config, "qk_nope_head_dim", 0),
            value_head_dim=_whole(config, "v_head_dim", 0),
        )

    @property
    def parameters(self) -> tuple[int, int]:
        """(embedding and head, everything else), counted from the shapes. Norms and biases are left out: under 0.1 %."""
        attention = self.attention
        if attention.latent:
            projection = self._latent_projection()
        else:
            projection = (
                2 * self.hidden * self.heads * attention.head_size
                + 2 * self.hidden * attention.kv_heads * attention.head_size
            )
        matrices = 2 if self.model_type in UNGATED else 3
        dense = matrices * self.hidden * self.intermediate
        width = (self.expert_intermediate or self.intermediate) * self.experts + self.shared_intermediate
        mixture = self.hidden * (matrices * width + self.experts) if self.experts else dense
        dense_layers = self.dense_layers if self.experts else attention.layers
        body = attention.layers * projection + dense_layers * dense + (attention.layers - dense_layers) * mixture
        positions = self.longest if self.model_type in LEARNED_POSITIONS else 0
        return (self.vocabulary * (1 if self.tied else 2) + positions) * self.hidden, body

    def _latent_projection(self) -> int:
        """Query (compressed or not), the latent and its expansion to keys and values, and the output of one layer."""
        latent, rope = self.attention.kv_lora_rank, self.attention.rope_head_dim
        nope = self.nope_head_dim or self.attention.head_size
        value = self.value_head_dim or nope
        entering = self.query_rank or self.hidden
        query = self.hidden * self.query_rank + entering * self.heads * (nope + rope)
        return (
            query
            + self.hidden * (latent + rope)
            + latent * self.heads * (nope + value)
            + self.heads * value * self.hidden
        )

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
