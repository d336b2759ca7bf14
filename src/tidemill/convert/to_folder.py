"""Conversion of a Hugging Face folder or a GGUF file to a folder."""

from __future__ import annotations

import json
from pathlib import Path

from tidemill.convert.folder.config import folder_config
from tidemill.convert.folder.integers import TYPES
from tidemill.convert.folder.names import folder_tensors
from tidemill.convert.folder.side_files import copy_side_files, text_files
from tidemill.convert.folder.tensors import to_folder
from tidemill.convert.folder.writer import write_safetensors
from tidemill.convert.merge import check_float, note_untied, opened, stored_tensors
from tidemill.convert.output import Loss
from tidemill.convert.report import Report
from tidemill.loading.checkpoint import open_model
from tidemill.loading.huggingface import read_tensors
from tidemill.models.registry import ENCODERS, FAMILIES

# Values of --dequantize -> safetensors types.
FLOATS = {"f32": "F32", "bf16": "BF16", "f16": "F16"}


def merged_folder(source: Path, out: Path, adapter: Path, report: Report) -> None:
    """Write a folder with an adapter merged; what it does not change is copied.

    Raises:
        TidemillError: UNSUPPORTED for changed weights that are quantized; see `merge.merged`.
    """
    files, identity = opened(source, adapter)
    check_float(files)
    family = next(f for f in (*FAMILIES, *ENCODERS) if f.name == files.spec.family)
    tensors = stored_tensors(files, read_tensors(source), family.rules, Loss())
    out.mkdir(exist_ok=True)
    with report.writing(tensors) as tell:
        write_safetensors(out, tensors, identity, tell)
    copy_side_files(source, out, None)
    if files.config.get("tie_word_embeddings") is False:
        note_untied(out)


def folder_to_folder(source: Path, out: Path, kind: str | None, loss: Loss, report: Report) -> None:
    """Write safetensors (of pickled weights too), with the matrices of the layers as integers.

    Args:
        kind: a key of `TYPES`; None keeps types.
    """
    files = open_model(source)
    integers = None if kind is None else TYPES[kind]
    tensors, left = to_folder(files, integers, loss)
    out.mkdir(exist_ok=True)
    with report.writing(tensors) as tell:
        write_safetensors(out, tensors, f"{files.digest().hex()} {kind}", tell)
    section = None
    if integers is not None:
        section = integers.config()
        section["ignore"] += left
    copy_side_files(source, out, section)


def gguf_to_folder(
    source: Path, out: Path, dequantize: str | None, report: Report, adapter: Path | None = None
) -> None:
    """Write safetensors, config.json, the tokenizer and the chat templates.

    Args:
        adapter: merged into the weights.
        dequantize: a key of `FLOATS`; None rejects quantized weights.

    Raises:
        TidemillError: UNSUPPORTED if a folder cannot represent the model.
    """
    files, identity = opened(source, adapter)
    family = next(f for f in FAMILIES if f.name == files.spec.family)
    dequantized_type = None if dequantize is None else FLOATS[dequantize]
    tensors = folder_tensors(files.spec, family, files.tensors, dequantized_type)
    sizes: dict[str, int] = {}
    for tensor in tensors:
        sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.nbytes
    config = folder_config(files, family, max(sizes, key=sizes.__getitem__))
    text = text_files(files)
    out.mkdir(exist_ok=True)
    with report.writing(tensors) as tell:
        write_safetensors(out, tensors, f"{identity} {dequantize}", tell)
    text["config.json"] = json.dumps(config, indent=2, ensure_ascii=False)
    for name, content in text.items():
        path = out / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content, encoding="utf-8")
    if dequantized_type is not None:
        exact = "every value kept" if dequantized_type == "F32" else f"rounded to {dequantize}"
        report.say(f"quantized weights are written as {dequantize}, {exact}")
    if "tokenizer.json" not in text:
        report.say("the GGUF file has no vocabulary: the folder is written without a tokenizer")
