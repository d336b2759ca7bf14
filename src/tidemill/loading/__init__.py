"""From files to tensors: safetensors, GGUF, the hub. Tensor data is read only when used.

Names are imported on first use (PEP 562), because a server starts its engine before it opens a
file.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemill.loading.checkpoint import ModelSummary as ModelSummary
    from tidemill.loading.checkpoint import TensorLine as TensorLine
    from tidemill.loading.checkpoint import inspect_model as inspect_model
    from tidemill.loading.checkpoint import open_model as open_model
    from tidemill.loading.generation import GenerationDefaults as GenerationDefaults
    from tidemill.loading.locate import DEFAULT_MODEL as DEFAULT_MODEL
    from tidemill.loading.locate import bundled_models as bundled_models
    from tidemill.loading.parts import ModelFiles as ModelFiles

_EXPORTS = {
    "DEFAULT_MODEL": "locate",
    "bundled_models": "locate",
    "ModelSummary": "checkpoint",
    "TensorLine": "checkpoint",
    "inspect_model": "checkpoint",
    "open_model": "checkpoint",
    "GenerationDefaults": "generation",
    "ModelFiles": "parts",
}

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


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'tidemill.loading' has no attribute {name!r}")
    return getattr(import_module(f"tidemill.loading.{_EXPORTS[name]}"), name)
