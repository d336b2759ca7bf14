"""EAGLE-3 heads as their files have them (Li et al. 2025).

A folder with ``config.json`` and ``model.safetensors`` or ``pytorch_model.bin``, as published for
EAGLE-3: ``fc`` maps hidden states of a few of the model's layers to one, ``midlayer`` (elsewhere
``layers.0``) is a decoder layer on that and a token's embedding side by side, ``norm`` and
``lm_head`` score tokens. ``lm_head`` may have rows of the most frequent tokens alone: row i is then
token ``i + d2t[i]``. Without it the model's own output matrix scores. ``embed_tokens`` is the
model's unless the file has one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemill.base.errors import TidemillError, config_error
from tidemill.loading.formats import safetensors, torch_files
from tidemill.loading.mapped import StoredTensor
from tidemill.loading.places import OneTensor, one_tensor
from tidemill.models.config import ConfigReader
from tidemill.models.rope import Rope
from tidemill.models.rope_config import read_rope
from tidemill.models.spec import DecoderSpec

Int64 = NDArray[np.int64]

_FILES = ("model.safetensors", "pytorch_model.bin")
_LAYER = re.compile(r"(midlayer|layers\.0)\.")
TINY = 2**22  # values of its matrices together
_IDS = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True)
class EagleFiles:
    """A head; no values are read but `tokens`.

    Attributes:
        layers: of the model, in the order in which `fc` takes their states: the residual stream in
            front of each.
        heads, kv_heads, head_dim: of its attention.
        intermediate: width of its feed-forward block.
        norm_eps: of its norms.
        norm_first: what is added to is the state behind its norm, not before.
        rope: of its attention.
        weights: by name: fc, hidden_norm, input_layernorm, q_proj, k_proj, v_proj, o_proj,
            post_attention_layernorm, gate_proj, up_proj, down_proj, norm.
        output: [tokens, width], or None: the model's.
        tokens: int64: the token that each row of `output` stands for; None: row i is token i.
        embedding: [vocabulary, width] of its own, or None.
    """

    layers: tuple[int, ...]
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    norm_eps: float
    norm_first: bool
    rope: Rope
    weights: Mapping[str, OneTensor]
    output: OneTensor | None
    tokens: Int64 | None
    embedding: OneTensor | None

    @property
    def token_bytes(self) -> int:
        """Keys and values of one token, float32."""
        return 2 * 4 * self.kv_heads * self.head_dim

    @property
    def products(self) -> dict[str, OneTensor]:
        """Matrices that a backend computes: all, of a layer that is not tiny."""
        matrices = {n: one for n, one in self.weights.items() if len(one.shape) == 2}
        values = sum(one.shape[0] * one.shape[1] for one in matrices.values())
        # A call of a backend takes longer than numpy does for so few.
        return matrices if values > TINY else {}

    @property
    def layer_bytes(self) -> int:
        """Weights that are computed with by numpy, float32."""
        products = self.products
        return sum(4 * math.prod(w.shape) for n, w in self.weights.items() if n not in products)


def read_eagle(path: Path, spec: DecoderSpec, model: str) -> EagleFiles:
    """The head in a folder.

    Args:
        path: the folder.
        spec: of the model that it is for.
        model: its name, for errors.

    Raises:
        TidemillError: CONFIG, naming both, for a head of another model, or where a part is missing
            or not understood.
    """
    config = _config(path)
    stored = _stored(path)
    reader = ConfigReader(config, "EAGLE-3")
    try:
        width = reader.integer("hidden_size")
        heads = reader.integer("num_attention_heads")
        kv_heads = reader.integer("num_key_value_heads", heads)
        head_dim = reader.integer("head_dim", max(1, width // heads))
        intermediate = reader.integer("intermediate_size")
        eps = reader.number("rms_norm_eps", 1e-6)
        rope = read_rope(reader, head_dim)
    except TidemillError as error:
        raise config_error("speculate", f"{path}: {error.message}") from error
    if width != spec.hidden_size:
        raise config_error(
            "speculate",
            f"{path}: this EAGLE head has hidden size {width}, {model} has {spec.hidden_size}: it "
            "is for another model",
        )
    if config.get("hidden_act", "silu") != "silu" or heads % kv_heads or head_dim % 2:
        raise config_error(
            "speculate",
            f"{path}: an EAGLE head with hidden_act {config.get('hidden_act')!r}, {heads} heads, "
            f"{kv_heads} of keys, of {head_dim} dimensions is not supported",
        )
    layers = _layers(config, len(spec.layers), path, model)
    shapes = {
        "fc": (width, len(layers) * width),
        "hidden_norm": (width,),
        "input_layernorm": (width,),
        "q_proj": (heads * head_dim, 2 * width),
        "k_proj": (kv_heads * head_dim, 2 * width),
        "v_proj": (kv_heads * head_dim, 2 * width),
        "o_proj": (width, heads * head_dim),
        "post_attention_layernorm": (width,),
        "gate_proj": (intermediate, width),
        "up_proj": (intermediate, width),
        "down_proj": (width, intermediate),
        "norm": (width,),
    }
    weights = {name: _weight(stored, name, shape, path) for name, shape in shapes.items()}
    output, tokens = _output(stored, spec, path, model)
    return EagleFiles(
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=intermediate,
        norm_eps=eps,
        norm_first=config.get("norm_before_residual") is True,
        rope=rope,
        weights=weights,
        output=output,
        tokens=tokens,
        embedding=_embedding(stored, spec, path),
    )


def _config(path: Path) -> dict[str, Any]:
    try:
        found = json.loads((path / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise config_error(
            "speculate", f"there is no EAGLE head at {path}: its config.json cannot be read"
        ) from error
    if not isinstance(found, dict):
        raise config_error("speculate", f"{path / 'config.json'} is not an object")
    # Some keep the layer's own config in an object of its own.
    inner = found.get("transformer_layer_config")
    return {**inner, **found} if isinstance(inner, dict) else found


def _stored(path: Path) -> dict[str, StoredTensor]:
    file = next((path / name for name in _FILES if (path / name).is_file()), None)
    if file is None:
        raise config_error(
            "speculate", f"there is no EAGLE head at {path}: none of {', '.join(_FILES)} is there"
        )
    read = safetensors.read_file if file.suffix == ".safetensors" else torch_files.read_file
    short: dict[str, StoredTensor] = {}
    for name, tensor in read(file).items():
        name = _LAYER.sub("", name.removeprefix("model.")).removesuffix(".weight")
        short[name.removeprefix("self_attn.").removeprefix("mlp.")] = tensor
    if "fc" not in short:
        raise config_error(
            "speculate",
            f"{file} has no tensor fc.weight: it is no EAGLE-3 head (EAGLE and EAGLE-2 heads are "
            "not supported)",
        )
    return short


def _layers(config: Mapping[str, Any], count: int, path: Path, model: str) -> tuple[int, ...]:
    inner = config.get("eagle_config")
    ids = config.get(_IDS) or (inner.get(_IDS) if isinstance(inner, dict) else None)
    if ids is None:
        ids = [2, count // 2, count - 3]  # those of the publication
    if (
        not isinstance(ids, list)
        or not ids
        or not all(type(one) is int and 0 <= one <= count for one in ids)
    ):
        raise config_error(
            "speculate",
            f"{path}: {_IDS} is {ids!r}, {model} has {count} layers: this EAGLE head is for "
            "another model",
        )
    return tuple(ids)


def _weight(
    stored: Mapping[str, StoredTensor], name: str, shape: tuple[int, ...], path: Path
) -> OneTensor:
    tensor = stored.get(name)
    if tensor is None:
        raise config_error("speculate", f"{path}: tensor {name}.weight is missing")
    if tensor.shape != shape:
        raise config_error(
            "speculate",
            f"{path}: {name}.weight has shape {list(tensor.shape)}, its config and the model need "
            f"{list(shape)}",
        )
    return one_tensor(tensor)


def _output(
    stored: Mapping[str, StoredTensor], spec: DecoderSpec, path: Path, model: str
) -> tuple[OneTensor | None, Int64 | None]:
    matrix, offsets = stored.get("lm_head"), stored.get("d2t")
    if matrix is None:
        return None, None
    rows, width = matrix.shape[0], spec.hidden_size
    if matrix.shape != (rows, width) or (offsets is None and rows != spec.vocab_size):
        raise config_error(
            "speculate",
            f"{path}: lm_head.weight has shape {list(matrix.shape)}; {model} needs "
            f"[{spec.vocab_size}, {width}], or d2t beside it",
        )
    if offsets is None:
        return one_tensor(matrix), None
    tokens = offsets.array().astype(np.int64)
    if tokens.shape != (rows,):
        raise config_error("speculate", f"{path}: d2t and lm_head.weight differ in length")
    tokens = tokens + np.arange(rows)
    # The draw goes through tokens in ascending order.
    if rows == 0 or tokens[0] < 0 or tokens[-1] >= spec.vocab_size or (np.diff(tokens) <= 0).any():
        raise config_error(
            "speculate",
            f"{path}: d2t leads to tokens that are not ascending, or not of the {spec.vocab_size} "
            f"of {model}",
        )
    return one_tensor(matrix), tokens


def _embedding(
    stored: Mapping[str, StoredTensor], spec: DecoderSpec, path: Path
) -> OneTensor | None:
    if (tensor := stored.get("embed_tokens")) is None:
        return None
    if tensor.dtype not in ("F32", "F16", "BF16"):
        raise config_error(
            "speculate", f"{path}: embed_tokens.weight is stored as {tensor.dtype}; not supported"
        )
    return _weight({"embed_tokens": tensor}, "embed_tokens",
                   (spec.vocab_size, spec.hidden_size), path)  # fmt: skip
