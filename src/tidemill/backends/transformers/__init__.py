"""Backend for any causal language model that transformers can load and run."""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.backends.base import (
    Backend,
    BackendOptions,
    HeldTensor,
    PackedWeights,
    held_as_floats,
)
from tidemill.base.errors import config_error
from tidemill.models.spec import DecoderSpec
from tidemill.models.tensors import TensorHeader, TensorMap


def load(
    spec: DecoderSpec,
    tensors: TensorMap,
    options: BackendOptions,
    packed: PackedWeights | None = None,
) -> Backend:
    """Load a model into a new transformers backend. `packed` is unused, since nothing is packed.

    Raises TidemillError: CONFIG when torch or transformers is not installed or the device does not
    exist, UNSUPPORTED for a model that transformers does not know, MODEL_FILE for weights that do
    not match the model, RESOURCE when memory is insufficient.
    """
    try:
        from tidemill.backends.transformers.backend import TransformersBackend
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "transformers"):
            raise
        why = spec.foreign.why if spec.foreign is not None else ""
        runs = f"{why}; transformers may run it, but that" if why else "the backend transformers"
        raise config_error(
            "backend",
            f"{runs} needs {error.name}, which is not installed: pip install 'tidemill[torch]'",
        ) from error
    return TransformersBackend(spec, tensors, options)


def held_tensors(
    spec: DecoderSpec, tensors: Mapping[str, TensorHeader], options: BackendOptions
) -> dict[str, HeldTensor]:
    """See backends.base.HeldTensors."""
    return held_as_floats(tensors, options)
