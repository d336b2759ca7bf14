"""Gemma 4's text config: which layers are what, what is shared, and what is wrong."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.models.families.gemma4 import RULES, UNIFIED, spec
from tidemill.models.naming import match_tensors
from tidemill.models.spec import Attention, DecoderSpec, Mlp, Moe

# Of the E2B kind: the last 20 of 35 layers share K and V.
_TYPES = (["sliding_attention"] * 4 + ["full_attention"]) * 7
CONFIG: dict[str, Any] = {
    "architectures": ["Gemma4ForCausalLM"], "attention_bias": False, "attention_k_eq_v": False,
    "enable_moe_block": False, "final_logit_softcapping": 30.0, "global_head_dim": 512,
    "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1536,
    "hidden_size_per_layer_input": 256, "intermediate_size": 6144, "layer_types": _TYPES,
    "max_position_embeddings": 131072, "model_type": "gemma4_text", "moe_intermediate_size": None,
    "num_attention_heads": 8, "num_experts": None, "num_global_key_value_heads": None,
    "num_hidden_layers": 35, "num_key_value_heads": 1, "num_kv_shared_layers": 20,
    "rms_norm_eps": 1e-06, "rope_parameters": {
        "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0,
                           "rope_type": "proportional"},
        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}},
    "sliding_window": 512, "tie_word_embeddings": True, "top_k_experts": None,
    "use_bidirectional_attention": None, "use_double_wide_mlp": True, "vocab_size": 262144,
    "vocab_size_per_layer_input": 262144,
}  # fmt: skip


def mixers(made: DecoderSpec) -> list[Attention]:
    return list(made.attentions().values())


def test_layers_that_share_k_and_v() -> None:
    made = spec(CONFIG)
    found = mixers(made)
    assert [m.head_dim for m in found[:5]] == [256] * 4 + [512]
    assert [m.window for m in found[:5]] == [512] * 4 + [None]
    assert [m.kv_layer for m in found[:15]] == [None] * 15
    assert [m.kv_layer for m in found[15:20]] == [13, 13, 13, 13, 14]
    widths = [layer.mlp.intermediate for layer in made.layers if isinstance(layer.mlp, Mlp)]
    assert widths == [6144] * 15 + [12288] * 20
    # Only layers with K and V of their own are in the cache: 12 slide and 3 see everything.
    assert [(g.window, len(g.layers)) for g in made.cache_groups()] == [(None, 3), (512, 12)]
    assert made.kv_bytes_per_token("bfloat16") == 2 * 2 * (12 * 256 + 3 * 512)
    assert made.layer_inputs is not None and made.layer_inputs.width == 256


def test_what_checkpoints_keep_of_shared_layers_is_left_out() -> None:
    made = spec({**CONFIG, "num_hidden_layers": 10, "layer_types": _TYPES[:10], "vocab_size": 64,
                 "vocab_size_per_layer_input": 64, "num_kv_shared_layers": 5})  # fmt: skip
    ours = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj"}
    names = {
        "embed": "model.embed_tokens.weight", "final_norm": "model.norm.weight",
        "layer_inputs.embed": "model.embed_tokens_per_layer.weight",
        "layer_inputs.projection": "model.per_layer_model_projection.weight",
        "layer_inputs.norm": "model.per_layer_projection_norm.weight",
    }  # fmt: skip
    parts = {
        "attn_norm": "input_layernorm", "attn_post_norm": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm", "mlp_post_norm": "post_feedforward_layernorm",
        "inputs_post_norm": "post_per_layer_input_norm", "inputs.gate": "per_layer_input_gate",
        "inputs.out": "per_layer_projection",
    }  # fmt: skip
    stored = {}
    for name, shape in made.expected_tensors().items():
        whole = name.removesuffix(".weight")
        if whole in names:
            stored[names[whole]] = shape
            continue
        layer, _, part = whole.removeprefix("layers.").partition(".")
        prefix = f"model.layers.{layer}."
        if part == "scale":
            stored[prefix + "layer_scalar"] = shape
        elif part in parts:
            stored[f"{prefix}{parts[part]}.weight"] = shape
        else:
            block, _, leaf = part.partition(".")
            block = {"attn": "self_attn"}.get(block, block)
            leaf = ours.get(leaf, leaf if leaf.endswith("norm") else f"{leaf}_proj")
            stored[f"{prefix}{block}.{leaf}.weight"] = shape
    found = match_tensors(made, RULES, stored)
    unread = {f"model.layers.9.self_attn.{p}.weight": (512, 1536) for p in ("k_proj", "v_proj")}
    unread["model.layers.9.self_attn.k_norm.weight"] = (512,)
    assert match_tensors(made, RULES, stored | unread).keys() == found.keys()
    with pytest.raises(TidemillError, match="does not account for"):
        match_tensors(made, RULES, stored | {"model.layers.9.self_attn.x_proj.weight": (512, 1536)})


def test_wide_heads_k_as_v_and_experts() -> None:
    more = {
        "attention_k_eq_v": True, "num_global_key_value_heads": 2, "num_key_value_heads": 4,
        "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0, "enable_moe_block": True,
        "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704,
    }  # fmt: skip
    made = spec({**CONFIG, **more})
    sliding, full = mixers(made)[3:5]
    assert (sliding.kv_heads, sliding.v_from_k) == (4, False)
    assert (full.kv_heads, full.head_dim, full.v_from_k) == (2, 512, True)
    assert full.rope is not None and full.rope.scaling is not None
    assert full.rope.dim == 512 and full.rope.scaling.factors.count(math.inf) == 192
    mlp = made.layers[0].mlp
    assert isinstance(mlp, Moe) and mlp.separate_norms and mlp.shared == Mlp(6144, "gelu_tanh")
    names = made.expected_tensors()
    assert "layers.4.attn.v.weight" not in names and "layers.3.attn.v.weight" in names
    assert made.layer_inputs is None


def test_shapes_may_be_given_by_layer() -> None:
    own = {"4": {"head_dim": 64, "num_key_value_heads": 2}}
    found = mixers(spec({**CONFIG, "per_layer_config": own}))
    assert (found[4].head_dim, found[4].kv_heads, found[9].head_dim) == (64, 2, 256)


def test_what_is_absent() -> None:
    few = {k: v for k, v in CONFIG.items() if k not in ("layer_types", "rope_parameters")}
    found = mixers(spec({**few, "num_kv_shared_layers": 0}))
    full = [i for i, m in enumerate(found) if m.window is None]
    assert full == [5, 11, 17, 23, 29, 34]
    assert found[5].rope is not None and found[5].rope.theta == 1e6
    without = {k: v for k, v in CONFIG.items() if "per_layer_input" not in k}
    assert UNIFIED.spec({**without, "sliding_window": 64}).layer_inputs is None


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention"),
        ({"num_kv_shared_layers": 36}, "num_kv_shared_layers"),
        ({"num_kv_shared_layers": 31}, "num_kv_shared_layers"),  # no full layer is left
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"per_layer_config": [1]}, "per_layer_config"),
        ({"per_layer_config": {"35": {}}}, "per_layer_config"),
        ({"per_layer_config": {"4": {"rope_theta": 3.0}}}, "per_layer_config.4"),
        ({"per_layer_config": {"4": {"head_dim": 63}}}, "per_layer_config.4"),
        ({"per_layer_config": {"4": {"head_dim": "64"}}}, "per_layer_config.4.head_dim"),
        ({"vocab_size_per_layer_input": 262143}, "vocab_size_per_layer_input"),
        ({"enable_moe_block": True, "num_experts": 4, "top_k_experts": 5}, "top_k_experts"),
        ({"hidden_activation": "tanh"}, "hidden_activation"),
        ({"attends_backwards": 3}, "attends_backwards"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(changes: dict[str, Any], param: str) -> None:
    with pytest.raises(TidemillError) as raised:
        spec({**CONFIG, **changes})
    assert raised.value.kind in (ErrorKind.MODEL_FILE, ErrorKind.UNSUPPORTED)
    assert raised.value.param == param
