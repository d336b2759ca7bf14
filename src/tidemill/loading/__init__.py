"""From files to tensors: safetensors, GGUF, the hub. Tensor data is touched only when used."""

from __future__ import annotations

from tidemill.loading.checkpoint import ModelSummary, TensorLine, inspect_model, open_model
from tidemill.loading.parts import GenerationDefaults, ModelFiles

__all__ = [
    "GenerationDefaults",
    "ModelFiles",
    "ModelSummary",
    "TensorLine",
    "inspect_model",
    "open_model",
]
