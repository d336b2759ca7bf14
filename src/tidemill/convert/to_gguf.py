"""Conversion of a GGUF file or a Hugging Face folder to a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tidemill.convert.gguf.metadata import vocabulary
from tidemill.convert.gguf.shape import gguf_family, shape_metadata
from tidemill.convert.gguf.tensors import from_gguf, to_gguf
from tidemill.convert.gguf.writer import write_gguf
from tidemill.convert.merge import check_float, opened, stored_tensors
from tidemill.convert.output import Loss, OutTensor
from tidemill.convert.report import Report
from tidemill.convert.word_rule import check_same, find_rule
from tidemill.loading.formats.gguf import GgufFile
from tidemill.loading.formats.gguf_split import read_model
from tidemill.loading.parts import ModelFiles
from tidemill.loading.text_side import read_gguf
from tidemill.text.tokenizer import Tokenizer


def gguf_to_gguf(source: Path, out: Path, kind: str | None, loss: Loss, report: Report) -> None:
    """Write a GGUF file (its parts joined) with its matrices in another type.

    Args:
        kind: a key of `GGUF_TYPES`; None keeps types.
    """
    file = read_model(source)
    metadata = {k: v for k, v in file.metadata.items() if not k.startswith("split.")}
    _save(out, metadata, list(from_gguf(file, kind, loss)), _identity(file, kind), report)


def merged_gguf(source: Path, out: Path, adapter: Path, loss: Loss, report: Report) -> None:
    """Write a GGUF file (its parts joined) with an adapter merged, in the types of the source; what
    the adapter does not change is copied.

    Raises:
        TidemillError: see `merge.stored_tensors`.
    """
    file = read_model(source)
    files, identity = opened(source, adapter)
    family = gguf_family(files)
    assert family.gguf is not None
    metadata = {k: v for k, v in file.metadata.items() if not k.startswith("split.")}
    tensors = stored_tensors(files, file.tensors, family.gguf.rules, loss)
    _save(out, metadata, tensors, identity, report)


def folder_to_gguf(
    source: Path, out: Path, kind: str | None, loss: Loss, report: Report,
    adapter: Path | None = None,
) -> None:  # fmt: skip
    """Write a folder's decoder and its vocabulary.

    Args:
        adapter: merged into the weights.
        kind: a key of `GGUF_TYPES`; None keeps types.

    Raises:
        TidemillError: UNSUPPORTED if GGUF cannot represent the model or its vocabulary.
    """
    files, weights = opened(source, adapter)
    if adapter is not None:
        check_float(files)
    metadata = shape_metadata(files, gguf_family(files)) | _vocabulary(files)
    if files.other_parts:
        report.say("the vision part is not written: GGUF has a file of its own for it")
    identity = f"{weights} {kind}"
    _save(out, metadata, list(to_gguf(files, kind, loss)), identity, report)


def _vocabulary(files: ModelFiles) -> dict[str, Any]:
    """The tokenizer.* keys, checked to give the same token ids as the model's own files."""
    data = files.tokenizer
    text = vocabulary(data, files, find_rule(data))
    tokenizer = Tokenizer(data)
    for role, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token = tokenizer.special_id(f"{role}_token")
        if token is not None:
            text.setdefault(f"tokenizer.ggml.{key}_token_id", token)
    text["tokenizer.ggml.add_bos_token"] = tokenizer.adds("bos_token")
    text["tokenizer.ggml.add_eos_token"] = tokenizer.adds("eos_token")
    check_same(
        replace(data, add_bos=None, add_eos=None),
        read_gguf(text),
        "the vocabulary written to GGUF would give other token ids than the model's own; give a "
        "folder as OUT",
    )
    return text


def _identity(file: GgufFile, kind: str | None) -> str:
    stats = sorted({(str(t.file.path), t.file.size) for t in file.tensors.values()})
    times = [Path(path).stat().st_mtime_ns for path, _ in stats]
    return f"{stats} {times} {kind}"


def _save(
    out: Path, metadata: Mapping[str, Any], tensors: list[OutTensor], identity: str, report: Report
) -> None:
    with report.writing(tensors) as tell:
        write_gguf(out, metadata, tensors, identity, tell)
