"""Tiny random checkpoints of every family, written by transformers: the oracles' models.

Sizes are chosen to be awkward: head counts that are no power of two, head dimensions and hidden
sizes that are no multiple of 32 or 64, a vocabulary of 517.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

VOCAB = 517

_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "intermediate_size": 104,
    "num_hidden_layers": 3,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_SHAPE_A = {"hidden_size": 72, "num_attention_heads": 3, "num_key_value_heads": 1}  # head_dim 24
_SHAPE_B = {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 2}
_SHAPE_C = {"hidden_size": 102, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 80}
# Every row a whole number of blocks of 32: the shape that can be quantized.
_SHAPE_Q = {
    "hidden_size": 96,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 160,
}

# name -> (transformers' class prefix, config values).
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {**_SHAPE_A}),
    "llama-mha-tied": (
        "Llama",
        {**_SHAPE_B, "num_key_value_heads": 6, "tie_word_embeddings": True},
    ),
    "llama-biases": ("Llama", {**_SHAPE_C, "attention_bias": True, "mlp_bias": True}),
    "llama-llama3-rope": ("Llama", {**_SHAPE_B, "rope_parameters": _LLAMA3}),
    "llama-linear-rope": (
        "Llama",
        {
            **_SHAPE_A,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0},
        },
    ),
    "mistral": ("Mistral", {**_SHAPE_C, "sliding_window": None}),
    "mistral-window": ("Mistral", {**_SHAPE_B, "sliding_window": 19}),
    "qwen2": ("Qwen2", {**_SHAPE_B}),
    "qwen2-tied-windows": (
        "Qwen2",
        {
            **_SHAPE_A,
            "tie_word_embeddings": True,
            "use_sliding_window": True,
            "sliding_window": 13,
            "max_window_layers": 1,
        },
    ),
    "qwen3": ("Qwen3", {**_SHAPE_C}),
    "qwen3-tied-biases": (
        "Qwen3",
        {**_SHAPE_B, "head_dim": 24, "tie_word_embeddings": True, "attention_bias": True},
    ),
}
QUANTIZABLE: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-q": ("Llama", {**_SHAPE_Q, "rope_parameters": _LLAMA3}),
    "mistral-q": ("Mistral", {**_SHAPE_Q, "sliding_window": None}),
    "qwen2-q": ("Qwen2", {**_SHAPE_Q}),
    "qwen3-q": ("Qwen3", {**_SHAPE_Q, "tie_word_embeddings": True}),
}


def make_model(name: str, *, seed: int = 0, dtype: str = "float32", **overrides: Any) -> Any:
    """A random transformers model of a case, in evaluation mode.

    Weights are drawn wide enough that logits differ clearly (greedy continuations do not hang on
    rounding), biases and norms are made non-trivial.
    """
    import torch
    import transformers

    prefix, values = {**CASES, **QUANTIZABLE}[name]
    config = getattr(transformers, prefix + "Config")(**{**_COMMON, **values, **overrides})
    torch.manual_seed(seed)
    model = getattr(transformers, prefix + "ForCausalLM")(config).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "norm" in key:
                parameter.uniform_(0.5, 1.5)
            elif key.endswith("bias"):
                parameter.normal_(0.0, 0.3)
            elif "embed" in key or "lm_head" in key:
                parameter.normal_(0.0, 0.7)
            else:
                parameter.normal_(0.0, 1.2 * parameter.shape[1] ** -0.5)
    return model.to(getattr(torch, dtype))


def save(model: Any, folder: Path, **options: Any) -> Path:
    """Write the checkpoint folder (safetensors)."""
    model.save_pretrained(folder, **options)
    return folder


def make_checkpoint(name: str, folder: Path, *, seed: int = 0, dtype: str = "float32") -> Path:
    """`make_model` and `save` in one."""
    return save(make_model(name, seed=seed, dtype=dtype), folder)
