"""MPT (MosaicML 2023): ALiBi, layer norms without biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.base.errors import model_file_error
from tidemill.models import tensors as names
from tidemill.models.alibi import slopes
from tidemill.models.config import ConfigReader
from tidemill.models.dense import PLAIN_LAYER_NORM, Family, dense_spec
from tidemill.models.gguf_family import GgufFamily, GgufFile
from tidemill.models.naming import GGUF_QKV, QKV, Rules
from tidemill.models.spec import DecoderSpec

_NAMES = {
    "hidden_size": "d_model",
    "num_attention_heads": "n_heads",
    "num_hidden_layers": "n_layers",
    "max_position_embeddings": "max_seq_len",
    "rms_norm_eps": "layer_norm_epsilon",
}
_UNUSED = (
    "verbose", "init_device", "emb_pdrop", "learned_pos_emb", "norm_type", "fc_type", "init_config",
    "embedding_fraction", "use_pad_tok_in_ffn",
)  # fmt: skip
_EXPANSION = 4

RULES: Rules = (
    ("transformer.wte.weight", names.EMBED),
    ("transformer.norm_f.weight", "final_norm.weight"),
    ("lm_head.weight", names.LM_HEAD),
    ("transformer.blocks.{i}.norm_1.weight", "layers.{i}.attn_norm.weight"),
    ("transformer.blocks.{i}.norm_2.weight", "layers.{i}.mlp_norm.weight"),
    ("transformer.blocks.{i}.attn.Wqkv.{t}", QKV),
    ("transformer.blocks.{i}.attn.out_proj.{t}", "layers.{i}.attn.o.{t}"),
    ("transformer.blocks.{i}.ffn.up_proj.{t}", "layers.{i}.mlp.up.{t}"),
    ("transformer.blocks.{i}.ffn.down_proj.{t}", "layers.{i}.mlp.down.{t}"),
)


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Read an MPT config.

    Keys: vocab_size, d_model, n_heads, n_layers, max_seq_len, expansion_ratio (4),
    layer_norm_epsilon, no_bias, tie_word_embeddings; of attn_config: alibi, alibi_bias_max,
    clip_qkv, softmax_scale, attn_type, qk_ln, prefix_lm, attn_uses_sequence_id.
    """
    plain = ConfigReader(config, "mpt", _NAMES)
    width = _EXPANSION * plain.integer("hidden_size")
    reader = ConfigReader(
        {**config, "intermediate_size": width, "hidden_act": "gelu"}, "mpt", _NAMES
    )
    reader.must_be("expansion_ratio", _EXPANSION)
    reader.must_be("no_bias", True)
    reader.must_be("logit_scale", 1.0)
    for key in _UNUSED:
        reader.raw(key)
    section = reader.raw("attn_config") or {}
    if not isinstance(section, dict):
        raise model_file_error("config key 'attn_config' must be an object", param="attn_config")
    own = ConfigReader(section, "mpt")
    for key in ("attn_impl", "attn_pdrop", "model_type", "transformers_version"):
        own.raw(key)
    own.must_be("alibi", True)
    own.must_be("attn_type", "multihead_attention")
    for key in ("qk_ln", "prefix_lm", "attn_uses_sequence_id"):
        own.must_be(key, False)
    heads = reader.integer("num_attention_heads")
    attention = {
        "slopes": slopes(heads, own.integer("alibi_bias_max", 8)),
        "clip": own.optional_number("clip_qkv"),
        "scale": own.optional_number("softmax_scale"),
    }
    own.finish()
    return dense_spec(
        reader,
        "mpt",
        ropes=lambda layers, dim: [None] * layers,
        norm=PLAIN_LAYER_NORM,
        norm_eps=1e-5,
        gated=False,
        attention=attention,
        tied=True,
    )


def _gguf_config(file: GgufFile) -> dict[str, Any]:
    """The keys of attention, nested as the config has them."""
    found = {k: file.config.get(k) for k in ("clip_qkv", "alibi_bias_max")}
    bias = found["alibi_bias_max"]
    if isinstance(bias, float) and bias.is_integer():
        found["alibi_bias_max"] = int(bias)
    return {"attn_config": found, "clip_qkv": None, "alibi_bias_max": None}


FAMILY = Family(
    name="mpt",
    architectures=("MptForCausalLM", "MPTForCausalLM"),
    spec=spec,
    rules=RULES,
    gguf=GgufFamily(
        arch="mpt",
        rules=GGUF_QKV,
        keys={"attention.clamp_kqv": "clip_qkv", "attention.max_alibi_bias": "alibi_bias_max"},
        names=_NAMES,
        rope=False,
        implied=_gguf_config,
    ),
)
