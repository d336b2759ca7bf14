"""BLOOM (BigScience 2022): ALiBi, a norm after the embedding, fused QKV by head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.models import tensors as names
from tidemill.models.alibi import slopes
from tidemill.models.config import ConfigReader
from tidemill.models.dense import LAYER_NORM, Biases, Family, dense_spec
from tidemill.models.gguf_family import GgufFamily
from tidemill.models.naming import GGUF_QKV, GROUPED_QKV, Rules
from tidemill.models.spec import DecoderSpec

_NAMES = {
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
    "max_position_embeddings": "seq_length",
    "rms_norm_eps": "layer_norm_epsilon",
}
_TRAINED_CONTEXT = 2048


def _rules(prefix: str) -> Rules:
    layer = prefix + "h.{i}."
    return (
        (prefix + "word_embeddings.weight", names.EMBED),
        (prefix + "word_embeddings_layernorm.{t}", "embed_norm.{t}"),
        (prefix + "ln_f.{t}", "final_norm.{t}"),
        (layer + "input_layernorm.{t}", "layers.{i}.attn_norm.{t}"),
        (layer + "post_attention_layernorm.{t}", "layers.{i}.mlp_norm.{t}"),
        (layer + "self_attention.query_key_value.{t}", GROUPED_QKV),
        (layer + "self_attention.dense.{t}", "layers.{i}.attn.o.{t}"),
        (layer + "mlp.dense_h_to_4h.{t}", "layers.{i}.mlp.up.{t}"),
        (layer + "mlp.dense_4h_to_h.{t}", "layers.{i}.mlp.down.{t}"),
    )


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a BLOOM config.

    Keys: vocab_size, hidden_size (or n_embed), n_head (or num_attention_heads), n_layer (or
    num_hidden_layers), seq_length (2048, the trained context), layer_norm_epsilon,
    tie_word_embeddings.
    """
    values = dict(config)
    for older, key in (("n_embed", "hidden_size"), ("num_attention_heads", "n_head"),
                       ("num_hidden_layers", "n_layer")):  # fmt: skip
        if values.get(key) is None:
            values[key] = values.get(older)
        values.pop(older, None)
    plain = ConfigReader(values, "bloom", _NAMES)
    values["intermediate_size"] = 4 * plain.integer("hidden_size")
    values.setdefault("seq_length", _TRAINED_CONTEXT)
    reader = ConfigReader(values, "bloom", _NAMES)
    reader.must_be("apply_residual_connection_post_layernorm", False)
    for key in ("slow_but_exact", "offset_alibi", "masked_softmax_fusion", "bias_dropout_fusion",
                "skip_bias_add", "skip_bias_add_qkv", "attention_softmax_in_fp32"):  # fmt: skip
        reader.raw(key)
    return dense_spec(
        reader,
        "bloom",
        biases=Biases(q=True, k=True, v=True, o=True, mlp=True),
        ropes=lambda layers, dim: [None] * layers,
        norm=LAYER_NORM,
        norm_eps=1e-5,
        activation="gelu_new",
        gated=False,
        attention={"slopes": slopes(reader.integer("num_attention_heads"))},
        tied=True,
        embed_norm=True,
    )


FAMILY = Family(
    name="bloom",
    architectures=("BloomForCausalLM",),
    spec=spec,
    rules=(*_rules("transformer."), *_rules(""), ("lm_head.weight", names.LM_HEAD)),
    gguf=GgufFamily(arch="bloom", rules=GGUF_QKV, names=_NAMES, rope=False),
)
