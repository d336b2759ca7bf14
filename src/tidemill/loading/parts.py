"""Contents of a model's files, independent of their format."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidemill.base.tokenizer_data import TokenizerData
from tidemill.base.vector_data import NOTHING_SAID, VectorData
from tidemill.loading.generation import GenerationDefaults
from tidemill.loading.lazy import LazyTensors
from tidemill.loading.mapped import MappedFile, StoredTensor
from tidemill.loading.mtp import MtpTensors
from tidemill.loading.places import Place
from tidemill.models.head import Head
from tidemill.models.sources import Source
from tidemill.models.spec import DecoderSpec


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """An opened model: the contents of its headers and small files; tensor data is not read yet.

    Attributes:
        path: the folder or file.
        format: ``huggingface`` or ``gguf``.
        config: config.json, or the same keys made from GGUF metadata.
        spec: the decoder.
        tensors: canonical name -> tensor, for exactly `spec.expected_tensors()`.
        sources: canonical name -> its view of the stored tensor that `tensors.places` names.
        bos_token_id: start token or None.
        eos_token_ids: end tokens, the main one first.
        generation: recommended sampling values.
        tokenizer: the text side.
        files: the mapped weight files.
        notes: notes for users on how the files were read; may be empty.
        vectors: how vectors and scores are computed.
        head: creates the layers after the pooled vector, and reads their tensors.
        head_tensors: the stored tensors that `head` reads, by their stored names.
        other_parts: stored tensors of parts that are not loaded, by their stored names.
        mtp: its layer that drafts tokens; None: it has none.
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
    vectors: VectorData = NOTHING_SAID
    head: Callable[[], Head] = field(repr=False, default=tuple)
    sources: Mapping[str, Source] = field(repr=False, default_factory=dict)
    head_tensors: Mapping[str, Place] = field(repr=False, default_factory=dict)
    other_parts: Mapping[str, StoredTensor] = field(repr=False, default_factory=dict)
    mtp: MtpTensors | None = field(repr=False, default=None)

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
    """Identity of a model's weights, for block hashes: BLAKE2b-128 over the spec and, per stored
    tensor, name, type, shape and bytes: whole up to 4 KiB, else 16 evenly spaced samples of 256
    bytes.

    It distinguishes checkpoints and fine-tunes without reading gigabytes. It does not protect
    against a file crafted to collide; the operator chooses the files to serve.
    """
    digest = hashlib.blake2b(repr(spec).encode(), digest_size=16, person=b"tidemill-weights")
    for name in sorted(tensors.places):
        for part in tensors.places[name].parts:
            digest.update(f"{name} {part.dtype} {part.shape} {part.nbytes}\n".encode())
            if part.nbytes <= _SAMPLES * _SAMPLE_BYTES:
                digest.update(part.view)
                continue
            last = part.nbytes - _SAMPLE_BYTES
            for i in range(_SAMPLES):
                start = last * i // (_SAMPLES - 1)
                digest.update(part.view[start : start + _SAMPLE_BYTES])
            # The system maps many pages around each page that is accessed.
            part.file.release_pages(part.offset, part.nbytes)
    return digest.digest()
