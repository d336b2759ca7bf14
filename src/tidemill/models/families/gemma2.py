"""Gemma 2 (Gemma team 2024) and the text part of Gemma 3 (2025): norms before and after blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.models.config import MAX_POSITIONS, ConfigReader
from tidemill.models.dense import Biases, Family, dense_spec, typed_windows
from tidemill.models.gguf_family import WINDOW, GgufFamily, GgufFile
from tidemill.models.naming import GGUF_RULES, HF_RULES, Rules
from tidemill.models.rope_config import read_rope
from tidemill.models.sources import Conventions
from tidemill.models.spec import DecoderSpec, QkNorm, Rope

_LOCAL_THETA, _GLOBAL_THETA = 10000.0, 1000000.0
_DEFAULTS = {"head_dim": 256, "query_pre_attn_scalar": 256}
_DEFAULT_PATTERN = 6

RULES: Rules = (
    ("model.layers.{i}.post_attention_layernorm.weight", "layers.{i}.attn_post_norm.weight"),
    ("model.layers.{i}.pre_feedforward_layernorm.weight", "layers.{i}.mlp_norm.weight"),
    ("model.layers.{i}.post_feedforward_layernorm.weight", "layers.{i}.mlp_post_norm.weight"),
    *HF_RULES,
)


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a Gemma 2 config.

    Keys besides the common ones: hidden_activation, attention_bias, query_pre_attn_scalar,
    sliding_window, layer_types (default: every other layer slides, from the first),
    attn_logit_softcapping, final_logit_softcapping.
    """
    return _spec(config, "gemma2", lambda layer: layer % 2 == 0)


def spec3(config: Mapping[str, Any]) -> DecoderSpec:
    """Read the config of Gemma 3's text part.

    Keys besides Gemma 2's (except attn_logit_softcapping): sliding_window_pattern (6: every sixth
    layer is full), rope_local_base_freq (10000; of sliding layers, whose rope is not scaled).
    """
    pattern = config.get("sliding_window_pattern", _DEFAULT_PATTERN)
    if not isinstance(pattern, int) or isinstance(pattern, bool) or pattern < 1:
        pattern = ConfigReader(config, "gemma3").integer("sliding_window_pattern")
    return _spec(config, "gemma3", lambda layer: (layer + 1) % pattern != 0)


def _spec(config: Mapping[str, Any], family: str, slides: Any) -> DecoderSpec:
    reader = ConfigReader({**_DEFAULTS, **config}, family, {"hidden_act": "hidden_activation"})
    reader.must_be("use_bidirectional_attention", False)
    third = family == "gemma3"
    bias = reader.boolean("attention_bias")
    window = reader.integer("sliding_window", 4096, high=MAX_POSITIONS)
    windows = typed_windows(reader, reader.integer("num_hidden_layers"), window, slides)
    if third:
        reader.raw("sliding_window_pattern")
        reader.must_be("attn_logit_softcapping", 0)  # transformers reads it but does not apply it

    def ropes(layers: int, head_dim: int) -> list[Rope | None]:
        if not third:
            return [read_rope(reader, head_dim)] * layers
        whole = read_rope(reader, head_dim, part="full_attention", theta=_GLOBAL_THETA)
        nested = (config.get("rope_parameters") or {}).get("sliding_attention") is not None
        local = Rope(reader.number("rope_local_base_freq", _LOCAL_THETA), whole.dim)
        if nested:
            local = read_rope(reader, head_dim, part="sliding_attention", theta=_LOCAL_THETA)
        return [whole if w is None else local for w in windows]

    return dense_spec(
        reader,
        family,
        biases=Biases(q=bias, k=bias, v=bias, o=bias),
        qk_norm=QkNorm() if third else None,
        windows=lambda layers: windows,
        ropes=ropes,
        activation="gelu_pytorch_tanh",
        attention={
            "scale": reader.number("query_pre_attn_scalar") ** -0.5,
            "softcap": reader.optional_number("attn_logit_softcapping"),
        },
        layer={"post_norm": True},
        tied=True,
        embed_scale=reader.integer("hidden_size") ** 0.5,
        logit_softcap=reader.optional_number("final_logit_softcapping"),
    )


_CAPS = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
_CAPPED = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}  # GGUF defaults


def _scalar(file: GgufFile, largest: int) -> dict[str, Any]:
    """Scale of the scores, which files do not state: the head dimension, except in the largest
    model (identified by its number of layers), where it is hidden_size / heads."""
    hidden, heads = file.config.get("hidden_size"), file.config.get("num_attention_heads")
    if file.config.get("num_hidden_layers") != largest:
        return {"query_pre_attn_scalar": file.config.get("head_dim")}
    if isinstance(hidden, int) and isinstance(heads, int) and heads > 0:
        return {"query_pre_attn_scalar": hidden // heads}
    return {}  # rejected with the sizes


FAMILY = Family(
    name="gemma2",
    architectures=("Gemma2ForCausalLM",),
    spec=spec,
    rules=RULES,
    stored=Conventions(norms_less_one=True),
    gguf=GgufFamily(
        arch="gemma2",
        rules=GGUF_RULES,
        keys={**WINDOW, **_CAPS},
        period=2,
        implied=lambda file: {**_CAPPED, **_scalar(file, 46), **file.config},
    ),
)
GEMMA3 = Family(
    name="gemma3",
    architectures=("Gemma3ForCausalLM",),
    spec=spec3,
    rules=RULES,
    stored=Conventions(norms_less_one=True),
    gguf=GgufFamily(
        arch="gemma3",
        rules=GGUF_RULES,
        keys={
            **WINDOW,
            "final_logit_softcapping": "final_logit_softcapping",
            "rope.freq_base_swa": "rope_local_base_freq",
        },
        period=6,
        implied=lambda file: {
            **_scalar(file, 62),
            "sliding_window": file.config.get("sliding_window") or 4096,  # for sliding layers
        },
    ),
)
