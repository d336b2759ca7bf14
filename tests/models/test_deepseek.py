"""DeepSeek: its config, the sizes of the published models, tensors that only draft tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.family_cases import CASES, make_case

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.loading import open_model
from tidemill.models.quantization import to_float32
from tidemill.models.registry import family_for_config

# DeepSeek-V3 and V2-Lite as published.
V3: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": False, "aux_loss_alpha": 0.001,
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}, "ep_size": 1,
    "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 7168,
    "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 163840,
    "model_type": "deepseek_v3", "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8,
    "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": True,
    "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61,
    "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "q_lora_rank": 1536,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0,
                     "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096,
                     "type": "yarn"},
    "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "seq_aux": True,
    "tie_word_embeddings": False, "topk_group": 4, "topk_method": "noaux_tc", "v_head_dim": 128,
    "vocab_size": 129280,
}  # fmt: skip
LITE: dict[str, Any] = {
    **V3, "architectures": ["DeepseekV2ForCausalLM"], "first_k_dense_replace": 1,
    "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408, "n_group": 1,
    "n_routed_experts": 64, "n_shared_experts": 2, "norm_topk_prob": False,
    "num_attention_heads": 16, "num_experts_per_tok": 6, "num_hidden_layers": 27,
    "num_key_value_heads": 16, "q_lora_rank": None, "routed_scaling_factor": 1.0,
    "scoring_func": "softmax", "topk_group": 1, "topk_method": "greedy", "vocab_size": 102400,
}  # fmt: skip


def read(config: dict[str, Any], **changes: Any) -> Any:
    return family_for_config(config).spec({**config, **changes})


def test_published_sizes() -> None:
    v3, lite = read(V3), read(LITE)
    assert round(v3.parameters() / 1e9, 1) == 671.0
    assert round(lite.parameters() / 1e9, 1) == 15.7
    # The latent and the rotated key as K, the latent as V; not 128 heads of 192 and 128.
    assert v3.kv_bytes_per_token("bfloat16") == 61 * (576 + 512) * 2
    mixer = v3.layers[0].mixer
    assert (mixer.kv_heads, mixer.head_dim, mixer.v_dim) == (1, 576, 512)
    assert mixer.score_scale == pytest.approx(192**-0.5 * (0.1 * np.log(40) + 1) ** 2)
    assert mixer.rope.attention_factor == 1.0


@pytest.mark.parametrize(
    ("config", "changes", "key"),
    [
        (V3, {"n_group": 7}, "n_group"),
        (V3, {"topk_group": 9}, "topk_group"),
        (V3, {"num_experts_per_tok": 200}, "n_group"),
        (V3, {"rope_interleave": False}, "rope_interleave"),
        (V3, {"scoring_func": "softmax"}, "scoring_func"),
        (V3, {"moe_layer_freq": 2}, "moe_layer_freq"),
        (V3, {"kv_lora_rank": None}, "kv_lora_rank"),
        (V3, {"kv_lora_rank": 511}, "kv_lora_rank"),
        (LITE, {"norm_topk_prob": True}, "norm_topk_prob"),
        (LITE, {"topk_method": "noaux_tc"}, "topk_method"),
        (LITE, {"mlp_bias": True}, "mlp_bias"),
    ],
)
def test_what_is_wrong_is_named(config: dict[str, Any], changes: dict[str, Any], key: str) -> None:
    with pytest.raises(TidemillError) as caught:
        read(config, **changes)
    assert caught.value.param == key
    assert caught.value.kind in (ErrorKind.MODEL_FILE, ErrorKind.UNSUPPORTED)


def test_a_model_without_experts() -> None:
    spec = read(V3, n_routed_experts=None, num_hidden_layers=2)
    assert all(not hasattr(layer.mlp, "experts") for layer in spec.layers)


def test_heads_and_draft_layers(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    case = next(c for c in CASES if c.prefix == "DeepseekV3" and c.quick)
    make_case(case, tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    kv_up = tensors["model.layers.0.self_attn.kv_b_proj.weight"]  # 5 heads of 14 and 23 rows
    heads = kv_up.reshape(5, 14 + 23, 42)
    # A layer behind the last one, as published: the draft layer and its own norms and heads.
    last = "model.layers.2."
    more = {last.replace("2", "3") + name.removeprefix(last): value
            for name, value in tensors.items() if name.startswith(last)}  # fmt: skip
    for name, like in (
        ("enorm.weight", "model.norm.weight"), ("hnorm.weight", "model.norm.weight"),
        ("shared_head.norm.weight", "model.norm.weight"),
        ("shared_head.head.weight", "lm_head.weight"), ("eh_proj.weight", "lm_head.weight"),
        ("embed_tokens.weight", "lm_head.weight"),
    ):  # fmt: skip
        more[f"model.layers.3.{name}"] = tensors[like]
    save_file(tensors | more, path)
    files = open_model(tmp_path)
    assert set(files.tensors) == set(files.spec.expected_tensors())
    for head in range(5):
        up = to_float32(files.tensors[f"layers.0.attn.k_up.{head}.weight"])
        assert np.array_equal(up, heads[head, :14].T)
        out = to_float32(files.tensors[f"layers.0.attn.v_up.{head}.weight"])
        assert np.array_equal(out, heads[head, 14:])
    # Such a tensor in one of the model's own layers is none of it.
    save_file({**tensors, "model.layers.1.eh_proj.weight": tensors["lm_head.weight"]}, path)
    with pytest.raises(TidemillError) as caught:
        open_model(tmp_path)
    assert "eh_proj" in caught.value.message
    short = {**tensors, "model.layers.0.self_attn.kv_b_proj.weight": kv_up[:-1]}
    save_file(short, path)
    with pytest.raises(TidemillError) as caught:
        open_model(tmp_path)
    assert caught.value.param == "model.layers.0.self_attn.kv_b_proj.weight"
