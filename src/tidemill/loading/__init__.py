"""From files to tensors: safetensors, GGUF, the hub. Tensor data is touched only when used."""

from __future__ import annotations

from tidemill.loading.bundled import DEFAULT_MODEL, bundled_models
from tidemill.loading.checkpoint import ModelSummary, TensorLine, inspect_model, open_model
from tidemill.loading.parts import GenerationDefaults, ModelFiles

__all__ = [
    "DEFAULT_MODEL",
    "GenerationDefaults",
    "ModelFiles",
    "ModelSummary",
    "TensorLine",
    "bundled_models",
    "inspect_model",
    "open_model",
]
