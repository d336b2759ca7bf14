"""Tiny checkpoints with quantized projections, packed as a scheme says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from helpers.tiny_folder import CONFIG, tensors, write_folder

SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "head_dim": 16}
Packer = Callable[[np.ndarray], tuple[dict[str, Any], np.ndarray]]


def weights() -> dict[str, np.ndarray]:
    """A model whose rows are whole blocks of 32, so that every scheme fits."""
    shapes = {
        n: tuple(2 * e if e in (32, 64) else e for e in t.shape) for n, t in tensors().items()
    }
    shapes |= {n: (2 * s[0], *s[1:]) for n, s in shapes.items() if s[0] == 16}
    shapes |= {n: (64, 64) for n in shapes if "embed" in n or "lm_head" in n}
    rng = np.random.default_rng(0)
    return {n: (rng.standard_normal(s) * 0.05).astype(np.float32) for n, s in shapes.items()}


def as_torch(array: np.ndarray) -> torch.Tensor:
    return array if isinstance(array, torch.Tensor) else torch.from_numpy(np.array(array))


def write(folder: Path, packer: Packer, quantization: dict[str, Any]) -> dict[str, np.ndarray]:
    """A tiny model whose projections are packed; returns the exact values by stored name."""
    stored, expected = {}, {}
    for name, value in weights().items():
        if "_proj" not in name:
            stored[name] = as_torch(value)
            continue
        stem = name.removesuffix(".weight")
        parts, expected[name] = packer(value)
        stored |= {stem + ending: as_torch(part) for ending, part in parts.items()}
    write_folder(folder, config={**CONFIG, **SIZES, "quantization_config": quantization})
    (folder / "model.safetensors").unlink()
    safetensors.torch.save_file(stored, folder / "model.safetensors")
    return expected
