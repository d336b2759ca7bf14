"""Bamba (IBM, Princeton, CMU, UIUC 2024): Mamba-2 layers with some attention layers in between."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.base.errors import model_file_error
from tidemill.models.config import ConfigReader
from tidemill.models.dense import Biases, Family, dense_spec
from tidemill.models.families.mamba import mixer_rules, read_mixer
from tidemill.models.naming import HF_RULES, Rules
from tidemill.models.rope_config import read_rope
from tidemill.models.spec import DecoderSpec, Rope

_ROTATING = 0.5

RULES: Rules = (
    *mixer_rules("model.layers.{i}.mamba."),
    ("model.final_layernorm.weight", "final_norm.weight"),
    ("model.layers.{i}.pre_ff_layernorm.weight", "layers.{i}.mlp_norm.weight"),
    ("model.layers.{i}.feed_forward.{p}_proj.{t}", "layers.{i}.mlp.{p}.{t}"),
    *HF_RULES,
)


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a Bamba config.

    Keys besides the common ones and `read_mixer`'s: attn_layer_indices (the others are Mamba-2),
    attention_bias, mlp_bias. Half of each head rotates. z_loss_coefficient and num_logits_to_keep
    change no result.
    """
    reader = ConfigReader(config, "bamba")
    for key in ("z_loss_coefficient", "num_logits_to_keep"):
        reader.raw(key)
    layers = reader.integer("num_hidden_layers")
    attending = reader.raw("attn_layer_indices") or []
    if not isinstance(attending, list) or not all(i in range(layers) for i in attending):
        raise model_file_error("attn_layer_indices must list layers", param="attn_layer_indices")
    mixer = read_mixer(reader)
    bias = reader.boolean("attention_bias")

    def ropes(layers: int, head_dim: int) -> list[Rope | None]:
        return [read_rope(reader, head_dim, partial=_ROTATING)] * layers

    return dense_spec(
        reader,
        "bamba",
        biases=Biases(q=bias, k=bias, v=bias, o=bias, mlp=reader.boolean("mlp_bias")),
        norm_eps=1e-5,
        ropes=ropes,
        recurrences=[None if i in attending else mixer for i in range(layers)],
    )


FAMILY = Family(name="bamba", architectures=("BambaForCausalLM",), spec=spec, rules=RULES)
