"""Nemotron 3/4 and Minitron (Parmar et al. 2024): layer norms stored minus one, squared ReLU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.models.config import ConfigReader
from tidemill.models.dense import LAYER_NORM, Biases, Family, dense_spec
from tidemill.models.gguf_family import GgufFamily
from tidemill.models.naming import GGUF_RULES, HF_NORM_RULES, HF_RULES
from tidemill.models.rope_config import read_rope
from tidemill.models.sources import Conventions
from tidemill.models.spec import DecoderSpec

_PARTIAL = 0.5
_NAMES = {"rms_norm_eps": "norm_eps"}


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a Nemotron config.

    Keys besides the common ones: norm_eps, attention_bias, mlp_bias, partial_rotary_factor (0.5;
    also under its older names rope_percent and rope_percentage).
    """
    reader = ConfigReader(config, "nemotron", _NAMES)
    bias = reader.boolean("attention_bias")
    partial = reader.number("rope_percentage", reader.number("rope_percent", _PARTIAL))
    return dense_spec(
        reader,
        "nemotron",
        biases=Biases(q=bias, k=bias, v=bias, o=bias, mlp=reader.boolean("mlp_bias")),
        ropes=lambda layers, dim: [read_rope(reader, dim, partial=partial)] * layers,
        norm=LAYER_NORM,
        norm_eps=1e-5,
        activation="relu2",
        gated=False,
    )


FAMILY = Family(
    name="nemotron",
    architectures=("NemotronForCausalLM",),
    spec=spec,
    rules=(*HF_NORM_RULES, *HF_RULES),
    stored=Conventions(norms_less_one=True),
    gguf=GgufFamily(
        arch="nemotron",
        rules=GGUF_RULES,
        biases={"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_up.bias"},
        names=_NAMES,
    ),
)
