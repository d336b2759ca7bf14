"""Command-R and R7B (Cohere 2024): parallel blocks, layer norms without biases, paired rope."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.models.config import MAX_POSITIONS, ConfigReader
from tidemill.models.dense import PLAIN_LAYER_NORM, Biases, Family, dense_spec, typed_windows
from tidemill.models.gguf_family import WINDOW, GgufFamily
from tidemill.models.naming import GGUF_RULES, HF_RULES
from tidemill.models.rope_config import read_rope
from tidemill.models.sources import Conventions
from tidemill.models.spec import DecoderSpec, QkNorm, Rope

_LOGIT_SCALE = 0.0625
_PATTERN = 4
# Architecture keys that published Cohere2 configs have in addition to transformers' keys.
_AS_BUILT = {
    "rotary_pct": 1.0,
    "layer_switch": 4,
    "order_of_interleaved_layers": "local_attn_first",
    "position_embedding_type": "rope_gptj",
    "use_embedding_sharing": True,
    "use_gated_activation": True,
    "use_parallel_block": True,
    "use_parallel_embedding": True,
}
_NAMES = {"rms_norm_eps": "layer_norm_eps"}


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a Cohere config.

    Keys besides the common ones: layer_norm_eps, attention_bias, logit_scale, use_qk_norm.
    """
    reader = ConfigReader(config, "cohere", _NAMES)
    heads = QkNorm(PLAIN_LAYER_NORM, "heads")
    qk_norm = heads if reader.boolean("use_qk_norm") else None
    return _spec(reader, "cohere", qk_norm=qk_norm)


def spec2(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a Cohere2 config.

    Keys besides Cohere's (except use_qk_norm): sliding_window, layer_types, sliding_window_pattern
    (4: every fourth layer is full), and descriptions of the architecture (`_AS_BUILT`). Layers
    without a window have no rope.
    """
    reader = ConfigReader(config, "cohere2", _NAMES)
    for key, value in _AS_BUILT.items():
        reader.must_be(key, value)
    reader.raw("cache_implementation")
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
    gguf=GgufFamily(
        arch="command-r",
        rules=GGUF_RULES,
        stored=Conventions(paired_rope=True),
        biases={"attention_bias": "blk.0.attn_q.bias", "use_qk_norm": "blk.0.attn_q_norm.weight"},
        keys={"logit_scale": "logit_scale"},
        names=_NAMES,
        implied=lambda file: {"logit_scale": file.config.get("logit_scale", 1.0)},
    ),
)
COHERE2 = Family(
    name="cohere2",
    architectures=("Cohere2ForCausalLM",),
    spec=spec2,
    rules=HF_RULES,
    stored=Conventions(paired_rope=True),
    gguf=GgufFamily(
        arch="cohere2",
        rules=GGUF_RULES,
        stored=Conventions(paired_rope=True),
        keys={**WINDOW, "logit_scale": "logit_scale"},
        names=_NAMES,
        period=4,
    ),
)
