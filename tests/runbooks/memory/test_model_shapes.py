"""Parameters and KV bytes per token of public models, from the shapes that their config.json files give."""

from typing import Any

import pytest

from runbooks.memory.kv_arithmetic import kv_bytes_per_token
from runbooks.memory.model_shape import ModelShape

MODELS: dict[str, tuple[float, int, dict[str, Any]]] = {
    "llama3-8b": (8.03, 131072, {'num_hidden_layers': 32, 'hidden_size': 4096, 'num_attention_heads': 32, 'num_key_value_heads': 8, 'intermediate_size': 14336, 'vocab_size': 128256, 'torch_dtype': 'bfloat16'}),
    "llama3-70b": (70.55, 327680, {'num_hidden_layers': 80, 'hidden_size': 8192, 'num_attention_heads': 64, 'num_key_value_heads': 8, 'intermediate_size': 28672, 'vocab_size': 128256}),
    "qwen2.5-7b": (7.616, 57344, {'num_hidden_layers': 28, 'hidden_size': 3584, 'num_attention_heads': 28, 'num_key_value_heads': 4, 'intermediate_size': 18944, 'vocab_size': 152064}),
    "qwen2.5-0.5b": (0.494, 12288, {'num_hidden_layers': 24, 'hidden_size': 896, 'num_attention_heads': 14, 'num_key_value_heads': 2, 'intermediate_size': 4864, 'vocab_size': 151936, 'tie_word_embeddings': True}),
    "qwen3-30b-a3b": (30.53, 98304, {'num_hidden_layers': 48, 'hidden_size': 2048, 'num_attention_heads': 32, 'num_key_value_heads': 4, 'head_dim': 128, 'intermediate_size': 6144, 'moe_intermediate_size': 768, 'num_experts': 128, 'vocab_size': 151936, 'decoder_sparse_step': 1, 'mlp_only_layers': []}),
    "mixtral-8x7b": (46.7, 131072, {'num_hidden_layers': 32, 'hidden_size': 4096, 'num_attention_heads': 32, 'num_key_value_heads': 8, 'intermediate_size': 14336, 'num_local_experts': 8, 'vocab_size': 32000}),
    "deepseek-v3": (671.03, 70272, {'num_hidden_layers': 61, 'hidden_size': 7168, 'num_attention_heads': 128, 'num_key_value_heads': 128, 'intermediate_size': 18432, 'moe_intermediate_size': 2048, 'n_routed_experts': 256, 'n_shared_experts': 1, 'first_k_dense_replace': 3, 'kv_lora_rank': 512, 'q_lora_rank': 1536, 'qk_nope_head_dim': 128, 'qk_rope_head_dim': 64, 'v_head_dim': 128, 'vocab_size': 129280, 'moe_layer_freq': 1, 'quantization_config': {'quant_method': 'fp8'}}),
    "deepseek-v2-lite": (15.71, 31104, {'num_hidden_layers': 27, 'hidden_size': 2048, 'num_attention_heads': 16, 'num_key_value_heads': 16, 'intermediate_size': 10944, 'moe_intermediate_size': 1408, 'n_routed_experts': 64, 'n_shared_experts': 2, 'first_k_dense_replace': 1, 'kv_lora_rank': 512, 'q_lora_rank': None, 'qk_nope_head_dim': 128, 'qk_rope_head_dim': 64, 'v_head_dim': 128, 'vocab_size': 102400, 'moe_layer_freq': 1}),
    "gemma2-9b": (9.24, 344064, {'num_hidden_layers': 42, 'hidden_size': 3584, 'num_attention_heads': 16, 'num_key_value_heads': 8, 'head_dim': 256, 'intermediate_size': 14336, 'vocab_size': 256000, 'model_type': 'gemma2'}),
    "gemma3-4b-text": (3.88, 139264, {'model_type': 'gemma3_text', 'num_hidden_layers': 34, 'hidden_size': 2560, 'num_attention_heads': 8, 'num_key_value_heads': 4, 'head_dim': 256, 'intermediate_size': 10240, 'vocab_size': 262144, 'tie_word_embeddings': True}),
    "gpt-oss-120b": (116.8, 73728, {'num_hidden_layers': 36, 'hidden_size': 2880, 'num_attention_heads': 64, 'num_key_value_heads': 8, 'head_dim': 64, 'intermediate_size': 2880, 'num_local_experts': 128, 'vocab_size': 201088, 'quantization_config': {'quant_method': 'mxfp4'}}),
    "phi3-mini": (3.82, 393216, {'num_hidden_layers': 32, 'hidden_size': 3072, 'num_attention_heads': 32, 'num_key_value_heads': 32, 'intermediate_size': 8192, 'vocab_size': 32064}),
    "gpt2": (0.1244, 36864, {'model_type': 'gpt2', 'n_layer': 12, 'n_embd': 768, 'n_head': 12, 'vocab_size': 50257, 'max_position_embeddings': 1024}),
    "opt-125m": (0.1252, 36864, {'model_type': 'opt', 'num_hidden_layers': 12, 'hidden_size': 768, 'num_attention_heads': 12, 'ffn_dim': 3072, 'vocab_size': 50272, 'torch_dtype': 'float16', 'max_position_embeddings': 2048}),
}  # fmt: skip
"""name: (billions of parameters as published, KV bytes per token at 16 bits on one device, the fields that decide them)."""


@pytest.mark.parametrize("model", MODELS)
def test_the_size_of_a_public_model_follows_from_its_config(model: str) -> None:
    billions, kv_bytes, config = MODELS[model]
    shape = ModelShape.from_config(config)
    assert sum(shape.parameters) / 1e9 == pytest.approx(billions, rel=0.005)
    assert kv_bytes_per_token(shape.attention) == kv_bytes


def test_latent_attention_is_held_whole_by_every_rank_and_grouped_heads_are_divided() -> None:
    latent = ModelShape.from_config(MODELS["deepseek-v3"][2]).attention
    grouped = ModelShape.from_config(MODELS["llama3-70b"][2]).attention
    assert kv_bytes_per_token(latent, tensor_parallel=8) == kv_bytes_per_token(latent)
    assert kv_bytes_per_token(grouped, tensor_parallel=8) == kv_bytes_per_token(grouped) // 8
    assert kv_bytes_per_token(grouped, tensor_parallel=4, pipeline_parallel=2) == kv_bytes_per_token(grouped) // 8
