"""The layers after the pooled vector, from a checkpoint's tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill.base.errors import model_file_error, unsupported
from tidemill.loading.formats import safetensors
from tidemill.loading.places import Place
from tidemill.loading.schemes import checked_place
from tidemill.loading.sentence import DenseModule
from tidemill.models.dense import HeadPart
from tidemill.models.head import HEAD_ACTIVATIONS, Head, HeadLayer
from tidemill.models.quantization import to_float32
from tidemill.models.tensors import RawTensor, expected_nbytes

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
MakeHead = Callable[[], Head]


def no_head() -> Head:
    """A model without a head."""
    return ()


def _values(places: Mapping[str, Place], name: str, shape: tuple[int, ...]) -> Float32:
    place = places[name]
    if place.shape != shape:
        raise model_file_error(
            f"tensor {name!r} has shape {list(place.shape)}, but the config says {list(shape)}",
            param=name,
        )
    return np.ascontiguousarray(place.values(), np.float32)


def classifier_head(
    places: Mapping[str, Place],
    parts: Sequence[HeadPart],
    config: Mapping[str, Any],
    hidden: int,
    labels: int,
    norm_eps: float,
) -> MakeHead:
    """A family's classification head: its layers in order, with their biases if present.

    Raises:
        TidemillError: MODEL_FILE when a layer's weight is missing, UNSUPPORTED for an activation.
    """
    activations = [_activation(part, config) for part in parts]
    for name in (name for part in parts for name in (part.name, part.norm) if name):
        if f"{name}.weight" not in places:
            raise model_file_error(
                f"the model lacks {name}.weight, of its classification head",
                param=f"{name}.weight",
            )

    def optional(name: str, width: int) -> Float32 | None:
        return _values(places, name, (width,)) if name in places else None

    def layer(part: HeadPart, activation: str) -> HeadLayer:
        width, norm = labels if part.labels else hidden, None
        if part.norm:
            weight = _values(places, f"{part.norm}.weight", (width,))
            norm = (weight, optional(f"{part.norm}.bias", width))
        weight = _values(places, f"{part.name}.weight", (width, hidden))
        bias = optional(f"{part.name}.bias", width)
        return HeadLayer(weight, bias, activation, norm, norm_eps)

    return lambda: tuple(map(layer, parts, activations))


def _activation(part: HeadPart, config: Mapping[str, Any]) -> str:
    key = part.activation_key
    name = (config.get(key) if key else None) or part.activation
    if name not in HEAD_ACTIVATIONS:
        known = ", ".join(HEAD_ACTIVATIONS)
        raise unsupported(key, f"config key {key!r} is {str(name)[:40]!r}; known are {known}")
    return str(name)


def dense_head(modules: Sequence[DenseModule], hidden: int) -> MakeHead:
    """sentence-transformers' Dense modules, each with its own file."""

    def make() -> Head:
        layers, width = [], hidden
        for module in modules:
            files = safetensors.read_folder(module.folder)
            places = {name: checked_place(tensor) for name, tensor in files.items()}
            if "linear.weight" not in places or len(places["linear.weight"].shape) != 2:
                raise model_file_error(
                    f"{module.folder.name}: lacks linear.weight", param="linear.weight"
                )
            out = places["linear.weight"].shape[0]
            bias = "linear.bias"
            layers.append(
                HeadLayer(
                    _values(places, "linear.weight", (out, width)),
                    _values(places, bias, (out,)) if bias in places else None,
                    module.activation,
                )
            )
            width = out
        return tuple(layers)

    return make


def token_head(
    embedding: Callable[[], RawTensor], tokens: tuple[int, int | None], scale: float
) -> MakeHead:
    """The difference of two tokens' logits as a head of one label; a single token's logit when the
    second token is None.

    Args:
        embedding: the output projection [vocab, hidden].
        tokens: (positive, negative or None).
        scale: multiplies logits.
    """

    def make() -> Head:
        matrix = embedding()
        for token in tokens:
            if token is not None and not 0 <= token < matrix.shape[0]:
                raise model_file_error(f"the score's token {token} is not in the vocabulary")
        row = _row(matrix, tokens[0])
        if tokens[1] is not None:
            row = row - _row(matrix, tokens[1])
        return (HeadLayer(np.ascontiguousarray(row * scale, np.float32)[None, :]),)

    return make


def _row(matrix: RawTensor, index: int) -> Float64:
    columns = matrix.shape[1]
    size = expected_nbytes(matrix.dtype, (columns,))
    data = matrix.data[index * size : (index + 1) * size]
    row: Float64 = to_float32(RawTensor(matrix.dtype, (1, columns), data))[0].astype(np.float64)
    return row
