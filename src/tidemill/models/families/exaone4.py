"""EXAONE 4 (LG AI Research 2025): only post norms; some layers without a window and without
rope."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.models.config import MAX_POSITIONS, ConfigReader
from tidemill.models.dense import Family, dense_spec, typed_windows
from tidemill.models.families.olmo2 import RULES
from tidemill.models.gguf_family import WINDOW, GgufFamily
from tidemill.models.naming import GGUF_RULES
from tidemill.models.rope_config import read_rope
from tidemill.models.spec import DecoderSpec, QkNorm, Rope


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Read an EXAONE 4 config.

    Keys besides the common ones: sliding_window (null: none, and rope everywhere), layer_types,
    sliding_window_pattern (4: every fourth layer is full, and so is the last).
    """
    reader = ConfigReader({"sliding_window": 4096, **config}, "exaone4")
    window = reader.optional_integer("sliding_window", high=MAX_POSITIONS)
    pattern = reader.raw("sliding_window_pattern")
    layers = reader.integer("num_hidden_layers")
    every = pattern if isinstance(pattern, int) and pattern > 0 else 4
    windows = typed_windows(
        reader,
        layers,
        window,
        lambda i: window is not None and (i + 1) % every != 0 and i + 1 < layers,
    )

    def ropes(layers: int, head_dim: int) -> list[Rope | None]:
        rope = read_rope(reader, head_dim)
        return [rope if window is None or w is not None else None for w in windows]

    return dense_spec(
        reader,
        "exaone4",
        qk_norm=QkNorm(),
        windows=lambda layers: windows,
        ropes=ropes,
        norm_eps=1e-5,
        layer={"pre_norm": False, "post_norm": True},
    )


FAMILY = Family(
    name="exaone4",
    architectures=("Exaone4ForCausalLM",),
    spec=spec,
    rules=RULES,
    gguf=GgufFamily(arch="exaone4", rules=GGUF_RULES, keys=WINDOW, period=4),
)
