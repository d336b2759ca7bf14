"""The adapter of `tiny_adapter` as a GGUF file."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import gguf as package
import numpy as np
from helpers.tiny_adapter import SHAPES, pair


def write_gguf_adapter(path: Path, **changed: Any) -> Path:
    """The adapter of `tiny_adapter` as llama.cpp's converter writes it: Q and K in pairs."""
    keys = {"general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": 6.0, **changed}
    writer = package.GGUFWriter(path, "llama")
    for key, value in keys.items():
        add = writer.add_float32 if isinstance(value, float) else writer.add_string
        add(key, value)
    stored = {"q_proj": "attn_q", "k_proj": "attn_k", "down_proj": "ffn_down"}
    for module in SHAPES:
        a, b = pair(module)
        layer, part = module.split(".")[2], stored[module.rpartition(".")[2]]
        if part != "ffn_down":
            b = b.reshape(-1, 2, 4, 4).swapaxes(1, 2).reshape(b.shape)
        writer.add_tensor(f"blk.{layer}.{part}.weight.lora_a", np.ascontiguousarray(a))
        writer.add_tensor(f"blk.{layer}.{part}.weight.lora_b", np.ascontiguousarray(b))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_adapter() -> bytes:
    """The same in memory."""
    with tempfile.TemporaryDirectory() as folder:
        return write_gguf_adapter(Path(folder) / "a.gguf").read_bytes()
