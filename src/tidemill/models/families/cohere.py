"""Command-R and R7B (Cohere 2024): parallel blocks, layer norms without biases, paired rope."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.models.config import MAX_POSITIONS, ConfigReader
from tidemill.models.dense import PLAIN_LAYER_NORM, Biases, Family, dense_spec, typed_windows
from tidemill.models.naming import HF_RULES
from tidemill.models.rope_config import read_rope
from tidemill.models.sources import Conventions
from tidemill.models.spec import DecoderSpec, QkNorm, Rope

_LOGIT_SCALE = 0.0625
_PATTERN = 4


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a Cohere config.

    Keys beside the common ones: layer_norm_eps, attention_bias, logit_scale, use_qk_norm.
    """
    reader = ConfigReader(config, "cohere", {"rms_norm_eps": "layer_norm_eps"})
    heads = QkNorm(PLAIN_LAYER_NORM, "heads")
    qk_norm = heads if reader.boolean("use_qk_norm") else None
    return _spec(reader, "cohere", qk_norm=qk_norm)


def spec2(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a Cohere2 config.

    Keys beside Cohere's (but use_qk_norm): sliding_window, layer_types, sliding_window_pattern (4:
    every fourth layer is full). Layers without a window have no rope.
    """
    reader = ConfigReader(config, "cohere2", {"rms_norm_eps": "layer_norm_eps"})
    window = reader.integer("sliding_window", 4096, high=MAX_POSITIONS)
    pattern = reader.integer("sliding_window_pattern", _PATTERN)
    layers = reader.integer("num_hidden_layers")
    windows = typed_windows(reader, layers, window, lambda i: (i + 1) % pattern != 0)

    def ropes(layers: int, head_dim: int) -> list[Rope | None]:
        rope = read_rope(reader, head_dim)
        return [None if w is None else rope for w in windows]

    return _spec(reader, "cohere2", windows=lambda layers: windows, ropes=ropes)


def _spec(reader: ConfigReader, family: str, **more: Any) -> DecoderSpec:
    bias = reader.boolean("attention_bias")
    return dense_spec(
        reader,
        family,
        biases=Biases(q=bias, k=bias, v=bias, o=bias),
        norm=PLAIN_LAYER_NORM,
        norm_eps=1e-5,
        layer={"parallel": True, "shared_norm": True},
        tied=True,
        logit_scale=reader.number("logit_scale", _LOGIT_SCALE),
        **more,
    )


FAMILY = Family(
    name="cohere",
    architectures=("CohereForCausalLM",),
    spec=spec,
    rules=HF_RULES,
    stored=Conventions(paired_rope=True),
)
COHERE2 = Family(
    name="cohere2",
    architectures=("Cohere2ForCausalLM",),
    spec=spec2,
    rules=HF_RULES,
    stored=Conventions(paired_rope=True),
)
