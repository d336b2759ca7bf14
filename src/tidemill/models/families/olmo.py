"""OLMo (Groeneveld et al. 2024): layer norms without parameters, clipped Q, K and V."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.models.config import ConfigReader
from tidemill.models.dense import Biases, Family, dense_spec
from tidemill.models.gguf_family import GgufFamily
from tidemill.models.naming import GGUF_RULES, HF_RULES
from tidemill.models.sources import Conventions
from tidemill.models.spec import DecoderSpec, Norm

_EPS = 1e-5


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Read an OLMo config. Keys besides the common ones: attention_bias, clip_qkv."""
    reader = ConfigReader(config, "olmo")
    bias = reader.boolean("attention_bias")
    return dense_spec(
        reader,
        "olmo",
        biases=Biases(q=bias, k=bias, v=bias, o=bias),
        norm=Norm("layer", weight=False),
        norm_eps=_EPS,
        attention={"clip": reader.optional_number("clip_qkv")},
    )


FAMILY = Family(
    name="olmo",
    architectures=("OlmoForCausalLM",),
    spec=spec,
    rules=HF_RULES,
    gguf=GgufFamily(
        arch="olmo",
        rules=GGUF_RULES,
        stored=Conventions(paired_rope=True),
        keys={"attention.clamp_kqv": "clip_qkv"},
    ),
)
