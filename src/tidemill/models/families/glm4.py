"""GLM-4 (Zeng et al. 2024), 9B chat and the 0414 models: paired rope on half of each head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.models.config import ConfigReader
from tidemill.models.dense import Biases, Family, dense_spec
from tidemill.models.gguf_family import GgufFamily, GgufFile
from tidemill.models.naming import GATE_UP, GGUF_GATE_UP, GGUF_QKV_TOO, HF_RULES, Rules
from tidemill.models.rope_config import read_rope
from tidemill.models.sources import Conventions
from tidemill.models.spec import DecoderSpec

_PARTIAL = 0.5

_GLM: Rules = (("model.layers.{i}.mlp.gate_up_proj.{t}", GATE_UP), *HF_RULES)
_GLM4: Rules = (
    ("model.layers.{i}.post_self_attn_layernorm.weight", "layers.{i}.attn_post_norm.weight"),
    ("model.layers.{i}.post_mlp_layernorm.weight", "layers.{i}.mlp_post_norm.weight"),
    *_GLM,
)


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a GLM config.

    Keys besides the common ones: attention_bias (on Q, K and V; true where absent),
    partial_rotary_factor (0.5).
    """
    return _spec(config, "glm", {})


def spec4(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a GLM-4 0414 config: GLM's keys, and additional post norms."""
    return _spec(config, "glm4", {"post_norm": True})


def _spec(config: Mapping[str, Any], family: str, layer: dict[str, Any]) -> DecoderSpec:
    reader = ConfigReader(config, family)
    bias = reader.boolean("attention_bias", True)
    return dense_spec(
        reader,
        family,
        biases=Biases(q=bias, k=bias, v=bias),
        ropes=lambda layers, dim: [read_rope(reader, dim, partial=_PARTIAL)] * layers,
        norm_eps=1.5625e-7,
        layer=layer,
    )


def _gguf_bias(file: GgufFile) -> dict[str, Any]:
    """Early files fuse Q, K and V."""
    tensors = ("blk.0.attn_q.bias", "blk.0.attn_qkv.bias")
    return {"attention_bias": any(name in file.tensors for name in tensors)}


FAMILY = Family(
    name="glm",
    architectures=("GlmForCausalLM",),
    spec=spec,
    rules=_GLM,
    stored=Conventions(paired_rope=True),
    gguf=GgufFamily(
        arch="chatglm",
        rules=(*GGUF_GATE_UP, *GGUF_QKV_TOO),
        stored=Conventions(paired_rope=True),
        implied=_gguf_bias,
    ),
)
GLM4 = Family(
    name="glm4",
    architectures=("Glm4ForCausalLM",),
    spec=spec4,
    rules=_GLM4,
    stored=Conventions(paired_rope=True),
    gguf=GgufFamily(
        arch="glm4",
        rules=(*GGUF_GATE_UP, *GGUF_QKV_TOO),
        stored=Conventions(paired_rope=True),
        implied=_gguf_bias,
    ),
)
