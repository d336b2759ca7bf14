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
from tidemill.loading.locate import locate


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
