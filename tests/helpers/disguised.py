"""Checkpoints of families that transformers does not have, which compute what one of its models
computes under other names: a model of transformers, with its tensors and config renamed.

Names and keys are those of the families' own repositories; `make gguf-families` has them read by
llama.cpp's converter too.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from helpers.family_cases import Case, make_case

Tensors = dict[str, np.ndarray]


@dataclass(frozen=True)
class Disguise:
    """A family in another's clothes.

    Attributes:
        case: the model that computes the same.
        architecture: in config.json.
        config: that model's config -> this one's.
        tensors: its tensors -> these.
    """

    family: str
    about: str
    case: Case
    architecture: str
    config: Callable[[dict[str, Any]], dict[str, Any]]
    tensors: Callable[[Tensors, dict[str, Any]], Tensors]


def make_disguised(disguise: Disguise, folder: Path) -> Any:
    """Write the checkpoint; returns transformers' model."""
    from safetensors.numpy import load_file, save_file

    model = make_case(disguise.case, folder)
    values = json.loads((folder / "config.json").read_text())
    own = disguise.config(values)
    own |= {"architectures": [disguise.architecture], "auto_map": {"AutoConfig": "configuration.C"}}
    (folder / "config.json").write_text(json.dumps(own))
    stored = folder / "model.safetensors"
    save_file(disguise.tensors(load_file(stored), values), stored, {"format": "pt"})
    return model


_COMMON = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings",
    "hidden_act",
)  # fmt: skip


def _config(values: dict[str, Any]) -> dict[str, Any]:
    rope = dict(values["rope_parameters"])
    kept = {key: values[key] for key in _COMMON} | {"rope_theta": rope.pop("rope_theta")}
    return kept | ({"rope_scaling": rope} if rope["rope_type"] != "default" else {})


def _renamed(tensors: Tensors, *pairs: tuple[str, str]) -> Tensors:
    found = {}
    for name, tensor in tensors.items():
        for old, new in pairs:
            name = name.replace(old, new)
        found[name] = tensor
    return found


def _internlm2(tensors: Tensors, values: dict[str, Any]) -> Tensors:
    heads, kv = values["num_attention_heads"], values["num_key_value_heads"]
    for i in range(values["num_hidden_layers"]):
        at = f"model.layers.{i}.self_attn."
        q, k, v = (tensors.pop(f"{at}{part}_proj.weight") for part in "qkv")
        dim = q.shape[0] // heads
        parts = [x.reshape(kv, -1, dim, x.shape[1]) for x in (q, k, v)]
        tensors[at + "wqkv.weight"] = np.concatenate(parts, 1).reshape(-1, q.shape[1])
    return _renamed(
        tensors, ("embed_tokens", "tok_embeddings"), ("lm_head", "output"),
        ("self_attn.o_proj", "attention.wo"), ("self_attn", "attention"),
        ("mlp.gate_proj", "feed_forward.w1"), ("mlp.down_proj", "feed_forward.w2"),
        ("mlp.up_proj", "feed_forward.w3"), ("input_layernorm", "attention_norm"),
        ("post_attention_layernorm", "ffn_norm"),
    )  # fmt: skip


def _baichuan(tensors: Tensors, values: dict[str, Any]) -> Tensors:
    for i in range(values["num_hidden_layers"]):
        at = f"model.layers.{i}.self_attn."
        qkv = [tensors.pop(f"{at}{part}_proj.weight") for part in "qkv"]
        tensors[at + "W_pack.weight"] = np.concatenate(qkv)
    return tensors


def _minicpm(values: dict[str, Any]) -> dict[str, Any]:
    return _config(values) | {
        "scale_emb": values["embedding_multiplier"],
        "scale_depth": values["residual_multiplier"] * values["num_hidden_layers"] ** 0.5,
        "dim_model_base": values["hidden_size"] / values["logits_scaling"],
    }


def _exaone(values: dict[str, Any]) -> dict[str, Any]:
    own = _config(values)
    for old, new in (("num_hidden_layers", "num_layers"), ("hidden_act", "activation_function"),
                     ("rms_norm_eps", "layer_norm_epsilon")):  # fmt: skip
        own[new] = own.pop(old)
    return own


def _exaone_tensors(tensors: Tensors, values: dict[str, Any]) -> Tensors:
    return _renamed(
        tensors, ("model.embed_tokens", "transformer.wte"), ("model.norm", "transformer.ln_f"),
        ("model.layers", "transformer.h"), ("input_layernorm", "ln_1"),
        ("post_attention_layernorm", "ln_2"), ("self_attn.o_proj", "attn.attention.out_proj"),
        ("self_attn", "attn.attention"), ("mlp.gate_proj", "mlp.c_fc_0"),
        ("mlp.up_proj", "mlp.c_fc_1"), ("mlp.down_proj", "mlp.c_proj"),
    )  # fmt: skip


def _cases() -> list[Disguise]:
    from helpers.family_cases import CASES

    llama = [case for case in CASES if case.prefix == "Llama"]
    granite = next(case for case in CASES if case.prefix == "Granite")
    scales = {
        "embedding_multiplier": 3.0, "residual_multiplier": 0.4, "logits_scaling": 4.5,
        "attention_multiplier": 24**-0.5,
    }  # fmt: skip
    scaled = Case(granite.family, "Granite", "", {**granite.values, **scales})
    plain = {k: v for k, v in llama[2].values.items()
             if k not in ("rope_parameters", "attention_bias", "mlp_bias")}  # fmt: skip
    mha = Case(llama[2].family, "Llama", "", plain)
    # llama.cpp tells 7B by its number of layers.
    deep = Case(mha.family, "Llama", "", {**plain, "num_hidden_layers": 32})
    bias = {"bias": False}
    return [
        Disguise("InternLM2", "MQA, 3 heads", llama[0], "InternLM2ForCausalLM",
                 lambda values: _config(values) | bias, _internlm2),
        Disguise("InternLM2", "MHA, 5 heads", mha, "InternLM2ForCausalLM",
                 lambda values: _config(values) | bias, _internlm2),
        Disguise("Baichuan 7B", "5 heads, 32 layers", deep, "BaichuanForCausalLM", _config,
                 _baichuan),
        Disguise("MiniCPM 1, 2", "multipliers", scaled, "MiniCPMForCausalLM", _minicpm,
                 lambda tensors, values: tensors),
        Disguise("EXAONE 3", "MQA, 3 heads", llama[0], "ExaoneForCausalLM", _exaone,
                 _exaone_tensors),
        Disguise("EXAONE 3", "llama3 rope, tied", llama[1], "ExaoneForCausalLM", _exaone,
                 _exaone_tensors),
    ]  # fmt: skip


DISGUISES = _cases()
