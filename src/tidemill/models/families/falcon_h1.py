"""Falcon-H1 (TII 2025): attention and Mamba-2 in parallel in every layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from tidemill.base.errors import model_file_error, unsupported
from tidemill.models.config import ConfigReader, checked_number
from tidemill.models.dense import Biases, Family, dense_spec
from tidemill.models.families.bamba import RULES
from tidemill.models.families.mamba import (
    GGUF_CONV_BIAS,
    GGUF_KEYS,
    GGUF_MIXER,
    GGUF_STORED,
    read_mixer,
)
from tidemill.models.gguf_family import INNER, Factors, Folding, GgufFamily
from tidemill.models.naming import GGUF_RULES
from tidemill.models.spec import DecoderSpec, Mlp


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a Falcon-H1 config.

    Keys besides the common ones and `read_mixer`'s: mamba_d_ssm (the mixer's width; without it
    mamba_expand determines the width), mamba_rms_norm and mamba_norm_before_gate, projectors_bias,
    attention_bias, mlp_bias, and the multipliers: embedding_multiplier, lm_head_multiplier,
    key_multiplier, attention_in_multiplier, attention_out_multiplier, ssm_in_multiplier,
    ssm_out_multiplier, ssm_multipliers (of z, x, B, C and dt), mlp_multipliers (of the gate and of
    the output). num_logits_to_keep changes no result.
    """
    reader = ConfigReader(config, "falcon_h1")
    reader.raw("num_logits_to_keep")
    types = reader.raw("layers_block_type") or reader.raw("layer_types")
    if types is not None and (not isinstance(types, list) or set(types) != {"hybrid"}):
        raise unsupported("layer_types", "falcon_h1 is supported with hybrid layers only")
    bias, inner = reader.boolean("attention_bias"), reader.optional_integer("mamba_d_ssm")
    mixer = read_mixer(reader, inner)
    if reader.boolean("projectors_bias") != mixer.bias:
        raise unsupported(
            "projectors_bias",
            "falcon_h1 is supported with projectors_bias equal to mamba_proj_bias",
        )
    entering = reader.number("attention_in_multiplier", 1.0)
    into_mixer = reader.number("ssm_in_multiplier", 1.0)
    for key, number, biased in (
        ("attention_in_multiplier", entering, bias),
        ("ssm_in_multiplier", into_mixer, mixer.bias),
    ):
        if biased and number != 1.0:
            raise unsupported(key, f"{key} with a biased projection is not supported")
    z, x, b, c, dt = (into_mixer * n for n in _numbers(reader, "ssm_multipliers", 5))
    normed, norm_first = (
        reader.boolean("mamba_rms_norm"),
        reader.boolean("mamba_norm_before_gate", True),
    )
    mixer = dataclasses.replace(
        mixer,
        norm_groups=mixer.norm_groups if normed else 0,
        gate_first=not norm_first,
        scales=(z, x, b, c, dt),
    )
    gate, down = _numbers(reader, "mlp_multipliers", 2)
    # The square of the input multiplier times the keys' multiplier scales the scores.
    score = entering**2 * reader.number("key_multiplier", 1.0)
    plain = dense_spec(
        reader,
        "falcon_h1",
        biases=Biases(q=bias, k=bias, v=bias, o=bias, mlp=reader.boolean("mlp_bias")),
        norm_eps=1e-5,
        layer={
            "parallel_mixer": mixer,
            "parallel_scale": reader.number("ssm_out_multiplier", 1.0),
            # Q, K and V scale with the input. Only V's share remains in the output.
            "mixer_scale": entering * reader.number("attention_out_multiplier", 1.0),
            "mlp_scale": down,
        },
        embed_scale=reader.number("embedding_multiplier", 1.0),
        logit_scale=reader.number("lm_head_multiplier", 1.0),
    )
    layers = []
    for layer in plain.layers:
        attention, mlp = layer.attention, layer.mlp
        assert attention is not None and isinstance(mlp, Mlp)
        attention = dataclasses.replace(attention, scale=attention.score_scale * score)
        mlp = dataclasses.replace(mlp, gate_scale=gate)
        layers.append(dataclasses.replace(layer, mixer=attention, mlp=mlp))
    return dataclasses.replace(plain, layers=tuple(layers))


def _numbers(reader: ConfigReader, key: str, count: int) -> tuple[float, ...]:
    value = reader.raw(key)
    if value is None:
        return (1.0,) * count
    if not isinstance(value, list) or len(value) != count:
        raise model_file_error(f"{key} must list {count} numbers", param=key)
    return tuple(checked_number(key, number) for number in value)


def _factors(config: Mapping[str, Any], spec: DecoderSpec) -> dict[str, Factors]:
    """What the multipliers apply to, in transformers' order (float32 rounding depends on it)."""
    reader = ConfigReader(config, "falcon_h1")
    mixer = spec.recurrences()[0]
    entering = reader.number("attention_in_multiplier", 1.0)
    into_mixer = reader.number("ssm_in_multiplier", 1.0)
    z, *of_channels, dt = _numbers(reader, "ssm_multipliers", 5)
    keys = mixer.key_heads * mixer.key_dim
    channels = np.repeat(np.array(of_channels, np.float32), [mixer.inner, keys, keys])
    gate, down = _numbers(reader, "mlp_multipliers", 2)
    key = reader.number("key_multiplier", 1.0)
    out = reader.number("attention_out_multiplier", 1.0)
    return {
        "embed.weight": (reader.number("embedding_multiplier", 1.0),),
        "lm_head.weight": (reader.number("lm_head_multiplier", 1.0),),
        "attn.q.weight": (entering,),
        "attn.k.weight": (key, entering),
        "attn.k.bias": (key,),
        "attn.v.weight": (entering,),
        "attn.o.weight": (out,),
        "attn.o.bias": (out,),
        "mlp.gate.weight": (gate,),
        "mlp.gate.bias": (gate,),
        "mlp.down.weight": (down,),
        "mlp.down.bias": (down,),
        "rec.z.weight": (into_mixer, z),
        "rec.qkv.weight": (into_mixer, channels),
        "rec.a.weight": (into_mixer, dt),
        "rec.out.weight": (reader.number("ssm_out_multiplier", 1.0),),
    }


FAMILY = Family(
    name="falcon_h1",
    architectures=("FalconH1ForCausalLM",),
    spec=spec,
    rules=RULES,
    gguf=GgufFamily(
        arch="falcon-h1",
        rules=(
            *GGUF_MIXER,
            ("blk.{i}.ffn_norm", "layers.{i}.mlp_norm.weight"),  # named so in these files
            *GGUF_RULES,
        ),
        stored=GGUF_STORED,
        biases={
            "mamba_conv_bias": GGUF_CONV_BIAS,
            "mamba_rms_norm": "blk.{i}.ssm_norm.weight",
            "attention_bias": "blk.{i}.attn_q.bias",
            "mlp_bias": "blk.{i}.ffn_up.bias",
        },
        keys={**GGUF_KEYS, INNER: "mamba_d_ssm"},
        implied=lambda file: {"mamba_norm_before_gate": False},
        folding=Folding(
            keys=(
                "embedding_multiplier", "lm_head_multiplier", "key_multiplier",
                "attention_in_multiplier", "attention_out_multiplier", "ssm_in_multiplier",
                "ssm_out_multiplier", "ssm_multipliers", "mlp_multipliers",
            ),
            factors=_factors,
        ),
    ),
)  # fmt: skip
