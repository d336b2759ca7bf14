"""The small files of a folder: copied from another, or its text side made from GGUF metadata."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tidemill.base.errors import model_file_error
from tidemill.base.tokenizer_data import TokenizerData
from tidemill.convert.word_rule import check_same
from tidemill.loading.hub_choice import FOLDER_FILES, INNER_FILES
from tidemill.loading.jsonfile import read_object
from tidemill.loading.parts import ModelFiles
from tidemill.loading.schemes import QUANTIZATION_KEYS
from tidemill.text.gguf_library import tokenizer_from_gguf
from tidemill.text.gguf_vocab import special_tokens

_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")
# Files of processors: read by other programs, kept for them.
_PROCESSORS = (
    "preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json",
)  # fmt: skip
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json")


def copy_side_files(source: Path, out: Path, section: dict[str, Any] | None) -> None:
    """Copy config.json and the side files; `section`, if given, is the ``quantization_config``."""
    config = read_object(source / "config.json")
    if section is not None:
        config = {k: v for k, v in config.items() if k not in QUANTIZATION_KEYS}
        config["quantization_config"] = section
    (out / "config.json").write_text(json.dumps(config, indent=2))
    for path in (*source.glob("*"), *source.glob("*/*")):
        name = path.relative_to(source).as_posix()
        if _is_side_file(name) and path.is_file():
            (out / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(path, out / name)


def _is_side_file(name: str) -> bool:
    """Whether a file of a model's folder is neither its config.json nor its weights."""
    if "/" in name:  # named templates, and the modules of sentence-transformers
        return INNER_FILES.fullmatch(name) is not None
    if name == "config.json" or any(fnmatchcase(name, pattern) for pattern in _WEIGHTS):
        return False
    return any(fnmatchcase(name, pattern) for pattern in (*FOLDER_FILES, *_PROCESSORS))


def text_files(files: ModelFiles) -> dict[str, str]:
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
    if not name or not all(c.isalnum() or c in "-_" for c in name):
        key = f"tokenizer.chat_template.{name}"
        raise model_file_error(f"{key[:80]!r}: a template's name is letters, digits, - and _",
                               param=key[:80])  # fmt: skip
    return name


def _tokenizer_files(files: ModelFiles) -> dict[str, str]:
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


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
