"""Tiny random checkpoints of every family, in shapes that are awkward: the oracle's cases.

A case is transformers' config class, its values, and what of it is exercised. Head counts are odd
where the family allows it, windows are shorter than the prompts, contexts longer than the original
ones of stretched ropes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helpers.tiny_checkpoints import VOCAB


@dataclass(frozen=True)
class Case:
    """One checkpoint.

    Attributes:
        family: as the documentation names it.
        prefix: of transformers' config class.
        about: what is exercised.
        values: of the config.
        model: transformers' model class; prefix + ForCausalLM where empty.
        quick: part of `make test`.
    """

    family: str
    prefix: str
    about: str
    values: dict[str, Any] = field(default_factory=dict)
    model: str = ""
    quick: bool = False

    @property
    def tied(self) -> bool:
        """Whether the output layer is the embedding."""
        return bool(self.values.get("tie_word_embeddings", self.prefix.startswith("Gemma")))


_BASE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "intermediate_size": 104,
    "num_hidden_layers": 3,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_A = {"hidden_size": 72, "num_attention_heads": 3, "num_key_value_heads": 1}  # head_dim 24
_B = {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 2}  # 16
_C = {"hidden_size": 80, "num_attention_heads": 5, "num_key_value_heads": 5}  # 16
_TIED = {"tie_word_embeddings": True}
_UNTIED = {"tie_word_embeddings": False}


def _rope(kind: str, **values: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **values}}


_LLAMA3 = _rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                original_max_position_embeddings=32)  # fmt: skip
_YARN = _rope("yarn", factor=4.0, original_max_position_embeddings=32)
_LINEAR = _rope("linear", factor=4.0)


def _longrope(pairs: int, **values: Any) -> dict[str, Any]:
    return _rope(
        "longrope",
        short_factor=[1.0 + 0.01 * i for i in range(pairs)],
        long_factor=[1.0 + 0.3 * i for i in range(pairs)],
        **values,
    )


def _family(name: str, prefix: str, *shapes: tuple[str, dict[str, Any]], model: str = "",
            base: dict[str, Any] = _BASE, quick: int = 1) -> list[Case]:  # fmt: skip
    return [
        Case(name, prefix, about, {**base, **values}, model, quick=i == quick)
        for i, (about, values) in enumerate(shapes)
    ]


_GEMMA4: dict[str, Any] = {
    "num_hidden_layers": 6, "vocab_size_per_layer_input": VOCAB, "layer_types": [
        "sliding_attention", "full_attention", "sliding_attention", "sliding_attention",
        "full_attention", "full_attention"],
}  # fmt: skip
_SMALL_EXPERTS = {"moe_intermediate_size": 56}
_EXPERTS = {**_SMALL_EXPERTS, "shared_expert_intermediate_size": 72}
_DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 24,
          "linear_value_head_dim": 20}  # fmt: skip
_GROUPED_DELTA = {"linear_num_key_heads": 3, "linear_num_value_heads": 6,
                  "linear_key_head_dim": 16, "linear_value_head_dim": 40}  # fmt: skip
_HYBRID = {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}
_MAMBA = {"mamba_d_state": 20, "mamba_d_head": "auto"}
_NEMOTRON = {"ssm_state_size": 20, "mamba_head_dim": 24, "moe_intermediate_size": 40,
             "moe_shared_expert_intermediate_size": 56}  # fmt: skip
_OSS_ROPE = _rope("yarn", factor=4.0, original_max_position_embeddings=32, beta_fast=32.0,
                  beta_slow=1.0, truncate=False)  # fmt: skip
_LLAMA4: dict[str, Any] = {"num_hidden_layers": 4, "intermediate_size": 56,
                            "intermediate_size_mlp": 104}  # fmt: skip
_MLA: dict[str, Any] = {
    "kv_lora_rank": 36, "qk_nope_head_dim": 20, "qk_rope_head_dim": 10, "v_head_dim": 18,
    "moe_intermediate_size": 56, "n_shared_experts": 1,
}  # fmt: skip
_MLA_YARN = _rope("yarn", factor=4.0, original_max_position_embeddings=32, mscale=0.7,
                  mscale_all_dim=1.2)  # fmt: skip
_GPT: dict[str, Any] = {
    "vocab_size": VOCAB, "n_positions": 256, "n_layer": 3, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0,
}  # fmt: skip

CASES: list[Case] = [
    *_family(
        "Llama 1 to 3", "Llama",
        ("MQA, 3 heads", _A),
        ("llama3 rope, tied", {**_B, **_LLAMA3, **_TIED}),
        ("MHA, 5 heads, biases, yarn", {**_C, **_YARN, "attention_bias": True, "mlp_bias": True}),
    ),
    *_family(
        "Mistral", "Mistral",
        ("window 19", {**_A, "sliding_window": 19}),
        ("no window, head_dim 20, linear rope",
         {**_B, **_LINEAR, "head_dim": 20, "sliding_window": None}),
        ("window 64, tied", {**_C, **_TIED, "sliding_window": 64}),
        quick=0,
    ),
    *_family(
        "Ministral", "Ministral",
        ("windows of 19 on some layers", {
            **_A, "head_dim": 24, "sliding_window": 19, "layer_types": [
            "sliding_attention", "full_attention", "sliding_attention"]}),
        ("no window", {**_B, "head_dim": 16, "sliding_window": 64,
                       "layer_types": ["full_attention"] * 3}),
        ("all slide, tied, yarn", {
            **_C, "head_dim": 20, **_TIED, **_YARN, "sliding_window": 33, "layer_types": [
            "sliding_attention"] * 3}),
        quick=0,
    ),
    *_family(
        "Ministral 3", "Ministral3",
        ("queries grow every 16, window 19, yarn", {
            **_A, **_rope("yarn", factor=4.0, original_max_position_embeddings=16, mscale=1.0,
                          mscale_all_dim=1.0, llama_4_scaling_beta=0.4),
            "head_dim": 24, "sliding_window": 19}),
        ("queries grow every 32, tied", {
            **_B, **_TIED, **_rope("yarn", factor=4.0, original_max_position_embeddings=32,
                                   llama_4_scaling_beta=0.1), "head_dim": 20}),
        ("MHA, grows every 64, window 33", {
            **_C, **_rope("yarn", factor=2.0, original_max_position_embeddings=64,
                          llama_4_scaling_beta=0.2), "head_dim": 16, "sliding_window": 33}),
        quick=0,
    ),
    *_family(
        "Qwen2, Qwen2.5", "Qwen2",
        ("MQA, 3 heads", _A),
        ("late windows, tied", {**_B, **_TIED, "use_sliding_window": True, "sliding_window": 13,
                                "max_window_layers": 1}),
        ("MHA, yarn", {**_C, **_YARN}),
    ),
    *_family(
        "Qwen3", "Qwen3",
        ("head_dim 40", {**_A, "head_dim": 40}),
        ("tied, biases", {**_B, **_TIED, "head_dim": 16, "attention_bias": True}),
        ("MHA, yarn", {**_C, **_YARN, "head_dim": 24}),
    ),
    *_family(
        "Gemma 1", "Gemma",
        ("MQA, 3 heads", {**_A, "head_dim": 32}),
        ("exact GELU, biases", {**_B, "head_dim": 16, "hidden_act": "gelu",
                                "attention_bias": True}),
        ("MHA, 5 heads", {**_C, "head_dim": 20}),
    ),
    *_family(
        "Gemma 2", "Gemma2",
        ("window 19, 3 heads", {**_A, "head_dim": 32, "sliding_window": 19}),
        ("caps 5 and 3", {**_B, "head_dim": 16, "attn_logit_softcapping": 5.0,
                          "final_logit_softcapping": 3.0, "query_pre_attn_scalar": 24,
                          "sliding_window": 33}),
        ("no caps, untied", {**_C, **_UNTIED, "head_dim": 20, "attn_logit_softcapping": None,
                             "final_logit_softcapping": None}),
    ),
    *_family(
        "Gemma 3 (text)", "Gemma3Text",
        ("window 19, 3 heads", {**_A, "head_dim": 32, "sliding_window": 19, "layer_types": [
            "sliding_attention", "full_attention", "sliding_attention"]}),
        ("scaled global rope", {
            **_B, "head_dim": 16, "sliding_window": 33, "query_pre_attn_scalar": 24,
            "layer_types": ["sliding_attention", "full_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}}),
        ("a cap, untied", {**_C, **_UNTIED, "head_dim": 20, "sliding_window": 13,
                          "final_logit_softcapping": 4.0,
                          "layer_types": ["sliding_attention"] * 3}),
        model="Gemma3ForCausalLM",
    ),
    *_family(
        "Gemma 4 (text)", "Gemma4Text",
        ("window 19, K is V on wide full layers, a cap", {
            **_A, **_GEMMA4, "head_dim": 24, "global_head_dim": 40, "sliding_window": 19,
            "hidden_size_per_layer_input": 0, "attention_k_eq_v": True,
            "num_attention_heads": 4, "num_key_value_heads": 2, "num_global_key_value_heads": 1,
            "final_logit_softcapping": 4.0}),
        ("inputs of 12 per layer, 3 layers share K and V and are wide", {
            **_B, **_GEMMA4, "head_dim": 16, "global_head_dim": 32, "sliding_window": 33,
            "hidden_size_per_layer_input": 12, "num_kv_shared_layers": 3,
            "use_double_wide_mlp": True}),
        ("top 2 of 8 beside the dense MLP, K is V", {
            **_C, **_GEMMA4, "head_dim": 20, "global_head_dim": 36, "sliding_window": 13,
            "hidden_size_per_layer_input": 0, "attention_k_eq_v": True, "enable_moe_block": True,
            "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 56}),
        ("all of it, biases, untied, other ropes", {
            **_B, **_GEMMA4, **_UNTIED, "head_dim": 24, "global_head_dim": 24,
            "sliding_window": 19, "hidden_size_per_layer_input": 20, "num_kv_shared_layers": 2,
            "attention_k_eq_v": True, "enable_moe_block": True, "num_experts": 4,
            "top_k_experts": 1, "moe_intermediate_size": 40, "attention_bias": True,
            "rope_parameters": {
                "full_attention": {"rope_type": "proportional", "rope_theta": 1e4, "factor": 2.0,
                                   "partial_rotary_factor": 0.6},
                "sliding_attention": {"rope_type": "linear", "rope_theta": 1e3, "factor": 4.0}}}),
        model="Gemma4ForCausalLM", quick=3,
    ),
    *_family(
        "Phi-1, 1.5, 2", "Phi",
        ("3 heads, half rotates", {**_A, "partial_rotary_factor": 0.5}),
        ("QK layer norm", {**_B, "qk_layernorm": True, "partial_rotary_factor": 0.25}),
        ("MHA, linear rope", {**_C, "rope_parameters": {
            "rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0,
            "partial_rotary_factor": 0.5}}),
    ),
    *_family(
        "Phi-3, 3.5, 4", "Phi3",
        ("window 19, 3 heads", {**_A, "sliding_window": 19}),
        ("longrope beyond its original context", {
            **_B, "original_max_position_embeddings": 16,
            **_longrope(8, original_max_position_embeddings=16)}),
        ("longrope within it, tied", {
            **_C, **_TIED, "original_max_position_embeddings": 256,
            **_longrope(8, original_max_position_embeddings=256)}),
    ),
    *_family(
        "OLMo 1", "Olmo",
        ("3 heads", _A),
        ("clipped", {**_B, "clip_qkv": 0.4}),
        ("biases, tied", {**_C, **_TIED, "attention_bias": True}),
    ),
    *_family(
        "OLMo 2", "Olmo2",
        ("MQA, 3 heads", _A),
        ("linear rope, biases", {**_B, **_LINEAR, "attention_bias": True}),
        ("MHA, tied", {**_C, **_TIED}),
    ),
    *_family(
        "Granite 3", "Granite",
        ("multipliers", {**_A, "embedding_multiplier": 3.0, "residual_multiplier": 0.4,
                         "attention_multiplier": 0.1, "logits_scaling": 4.0}),
        ("tied, biases", {**_B, **_TIED, "attention_bias": True, "mlp_bias": True,
                          "residual_multiplier": 0.22}),
        ("MHA, yarn", {**_C, **_YARN}),
        quick=0,
    ),
    *_family(
        "Command-R", "Cohere",
        ("MQA, 3 heads", {**_A, "logit_scale": 0.25}),
        ("QK norm, untied", {**_B, **_UNTIED, "use_qk_norm": True, "logit_scale": 1.0}),
        ("biases", {**_C, "attention_bias": True, "logit_scale": 0.5}),
    ),
    *_family(
        "Command-R7B", "Cohere2",
        ("window 19", {**_A, "sliding_window": 19, "logit_scale": 0.25, "layer_types": [
            "sliding_attention", "sliding_attention", "full_attention"]}),
        ("biases", {**_B, "sliding_window": 33, "attention_bias": True, "logit_scale": 1.0,
                    "layer_types": ["sliding_attention", "full_attention", "full_attention"]}),
        ("MHA", {**_C, "sliding_window": 13, "logit_scale": 0.5,
                 "layer_types": ["full_attention", "sliding_attention", "sliding_attention"]}),
        quick=0,
    ),
    *_family(
        "StableLM", "StableLm",
        ("3 heads", {**_A, "partial_rotary_factor": 0.25}),
        ("parallel, biases", {**_B, "use_parallel_residual": True, "use_qkv_bias": True,
                              "partial_rotary_factor": 0.5}),
        ("MHA, tied", {**_C, **_TIED, "partial_rotary_factor": 0.25}),
    ),
    *_family(
        "StarCoder2", "Starcoder2",
        ("window 19", {**_A, "sliding_window": 19}),
        ("no biases, untied", {**_B, **_UNTIED, "use_bias": False}),
        ("MHA, exact GELU", {**_C, "hidden_act": "gelu"}),
        quick=0,
    ),
    *_family(
        "Falcon", "Falcon",
        ("one KV head", {"hidden_size": 72, "num_attention_heads": 3}),
        ("new architecture, biases", {"hidden_size": 96, "num_attention_heads": 6,
                                      "num_kv_heads": 2, "bias": True,
                                      "new_decoder_architecture": True}),
        ("MHA, serial, untied", {"hidden_size": 80, "num_attention_heads": 5, **_UNTIED,
                                 "multi_query": False, "parallel_attn": False, "bias": True}),
        base={k: v for k, v in _BASE.items() if k != "intermediate_size"},
    ),
    *_family(
        "GPT-2", "GPT2",
        ("3 heads", {"n_embd": 72, "n_head": 3}),
        ("inner width 104, ReLU", {"n_embd": 96, "n_head": 6, "n_inner": 104,
                                   "activation_function": "relu"}),
        ("5 heads, unscaled, untied", {"n_embd": 80, "n_head": 5, "scale_attn_weights": False,
                                       **_UNTIED}),
        model="GPT2LMHeadModel", base=_GPT, quick=0,
    ),
    *_family(
        "GPT-J", "GPTJ",
        ("3 heads, 8 of 24 rotate", {"n_embd": 72, "n_head": 3, "rotary_dim": 8}),
        ("all rotate", {"n_embd": 96, "n_head": 6, "rotary_dim": 16}),
        ("inner width 104", {"n_embd": 80, "n_head": 5, "rotary_dim": 4, "n_inner": 104}),
        base=_GPT, quick=0,
    ),
    *_family(
        "GPT-NeoX, Pythia", "GPTNeoX",
        ("3 heads", {"hidden_size": 72, "num_attention_heads": 3, "rotary_pct": 0.25}),
        ("serial, all rotate", {"hidden_size": 96, "num_attention_heads": 6, "rotary_pct": 1.0,
                                "use_parallel_residual": False}),
        ("no attention biases, tied", {"hidden_size": 80, "num_attention_heads": 5, **_TIED,
                                       "attention_bias": False, "rotary_pct": 0.5}),
        quick=0,
    ),
    *_family(
        "OPT", "OPT",
        ("3 heads", {"hidden_size": 72, "num_attention_heads": 3, "ffn_dim": 104}),
        ("no biases, untied", {"hidden_size": 96, "num_attention_heads": 6, "ffn_dim": 104,
                               "enable_bias": False, **_UNTIED}),
        ("GELU, norms without parameters", {
            "hidden_size": 80, "num_attention_heads": 5, "ffn_dim": 160,
            "activation_function": "gelu", "layer_norm_elementwise_affine": False}),
        base={**{k: v for k, v in _BASE.items() if k != "intermediate_size"}}, quick=0,
    ),
    *_family(
        "BLOOM", "Bloom",
        ("3 heads", {"hidden_size": 72, "n_head": 3}),
        ("4 heads, untied", {"hidden_size": 96, "n_head": 4, **_UNTIED}),
        ("5 heads", {"hidden_size": 80, "n_head": 5}),
        base={"vocab_size": VOCAB, "n_layer": 3, "bos_token_id": 1, "eos_token_id": 2,
              "pad_token_id": 0}, quick=0,
    ),
    *_family(
        "MPT", "Mpt",
        ("3 heads", {"d_model": 72, "n_heads": 3}),
        ("4 heads, clipped", {"d_model": 96, "n_heads": 4, "attn_config": {"clip_qkv": 0.4}}),
        ("5 heads, scale", {"d_model": 80, "n_heads": 5, "attn_config": {"softmax_scale": 0.2}}),
        base={"vocab_size": VOCAB, "n_layers": 3, "max_seq_len": 256, "bos_token_id": 1,
              "eos_token_id": 2, "pad_token_id": 0},
    ),
    *_family(
        "EXAONE 4", "Exaone4",
        ("windows of 19, no rope on the full layer", {
            **_A, "sliding_window": 19, "layer_types": [
                "sliding_attention", "sliding_attention", "full_attention"]}),
        ("no window", {**_B, "sliding_window": None, "sliding_window_pattern": None,
                       "layer_types": ["full_attention"] * 3}),
        ("llama3 rope, tied", {**_C, **_LLAMA3, **_TIED, "sliding_window": 33, "layer_types": [
            "sliding_attention", "full_attention", "full_attention"]}),
        quick=0,
    ),
    *_family(
        "GLM-4", "Glm",
        ("MQA, 3 heads", {**_A, "head_dim": 24, "partial_rotary_factor": 0.5}),
        ("no biases", {**_B, "head_dim": 16, "attention_bias": False}),
        ("MHA, tied", {**_C, **_TIED, "head_dim": 20, "partial_rotary_factor": 0.5}),
    ),
    *_family(
        "GLM-4-0414", "Glm4",
        ("MQA, 3 heads", {**_A, "head_dim": 24, "partial_rotary_factor": 0.5}),
        ("no biases", {**_B, "head_dim": 16, "attention_bias": False}),
        ("MHA, tied", {**_C, **_TIED, "head_dim": 20, "partial_rotary_factor": 0.5}),
        quick=0,
    ),
    *_family(
        "SmolLM3", "SmolLM3",
        ("a layer without rope", {**_A, "no_rope_layers": [1, 0, 1]}),
        ("windows, untied", {**_B, **_UNTIED, "use_sliding_window": True, "sliding_window": 19,
                             "no_rope_layers": [0, 1, 1]}),
        ("biases, yarn", {**_C, **_YARN, "attention_bias": True, "mlp_bias": True,
                          "no_rope_layers": [1, 1, 0]}),
        quick=0,
    ),
    *_family(
        "Nemotron 3, 4, Minitron", "Nemotron",
        ("MQA, 3 heads", {**_A, "partial_rotary_factor": 0.5}),
        ("biases", {**_B, "attention_bias": True, "mlp_bias": True}),
        ("MHA, head_dim 20, tied", {**_C, **_TIED, "head_dim": 20}),
        quick=0,
    ),
    *_family(
        "Hunyuan, dense", "HunYuanDenseV1",
        ("MQA, 3 heads", {**_A, "head_dim": 24}),
        ("biases, tied", {**_B, **_TIED, "head_dim": 16, "attention_bias": True}),
        ("MHA", {**_C, "head_dim": 20}),
        quick=0,
    ),
    *_family(
        "Mixtral", "Mixtral",
        ("top 1 of 4, window 19", {**_A, "num_local_experts": 4, "num_experts_per_tok": 1,
                                   "sliding_window": 19}),
        ("top 2 of 8, tied", {**_B, **_TIED, "num_local_experts": 8, "num_experts_per_tok": 2}),
        ("all 8", {**_C, "num_local_experts": 8, "num_experts_per_tok": 8}),
    ),
    *_family(
        "Qwen2-MoE", "Qwen2Moe",
        ("top 1 of 4", {**_A, **_EXPERTS, "num_experts": 4, "num_experts_per_tok": 1}),
        ("top 2 of 8, a dense layer", {**_B, **_EXPERTS, "num_experts": 8, "norm_topk_prob": True,
                                       "num_experts_per_tok": 2, "mlp_only_layers": [1]}),
        ("top 8 of 16, tied", {**_C, **_EXPERTS, **_TIED, "num_experts": 16,
                               "num_experts_per_tok": 8}),
    ),
    *_family(
        "Qwen3-MoE", "Qwen3Moe",
        ("top 1 of 4", {**_A, **_SMALL_EXPERTS, "head_dim": 24, "num_experts": 4,
                        "num_experts_per_tok": 1}),
        ("top 2 of 8, a dense layer", {**_B, **_SMALL_EXPERTS, "head_dim": 16, "num_experts": 8,
                                       "num_experts_per_tok": 2, "decoder_sparse_step": 2}),
        ("top 8 of 16, tied", {**_C, **_SMALL_EXPERTS, **_TIED, "head_dim": 20, "num_experts": 16,
                               "num_experts_per_tok": 8, "norm_topk_prob": True}),
        quick=2,
    ),
    *_family(
        "Qwen3-Next", "Qwen3Next",
        ("top 1 of 4", {**_A, **_EXPERTS, **_DELTA, "head_dim": 24, "num_experts": 4,
                        "num_experts_per_tok": 1, "partial_rotary_factor": 0.5,
                        "num_hidden_layers": 4}),
        ("top 2 of 8, 2 value heads a key head, a dense layer", {
            **_B, **_EXPERTS, **_GROUPED_DELTA, **_HYBRID, "head_dim": 16, "num_experts": 8,
            "num_experts_per_tok": 2, "mlp_only_layers": [1], "norm_topk_prob": False}),
        ("top 8 of 16, tied, 2 conv_kernel", {
            **_C, **_EXPERTS, **_DELTA, **_HYBRID, **_TIED, "head_dim": 32, "num_experts": 16,
            "num_experts_per_tok": 8, "linear_conv_kernel_dim": 2, "linear_value_head_dim": 136}),
    ),
    *_family(
        "Qwen3.5 (text)", "Qwen3_5Text",
        ("3 heads", {**_A, **_DELTA, "head_dim": 24, "partial_rotary_factor": 0.5,
                     "num_hidden_layers": 4}),
        ("2 value heads a key head, tied", {**_B, **_GROUPED_DELTA, **_HYBRID, **_TIED,
                                            "head_dim": 32}),
        ("MHA, sections of rope", {
            **_C, **_DELTA, **_HYBRID, "head_dim": 32, "rope_parameters": {
                "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
                "mrope_section": [4, 2, 2], "mrope_interleaved": True}}),
        model="Qwen3_5ForCausalLM", quick=2,
    ),
    *_family(
        "Qwen3.5-MoE (text)", "Qwen3_5MoeText",
        ("top 1 of 4", {**_A, **_EXPERTS, **_DELTA, "head_dim": 24, "num_experts": 4,
                        "num_experts_per_tok": 1, "partial_rotary_factor": 0.5,
                        "num_hidden_layers": 4}),
        ("top 2 of 8, 2 value heads a key head", {
            **_B, **_EXPERTS, **_GROUPED_DELTA, **_HYBRID, "head_dim": 32, "num_experts": 8,
            "num_experts_per_tok": 2}),
        ("top 8 of 16, tied", {
            **_C, **_EXPERTS, **_DELTA, **_HYBRID, **_TIED, "head_dim": 32, "num_experts": 16,
            "num_experts_per_tok": 8}),
        model="Qwen3_5MoeForCausalLM", quick=0,
        base={k: v for k, v in _BASE.items() if k != "intermediate_size"},
    ),
    *_family(
        "OLMoE", "Olmoe",
        ("top 1 of 4", {**_A, "num_experts": 4, "num_experts_per_tok": 1}),
        ("top 2 of 8, clipped", {**_B, "num_experts": 8, "num_experts_per_tok": 2,
                                 "clip_qkv": 0.4}),
        ("top 8 of 16, normalised", {**_C, "num_experts": 16, "num_experts_per_tok": 8,
                                     "norm_topk_prob": True}),
        quick=0,
    ),
    *_family(
        "Phi-3.5-MoE", "Phimoe",
        ("2 of 4", {**_A, "num_local_experts": 4}),
        ("2 of 8, biases", {**_B, "num_local_experts": 8, "attention_bias": True,
                            "lm_head_bias": True, "router_jitter_noise": 0.2}),
        ("2 of 16, window 19", {**_C, "num_local_experts": 16, "sliding_window": 19}),
    ),
    *_family(
        "Granite 3 MoE", "GraniteMoe",
        ("top 1 of 4", {**_A, "num_local_experts": 4, "num_experts_per_tok": 1,
                        "attention_multiplier": 0.2}),
        ("top 2 of 8, multipliers", {**_B, "num_local_experts": 8, "num_experts_per_tok": 2,
                                     "embedding_multiplier": 3.0, "residual_multiplier": 0.4,
                                     "attention_multiplier": 0.1, "logits_scaling": 4.0}),
        ("top 8 of 16, tied", {**_C, **_TIED, "num_local_experts": 16, "num_experts_per_tok": 8,
                               "attention_multiplier": 0.2}),
    ),
    *_family(
        "Granite 3 MoE, shared expert", "GraniteMoeShared",
        ("top 1 of 4", {**_A, "num_local_experts": 4, "num_experts_per_tok": 1,
                        "attention_multiplier": 0.2, "shared_intermediate_size": 40}),
        ("top 2 of 8", {**_B, "num_local_experts": 8, "num_experts_per_tok": 2,
                        "residual_multiplier": 0.4, "attention_multiplier": 0.1,
                        "shared_intermediate_size": 72}),
        ("top 8 of 16, tied", {**_C, **_TIED, "num_local_experts": 16, "num_experts_per_tok": 8,
                               "attention_multiplier": 0.2, "shared_intermediate_size": 104}),
        quick=0,
    ),
    *_family(
        "Granite 4 hybrid", "GraniteMoeHybrid",
        ("dense, one group", {**_A, **_MAMBA, **_HYBRID, "mamba_n_heads": 9, "num_local_experts": 0,
                              "attention_multiplier": 0.2, "shared_intermediate_size": 104}),
        ("top 2 of 8, rope, multipliers", {
            **_B, **_MAMBA, **_HYBRID, "mamba_n_heads": 6, "mamba_n_groups": 3,
            "num_local_experts": 8, "num_experts_per_tok": 2, "position_embedding_type": "rope",
            "embedding_multiplier": 3.0, "residual_multiplier": 0.4, "attention_multiplier": 0.1,
            "logits_scaling": 4.0, "shared_intermediate_size": 72}),
        ("top 8 of 16, tied, biases, no convolution's", {
            **_C, **_MAMBA, **_HYBRID, **_TIED, "mamba_n_heads": 4, "mamba_n_groups": 2,
            "num_local_experts": 16, "num_experts_per_tok": 8, "mamba_proj_bias": True,
            "mamba_conv_bias": False, "shared_intermediate_size": 40, "attention_multiplier": 0.2}),
    ),
    *_family(
        "Bamba", "Bamba",
        ("one group, MQA", {**_A, **_MAMBA, "mamba_n_heads": 9, "attn_layer_indices": [1],
                            "num_attention_heads": 9}),
        ("3 groups", {**_B, **_MAMBA, "mamba_n_heads": 6, "mamba_n_groups": 3,
                      "attn_layer_indices": [0, 2]}),
        ("tied, biases, 2 taps", {**_C, **_MAMBA, **_TIED, "mamba_n_heads": 4, "mamba_n_groups": 2,
                                  "attn_layer_indices": [2], "mamba_proj_bias": True,
                                  "attention_bias": True, "mlp_bias": True, "mamba_d_conv": 2}),
        quick=0,
    ),
    *_family(
        "Nemotron-H, Nemotron 3", "NemotronH",
        ("no experts, 3 heads", {
            **_A, **_NEMOTRON, "head_dim": 24, "mamba_num_heads": 6, "n_groups": 1,
            "layers_block_type": ["linear_attention", "mlp", "linear_attention", "full_attention",
                                  "mlp"]}),
        ("top 2 of 8 in groups", {
            **_B, **_NEMOTRON, "head_dim": 16, "mamba_num_heads": 4, "n_groups": 2,
            "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 4, "topk_group": 2,
            "routed_scaling_factor": 2.5,
            "layers_block_type": ["linear_attention", "moe", "full_attention", "moe",
                                  "linear_attention"]}),
        ("all 4, biases", {
            **_C, **_NEMOTRON, "head_dim": 20, "mamba_num_heads": 6, "n_groups": 3,
            "n_routed_experts": 4, "num_experts_per_tok": 4, "use_bias": True,
            "layers_block_type": ["full_attention", "moe", *["linear_attention"] * 2]}),
        base={k: v for k, v in _BASE.items() if k != "num_hidden_layers"},
    ),
    *_family(
        "Falcon-H1", "FalconH1",
        ("one group, no norm, multipliers", {
            **_A, **_MAMBA, "mamba_d_ssm": 120, "mamba_n_heads": 5, "embedding_multiplier": 3.0,
            "lm_head_multiplier": 0.4, "key_multiplier": 0.7, "attention_in_multiplier": 1.3,
            "attention_out_multiplier": 0.6, "ssm_in_multiplier": 1.2, "ssm_out_multiplier": 0.5,
            "ssm_multipliers": [0.9, 0.7, 1.4, 0.8, 1.1], "mlp_multipliers": [1.5, 0.6]}),
        ("3 groups, gated and normed, 2 conv_kernel", {
            **_B, **_MAMBA, "mamba_d_ssm": None, "mamba_n_heads": 6, "mamba_n_groups": 3,
            "mamba_rms_norm": True, "mamba_norm_before_gate": False, "mamba_d_conv": 2,
            "ssm_multipliers": [0.5, 1.6, 0.6, 1.2, 0.8]}),
        ("normed and gated, tied, biases, yarn", {
            **_C, **_MAMBA, **_TIED, **_YARN, "mamba_d_ssm": 96, "mamba_n_heads": 4,
            "mamba_n_groups": 2, "mamba_rms_norm": True, "mamba_proj_bias": True,
            "projectors_bias": True, "attention_bias": True, "mlp_bias": True,
            "mamba_conv_bias": False, "key_multiplier": 0.5, "attention_out_multiplier": 1.4}),
    ),
    *_family(
        "Mamba-2", "Mamba2",
        ("one group", {"hidden_size": 72, "num_heads": 6, "head_dim": 24, "n_groups": 1}),
        ("3 groups, tied, biases", {
            "hidden_size": 96, "num_heads": 6, "head_dim": 32, "n_groups": 3, **_TIED,
            "use_bias": True}),
        ("2 conv_kernel without bias, time limits", {
            "hidden_size": 80, "num_heads": 8, "head_dim": 20, "n_groups": 2, "conv_kernel": 2,
            "use_conv_bias": False}),
        base={"vocab_size": VOCAB, "num_hidden_layers": 3, "state_size": 20, "bos_token_id": 1,
              "eos_token_id": 2, "pad_token_id": 0},
    ),
    *_family(
        "gpt-oss", "GptOss",
        ("top 1 of 4, window 19", {**_A, **_OSS_ROPE, "head_dim": 24, "sliding_window": 19,
                                   "num_local_experts": 4, "num_experts_per_tok": 1}),
        ("top 2 of 8, tied", {**_B, **_OSS_ROPE, **_TIED, "head_dim": 16, "sliding_window": 33,
                              "num_local_experts": 8, "num_experts_per_tok": 2}),
        ("top 8 of 16, no biases", {**_C, **_OSS_ROPE, "head_dim": 20, "attention_bias": False,
                                    "sliding_window": 64, "num_local_experts": 16,
                                    "num_experts_per_tok": 8}),
        quick=0,
    ),
    *_family(
        "DeepSeek-V2", "DeepseekV2",
        ("3 heads, top 1 of 4", {**_MLA, "hidden_size": 72, "num_attention_heads": 3,
                                 "q_lora_rank": None, "n_routed_experts": 4,
                                 "num_experts_per_tok": 1, "first_k_dense_replace": 1}),
        ("low-rank queries, 2 of 8 in 2 of 4 groups, yarn", {
            **_MLA, **_MLA_YARN, "hidden_size": 100, "num_attention_heads": 5, "q_lora_rank": 38,
            "kv_lora_rank": 42, "qk_nope_head_dim": 14, "qk_rope_head_dim": 6, "v_head_dim": 11,
            "n_routed_experts": 8, "num_experts_per_tok": 2, "topk_method": "group_limited_greedy",
            "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.7, "n_shared_experts": 2}),
        ("7 heads, 8 of 16, biases", {
            **_MLA, "hidden_size": 84, "num_attention_heads": 7, "q_lora_rank": 50,
            "attention_bias": True, "n_routed_experts": 16, "num_experts_per_tok": 8}),
    ),
    *_family(
        "DeepSeek-V3, R1, Kimi K2", "DeepseekV3",
        ("3 heads, top 1 of 4, one group", {
            **_MLA, "hidden_size": 72, "num_attention_heads": 3,
            "num_key_value_heads": 3, "q_lora_rank": 34,
            "n_routed_experts": 4, "num_experts_per_tok": 1, "n_group": 1, "topk_group": 1,
            "first_k_dense_replace": 1}),
        ("3 of 12 in 2 of 4 groups, yarn", {
            **_MLA, **_MLA_YARN, "hidden_size": 100, "num_attention_heads": 5,
            "num_key_value_heads": 5, "q_lora_rank": None,
            "kv_lora_rank": 42, "qk_nope_head_dim": 14, "qk_rope_head_dim": 6, "v_head_dim": 23,
            "n_routed_experts": 12, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2,
            "first_k_dense_replace": 0}),
        ("7 heads, 8 of 16, biases, tied", {
            **_MLA, **_TIED, "hidden_size": 84, "num_attention_heads": 7,
            "num_key_value_heads": 7, "q_lora_rank": 50,
            "attention_bias": True, "norm_topk_prob": False, "n_routed_experts": 16,
            "num_experts_per_tok": 8, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 2,
            "n_shared_experts": 2}),
    ),
    *_family(
        "GLM-4.5 to 4.7", "Glm4Moe",
        ("3 heads, top 1 of 4", {
            **_A, **_SMALL_EXPERTS, "head_dim": 24, "n_routed_experts": 4,
            "num_experts_per_tok": 1, "first_k_dense_replace": 1, "use_qk_norm": True}),
        ("biases, 3 of 12 in 2 of 4 groups, yarn", {
            **_B, **_YARN, **_SMALL_EXPERTS, "head_dim": 16, "attention_bias": True,
            "n_routed_experts": 12, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2,
            "first_k_dense_replace": 0, "routed_scaling_factor": 2.5, "n_shared_experts": 2}),
        ("8 of 16, tied, all rotates", {
            **_C, **_TIED, **_SMALL_EXPERTS, "head_dim": 16, "n_routed_experts": 16,
            "num_experts_per_tok": 8, "norm_topk_prob": False, "first_k_dense_replace": 2,
            "partial_rotary_factor": 1.0}),
    ),
    *_family(
        "Llama 4 (text)", "Llama4Text",
        ("chunks of 16, top 1 of 4", {
            **_A, **_LLAMA4, "head_dim": 24, "attention_chunk_size": 16, "num_local_experts": 4,
            "interleave_moe_layer_step": 2}),
        ("chunks of 24, tuned from 10 on, top 2 of 8, llama3 rope", {
            **_B, **_LLAMA4, **_LLAMA3, **_TIED, "head_dim": 16, "attention_chunk_size": 24,
            "num_local_experts": 8, "num_experts_per_tok": 2, "floor_scale": 10,
            "attn_scale": 0.3, "no_rope_layer_interval": 2}),
        ("no QK norm, biases, 8 of 16", {
            **_C, **_LLAMA4, "head_dim": 16, "attention_chunk_size": 19, "attention_bias": True,
            "num_local_experts": 16, "num_experts_per_tok": 8, "use_qk_norm": False,
            "attn_temperature_tuning": False}),
        model="Llama4ForCausalLM",
    ),
]  # fmt: skip

_PATCHES = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
            "intermediate_size": 40, "image_size": 28, "patch_size": 14}  # fmt: skip
_QWEN_PATCHES = {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 40}
# The file as it is published -> the text decoder in it, whose shapes it is tried with; the vision
# part's config, which names the decoder's width for some.
_WHOLES: list[tuple[str, str, str, dict[str, Any], str]] = [
    ("Gemma 3", "Gemma3", "Gemma 3 (text)", _PATCHES, ""),
    ("Gemma 4", "Gemma4", "Gemma 4 (text)", {**_PATCHES, "head_dim": 16}, ""),
    ("Llama 4", "Llama4", "Llama 4 (text)",
     {**_PATCHES, "vision_output_dim": 48, "projector_input_dim": 48, "projector_output_dim": 48,
      "intermediate_size": 128}, ""),
    ("Mistral Small 3.1", "Mistral3", "Mistral", {**_PATCHES, "head_dim": 16}, "mistral"),
    ("Ministral 3", "Mistral3", "Ministral 3", {**_PATCHES, "head_dim": 16}, "ministral3"),
    ("LLaVA", "Llava", "Llama 1 to 3", _PATCHES, "llama"),
    ("Qwen2-VL", "Qwen2VL", "Qwen2, Qwen2.5", {"depth": 1, "embed_dim": 32, "num_heads": 2},
     "qwen2_vl_text"),
    ("Qwen2.5-VL", "Qwen2_5_VL", "Qwen2, Qwen2.5", _QWEN_PATCHES, "qwen2_5_vl_text"),
    ("Qwen3-VL", "Qwen3VL", "Qwen3", {**_QWEN_PATCHES, "deepstack_visual_indexes": [0]},
     "qwen3_vl_text"),
    ("Qwen3-VL-MoE", "Qwen3VLMoe", "Qwen3-MoE",
     {**_QWEN_PATCHES, "deepstack_visual_indexes": [0]}, "qwen3_vl_moe_text"),
    ("Qwen3.5", "Qwen3_5", "Qwen3.5 (text)", _QWEN_PATCHES, ""),
    ("Qwen3.5-MoE", "Qwen3_5Moe", "Qwen3.5-MoE (text)", _QWEN_PATCHES, ""),
]  # fmt: skip
_OUT_WIDTH = {"Qwen2VL": "hidden_size", "Qwen2_5_VL": "out_hidden_size", "Qwen3VL":
              "out_hidden_size", "Qwen3VLMoe": "out_hidden_size", "Qwen3_5": "out_hidden_size",
              "Qwen3_5Moe": "out_hidden_size"}  # fmt: skip


def _whole(name: str, prefix: str, text: Case, vision: dict[str, Any], kind: str) -> Case:
    """The case of a text decoder inside a file that holds a vision part too."""
    values = {**text.values, **({"model_type": kind} if kind else {})}
    if prefix in ("Qwen2VL", "Qwen2_5_VL"):  # positions of pictures on three axes
        pairs = values["hidden_size"] // values["num_attention_heads"] // 2
        rope = values.get("rope_parameters", {"rope_type": "default", "rope_theta": 10000.0})
        axes = [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3]
        values["rope_parameters"] = {**rope, "mrope_section": axes}
    if prefix == "Gemma3":  # transformers' model with a vision part reads a cap and applies none
        values["final_logit_softcapping"] = None
    width = {_OUT_WIDTH[prefix]: values["hidden_size"]} if prefix in _OUT_WIDTH else {}
    tied = {"tie_word_embeddings": text.tied}
    parts = {"text_config": {**values, **tied}, "vision_config": {**vision, **width}, **tied}
    return Case(f"{name}, with a vision part", prefix, text.about, parts,
                f"{prefix}ForConditionalGeneration", text.quick)  # fmt: skip


CASES += [
    _whole(name, prefix, case, vision, kind)
    for name, prefix, text, vision, kind in _WHOLES
    for case in list(CASES)
    if case.family == text
]


def make_case(case: Case, folder: Path, seed: int = 0) -> Any:
    """A random transformers model of the case, its checkpoint written to `folder`.

    Weights are drawn wide enough that logits differ clearly, biases and norms are not trivial.
    """
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    config = getattr(transformers, case.prefix + "Config")(**case.values)
    torch.manual_seed(seed)
    name = case.model or case.prefix + "ForCausalLM"
    model = getattr(transformers, name)._from_config(config, attn_implementation="eager")
    model = model.eval().float()
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "A_log" in key:  # half-lives of a few tokens to a few dozen
                parameter.uniform_(-3.0, 0.5)
            elif "norm" in key or "ln_" in key:
                parameter.uniform_(-0.3, 0.3) if key.endswith("bias") else parameter.uniform_(
                    0.5, 1.5
                )
            elif parameter.ndim == 1:
                parameter.normal_(0.0, 0.3)
            elif "conv1d" in key or parameter is model.get_input_embeddings().weight:
                parameter.normal_(0.0, 0.7)
            else:
                parameter.normal_(0.0, 1.2 * parameter.shape[-1] ** -0.5)
        for key, buffer in model.named_buffers():
            if key.endswith("correction_bias"):  # as wide as what it corrects
                buffer.uniform_(-0.3, 0.3)
            elif key.endswith("layer_scalar"):
                buffer.uniform_(0.6, 1.3)
        if not tied:
            model.get_output_embeddings().weight.normal_(0.0, 0.7)
    model.save_pretrained(folder)
    return model
