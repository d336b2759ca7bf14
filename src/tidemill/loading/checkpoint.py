"""Opens a model by path or hub id, in any format."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tidemill.base.errors import unsupported
from tidemill.loading.kind import check_model
from tidemill.loading.locate import resolve
from tidemill.loading.parts import ModelFiles
from tidemill.models.spec import DecoderSpec


def open_model(model: str | Path, backend: str | None = None) -> ModelFiles:
    """Open a model; tensor data is read only on access.

    Args:
        model: a checkpoint folder, a GGUF file, or a hub id such as ``Qwen/Qwen3-0.6B`` (for a GGUF
            file on the hub: ``owner/name/file.gguf``). A local path takes precedence.
        backend: the backend that will run it, None for no backend; ``auto`` and ``transformers``
            also accept folders that no family supports, see `huggingface.open_folder`.

    Raises:
        TidemillError: NOT_FOUND for an unknown model, MODEL_FILE or UNSUPPORTED when its files
            cannot be used; the message gives the remedy.
    """
    path = resolve(model)
    check_model(path)
    # Imports delay the start, so only the needed one of the two is imported.
    if path.is_dir():
        from tidemill.loading import huggingface

        return huggingface.open_folder(path, backend)
    if backend == "transformers":
        raise unsupported("backend", "the transformers backend reads folders, no GGUF files")
    from tidemill.loading import gguf_model

    return gguf_model.open_file(path)


@dataclass(frozen=True, slots=True)
class TensorLine:
    """One tensor, as `tidemill show` lists it: canonical name, stored name, type, shape, bytes."""

    name: str
    stored: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """A model's facts without its data.

    Attributes:
        path, format: see `ModelFiles`.
        spec: the decoder.
        parameters: number of parameters; tied ones count once.
        weight_bytes: of all tensors as stored.
        file_bytes: of the weight files.
        tensors: in the spec's order.
        has_vocabulary, has_chat_template: whether the text side has them.
        bos_token_id, eos_token_ids: start and end tokens.
    """

    path: Path
    format: str
    spec: DecoderSpec
    parameters: int
    weight_bytes: int
    file_bytes: int
    tensors: tuple[TensorLine, ...]
    has_vocabulary: bool
    has_chat_template: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]


def inspect_model(model: str | Path) -> ModelSummary:
    """Read everything about a model that its headers contain; raises like `open_model`."""
    files = open_model(model)
    lines = []
    for name in files.spec.expected_tensors():
        place = files.tensors.places[name]
        lines.append(TensorLine(name, place.name, place.dtype, place.shape, place.nbytes))
    text = files.tokenizer
    return ModelSummary(
        path=files.path,
        format=files.format,
        spec=files.spec,
        parameters=files.spec.parameters(),
        weight_bytes=files.tensors.nbytes,
        file_bytes=files.file_bytes,
        tensors=tuple(lines),
        has_vocabulary=text.tokenizer_json is not None or text.gguf is not None,
        has_chat_template=text.chat_template is not None,
        bos_token_id=files.bos_token_id,
        eos_token_ids=files.eos_token_ids,
    )
