"""Granite 4 hybrid (IBM 2025): Mamba-2 layers with some attention layers in between, dense or
MoE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.base.errors import unsupported
from tidemill.models.config import ConfigReader
from tidemill.models.dense import Biases, Family, check_layer_types, dense_spec, read_top_k
from tidemill.models.families.granite import GGUF_KEYS as GRANITE_KEYS
from tidemill.models.families.granite import gguf_scale, multipliers
from tidemill.models.families.granitemoe import RULES as MOE_RULES
from tidemill.models.families.mamba import (
    GGUF_CONV_BIAS,
    GGUF_KEYS,
    GGUF_MIXER,
    gguf_expand,
    gguf_widths,
    mixer_rules,
    read_mixer,
)
from tidemill.models.gguf_family import EXPERTS, INNER, GgufFamily, GgufFile, by_layer
from tidemill.models.naming import GGUF_EXPERTS, Fused, Rules
from tidemill.models.rope_config import read_rope
from tidemill.models.sources import Conventions
from tidemill.models.spec import DecoderSpec, Mlp, Moe, Rope

_RECURRENT = {
    "mamba": True, "linear_attention": True, "attention": False, "full_attention": False
}  # fmt: skip
_SHARED = "model.layers.{i}.shared_mlp."

RULES: Rules = (
    *mixer_rules("model.layers.{i}.mamba."),
    # In models without experts, the shared one is the only MLP.
    (_SHARED + "input_linear.weight",
     Fused(("layers.{i}.mlp.gate.weight", "layers.{i}.mlp.up.weight"))),
    (_SHARED + "output_linear.weight", "layers.{i}.mlp.down.weight"),
    *MOE_RULES,
)  # fmt: skip


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a Granite 4 hybrid config.

    Keys besides Granite's and `read_mixer`'s: layer_types (mamba or attention, in both spellings;
    all Mamba-2 where absent), position_embedding_type (rope, else none), num_local_experts (0: a
    dense model), num_experts_per_tok, shared_intermediate_size.
    """
    reader = ConfigReader(config, "granitemoehybrid")
    layers = reader.integer("num_hidden_layers")
    types = reader.raw("layer_types") or reader.raw("layers_block_type")
    types = types or ["mamba"] * layers
    check_layer_types(types, layers, _RECURRENT)
    mixer = read_mixer(reader)
    bias = reader.boolean("attention_bias")
    reader.must_be("position_embedding_type", "rope", "nope")
    rotates = reader.raw("position_embedding_type") == "rope"
    shared = reader.integer("shared_intermediate_size", 1024)
    moe = None
    reader.raw("num_experts_per_tok")
    if reader.integer("num_local_experts", 8, low=0):
        experts, top_k = read_top_k(reader, "num_local_experts")
        width = reader.integer("intermediate_size")

        def moe(act: str) -> list[Moe | None]:
            common = Mlp(shared, act)
            return [Moe(experts, top_k, Mlp(width, act), "softmax_chosen", shared=common)] * layers

    def ropes(layers: int, head_dim: int) -> list[Rope | None]:
        rope = read_rope(reader, head_dim)
        return [rope if rotates else None] * layers

    return dense_spec(
        reader,
        "granitemoehybrid",
        biases=Biases(q=bias, k=bias, v=bias, o=bias),
        ropes=ropes,
        moe=moe,
        intermediate=shared,
        recurrences=[mixer if _RECURRENT[kind] else None for kind in types],
        **multipliers(reader),
    )


_POSITIONS = "position_embedding_type"
_PARTIAL = "partial_rotary_factor"


def _of_gguf(file: GgufFile) -> dict[str, Any]:
    """A layer without KV heads is recurrent; rope applies unless a file disables it.

    Bamba's files have the same architecture name and rotate half of each head. Their Q and K rows
    have a different order, so they are rejected.
    """
    config, rotates = file.config, file.config.get(_POSITIONS, True)
    if rotates and config.get(_PARTIAL, 1.0) != 1.0:
        key = "granitehybrid.rope.dimension_count"
        raise unsupported(key, f"GGUF key {key!r}: heads that rotate in part are not supported")
    heads = by_layer(file, "num_key_value_heads")
    found: dict[str, Any] = {
        **gguf_scale(file),
        **gguf_expand(file, "mamba_expand"),
        _POSITIONS: "rope" if rotates else "nope",
        _PARTIAL: None,
        "mamba_d_head": gguf_widths(file)[1],
        "layer_types": ["attention" if count else "mamba" for count in heads],
        "num_key_value_heads": max(heads, default=0),
    }
    if not config.get("num_local_experts"):
        width = config.get("intermediate_size")
        found |= {"num_local_experts": 0, "shared_intermediate_size": width}
    return found


FAMILY = Family(
    name="granitemoehybrid",
    architectures=("GraniteMoeHybridForCausalLM",),
    spec=spec,
    rules=RULES,
    gguf=GgufFamily(
        arch="granitehybrid",
        rules=(*GGUF_MIXER, *GGUF_EXPERTS),
        stored=Conventions(paired_rope=True, decays=True),
        biases={"mamba_conv_bias": GGUF_CONV_BIAS, "attention_bias": "blk.{i}.attn_q.bias"},
        keys={
            **GRANITE_KEYS,
            **EXPERTS,
            **GGUF_KEYS,
            "expert_count": "num_local_experts",
            "expert_shared_feed_forward_length": "shared_intermediate_size",
            "rope.scaling.finetuned": _POSITIONS,
        },
        unused=frozenset({INNER}),
        implied=_of_gguf,
        by_layer=frozenset({"attention.head_count_kv"}),
    ),
)
