"""Configs of checkpoints with a vision part, as they are published."""

from __future__ import annotations

from typing import Any

import pytest

from tidemill import TidemillError
from tidemill.models.multimodal import text_config, text_tensors
from tidemill.models.naming import match_tensors
from tidemill.models.registry import family_for_config
from tidemill.models.spec import Attention, DecoderSpec

# google/gemma-3-4b-it's, whose text_config says little more than its sizes.
GEMMA3: dict[str, Any] = {
    "architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 255999,
    "eoi_token_index": 256000, "eos_token_id": [1, 106], "image_token_index": 262144,
    "initializer_range": 0.02, "mm_tokens_per_image": 256, "model_type": "gemma3",
    "text_config": {
        "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
        "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0",
    "vision_config": {"hidden_size": 1152, "image_size": 896, "model_type": "siglip_vision_model"},
}  # fmt: skip
MISTRAL3: dict[str, Any] = {
    "architectures": ["Mistral3ForConditionalGeneration"], "image_token_index": 10,
    "multimodal_projector_bias": False, "projector_hidden_act": "gelu", "spatial_merge_size": 2,
    "text_config": {
        "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120, "intermediate_size": 32768,
        "max_position_embeddings": 131072, "model_type": "mistral", "num_attention_heads": 32,
        "num_hidden_layers": 40, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
        "rope_theta": 1e9, "sliding_window": None, "vocab_size": 131072,
    },
    "vision_config": {"model_type": "pixtral"}, "vision_feature_layer": -1,
}  # fmt: skip
# Qwen2.5-VL's as first published: the decoder's keys among the others.
QWEN2_5: dict[str, Any] = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"], "vision_start_token_id": 151652,
    "vision_token_id": 151654, "image_token_id": 151655, "video_token_id": 151656,
    "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 11008,
    "max_position_embeddings": 128000, "max_window_layers": 70, "model_type": "qwen2_5_vl",
    "num_attention_heads": 16, "num_hidden_layers": 36, "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768,
    "tie_word_embeddings": True, "use_sliding_window": False, "vocab_size": 151936,
    "vision_config": {"depth": 32},
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
}  # fmt: skip


def spec_of(config: dict[str, Any], *stored: str) -> DecoderSpec:
    text = text_config(config, lambda: stored)
    assert text is not None
    return family_for_config(text).spec(text)


def test_a_config_that_leaves_sizes_out_has_its_classs() -> None:
    spec = spec_of(GEMMA3)
    first = spec.layers[0].mixer
    assert isinstance(first, Attention)
    assert (first.heads, first.kv_heads, first.head_dim, first.window) == (8, 4, 256, 1024)
    assert (spec.vocab_size, spec.max_positions, len(spec.layers)) == (262208, 131072, 34)
    assert spec.tied_embeddings
    last = spec.layers[5].mixer
    assert isinstance(last, Attention) and last.rope is not None and first.rope is not None
    assert last.rope.scaling is not None and last.rope.scaling.factor == 8.0
    assert first.rope.scaling is None
    text = text_config(GEMMA3, tuple)
    assert text is not None and text["eos_token_id"] == [1, 106]


def test_null_is_a_value_and_the_file_says_what_the_config_does_not() -> None:
    head = "language_model.lm_head.weight"
    spec = spec_of(MISTRAL3, head)
    assert all(isinstance(m, Attention) and m.window is None for m in spec.attentions().values())
    assert not spec.tied_embeddings
    assert spec_of(MISTRAL3, "language_model.model.norm.weight").tied_embeddings
    said = {**MISTRAL3, "tie_word_embeddings": False}
    assert not spec_of(said).tied_embeddings
    said["text_config"] = {**MISTRAL3["text_config"], "tie_word_embeddings": True}
    assert spec_of(said).tied_embeddings and not spec_of(said, head).tied_embeddings


def test_early_configs_are_flat() -> None:
    spec = spec_of(QWEN2_5)
    assert spec.family == "qwen2" and spec.hidden_size == 2048 and spec.tied_embeddings
    mixer = spec.layers[0].mixer
    assert isinstance(mixer, Attention) and mixer.rope is not None
    assert mixer.rope.scaling is None and mixer.rope.theta == 1000000.0 and mixer.q_bias


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"text_config": {"model_type": "gemma9"}}, "text_config.model_type"),
        ({"text_config": {"model_type": ["gemma"]}}, "text_config.model_type"),
        ({"text_config": "gemma"}, "text_config"),
        ({"attends_backwards": 3}, "attends_backwards"),
    ],
)
def test_what_is_not_understood_is_refused(change: dict[str, Any], param: str) -> None:
    with pytest.raises(TidemillError) as raised:
        spec_of({**GEMMA3, **change})
    assert raised.value.param == param


def test_stacked_experts_lie_as_their_shape_says() -> None:
    config = {
        "architectures": ["Qwen3VLMoeForConditionalGeneration"], "tie_word_embeddings": True,
        "text_config": {
            "model_type": "qwen3_vl_moe_text", "vocab_size": 64, "hidden_size": 32, "head_dim": 8,
            "intermediate_size": 48, "moe_intermediate_size": 12, "num_attention_heads": 4,
            "num_key_value_heads": 2, "num_hidden_layers": 1, "max_position_embeddings": 64,
            "num_experts": 3, "num_experts_per_tok": 2, "rope_scaling": {
                "rope_type": "default", "mrope_section": [2, 1, 1], "mrope_interleaved": True},
        },
        "vision_config": {"depth": 1},
    }  # fmt: skip
    spec = spec_of(config)
    text = text_config(config, tuple)
    assert text is not None
    family = family_for_config(text)
    norms = {f"{p}_layernorm": (32,) for p in ("input", "post_attention")}
    parts = {"q_proj": (32, 32), "k_proj": (16, 32), "v_proj": (16, 32), "o_proj": (32, 32)}
    parts |= {"q_norm": (8,), "k_norm": (8,)}
    layer = {f"self_attn.{name}.weight": shape for name, shape in parts.items()}
    layer |= {f"{name}.weight": shape for name, shape in norms.items()}
    layer |= {"mlp.gate.weight": (3, 32)}
    stored = {"model.embed_tokens.weight": (64, 32), "model.norm.weight": (32,)}
    stored |= {f"model.layers.0.{name}": shape for name, shape in layer.items()}
    for shapes, turned in (((24, 32), (32, 12)), False), (((32, 24), (12, 32)), True):
        both = dict(zip(("gate_up_proj", "down_proj"), shapes, strict=True))
        experts = {f"model.layers.0.mlp.experts.{n}": (3, *s) for n, s in both.items()}
        sources = match_tensors(spec, family.rules, stored | experts)
        for part in ("gate", "up", "down"):
            source = sources[f"layers.0.mlp.experts.2.{part}.weight"]
            assert (source.expert, source.transposed) == (2, turned)


def test_other_checkpoints_are_left_alone() -> None:
    assert text_config({"architectures": ["LlamaForCausalLM"]}, tuple) is None
    assert text_config({"architectures": [7]}, tuple) is None
    assert text_config({}, tuple) is None


def test_tensors_by_their_familys_names() -> None:
    stored = {
        name: i
        for i, name in enumerate((
            "language_model.model.norm.weight", "model.language_model.layers.0.a",
            "language_model.lm_head.weight", "model.visual.patch_embed.weight",
            "vision_tower.a", "multi_modal_projector.linear_1.weight", "model.layers.1.b",
            "lm_head.bias",
        ))
    }  # fmt: skip
    assert text_tensors(stored) == {
        "model.norm.weight": 0, "model.layers.0.a": 1, "lm_head.weight": 2, "model.layers.1.b": 6,
        "lm_head.bias": 7,
    }  # fmt: skip
