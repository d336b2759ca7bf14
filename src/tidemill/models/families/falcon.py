"""Falcon 7B, 11B, 40B and 180B (Almazrouei et al. 2023): parallel blocks, few KV heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.models import tensors as names
from tidemill.models.config import ConfigReader
from tidemill.models.dense import LAYER_NORM, Biases, Family, dense_spec
from tidemill.models.gguf_family import GgufFamily, GgufFile
from tidemill.models.naming import GGUF_QKV, GROUPED_QKV, Rules
from tidemill.models.spec import DecoderSpec

_NAMES = {
    "num_key_value_heads": "num_kv_heads",
    "intermediate_size": "ffn_hidden_size",
    "hidden_act": "activation",
    "rms_norm_eps": "layer_norm_epsilon",
}
_TRAINED_CONTEXT = 2048

RULES: Rules = (
    ("transformer.word_embeddings.weight", names.EMBED),
    ("transformer.ln_f.{t}", "final_norm.{t}"),
    ("lm_head.weight", names.LM_HEAD),
    ("transformer.h.{i}.input_layernorm.{t}", "layers.{i}.attn_norm.{t}"),
    ("transformer.h.{i}.ln_attn.{t}", "layers.{i}.attn_norm.{t}"),
    ("transformer.h.{i}.ln_mlp.{t}", "layers.{i}.mlp_norm.{t}"),
    ("transformer.h.{i}.post_attention_layernorm.{t}", "layers.{i}.mlp_norm.{t}"),
    ("transformer.h.{i}.self_attention.query_key_value.{t}", GROUPED_QKV),
    ("transformer.h.{i}.self_attention.dense.{t}", "layers.{i}.attn.o.{t}"),
    ("transformer.h.{i}.mlp.dense_h_to_4h.{t}", "layers.{i}.mlp.up.{t}"),
    ("transformer.h.{i}.mlp.dense_4h_to_h.{t}", "layers.{i}.mlp.down.{t}"),
)


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a Falcon config.

    Keys besides the common ones: num_kv_heads, ffn_hidden_size (4 hidden_size when absent),
    activation, layer_norm_epsilon, bias, multi_query, new_decoder_architecture, parallel_attn,
    num_ln_in_parallel_attn. alibi (Falcon-RW, computed in bfloat16 there) is rejected.
    """
    plain = ConfigReader(config, "falcon", _NAMES)
    new = plain.boolean("new_decoder_architecture")
    heads = plain.integer("num_attention_heads")
    kv_heads = plain.integer("num_key_value_heads", heads) if new else heads
    if not new and plain.boolean("multi_query", True):
        kv_heads = 1
    width = config.get("ffn_hidden_size") or 4 * plain.integer("hidden_size")
    values = {**config, "num_kv_heads": kv_heads, "ffn_hidden_size": width}
    values.setdefault("max_position_embeddings", _TRAINED_CONTEXT)
    reader = ConfigReader(values, "falcon", _NAMES)
    reader.must_be("alibi", False)
    for key in ("new_decoder_architecture", "multi_query", "n_head_kv"):
        reader.raw(key)
    parallel = reader.boolean("parallel_attn", True) or new
    norms = reader.optional_integer("num_ln_in_parallel_attn") or (2 if new else 1)
    bias = reader.boolean("bias")
    return dense_spec(
        reader,
        "falcon",
        biases=Biases(q=bias, k=bias, v=bias, o=bias, mlp=bias),
        norm=LAYER_NORM,
        norm_eps=1e-5,
        activation="gelu",
        gated=False,
        layer={"parallel": parallel, "shared_norm": parallel and norms == 1},
        tied=True,
    )


# In models with two norms, attn_norm belongs to the MLP.
_GGUF_RULES: Rules = (
    ("blk.{i}.attn_norm.{t}", "layers.{i}.mlp_norm.{t}"),
    *GGUF_QKV,
    ("blk.{i}.attn_norm_2.{t}", "layers.{i}.attn_norm.{t}"),
)


def _gguf_norms(file: GgufFile) -> dict[str, Any]:
    """Adds the keys of the newer architecture, whose config also covers the older one."""
    norms = 2 if "blk.0.attn_norm_2.weight" in file.tensors else 1
    return {"new_decoder_architecture": True, "num_ln_in_parallel_attn": norms}


FAMILY = Family(
    name="falcon",
    architectures=("FalconForCausalLM",),
    spec=spec,
    rules=RULES,
    gguf=GgufFamily(arch="falcon", rules=_GGUF_RULES, names=_NAMES, implied=_gguf_norms),
)
