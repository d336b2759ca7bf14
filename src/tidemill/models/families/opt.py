"""OPT (Zhang et al. 2022), except 350M: learned positions, ReLU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.models import tensors as names
from tidemill.models.config import ConfigReader
from tidemill.models.dense import LAYER_NORM, Biases, Family, dense_spec
from tidemill.models.naming import Rules
from tidemill.models.sources import Conventions
from tidemill.models.spec import DecoderSpec, Norm

_NAMES = {"intermediate_size": "ffn_dim", "hidden_act": "activation_function"}
_POSITION_OFFSET = 2


def _rules(prefix: str) -> Rules:
    layer = prefix + "layers.{i}."
    return (
        (prefix + "embed_tokens.weight", names.EMBED),
        (prefix + "embed_positions.weight", names.POSITIONS),
        (prefix + "final_layer_norm.{t}", "final_norm.{t}"),
        (layer + "self_attn_layer_norm.{t}", "layers.{i}.attn_norm.{t}"),
        (layer + "final_layer_norm.{t}", "layers.{i}.mlp_norm.{t}"),
        (layer + "self_attn.out_proj.{t}", "layers.{i}.attn.o.{t}"),
        (layer + "self_attn.{p}_proj.{t}", "layers.{i}.attn.{p}.{t}"),
        (layer + "fc1.{t}", "layers.{i}.mlp.up.{t}"),
        (layer + "fc2.{t}", "layers.{i}.mlp.down.{t}"),
    )


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Read an OPT config.

    Keys: vocab_size, hidden_size, ffn_dim, num_attention_heads, num_hidden_layers,
    max_position_embeddings, activation_function, enable_bias, layer_norm_elementwise_affine,
    tie_word_embeddings. OPT-350M's post norms and narrower embedding are rejected.
    """
    reader = ConfigReader(config, "opt", _NAMES)
    reader.must_be("do_layer_norm_before", True)
    reader.must_be("_remove_final_layer_norm", False)
    reader.must_be("word_embed_proj_dim", reader.integer("hidden_size"))
    for key in ("layerdrop", "init_std", "dropout", "activation_dropout"):
        reader.raw(key)
    bias = reader.boolean("enable_bias", True)
    affine = reader.boolean("layer_norm_elementwise_affine", True)
    return dense_spec(
        reader,
        "opt",
        biases=Biases(q=bias, k=bias, v=bias, o=bias, mlp=bias),
        ropes=lambda layers, dim: [None] * layers,
        norm=LAYER_NORM if affine else Norm("layer", weight=False),
        norm_eps=1e-5,
        activation="relu",
        gated=False,
        tied=True,
        learned_positions=True,
    )


FAMILY = Family(
    name="opt",
    architectures=("OPTForCausalLM",),
    spec=spec,
    rules=(
        *_rules("model.decoder."),
        *_rules("decoder."),
        ("lm_head.weight", names.LM_HEAD),
    ),
    stored=Conventions(position_offset=_POSITION_OFFSET),
)
