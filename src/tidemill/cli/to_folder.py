"""Conversion of a GGUF file to a Hugging Face folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from tidemill.loading.parts import ModelFiles

# Values of --dequantize -> safetensors types.
FLOATS = {"f32": "F32", "bf16": "BF16", "f16": "F16"}
_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


def gguf_to_folder(source: Path, out: Path, dequantize: str | None) -> None:
    """Write safetensors, config.json, the tokenizer and the chat templates.

    Args:
        dequantize: a key of `FLOATS`; None rejects quantized weights.

    Raises:
        TidemillError: UNSUPPORTED if a folder cannot represent the model.
    """
    from tidemill.cli.quantize import writing_bar
    from tidemill.convert.folder.config import folder_config
    from tidemill.convert.folder.names import folder_tensors
    from tidemill.convert.folder.writer import write_safetensors
    from tidemill.loading.gguf_model import open_file
    from tidemill.models.registry import FAMILIES

    files = open_file(source)
    family = next(f for f in FAMILIES if f.name == files.spec.family)
    dequantized_type = None if dequantize is None else FLOATS[dequantize]
    tensors = folder_tensors(files.spec, family, files.tensors, dequantized_type)
    sizes: dict[str, int] = {}
    for tensor in tensors:
        sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.nbytes
    config = folder_config(files, family, max(sizes, key=sizes.__getitem__))
    text = _text_files(files)
    out.mkdir(exist_ok=True)
    with writing_bar(tensors) as bar:
        write_safetensors(out, tensors, f"{files.digest().hex()} {dequantize}", bar.tell)
    text["config.json"] = _json(config)
    for name, content in text.items():
        path = out / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content, encoding="utf-8")
    if dequantized_type is not None:
        exact = "every value kept" if dequantized_type == "F32" else f"rounded to {dequantize}"
        click.echo(f"quantized weights are written as {dequantize}, {exact}")
    if "tokenizer.json" not in text:
        click.echo("the GGUF file has no vocabulary: the folder is written without a tokenizer")


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _text_files(files: ModelFiles) -> dict[str, str]:
    """File name -> content: tokenizer, its settings, chat templates, generation config."""
    data = files.tokenizer
    generation: dict[str, Any] = {}
    if files.bos_token_id is not None:
        generation["bos_token_id"] = files.bos_token_id
    if files.eos_token_ids:
        generation["eos_token_id"] = list(files.eos_token_ids)
    found = {"generation_config.json": _json(generation)} if generation else {}
    if data.gguf is not None:
        found |= _tokenizer_files(files)
    if data.chat_template is not None:
        found["chat_template.jinja"] = data.chat_template
    for name, template in data.named_templates.items():
        found[f"additional_chat_templates/{_file_name(name)}.jinja"] = template
    return found


def _file_name(name: str) -> str:
    from tidemill.base.errors import model_file_error

    if not name or not all(c.isalnum() or c in "-_" for c in name):
        key = f"tokenizer.chat_template.{name}"
        raise model_file_error(f"{key[:80]!r}: a template's name is letters, digits, - and _",
                               param=key[:80])  # fmt: skip
    return name


def _tokenizer_files(files: ModelFiles) -> dict[str, str]:
    from dataclasses import replace

    from tidemill.base.tokenizer_data import TokenizerData
    from tidemill.convert.word_rule import check_same
    from tidemill.text.gguf_library import tokenizer_from_gguf
    from tidemill.text.gguf_vocab import special_tokens

    data = files.tokenizer
    assert data.gguf is not None
    library, _ = tokenizer_from_gguf(data.gguf)
    special = {r: t for r, t in special_tokens(data.gguf).items() if r in _ROLES}
    document = library.to_str(pretty=True)
    check_same(
        replace(data, chat_template=None),
        TokenizerData(tokenizer_json=document.encode(), special=special),
        "the tokenizer.json made of the file's vocabulary would give other token ids than it does",
    )
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": files.spec.max_positions,
        **special,
    }
    return {"tokenizer.json": document, "tokenizer_config.json": _json(settings)}
