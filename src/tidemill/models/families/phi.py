"""Phi-1, 1.5 and 2 (Li et al. 2023): parallel blocks with one layer norm, biases everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.models.config import ConfigReader
from tidemill.models.dense import LAYER_NORM, Biases, Family, dense_spec
from tidemill.models.gguf_family import GgufFamily
from tidemill.models.naming import GGUF_QKV_TOO, HF_RULES, Rules
from tidemill.models.rope_config import read_rope
from tidemill.models.spec import DecoderSpec, QkNorm

_PARTIAL = 0.5
_NAMES = {"rms_norm_eps": "layer_norm_eps"}

RULES: Rules = (
    ("model.final_layernorm.{t}", "final_norm.{t}"),
    ("model.layers.{i}.input_layernorm.{t}", "layers.{i}.attn_norm.{t}"),
    ("model.layers.{i}.self_attn.dense.{t}", "layers.{i}.attn.o.{t}"),
    ("model.layers.{i}.self_attn.{p}_layernorm.{t}", "layers.{i}.attn.{p}_norm.{t}"),
    ("model.layers.{i}.mlp.fc1.{t}", "layers.{i}.mlp.up.{t}"),
    ("model.layers.{i}.mlp.fc2.{t}", "layers.{i}.mlp.down.{t}"),
    *HF_RULES,
)


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a Phi config.

    Keys besides the common ones: layer_norm_eps, partial_rotary_factor (0.5), qk_layernorm.
    """
    reader = ConfigReader(config, "phi", _NAMES)
    return dense_spec(
        reader,
        "phi",
        biases=Biases(q=True, k=True, v=True, o=True, mlp=True),
        qk_norm=QkNorm(LAYER_NORM) if reader.boolean("qk_layernorm") else None,
        ropes=lambda layers, dim: [read_rope(reader, dim, partial=_PARTIAL)] * layers,
        norm=LAYER_NORM,
        norm_eps=1e-5,
        activation="gelu_new",
        gated=False,
        layer={"parallel": True, "shared_norm": True},
        head_bias=True,
    )


FAMILY = Family(
    name="phi",
    architectures=("PhiForCausalLM",),
    spec=spec,
    rules=RULES,
    gguf=GgufFamily(arch="phi2", rules=GGUF_QKV_TOO, names=_NAMES),
)
