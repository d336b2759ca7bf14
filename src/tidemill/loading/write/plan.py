"""Which tensors a written model has, in which types."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from tidemill.base.errors import TidemillError, unsupported
from tidemill.loading.gguf import GgufFile
from tidemill.loading.parts import ModelFiles
from tidemill.loading.places import OneTensor, Place, held_bytes, one_tensor
from tidemill.loading.selected import Selected
from tidemill.loading.write.gguf_metadata import (
    ROPE_TENSOR,
    gguf_family,
    rope_divisors,
    tensor_name,
)
from tidemill.loading.write.integers import IntegerType, as_integers
from tidemill.loading.write.out import Buffer, Loss, OutTensor, as_type
from tidemill.models.quantization import FLOAT_TYPES, QUANTIZERS
from tidemill.models.tensors import DTYPE_BLOCKS

# --type -> (type of matrices, type of the embedding and the output projection).
GGUF_TYPES = {
    "q8_0": ("Q8_0", "Q8_0"),
    "q4_0": ("Q4_0", "Q8_0"),
    "q4_k": ("Q4_K", "Q6_K"),
    "q6_k": ("Q6_K", "Q6_K"),
}
_ENDS = re.compile(r"(token_embd|output)\.weight")
# Small, and decisive: routers, convolutions, positions, norms.
_KEPT = re.compile(r".*(norm|ffn_gate_inp|conv1d|ssm_|rope_|position_|token_types).*")


def gguf_type(name: str, shape: tuple[int, ...], dtype: str, kind: str | None) -> str:
    """Type of a tensor in a written GGUF file.

    Args:
        name: in GGUF's spelling.
        dtype: of the source.
        kind: a key of `GGUF_TYPES`; None keeps types.
    """
    if len(shape) < 2:
        return "F32" if dtype in FLOAT_TYPES else dtype
    if kind is None or not name.endswith(".weight") or _KEPT.fullmatch(name):
        return dtype
    wanted = GGUF_TYPES[kind][1 if _ENDS.fullmatch(name) else 0]
    for target in (wanted, "Q8_0"):
        if shape[-1] % DTYPE_BLOCKS[target][1] == 0:
            return target
    return dtype


def from_gguf(file: GgufFile, kind: str | None, loss: Loss) -> Iterator[OutTensor]:
    """The tensors of a GGUF file (split ones in one), requantized."""
    for name, stored in file.tensors.items():
        dtype = gguf_type(name, stored.shape, stored.dtype, kind)
        if dtype == stored.dtype:
            yield _copied(name, stored)
        else:
            yield as_type(one_tensor(stored), name, dtype, loss)


def _copied(name: str, stored: Any) -> OutTensor:
    return OutTensor(name, stored.dtype, stored.shape, stored.nbytes, lambda: iter([stored.view]))


def to_gguf(files: ModelFiles, kind: str | None, loss: Loss) -> Iterator[OutTensor]:
    """The tensors of a Hugging Face folder under GGUF's names, in its row order."""
    family = gguf_family(files)
    assert family.gguf is not None
    divisors = rope_divisors(files.spec)
    if divisors is not None:
        raw = divisors.tobytes()
        yield OutTensor(ROPE_TENSOR, "F32", divisors.shape, len(raw), lambda: iter([raw]))
    for canonical, place in files.tensors.places.items():
        name = tensor_name(family, canonical)
        source = place.dtype if isinstance(place, OneTensor) else place.exact
        dtype = gguf_type(name, place.shape, source, kind)
        if dtype not in DTYPE_BLOCKS:
            dtype = place.exact
        if dtype == "F32" and source not in FLOAT_TYPES and len(place.shape) > 1:
            raise unsupported(
                place.name,
                f"{place.name} is stored as {place.dtype}, which no type of GGUF holds without "
                "loss: use `tidemill quantize` with a --type",
            )
        heads = _interleaved(files, canonical) if family.gguf.stored.paired_rope else None
        if heads is not None:
            yield _permuted(place, name, dtype, heads, loss)
        elif isinstance(place, OneTensor) or (dtype in QUANTIZERS and dtype != place.exact):
            yield as_type(place, name, dtype, loss)
        else:
            yield _whole(place, name)


def _interleaved(files: ModelFiles, canonical: str) -> int | None:
    """Heads of a Q or K projection, whose rows llama's GGUF files interleave."""
    match = re.fullmatch(r"layers\.(\d+)\.attn\.([qk])\.(weight|bias)", canonical)
    if match is None:
        return None
    mixer = files.spec.attentions()[int(match[1])]
    return mixer.heads if match[2] == "q" else mixer.kv_heads


def _whole(place: Place, name: str) -> OutTensor:
    """A weight of several tensors in the type that holds it."""
    size = held_bytes(place.exact, place.shape)
    return OutTensor(name, place.exact, place.shape, size, lambda: iter([place.packed().data]))


def _permuted(place: Place, name: str, dtype: str, heads: int, loss: Loss) -> OutTensor:
    plain = (
        as_type(place, name, dtype, loss)
        if isinstance(place, OneTensor) or dtype != place.exact
        else _whole(place, name)
    )

    def pieces() -> Iterator[Buffer]:
        rows = np.frombuffer(b"".join(bytes(p) for p in plain.pieces()), np.uint8)
        by_half = rows.reshape(heads, 2, plain.shape[0] // heads // 2, -1)
        yield np.ascontiguousarray(by_half.swapaxes(1, 2)).reshape(-1).data

    return OutTensor(name, dtype, plain.shape, plain.nbytes, pieces)


def to_folder(
    files: ModelFiles, kind: IntegerType | None, loss: Loss
) -> tuple[list[OutTensor], list[str]]:
    """The tensors of a Hugging Face folder under their own names, matrices of the layers as
    integers, and the modules that were left out of that.

    Raises:
        TidemillError: UNSUPPORTED for weights that safetensors cannot hold as they are.
    """
    out: list[OutTensor] = []
    left: list[str] = []
    bf16 = files.tensors.prevailing_dtype() != "F16"
    for canonical, place in files.tensors.places.items():
        if isinstance(place, Selected):
            raise unsupported(
                place.name,
                f"{place.name} is stored fused, transposed or in another order than it is computed "
                f"with: folders of {files.spec.family} models are not written",
            )
        matrix = canonical.startswith("layers.") and canonical.endswith(".weight")
        if kind is not None and matrix and len(place.shape) == 2:
            if kind.fits(place.shape):
                out += as_integers(place, place.name, kind, bf16, loss)
                continue
            left.append(place.name.removesuffix(".weight"))
        if not isinstance(place, OneTensor) or place.dtype not in (*FLOAT_TYPES, *_SMALL):
            raise _not_plain(place)
        out.append(_copied(place.name, place.stored))
    return out, left


_SMALL = ("F8_E4M3", "F8_E5M2")


def _not_plain(place: Place) -> TidemillError:
    return unsupported(
        place.name,
        f"{place.name} is stored as {place.dtype}: a folder of safetensors is written from float "
        "weights alone; give a name that ends in .gguf as OUT",
    )
