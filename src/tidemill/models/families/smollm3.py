"""SmolLM3 (Hugging Face 2025): some layers have no rope."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.base.errors import model_file_error
from tidemill.models.config import MAX_POSITIONS, ConfigReader
from tidemill.models.dense import Biases, Family, dense_spec, typed_windows
from tidemill.models.gguf_family import GgufFamily
from tidemill.models.naming import GGUF_RULES, HF_RULES
from tidemill.models.rope_config import read_rope
from tidemill.models.sources import Conventions
from tidemill.models.spec import DecoderSpec, Rope

_THETA = 2000000.0


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Read a SmolLM3 config.

    Keys besides the common ones: attention_bias, mlp_bias, no_rope_layers (a list, 0 for layers
    without rope), else no_rope_layer_interval (4: every fourth layer has none), use_sliding_window,
    sliding_window, layer_types.
    """
    reader = ConfigReader(config, "smollm3")
    bias = reader.boolean("attention_bias")
    interval = reader.integer("no_rope_layer_interval", 4)

    def ropes(layers: int, head_dim: int) -> list[Rope | None]:
        listed = reader.raw("no_rope_layers")
        if listed is None:
            listed = [int((i + 1) % interval != 0) for i in range(layers)]
        if not isinstance(listed, list) or len(listed) != layers or set(listed) - {0, 1}:
            raise model_file_error(
                f"no_rope_layers must list 0 or 1 for each of {layers} layers",
                param="no_rope_layers",
            )
        rope = read_rope(reader, head_dim, theta=_THETA)
        return [rope if has else None for has in listed]

    window = reader.optional_integer("sliding_window", high=MAX_POSITIONS)
    window = window if reader.boolean("use_sliding_window") else None
    return dense_spec(
        reader,
        "smollm3",
        biases=Biases(q=bias, k=bias, v=bias, o=bias, mlp=reader.boolean("mlp_bias")),
        windows=lambda layers: typed_windows(reader, layers, window, lambda layer: False),
        ropes=ropes,
        tied=True,
    )


FAMILY = Family(
    name="smollm3",
    architectures=("SmolLM3ForCausalLM",),
    spec=spec,
    rules=HF_RULES,
    gguf=GgufFamily(
        arch="smollm3",
        rules=GGUF_RULES,
        stored=Conventions(paired_rope=True),
        biases={"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_up.bias"},
    ),
)
