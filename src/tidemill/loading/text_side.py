"""The text side of a model, without weights: vocabulary, special tokens and chat templates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidemill.base.errors import model_file_error
from tidemill.base.text_lists import Texts
from tidemill.base.tokenizer_data import TokenizerData
from tidemill.loading.formats import gguf_split, spm_file, tiktoken_file
from tidemill.loading.generation import GenerationDefaults, generation_defaults
from tidemill.loading.jsonfile import is_present, map_bytes, read_bytes, read_optional_object
from tidemill.loading.kind import is_gguf
from tidemill.loading.locate import locate

_ROLES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "pad_token",
    "sep_token",
    "cls_token",
    "mask_token",
)
_TEMPLATE = "tokenizer.chat_template"
_TEMPLATES = "tokenizer.chat_template."


@dataclass(frozen=True, slots=True)
class TextFiles:
    """Text-related contents of a model's or tokenizer's files.

    Attributes:
        path: the folder or file.
        name: display name of the model.
        tokenizer: vocabulary and templates.
        generation: sampling values that its authors recommend.
    """

    path: Path
    name: str
    tokenizer: TokenizerData
    generation: GenerationDefaults = field(default_factory=GenerationDefaults)


def open_text(model: str | Path | None) -> TextFiles:
    """Read the vocabulary and templates of a tokenizer file or of a model.

    Args:
        model: a tokenizer.json, a SentencePiece model (``.model``), a GGUF file (also one without
            weights), a folder that holds one of these, or a model's name; None is the bundled
            model.

    Raises:
        TidemillError: NOT_FOUND for a missing file or model, MODEL_FILE when it cannot be read.
    """
    path, name = locate(model)
    if path.is_dir():
        defaults, _ = generation_defaults(read_optional_object(path / "generation_config.json"))
        return TextFiles(path, name, read_folder(path), defaults)
    return TextFiles(path, name, _of_file(path))


def _of_file(path: Path) -> TokenizerData:
    if path.suffix == ".json":
        return TokenizerData(tokenizer_json=map_bytes(path))
    if path.suffix == ".model":
        return TokenizerData(gguf=spm_file.read_file(path))
    if is_gguf(path):
        return read_gguf(gguf_split.read_model(path).metadata)
    raise model_file_error(
        f"{path}: neither a tokenizer.json, nor a SentencePiece model (.model), nor a GGUF file, "
        "nor a folder that holds one"
    )


def read_folder(folder: Path) -> TokenizerData:
    """The text side of a checkpoint folder. Its vocabulary comes from tokenizer.json, else from
    tokenizer.model (SentencePiece), else from its tiktoken ranks file."""
    settings = read_optional_object(folder / "tokenizer_config.json")
    special_map = read_optional_object(folder / "special_tokens_map.json")
    templates = _templates(folder, settings)
    json_path = folder / "tokenizer.json"
    pieces = folder / "tokenizer.model"
    has_json, has_pieces = is_present(json_path), is_present(pieces)
    ranks = None if has_json or has_pieces else tiktoken_file.find_ranks(folder)
    gguf = tiktoken_file.read_ranks(ranks, settings) if ranks is not None else None
    if has_pieces and not has_json:
        gguf = _with_flags(spm_file.read_file(pieces), settings)
    return TokenizerData(
        tokenizer_json=map_bytes(json_path) if has_json else None,
        gguf=gguf,
        chat_template=templates.pop("default", None),
        special=_special(special_map) | _special(settings),
        add_bos=_flag(settings, "add_bos_token"),
        add_eos=_flag(settings, "add_eos_token"),
        named_templates=templates,
    )


def _with_flags(vocabulary: dict[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """A SentencePiece vocabulary with the start and end tokens that tokenizer_config.json
    configures.

    Without these keys the model's own defaults apply: transformers' Llama tokenizer adds the start
    token.
    """
    bos, eos = _flag(settings, "add_bos_token"), _flag(settings, "add_eos_token")
    unigram = vocabulary["tokenizer.ggml.model"] == "t5"
    vocabulary["tokenizer.ggml.add_bos_token"] = (not unigram) if bos is None else bos
    vocabulary["tokenizer.ggml.add_eos_token"] = unigram if eos is None else eos
    return vocabulary


def _special(settings: Mapping[str, Any]) -> dict[str, str]:
    """Special tokens by role, including a model's own roles (`image_token`). A token is a string or
    an object with its `content`."""
    found = {}
    own = (key for key in settings if key.endswith("_token"))
    for role in dict.fromkeys((*_ROLES, *own)):
        value = settings.get(role)
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str):
            found[role] = content
    return found


def _flag(settings: Mapping[str, Any], key: str) -> bool | None:
    value = settings.get(key)
    return value if isinstance(value, bool) else None


def _templates(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Chat templates by name. Template files replace those of tokenizer_config.json, as in
    transformers. Without any template file, only a default template is used."""
    files = {path.stem: _text(path) for path in folder.glob("additional_chat_templates/*.jinja")}
    if is_present(folder / "chat_template.jinja"):
        files["default"] = _text(folder / "chat_template.jinja")
    if "default" in files:
        return files
    stated = _stated_templates(folder, settings)
    if files and "default" in stated:
        return {"default": stated["default"], **files}
    return files or stated


def _stated_templates(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """The chat templates in tokenizer_config.json or chat_template.json."""
    value = settings.get("chat_template")
    if value is None:
        value = read_optional_object(folder / "chat_template.json").get("chat_template")
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, list):
        value = {e.get("name"): e.get("template") for e in value if isinstance(e, dict)}
    if not isinstance(value, dict):
        return {}
    return {str(k): v for k, v in value.items() if isinstance(v, str)}


def _text(path: Path) -> str:
    try:
        # An editor may have put a byte order mark there, which would begin every prompt.
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise model_file_error(f"{path.name}: not UTF-8") from error


def read_gguf(metadata: Mapping[str, Any]) -> TokenizerData:
    """The text side of a GGUF file: vocabulary and chat templates from its metadata."""
    vocabulary = {k: v for k, v in metadata.items() if k.startswith("tokenizer.")}
    template = vocabulary.get(_TEMPLATE)
    tokens = vocabulary.get("tokenizer.ggml.tokens")
    special = {}
    for role in ("bos", "eos", "unknown", "padding"):
        index = vocabulary.get(f"tokenizer.ggml.{role}_token_id")
        if isinstance(tokens, Texts) and isinstance(index, int) and 0 <= index < len(tokens):
            name = {"unknown": "unk", "padding": "pad"}.get(role, role)
            special[f"{name}_token"] = tokens[index]
    add_bos = vocabulary.get("tokenizer.ggml.add_bos_token")
    add_eos = vocabulary.get("tokenizer.ggml.add_eos_token")
    return TokenizerData(
        gguf=vocabulary if tokens else None,
        chat_template=template if isinstance(template, str) else None,
        special=special,
        add_bos=add_bos if isinstance(add_bos, bool) else None,
        add_eos=add_eos if isinstance(add_eos, bool) else None,
        named_templates={
            key.removeprefix(_TEMPLATES): value
            for key, value in vocabulary.items()
            if key.startswith(_TEMPLATES) and isinstance(value, str)
        },
    )
