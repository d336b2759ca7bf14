"""Gemma (Gemma team 2024): norms stored minus one, the embedding scaled by sqrt(hidden)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.models.config import ConfigReader
from tidemill.models.dense import Biases, Family, dense_spec
from tidemill.models.gguf_family import GgufFamily
from tidemill.models.naming import GGUF_RULES, HF_RULES
from tidemill.models.sources import Conventions
from tidemill.models.spec import DecoderSpec

_DEFAULT_HEAD_DIM = 256


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a Gemma config.

    Keys besides the common ones: hidden_activation (before hidden_act), attention_bias (on Q, K, V
    and O). An absent head_dim is 256.
    """
    act = config.get("hidden_activation") or config.get("hidden_act")
    reader = ConfigReader(
        {"head_dim": _DEFAULT_HEAD_DIM, **config, "hidden_activation": act, "hidden_act": None},
        "gemma",
        {"hidden_act": "hidden_activation"},
    )
    reader.must_be("use_bidirectional_attention", False)
    bias = reader.boolean("attention_bias")
    return dense_spec(
        reader,
        "gemma",
        biases=Biases(q=bias, k=bias, v=bias, o=bias),
        activation="gelu_pytorch_tanh",
        tied=True,
        embed_scale=reader.integer("hidden_size") ** 0.5,
    )


FAMILY = Family(
    name="gemma",
    architectures=("GemmaForCausalLM",),
    spec=spec,
    rules=HF_RULES,
    stored=Conventions(norms_less_one=True),
    gguf=GgufFamily(arch="gemma", rules=GGUF_RULES),
)
