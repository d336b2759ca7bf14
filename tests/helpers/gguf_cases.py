"""Tiny checkpoints of the families that GGUF has, with what its files can say of them.

Each is a case of `family_cases` less what the family's GGUF files have no key for.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from helpers.family_cases import CASES, Case


def _of(prefix: str, about: str, index: int = 0, **values: Any) -> Case:
    case = [c for c in CASES if c.prefix == prefix][index]
    return dataclasses.replace(case, about=about, values={**case.values, **values})


# As published: with both weights the same, which is what files can say.
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "mscale": 0.7,
         "mscale_all_dim": 0.7, "original_max_position_embeddings": 32}  # fmt: skip

GGUF_CASES: list[Case] = [
    _of("Llama", "llama3 rope, tied", 1),
    _of("Llama", "biases, yarn", 2),
    _of("Mistral", "linear rope", 1),
    _of("Qwen2", "yarn", 2),
    _of("Qwen3", "head_dim 40"),
    _of("Gemma", "MQA"),
    _of("Gemma2", "window 19", query_pre_attn_scalar=32),
    _of("Gemma2", "caps 5 and 3", 1, query_pre_attn_scalar=16),
    _of("Gemma3Text", "a cap", 2, query_pre_attn_scalar=20, tie_word_embeddings=True),
    _of("Gemma3Text", "scaled global rope, 7 layers", 1, query_pre_attn_scalar=16,
        num_hidden_layers=7, layer_types=["sliding_attention"] * 5 + ["full_attention",
                                                                     "sliding_attention"]),
    _of("Phi", "half rotates", intermediate_size=288, num_key_value_heads=3),
    _of("Phi3", "no window", sliding_window=None),
    _of("Phi3", "longrope", 1),
    _of("Olmo", "clipped", 1),
    _of("Olmo2", "MQA"),
    _of("Granite", "multipliers"),
    _of("Granite", "yarn", 2),
    _of("Cohere", "MQA"),
    _of("Cohere", "QK norm", 1, tie_word_embeddings=True),
    _of("Cohere2", "window 19, 5 layers", num_hidden_layers=5, layer_types=[
        "sliding_attention"] * 3 + ["full_attention", "sliding_attention"]),
    _of("StableLm", "serial"),
    _of("StableLm", "parallel, biases", 1),
    _of("Starcoder2", "no window", sliding_window=None),
    _of("Falcon", "one KV head", max_position_embeddings=2048),
    _of("Falcon", "two norms", 1, max_position_embeddings=2048, bias=False),
    _of("GPT2", "3 heads"),
    _of("GPTNeoX", "parallel"),
    _of("GPTNeoX", "serial", 1),
    _of("Bloom", "3 heads", seq_length=256),
    _of("Mpt", "3 heads"),
    _of("Mpt", "clipped", 1),
    _of("Exaone4", "no window", 1),
    _of("Glm", "MQA"),
    _of("Glm4", "MQA"),
    _of("SmolLM3", "5 layers", num_hidden_layers=5, no_rope_layers=[1, 1, 1, 0, 1]),
    _of("Nemotron", "MQA"),
    _of("HunYuanDenseV1", "MQA"),
    _of("Mixtral", "top 2 of 8, tied", 1),
    _of("Qwen2Moe", "top 1 of 4"),
    _of("Qwen3Moe", "top 8 of 16, tied", 2),
    _of("Olmoe", "top 8 of 16", 2, norm_topk_prob=False),
    _of("GraniteMoe", "multipliers", 1),
    _of("GraniteMoeShared", "top 1 of 4"),
    _of("DeepseekV2", "3 heads, top 1 of 4"),
    _of("DeepseekV2", "low-rank queries, yarn", 1, topk_method="greedy", n_group=1, topk_group=1,
        rope_parameters=_YARN, routed_scaling_factor=1.5),
    _of("DeepseekV3", "3 heads, top 1 of 4"),
    _of("DeepseekV3", "3 of 12 in 2 of 4 groups, yarn", 1, rope_parameters=_YARN),
    _of("GptOss", "top 1 of 4, window 19"),
    _of("Phimoe", "2 of 8, biases", 1, router_jitter_noise=0.01),
    _of("Llama4Text", "top 1 of 4, chunks beyond the context", attention_chunk_size=8192),
    _of("Llama4Text", "top 2 of 8, llama3 rope, tied", 1, attention_chunk_size=8192,
        floor_scale=8192, attn_scale=0.1, no_rope_layer_interval=4,
        max_position_embeddings=10240),
    _of("Gemma4Text", "window 19, K is V on wide full layers, a cap"),
    _of("Gemma4Text", "inputs of 12 per layer, 3 layers share K and V and are wide", 1),
    _of("Gemma4Text", "top 2 of 8 beside the dense MLP, K is V", 2),
]  # fmt: skip
# Those of models with recurrent layers.
RECURRENT_CASES: list[Case] = [
    _of("Mamba2", "one group"),
    _of("Mamba2", "2 groups, 2 conv_kernel without bias", 2),
    _of("FalconH1", "one group, no norm, multipliers", head_dim=24),
    _of("FalconH1", "3 groups, gated and normed, 2 conv_kernel", 1, head_dim=16, mamba_d_ssm=192),
    _of("GraniteMoeHybrid", "dense, one group"),
    _of("GraniteMoeHybrid", "top 2 of 8, rope, multipliers", 1),
    _of("GraniteMoeHybrid", "top 8 of 16, tied, no convolution's bias", 2, mamba_proj_bias=False),
    # The converter takes heads of 64 alone.
    _of("NemotronH", "no experts, 3 heads", mamba_head_dim=64),
    _of("NemotronH", "top 2 of 8 in groups", 1, mamba_head_dim=64),
    _of("NemotronH", "all 4", 2, mamba_head_dim=64, use_bias=False),
    # llama.cpp takes heads of one width alone.
    _of("Qwen3Next", "top 1 of 4, 4 layers", linear_value_head_dim=24),
    _of("Qwen3Next", "top 2 of 8, 2 value heads a key head", 1, linear_key_head_dim=40,
        mlp_only_layers=[], norm_topk_prob=True),
    _of("Qwen3Next", "top 8 of 16, tied, 2 conv_kernel, wide values", 2, norm_topk_prob=True,
        layer_types=["full_attention", "linear_attention", "linear_attention"]),
    _of("Qwen3_5Text", "3 heads, 4 layers", linear_value_head_dim=24),
    _of("Qwen3_5Text", "2 value heads a key head, tied", 1, linear_key_head_dim=40),
    _of("Qwen3_5MoeText", "top 2 of 8, 2 value heads a key head", 1, linear_key_head_dim=40),
]  # fmt: skip
