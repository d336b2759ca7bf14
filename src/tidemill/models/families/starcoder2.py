"""StarCoder2 (Lozhkov et al. 2024): layer norms, a plain MLP, a sliding window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.models.config import MAX_POSITIONS, ConfigReader
from tidemill.models.dense import LAYER_NORM, Biases, Family, dense_spec
from tidemill.models.gguf_family import GgufFamily
from tidemill.models.naming import GGUF_RULES, HF_NORM_RULES, HF_RULES, Rules
from tidemill.models.spec import DecoderSpec

_NAMES = {"rms_norm_eps": "norm_epsilon"}

RULES: Rules = (
    ("model.layers.{i}.mlp.c_fc.{t}", "layers.{i}.mlp.up.{t}"),
    ("model.layers.{i}.mlp.c_proj.{t}", "layers.{i}.mlp.down.{t}"),
    *HF_NORM_RULES,
    *HF_RULES,
)


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a StarCoder2 config.

    Keys besides the common ones: norm_epsilon, use_bias (on every projection), sliding_window,
    residual_dropout and embedding_dropout (without effect).
    """
    reader = ConfigReader(config, "starcoder2", _NAMES)
    for key in ("residual_dropout", "embedding_dropout"):
        reader.raw(key)
    bias = reader.boolean("use_bias", True)
    window = reader.optional_integer("sliding_window", high=MAX_POSITIONS)
    return dense_spec(
        reader,
        "starcoder2",
        biases=Biases(q=bias, k=bias, v=bias, o=bias, mlp=bias),
        windows=lambda layers: [window] * layers,
        norm=LAYER_NORM,
        norm_eps=1e-5,
        activation="gelu_pytorch_tanh",
        gated=False,
        tied=True,
    )


FAMILY = Family(
    name="starcoder2",
    architectures=("Starcoder2ForCausalLM",),
    spec=spec,
    rules=RULES,
    gguf=GgufFamily(
        arch="starcoder2",
        rules=GGUF_RULES,
        biases={"use_bias": "blk.0.attn_q.bias"},
        names=_NAMES,
    ),
)
