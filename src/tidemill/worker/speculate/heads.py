"""Medusa heads as their files have them (Cai et al. 2024).

Two layouts. The published one (``medusa_lm_head.safetensors`` or ``.pt``): of head k the tensors
``k.0.linear.weight`` and ``.bias``, further residual blocks ``k.1.linear`` ..., and behind them its
own output matrix [vocabulary, width]. Brook's: a map [width, width] in that place, whose result the
model's own output matrix scores (``"output": "embed_tokens @ map"`` in its config).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tidemill.base.errors import config_error
from tidemill.loading.formats import safetensors, torch_files
from tidemill.loading.mapped import StoredTensor
from tidemill.loading.places import OneTensor, one_tensor
from tidemill.models.spec import DecoderSpec

Float32 = NDArray[np.float32]

_FILES = (
    "medusa_lm_head.safetensors", "model.safetensors", "medusa_lm_head.pt", "pytorch_model.bin",
)  # fmt: skip
_NAME = re.compile(r"(?:medusa_head\.)?(\d+)\.(\d+)\.(?:linear\.)?(weight|bias)")


@dataclass(frozen=True)
class Head:
    """One head: residual blocks g = h + silu(W h + b), and what scores the last one's result.

    Attributes:
        stored: (W [width, width], b [width]) of each block, in the file.
        score: its own output matrix, or a map in front of the model's.
        own: which of the two.
    """

    stored: tuple[tuple[OneTensor, OneTensor], ...]
    score: OneTensor
    own: bool

    @cached_property
    def blocks(self) -> tuple[tuple[Float32, Float32], ...]:
        """The blocks' values, read when they are first needed."""
        return tuple((weight.values(), bias.values()) for weight, bias in self.stored)

    def hidden(self, x: Float32) -> Float32:
        """What the last block makes of hidden states [rows, width]."""
        for weight, bias in self.blocks:
            y = x @ weight.T + bias
            x = x + y / (1 + np.exp(-y))
        return x


def read_heads(path: Path, spec: DecoderSpec, model: str) -> list[Head]:
    """The heads in a folder or file; no values are read.

    Args:
        path: the folder or file.
        spec: of the model that they are for.
        model: its name, for errors.

    Raises:
        TidemillError: CONFIG, naming both, for heads of another model, or where one is missing.
    """
    parts: dict[int, dict[tuple[int, str], StoredTensor]] = {}
    for name, stored in _stored(path).items():
        if (match := _NAME.fullmatch(name)) is not None:
            head, layer, kind = match.groups()
            parts.setdefault(int(head), {})[int(layer), kind] = stored
    if not parts:
        raise config_error("speculate", f"{path} has no Medusa heads (tensors 0.0.linear.weight)")
    for k in range(max(parts) + 1):
        if k not in parts:
            raise config_error("speculate", f"{path}: Medusa head {k} of {len(parts)} is missing")
    return [_head(parts[k], f"{path}: Medusa head {k}", spec, model) for k in sorted(parts)]


def _stored(path: Path) -> dict[str, StoredTensor]:
    if path.is_dir():
        there = [path / name for name in _FILES if (path / name).is_file()]
        if not there:
            raise config_error(
                "speculate", f"{path} has no Medusa heads: none of {', '.join(_FILES)} is there"
            )
        path = there[0]
    if not path.is_file():
        raise config_error("speculate", f"there are no Medusa heads at {path}")
    if path.suffix == ".safetensors":
        return safetensors.read_file(path)
    return torch_files.read_file(path)


def _head(
    parts: dict[tuple[int, str], StoredTensor], name: str, spec: DecoderSpec, model: str
) -> Head:
    width, vocab = spec.hidden_size, spec.vocab_size
    last = max(layer for layer, _ in parts)
    blocks = []
    for layer in range(last):
        shapes = {"weight": (width, width), "bias": (width,)}
        values = {kind: _checked(parts, layer, kind, shape, name, model)
                  for kind, shape in shapes.items()}  # fmt: skip
        blocks.append((values["weight"], values["bias"]))
    score = parts.get((last, "weight"))
    if score is None or score.shape not in ((width, width), (vocab, width)):
        shape = "missing" if score is None else f"of shape {list(score.shape)}"
        raise config_error(
            "speculate",
            f"{name}: its output matrix is {shape}; {model} needs [{vocab}, {width}], or a map "
            f"[{width}, {width}]: these heads are for another model",
        )
    return Head(tuple(blocks), one_tensor(score), score.shape[0] != width or vocab == width)


def _checked(
    parts: dict[tuple[int, str], StoredTensor],
    layer: int,
    kind: str,
    shape: tuple[int, ...],
    name: str,
    model: str,
) -> OneTensor:
    stored = parts.get((layer, kind))
    if stored is None:
        raise config_error("speculate", f"{name}: tensor {layer}.linear.{kind} is missing")
    if stored.shape != shape:
        raise config_error(
            "speculate",
            f"{name}: {layer}.linear.{kind} has shape {list(stored.shape)}, {model} needs "
            f"{list(shape)}: these heads are for another model",
        )
    return one_tensor(stored)
