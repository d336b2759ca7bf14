"""The text side of a model alone: its vocabulary and templates, without weights or a config."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tidemill.base.errors import model_file_error
from tidemill.base.tokenizer_data import TokenizerData
from tidemill.loading import folder_text, gguf_split, gguf_text_side, spm_file
from tidemill.loading.generation import GenerationDefaults, generation_defaults
from tidemill.loading.jsonfile import map_bytes, read_optional_object
from tidemill.loading.kind import is_gguf
from tidemill.loading.named import locate


@dataclass(frozen=True, slots=True)
class TextFiles:
    """What the files of a model, or of a tokenizer, say of its text.

    Attributes:
        path: where they are.
        name: what the model is called.
        tokenizer: vocabulary and templates.
        generation: sampling values its makers recommend.
    """

    path: Path
    name: str
    tokenizer: TokenizerData
    generation: GenerationDefaults = field(default_factory=GenerationDefaults)


def open_text(model: str | Path | None) -> TextFiles:
    """The vocabulary and templates of a tokenizer's file or of a model.

    Args:
        model: a tokenizer.json, a SentencePiece model (``.model``), a GGUF file (one of a
            vocabulary alone, too), a folder that holds one of these, or a model's name; None is
            the bundled model.

    Raises:
        TidemillError: NOT_FOUND without such a file or model, MODEL_FILE when it cannot be read.
    """
    path, name = locate(model)
    if path.is_dir():
        defaults, _ = generation_defaults(read_optional_object(path / "generation_config.json"))
        return TextFiles(path, name, folder_text.read_tokenizer(path), defaults)
    return TextFiles(path, name, _of_file(path))


def _of_file(path: Path) -> TokenizerData:
    if path.suffix == ".json":
        return TokenizerData(tokenizer_json=map_bytes(path))
    if path.suffix == ".model":
        return TokenizerData(gguf=spm_file.read_file(path))
    if is_gguf(path):
        return gguf_text_side.read_tokenizer(gguf_split.read_model(path).metadata)
    raise model_file_error(
        f"{path}: neither a tokenizer.json, nor a SentencePiece model (.model), nor a GGUF file, "
        "nor a folder that holds one"
    )
