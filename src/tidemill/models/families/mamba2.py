"""Mamba-2 (Dao & Gu 2024): only Mamba-2 layers, without attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.base.errors import model_file_error
from tidemill.models import tensors as names
from tidemill.models.config import MAX_LAYERS, ConfigReader
from tidemill.models.dense import MAX_HEADS, Family
from tidemill.models.families.mamba import (
    GGUF_CONV_BIAS,
    GGUF_MIXER,
    GGUF_STORED,
    gguf_expand,
    gguf_widths,
    mamba2,
    mixer_rules,
)
from tidemill.models.gguf_family import INNER, GgufFamily, GgufFile
from tidemill.models.naming import GGUF_RULES, Rules
from tidemill.models.spec import MAX_CONV_KERNEL, DecoderSpec, Layer

# Configs state no context, and the model has no limit.
_POSITIONS = 2**20
# Weight initialisation, chunk sizes, and the type of sums that are always float32 here.
_HARMLESS = (
    "time_step_rank", "time_step_min", "time_step_max", "time_step_floor", "time_step_scale",
    "time_step_init_scheme", "rescale_prenorm_residual", "residual_in_fp32", "chunk_size",
    "norm_before_gate", "layer_types", "layers_block_type",
)  # fmt: skip

RULES: Rules = (
    ("backbone.embeddings.weight", names.EMBED),
    ("backbone.norm_f.weight", names.FINAL_NORM),
    ("lm_head.weight", names.LM_HEAD),
    ("backbone.layers.{i}.norm.weight", "layers.{i}.attn_norm.weight"),
    *mixer_rules("backbone.layers.{i}.mixer."),
)


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a Mamba-2 config: vocab_size, hidden_size, num_hidden_layers, num_heads, head_dim,
    expand, state_size, n_groups, conv_kernel, use_bias, use_conv_bias, time_step_limit,
    layer_norm_epsilon, tie_word_embeddings, max_position_embeddings (1048576 when absent). The
    output is gated, then normed, as in transformers, whatever norm_before_gate says."""
    reader = ConfigReader(config, "mamba2")
    for key in _HARMLESS:
        reader.raw(key)
    reader.must_be("hidden_act", "silu")
    reader.must_be("rms_norm", True)
    hidden, expand = reader.integer("hidden_size", 4096), reader.integer("expand", 2)
    heads, head_dim = (
        reader.integer("num_heads", 128, high=MAX_HEADS),
        reader.integer("head_dim", 64),
    )
    inner = reader.optional_integer("intermediate_size")
    if heads * head_dim != expand * hidden or inner not in (None, expand * hidden):
        raise model_file_error(
            f"num_heads ({heads}) heads of {head_dim} are not expand times hidden_size "
            f"({expand * hidden})",
            param="num_heads",
        )
    mixer = mamba2(
        reader,
        heads,
        head_dim,
        groups=reader.integer("n_groups", 8, high=MAX_HEADS),
        state=reader.integer("state_size", 128),
        conv_kernel=reader.integer("conv_kernel", 4, high=MAX_CONV_KERNEL),
        bias=reader.boolean("use_bias"),
        conv_bias=reader.boolean("use_conv_bias", True),
    )
    found = DecoderSpec(
        family="mamba2",
        vocab_size=reader.integer("vocab_size", 32768),
        hidden_size=hidden,
        max_positions=reader.integer("max_position_embeddings", _POSITIONS),
        layers=(Layer(mixer, None),) * reader.integer("num_hidden_layers", 64, high=MAX_LAYERS),
        norm_eps=reader.number("layer_norm_epsilon", 1e-5),
        tied_embeddings=reader.boolean("tie_word_embeddings"),
    )
    reader.finish()
    return found


def _of_gguf(file: GgufFile) -> dict[str, Any]:
    inner, head_dim = gguf_widths(file)
    return {"intermediate_size": inner, "head_dim": head_dim, **gguf_expand(file, "expand")}


FAMILY = Family(
    name="mamba2",
    architectures=("Mamba2ForCausalLM",),
    spec=spec,
    rules=RULES,
    gguf=GgufFamily(
        arch="mamba2",
        rules=(*GGUF_MIXER, *GGUF_RULES),
        stored=GGUF_STORED,
        biases={"use_conv_bias": GGUF_CONV_BIAS},
        keys={
            "ssm.conv_kernel": "conv_kernel",
            "ssm.state_size": "state_size",
            "ssm.time_step_rank": "num_heads",
            "ssm.group_count": "n_groups",
        },
        unused=frozenset({INNER, "attention.head_count", "feed_forward_length"}),  # both are 0
        names={"rms_norm_eps": "layer_norm_epsilon"},
        rope=False,
        implied=_of_gguf,
    ),
)
