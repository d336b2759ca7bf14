"""A tiny checkpoint folder made without torch or transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def tensors(seed: int = 0) -> dict[str, np.ndarray]:
    """The tensors of `CONFIG` under their Hugging Face names, float32."""
    shapes = {
        "model.embed_tokens.weight": (64, 32),
        "model.norm.weight": (32,),
        "lm_head.weight": (64, 32),
    }
    for i in range(2):
        at = f"model.layers.{i}."
        shapes |= {
            at + "input_layernorm.weight": (32,),
            at + "post_attention_layernorm.weight": (32,),
            at + "self_attn.q_proj.weight": (32, 32),
            at + "self_attn.k_proj.weight": (16, 32),
            at + "self_attn.v_proj.weight": (16, 32),
            at + "self_attn.o_proj.weight": (32, 32),
            at + "mlp.gate_proj.weight": (64, 32),
            at + "mlp.up_proj.weight": (64, 32),
            at + "mlp.down_proj.weight": (32, 64),
        }
    rng = np.random.default_rng(seed)
    return {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}


def write_folder(
    folder: Path,
    *,
    config: dict[str, Any] | None = None,
    weights: dict[str, np.ndarray] | None = None,
    **files: object,
) -> Path:
    """Write config.json, model.safetensors and further files (objects as JSON, strings as text).

    `files`: name with ``__`` for the dot.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG if config is None else config))
    weights_path = folder / "model.safetensors"
    weights_path.unlink(missing_ok=True)
    safetensors.numpy.save_file(tensors() if weights is None else weights, weights_path)
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name.replace("__", ".")).write_text(text)
    return folder
