"""A tiny adapter in PEFT's layout for the model of `tiny_folder`, made without torch or PEFT."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

PREFIX = "base_model.model."
# Module -> (out, in).
SHAPES = {
    "model.layers.0.self_attn.q_proj": (32, 32),
    "model.layers.0.self_attn.k_proj": (16, 32),
    "model.layers.1.mlp.down_proj": (32, 64),
}
SETTINGS: dict[str, Any] = {
    "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 6,
    "target_modules": ["q_proj", "k_proj", "down_proj"], "peft_version": "0.18.0",
}  # fmt: skip


def pair(module: str, rank: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """A and B of a module."""
    rng = np.random.default_rng(len(module))
    out, width = SHAPES[module]
    return (
        rng.standard_normal((rank, width)).astype(np.float32),
        rng.standard_normal((out, rank)).astype(np.float32),
    )


def adapter_tensors() -> dict[str, np.ndarray]:
    """The stored tensors."""
    found = {}
    for module in SHAPES:
        a, b = pair(module)
        found |= {f"{PREFIX}{module}.lora_A.weight": a, f"{PREFIX}{module}.lora_B.weight": b}
    return found


def write_adapter(
    folder: Path, weights: dict[str, np.ndarray] | None = None, **settings: Any
) -> Path:
    """Write adapter_config.json and adapter_model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({**SETTINGS, **settings}))
    stored = adapter_tensors() if weights is None else weights
    safetensors.numpy.save_file(stored, folder / "adapter_model.safetensors")
    return folder


def write_prompt_adapter(
    folder: Path, vectors: np.ndarray, tensor: str = "prompt_embeddings", **settings: Any
) -> Path:
    """Write a prompt adapter of vectors [n, hidden_size]."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "peft_type": "PROMPT_TUNING", "task_type": "CAUSAL_LM", "token_dim": vectors.shape[-1],
        "num_virtual_tokens": len(vectors), "num_transformer_submodules": 1, **settings,
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config))
    safetensors.numpy.save_file({tensor: vectors}, folder / "adapter_model.safetensors")
    return folder
