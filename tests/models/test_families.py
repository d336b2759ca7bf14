"""Families: configs in both spellings, and every key that is wrong, missing or not understood."""

from __future__ import annotations

from typing import Any

import pytest

from tidemill.base.errors import ErrorKind, TidemillError
from tidemill.models.naming import HF_RULES, canonical_names, match_tensors
from tidemill.models.registry import FAMILIES, family_for_config, family_for_gguf
from tidemill.models.spec import RopeScaling

BASE: dict[str, Any] = {
    "vocab_size": 517,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
}
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def read(family: str = "llama", **changes: Any) -> Any:
    config = {k: v for k, v in {**BASE, **changes}.items() if v != "absent"}
    return next(f for f in FAMILIES if f.name == family).spec(config)


def test_old_and_new_rope_spellings_are_the_same() -> None:
    new = read(rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3})
    old = read(rope_theta=5e5, rope_scaling={"rope_type": "llama3", **LLAMA3})
    assert new == old
    rope = new.layers[0].mixer.rope
    assert (rope.theta, rope.dim) == (5e5, 16)
    assert rope.scaling == RopeScaling("llama3", 8.0, 1.0, 4.0, 32)


def test_early_rope_scaling_names_its_type_type() -> None:
    spec = read(rope_scaling={"type": "linear", "factor": 4})
    assert spec.layers[0].mixer.rope.scaling == RopeScaling("linear", 4.0)


def test_defaults_are_transformers() -> None:
    spec = read(num_key_value_heads=None)
    assert spec.layers[0].mixer.kv_heads == 6
    assert spec.layers[0].mixer.rope.theta == 10000.0
    assert not spec.tied_embeddings
    assert read("qwen3").layers[0].mixer.head_dim == 128
    assert read("qwen2").layers[0].mixer.q_bias and not read("qwen2").layers[0].mixer.o_bias


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"sliding_window": 40}, [40, 40, 40]),
        ({"sliding_window": None}, [None] * 3),
        ({"sliding_window": 128}, [None] * 3),  # hides nothing within the context
        ({"max_position_embeddings": 8192}, [4096] * 3),
    ],
)
def test_mistral_windows(changes: dict[str, Any], windows: list[int | None]) -> None:
    assert [x.mixer.window for x in read("mistral", **changes).layers] == windows


def test_qwen_windows() -> None:
    on = {"use_sliding_window": True, "sliding_window": 40}
    for family in ("qwen2", "qwen3"):
        late = read(family, **on, max_window_layers=2)
        assert [x.mixer.window for x in late.layers] == [None, None, 40]
        off = read(family, use_sliding_window=False, sliding_window=40, max_window_layers=0)
        assert [x.mixer.window for x in off.layers] == [None] * 3
        types = ["sliding_attention", "full_attention", "full_attention"]
        typed = read(family, **on, max_window_layers=2, layer_types=types)
        assert [x.mixer.window for x in typed.layers] == [40, None, None]


def test_biases() -> None:
    llama = read(attention_bias=True, mlp_bias=True).layers[0]
    assert llama.mixer.o_bias and llama.mixer.q_bias and llama.mlp.bias
    assert "layers.2.mlp.down.bias" in read(mlp_bias=True).expected_tensors()
    assert read("qwen3", attention_bias=True).layers[0].mixer.o_bias


@pytest.mark.parametrize(
    ("family", "changes", "kind", "named"),
    [
        ("llama", {"hidden_size": "absent"}, ErrorKind.MODEL_FILE, "hidden_size"),
        ("llama", {"hidden_size": -4}, ErrorKind.MODEL_FILE, "hidden_size"),
        ("llama", {"hidden_size": 96.0}, ErrorKind.MODEL_FILE, "hidden_size"),
        ("llama", {"hidden_size": True}, ErrorKind.MODEL_FILE, "hidden_size"),
        ("llama", {"hidden_size": "96"}, ErrorKind.MODEL_FILE, "hidden_size"),
        ("llama", {"hidden_size": 98}, ErrorKind.MODEL_FILE, "hidden_size"),
        ("llama", {"num_hidden_layers": 10**12}, ErrorKind.MODEL_FILE, "num_hidden_layers"),
        ("llama", {"num_hidden_layers": 10**5000}, ErrorKind.MODEL_FILE, "num_hidden_layers"),
        ("llama", {"num_key_value_heads": 4}, ErrorKind.MODEL_FILE, "num_key_value_heads"),
        ("llama", {"head_dim": 15}, ErrorKind.MODEL_FILE, "head_dim"),
        ("llama", {"rms_norm_eps": float("nan")}, ErrorKind.MODEL_FILE, "rms_norm_eps"),
        ("llama", {"rms_norm_eps": 10**400}, ErrorKind.MODEL_FILE, "rms_norm_eps"),
        ("llama", {"rms_norm_eps": 0}, ErrorKind.MODEL_FILE, "rms_norm_eps"),
        ("llama", {"rope_theta": float("inf")}, ErrorKind.MODEL_FILE, "rope_theta"),
        ("llama", {"rope_theta": []}, ErrorKind.MODEL_FILE, "rope_theta"),
        ("llama", {"attention_bias": "yes"}, ErrorKind.MODEL_FILE, "attention_bias"),
        ("llama", {"hidden_act": "tanh"}, ErrorKind.UNSUPPORTED, "hidden_act"),
        ("llama", {"hidden_act": ["silu"]}, ErrorKind.UNSUPPORTED, "hidden_act"),
        ("llama", {"logit_scale": 2.0}, ErrorKind.UNSUPPORTED, "logit_scale"),
        ("mistral", {"layer_types": ["full_attention"] * 3}, ErrorKind.UNSUPPORTED, "layer_types"),
        ("llama", {"quantization_config": {"a": 1}}, ErrorKind.UNSUPPORTED, "quantization_config"),
        ("llama", {"auto_map": {"a": "b"}}, ErrorKind.UNSUPPORTED, "auto_map"),
        ("llama", {"rope_scaling": "llama3"}, ErrorKind.MODEL_FILE, "rope_scaling"),
        ("llama", {"rope_scaling": {"type": "mrope"}}, ErrorKind.UNSUPPORTED, "mrope"),
        ("llama", {"rope_scaling": {"type": {}}}, ErrorKind.UNSUPPORTED, "rope_type"),
        ("llama", {"rope_scaling": {"type": "linear"}}, ErrorKind.MODEL_FILE, "factor"),
        (
            "llama",
            {"rope_scaling": {"type": "linear", "factor": 2.0, "beta": 1}},
            ErrorKind.UNSUPPORTED,
            "beta",
        ),
        (
            "llama",
            {"rope_parameters": {"rope_type": "llama3", **LLAMA3, "low_freq_factor": 4.5}},
            ErrorKind.MODEL_FILE,
            "low_freq_factor",
        ),
        (
            "llama",
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 1.5}},
            ErrorKind.MODEL_FILE,
            "partial_rotary_factor",
        ),
        (
            "llama",
            {
                "rope_parameters": {"rope_type": "linear", "factor": 2.0},
                "rope_scaling": {"rope_type": "linear", "factor": 3.0},
            },
            ErrorKind.MODEL_FILE,
            "contradict",
        ),
        ("qwen2", {"use_mrope": True}, ErrorKind.UNSUPPORTED, "use_mrope"),
        ("qwen2", {"layer_types": ["full_attention"]}, ErrorKind.MODEL_FILE, "layer_types"),
        ("qwen2", {"layer_types": [{}] * 3}, ErrorKind.MODEL_FILE, "layer_types"),
        ("qwen2", {"layer_types": ["sliding_attention"] * 3}, ErrorKind.MODEL_FILE, "layer_types"),
        ("mistral", {"sliding_window": 0}, ErrorKind.MODEL_FILE, "sliding_window"),
    ],
)
def test_wrong_keys_are_named(
    family: str, changes: dict[str, Any], kind: ErrorKind, named: str
) -> None:
    with pytest.raises(TidemillError) as caught:
        read(family, **changes)
    assert caught.value.kind == kind
    assert named in caught.value.message or named == caught.value.param


def test_harmless_and_switched_off_keys_pass() -> None:
    read(initializer_range=0.02, _name_or_path="x", attn_softcap=None, use_moe=False, extras=[])


REAL_CONFIGS: dict[str, dict[str, Any]] = {
    # As published, less the sizes: keys that real checkpoints carry must not be refused.
    "llama": {
        "_name_or_path": "checkpoint", "architectures": ["LlamaForCausalLM"],
        "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
        "initializer_range": 0.041666666666666664, "is_llama_config": True, "mlp_bias": False,
        "model_type": "llama", "pad_token_id": 2, "pretraining_tp": 1, "rope_interleaved": False,
        "rope_scaling": None, "rope_theta": 100000, "tie_word_embeddings": True,
        "torch_dtype": "bfloat16", "transformers.js_config": {"dtype": "q4"},
        "transformers_version": "4.42.3", "use_cache": True,
    },
    "mistral": {
        "architectures": ["MistralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
        "eos_token_id": 2, "head_dim": 128, "initializer_range": 0.02, "model_type": "mistral",
        "rope_theta": 1000000.0, "sliding_window": None, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "transformers_version": "4.43.0.dev0", "use_cache": True,
    },
    "qwen2": {
        "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
        "eos_token_id": 151645, "initializer_range": 0.02, "max_window_layers": 70,
        "model_type": "qwen2", "rope_theta": 1000000.0, "sliding_window": 131072,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        "transformers_version": "4.43.1", "use_cache": True, "use_sliding_window": False,
    },
    "qwen3": {
        "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128,
        "initializer_range": 0.02, "max_window_layers": 28, "model_type": "qwen3",
        "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None,
        "tie_word_embeddings": True, "torch_dtype": "bfloat16",
        "transformers_version": "4.51.0", "use_cache": True, "use_sliding_window": False,
    },
}  # fmt: skip


@pytest.mark.parametrize("family", REAL_CONFIGS)
def test_published_configs_are_read(family: str) -> None:
    assert family_for_config(REAL_CONFIGS[family]).name == family
    read(family, **REAL_CONFIGS[family])


def test_unknown_families() -> None:
    for config in ({}, {"architectures": []}, {"architectures": "LlamaForCausalLM"}):
        with pytest.raises(TidemillError, match="architectures"):
            family_for_config(config)
    with pytest.raises(TidemillError, match="MambaForCausalLM") as caught:
        family_for_config({"architectures": ["MambaForCausalLM"]})
    assert caught.value.kind == ErrorKind.UNSUPPORTED
    with pytest.raises(TidemillError, match="mamba"):
        family_for_gguf({"general.architecture": "mamba"})
    with pytest.raises(TidemillError):
        family_for_gguf({})


def test_tensor_names() -> None:
    def name(stored: str) -> tuple[bool, str | None]:
        known, held = canonical_names(HF_RULES, stored)
        return known, held.parts[0] if held.parts else None

    assert name("model.layers.12.self_attn.q_proj.bias") == (True, "layers.12.attn.q.bias")
    assert name("model.layers.0.mlp.down_proj.weight") == (True, "layers.0.mlp.down.weight")
    assert name("model.layers.0.self_attn.rotary_emb.inv_freq") == (True, None)
    assert name("model.layers.007.mlp.down_proj.weight")[0] is False
    assert name("xmodel.norm.weight")[0] is False
    assert name("model.norm.weightx")[0] is False
    assert name("modelXnorm.weight")[0] is False


def stored_shapes(spec: Any) -> dict[str, tuple[int, ...]]:
    part = {"attn_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
    top = {
        "embed.weight": "model.embed_tokens.weight",
        "final_norm.weight": "model.norm.weight",
        "lm_head.weight": "lm_head.weight",
    }
    shapes = {}
    for name, shape in spec.expected_tensors().items():
        if name in top:
            shapes[top[name]] = shape
            continue
        _, index, rest = name.split(".", 2)
        pieces = rest.split(".")
        if pieces[0] in part:
            stored = f"{part[pieces[0]]}.weight"
        else:
            group = {"attn": "self_attn", "mlp": "mlp"}[pieces[0]]
            suffix = "" if pieces[1].endswith("_norm") else "_proj"
            stored = f"{group}.{pieces[1]}{suffix}.{pieces[2]}"
        shapes[f"model.layers.{index}.{stored}"] = shape
    return shapes


def test_tensors_must_be_exactly_the_spec() -> None:
    spec = read("qwen3", attention_bias=True, head_dim=16)
    stored = stored_shapes(spec)
    assert match_tensors(spec, HF_RULES, stored).keys() == spec.expected_tensors().keys()

    less = {k: v for k, v in stored.items() if "layers.1.mlp.up" not in k}
    with pytest.raises(TidemillError, match=r"layers\.1\.mlp\.up\.weight"):
        match_tensors(spec, HF_RULES, less)
    for extra in ("model.layers.3.mlp.up_proj.weight", "model.vision.weight"):
        with pytest.raises(TidemillError, match="does not account for"):
            match_tensors(spec, HF_RULES, {**stored, extra: (160, 96)})
    bent = {**stored, "model.layers.0.self_attn.k_proj.weight": (96, 32)}
    with pytest.raises(TidemillError, match=r"\[96, 32\].*\[32, 96\]") as caught:
        match_tensors(spec, HF_RULES, bent)
    assert caught.value.param == "model.layers.0.self_attn.k_proj.weight"


def test_a_stored_copy_of_tied_embeddings_is_fine() -> None:
    spec = read(tie_word_embeddings=True)
    stored = stored_shapes(spec) | {"lm_head.weight": (517, 96)}
    assert "lm_head.weight" not in match_tensors(spec, HF_RULES, stored)
