"""Granite 3 MoE (IBM 2024), with or without a shared expert."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.models.config import ConfigReader
from tidemill.models.dense import Biases, Family, dense_spec, read_top_k
from tidemill.models.families.granite import GGUF_KEYS, gguf_scale, multipliers
from tidemill.models.gguf_family import EXPERTS, GgufFamily
from tidemill.models.naming import GGUF_EXPERTS, HF_RULES, Fused, Rules
from tidemill.models.sources import Conventions
from tidemill.models.spec import DecoderSpec, Mlp, Moe

_EXPERT = "layers.{i}.mlp.experts.{e}."
_SHARED = "layers.{i}.mlp.shared."

RULES: Rules = (
    ("model.layers.{i}.block_sparse_moe.router.layer.weight", "layers.{i}.mlp.router.weight"),
    ("model.layers.{i}.block_sparse_moe.input_linear.weight",
     Fused((_EXPERT + "gate.weight", _EXPERT + "up.weight"))),
    ("model.layers.{i}.block_sparse_moe.output_linear.weight", _EXPERT + "down.weight"),
    ("model.layers.{i}.shared_mlp.input_linear.weight",
     Fused((_SHARED + "gate.weight", _SHARED + "up.weight"))),
    ("model.layers.{i}.shared_mlp.output_linear.weight", _SHARED + "down.weight"),
    *HF_RULES,
)  # fmt: skip


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a Granite MoE config.

    Keys besides Granite's: num_local_experts, num_experts_per_tok.
    """
    return _spec(ConfigReader(config, "granitemoe"), "granitemoe", 0)


def spec_shared(config: Mapping[str, Any]) -> DecoderSpec:
    """Read the config of a Granite MoE with a shared expert.

    Keys besides Granite MoE's: shared_intermediate_size (0: none).
    """
    reader = ConfigReader(config, "granitemoeshared")
    return _spec(reader, "granitemoeshared", reader.integer("shared_intermediate_size", 0, low=0))


def _spec(reader: ConfigReader, family: str, shared: int) -> DecoderSpec:
    bias = reader.boolean("attention_bias")
    experts, top_k = read_top_k(reader, "num_local_experts")
    width, layers = reader.integer("intermediate_size"), reader.integer("num_hidden_layers")

    def moe(act: str) -> list[Moe | None]:
        common = Mlp(shared, act) if shared else None
        return [Moe(experts, top_k, Mlp(width, act), "softmax_chosen", shared=common)] * layers

    biases = Biases(q=bias, k=bias, v=bias, o=bias)
    return dense_spec(reader, family, biases=biases, moe=moe, **multipliers(reader))


FAMILY = Family(name="granitemoe", architectures=("GraniteMoeForCausalLM",), spec=spec, rules=RULES)
SHARED = Family(
    name="granitemoeshared",
    architectures=("GraniteMoeSharedForCausalLM",),
    spec=spec_shared,
    rules=RULES,
    gguf=GgufFamily(
        arch="granitemoe",
        rules=GGUF_EXPERTS,
        stored=Conventions(paired_rope=True),
        biases={"attention_bias": "blk.0.attn_q.bias"},
        keys={
            **GGUF_KEYS,
            **EXPERTS,
            "expert_count": "num_local_experts",
            "expert_shared_feed_forward_length": "shared_intermediate_size",
        },
        implied=gguf_scale,
    ),
)
