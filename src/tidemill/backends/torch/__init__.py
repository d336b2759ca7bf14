"""The same spec in plain torch operations: the float32 reference on CPU, and any torch device."""

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
    """Load a model into a new torch backend. It packs nothing, so `packed` is not used.

    Raises TidemillError: CONFIG when torch is not installed or the device does not exist,
    UNSUPPORTED for a spec this backend does not run, RESOURCE when memory is insufficient.
    """
    try:
        from tidemill.backends.torch.backend import TorchBackend
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise config_error(
            "backend",
            "the torch backend needs torch 2.11 or later: pip install 'tidemill[torch]'",
        ) from error
    return TorchBackend(spec, tensors, options)


def held_tensors(
    spec: DecoderSpec, tensors: Mapping[str, TensorHeader], options: BackendOptions
) -> dict[str, HeldTensor]:
    """See backends.base.HeldTensors."""
    return held_as_floats(tensors, options)
