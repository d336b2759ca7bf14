"""What a model's files hold, in the form that does not depend on their format."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidemill.base.tokenizer_data import TokenizerData
from tidemill.loading.mapped import MappedFile, StoredTensor
from tidemill.models.spec import DecoderSpec
from tidemill.models.tensors import RawTensor

Transform = Callable[[RawTensor], RawTensor]


class LazyTensors(Mapping[str, RawTensor]):
    """A TensorMap over mapped files: a tensor is looked at when it is asked for.

    Args:
        places: canonical name -> place.
        transforms: canonical name -> what the stored form needs; the result is not kept.
    """

    def __init__(
        self, places: Mapping[str, StoredTensor], transforms: Mapping[str, Transform]
    ) -> None:
        self.places = dict(places)
        self._transforms = dict(transforms)

    def __getitem__(self, name: str) -> RawTensor:
        tensor = self.places[name].read()
        transform = self._transforms.get(name)
        return tensor if transform is None else transform(tensor)

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)

    def __contains__(self, name: object) -> bool:
        return name in self.places

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors as stored."""
        return sum(place.nbytes for place in self.places.values())

    def prevailing_dtype(self) -> str:
        """The type most bytes of matrices have."""
        bytes_by_type: Counter[str] = Counter()
        for place in self.places.values():
            if len(place.shape) > 1:
                bytes_by_type[place.dtype] += place.nbytes
        return bytes_by_type.most_common(1)[0][0]


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Sampling values the model's makers recommend; None where they say nothing."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """An opened model: everything its files say, no tensor data touched yet.

    Attributes:
        path: the folder or file.
        format: ``huggingface`` or ``gguf``.
        config: config.json, or the same keys made from GGUF metadata.
        spec: the decoder.
        tensors: canonical name -> tensor, for exactly `spec.expected_tensors()`.
        bos_token_id: start token or None.
        eos_token_ids: end tokens, the main one first.
        generation: recommended sampling values.
        tokenizer: the text side.
        files: the mapped weight files.
        notes: what a person should know about how the files were read; empty if nothing.
    """

    path: Path
    format: str
    config: Mapping[str, Any]
    spec: DecoderSpec
    tensors: LazyTensors
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    generation: GenerationDefaults
    tokenizer: TokenizerData
    files: tuple[MappedFile, ...] = field(repr=False, default=())
    notes: tuple[str, ...] = ()

    @property
    def file_bytes(self) -> int:
        """Size of the weight files."""
        return sum(file.size for file in self.files)

    def digest(self) -> bytes:
        """16 bytes that identify the weights; see `weights_digest`."""
        return weights_digest(self.spec, self.tensors)


_SAMPLES = 16
_SAMPLE_BYTES = 256


def weights_digest(spec: DecoderSpec, tensors: LazyTensors) -> bytes:
    """Identity of a model's weights, for block hashes: BLAKE2b-128 over the spec and, per tensor,
    name, type, shape and bytes: whole up to 4 KiB, else 16 evenly spaced samples of 256 bytes.

    It tells different checkpoints and fine-tunes apart without reading gigabytes; it is no proof
    against a file made to collide, which a file one chose to serve has no reason to be.
    """
    digest = hashlib.blake2b(repr(spec).encode(), digest_size=16, person=b"tidemill-weights")
    for name in sorted(tensors.places):
        place = tensors.places[name]
        digest.update(f"{name} {place.dtype} {place.shape} {place.nbytes}\n".encode())
        view = place.file.view[place.offset : place.offset + place.nbytes]
        if place.nbytes <= _SAMPLES * _SAMPLE_BYTES:
            digest.update(view)
            continue
        last = place.nbytes - _SAMPLE_BYTES
        for i in range(_SAMPLES):
            start = last * i // (_SAMPLES - 1)
            digest.update(view[start : start + _SAMPLE_BYTES])
    return digest.digest()
