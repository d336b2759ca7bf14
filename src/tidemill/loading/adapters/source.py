"""Opens an adapter of an opened base model, in any format."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tidemill.base.errors import ErrorKind, TidemillError, model_file_error, unsupported
from tidemill.loading.adapters import prompt
from tidemill.loading.adapters.base import Changes
from tidemill.loading.adapters.gguf import read_gguf
from tidemill.loading.adapters.layout import CONFIG, PICKLED, WEIGHTS
from tidemill.loading.adapters.peft import read_peft
from tidemill.loading.adapters.settings import read_settings
from tidemill.loading.formats import gguf, safetensors, torch_files
from tidemill.loading.jsonfile import is_present, read_object
from tidemill.loading.mapped import StoredTensor, in_file
from tidemill.loading.parts import ModelFiles
from tidemill.models.adapters import Adapter
from tidemill.models.dense import Family
from tidemill.models.registry import ENCODERS, FAMILIES


def open_adapter(path: Path, base: ModelFiles) -> Adapter:
    """Read and verify an adapter of a base model; its tensors are in memory afterwards.

    Args:
        path: a folder of PEFT's (adapter_config.json, and adapter_model.safetensors or .bin) of a
            LoRA or a prompt adapter, or a GGUF file.
        base: the model that it changes, in any format.

    Raises:
        TidemillError: MODEL_FILE or UNSUPPORTED; the message names the file and what is wrong.
    """
    family = next((f for f in (*FAMILIES, *ENCODERS) if f.name == base.spec.family), None)
    if family is None:
        raise unsupported("adapter", f"adapters of {base.spec.family} models are not read")
    if path.is_dir():
        return _open_folder(path, base, family)
    if path.suffix == ".gguf":
        return _open_gguf(path, base, family)
    if not path.exists():
        raise TidemillError(
            ErrorKind.NOT_FOUND, f"the adapter {path} does not exist", param="adapter"
        )
    raise model_file_error(
        f"{path}: an adapter is a folder with {CONFIG}, or a file whose name ends in .gguf"
    )


def _open_folder(folder: Path, base: ModelFiles, family: Family) -> Adapter:
    config = folder / CONFIG
    document = read_object(config)
    if document.get("peft_type") in prompt.KINDS:
        return _open_prompt(folder, document, base, family)
    try:
        settings = read_settings(document)
    except TidemillError as error:
        raise in_file(error, config) from error
    changes = _changes(base, family, of_gguf=False)
    weights, stored = _stored(folder)
    try:
        read_peft(stored, settings, changes)
    except TidemillError as error:
        raise in_file(error, weights) from error
    adapter = _adapter(folder, _digest(repr(settings), stored), changes, settings.invocation)
    if settings.tied and adapter.unties(base.spec):
        raise unsupported(
            "ensure_weight_tying",
            f"{CONFIG}: ensure_weight_tying with an adapter of the embedding is not supported",
        )
    return adapter


def _stored(folder: Path) -> tuple[Path, Mapping[str, StoredTensor]]:
    """The file of an adapter's tensors, and these."""
    weights = folder / WEIGHTS
    if not is_present(weights) and is_present(folder / PICKLED):
        weights = folder / PICKLED
        return weights, torch_files.read_file(weights)
    return weights, safetensors.read_file(weights)


def _open_prompt(
    folder: Path, document: dict[str, Any], base: ModelFiles, family: Family
) -> Adapter:
    weights, stored = _stored(folder)
    digest = _digest(str(document["peft_type"]), stored)
    try:
        if document["peft_type"] == prompt.PREFIX:
            prefix = prompt.read_prefix(document, stored, base.spec, family.stored)
            return Adapter(folder.name, digest, prefix=prefix)
        vectors = prompt.read_prompt(document, stored, base.spec)
    except TidemillError as error:
        raise in_file(error, folder / CONFIG if error.param in document else weights) from error
    return Adapter(folder.name, digest, vectors=vectors)


def _open_gguf(path: Path, base: ModelFiles, family: Family) -> Adapter:
    if family.gguf is None:
        raise unsupported("adapter", f"GGUF has no adapters of {family.name} models")
    file = gguf.read_file(path)
    changes = _changes(base, family, of_gguf=True)
    try:
        invocation = read_gguf(file, family.gguf, changes)
    except TidemillError as error:
        raise in_file(error, path) from error
    about = repr(sorted((k, v) for k, v in file.metadata.items() if k.startswith("adapter.")))
    return _adapter(path, _digest(about, file.tensors), changes, invocation)


def _changes(base: ModelFiles, family: Family, *, of_gguf: bool) -> Changes:
    same = of_gguf == (base.format == "gguf")
    if not same and family.gguf is not None and family.gguf.folding is not None:
        raise unsupported(
            "adapter",
            f"GGUF files of {family.name} models hold multiplied weights: give base and adapter in "
            "one format",
        )
    if of_gguf:
        assert family.gguf is not None
        return Changes(base.spec, family.gguf.rules, family.gguf.stored, same)
    return Changes(base.spec, family.rules, family.stored, same)


def _adapter(
    path: Path, digest: bytes, changes: Changes, invocation: tuple[int, ...] | None
) -> Adapter:
    return Adapter(path.name, digest, changes.tensors, changes.replaced, changes.added, invocation)


def _digest(about: str, stored: Mapping[str, StoredTensor]) -> bytes:
    digest = hashlib.blake2b(about.encode(), digest_size=16, person=b"tidemill-adapter")
    for name in sorted(stored):
        tensor = stored[name]
        digest.update(f"{name} {tensor.dtype} {tensor.shape}\n".encode())
        digest.update(tensor.view)
    return digest.digest()
