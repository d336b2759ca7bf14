"""Model folders of real sizes without weights: a config, and headers before a hole in a file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.make_model import stored_names
from tidemill.models.registry import family_for_config

_BYTES = {"F32": 4, "F16": 2, "BF16": 2}

LLAMA_7B: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 32000,
    "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False,
}  # fmt: skip
LLAMA_13B = {
    **LLAMA_7B, "hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 40,
    "num_attention_heads": 40, "num_key_value_heads": 40,
}  # fmt: skip
LLAMA_70B = {
    **LLAMA_7B, "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8,
}  # fmt: skip


def header_of(config: Mapping[str, Any], dtype: str = "BF16") -> tuple[bytes, int]:
    """The beginning of model.safetensors for a config, and the file's size."""
    family = family_for_config(config)
    spec = family.spec(dict(config))
    names = stored_names(family.rules, spec)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in spec.expected_tensors().items():
        end = offset + _BYTES[dtype] * math.prod(shape)
        header[names[name]] = {
            "dtype": dtype,
            "shape": shape,
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header).encode()
    beginning = len(text).to_bytes(8, "little") + text
    return beginning, len(beginning) + offset


def write_sparse(folder: Path, config: Mapping[str, Any], dtype: str = "BF16") -> Path:
    """Write a folder whose weights take no disk and read as zeros."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(config)))
    beginning, size = header_of(config, dtype)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(beginning)
        file.truncate(size)
    return folder
