"""The text side of a model alone: its vocabulary and templates, without weights or a config."""

from __future__ import annotations

from pathlib import Path

from tidemill.base.errors import model_file_error
from tidemill.base.tokenizer_data import TokenizerData
from tidemill.loading import gguf, gguf_model, huggingface, spm_file
from tidemill.loading.jsonfile import read_bytes
from tidemill.loading.named import locate


def open_text(model: str | Path | None) -> TokenizerData:
    """The vocabulary and templates of a tokenizer's file or of a model.

    Args:
        model: a tokenizer.json, a SentencePiece model (``.model``), a GGUF file (one of a
            vocabulary alone, too), a folder that holds one of these, or a model's name; None is
            the bundled model.

    Raises:
        TidemillError: NOT_FOUND without such a file or model, MODEL_FILE when it cannot be read.
    """
    path, _ = locate(model)
    if path.is_dir():
        return huggingface.read_tokenizer(path)
    if path.suffix == ".json":
        return TokenizerData(tokenizer_json=read_bytes(path))
    if path.suffix == ".model":
        return TokenizerData(gguf=spm_file.read_file(path))
    with_magic = path.suffix == ".gguf"
    if not with_magic:
        try:
            with open(path, "rb") as file:
                with_magic = file.read(4) == gguf.MAGIC
        except OSError as error:
            raise model_file_error(f"{path}: cannot be read: {error.strerror}") from error
    if with_magic:
        return gguf_model.read_tokenizer(gguf.read_file(path).metadata)
    raise model_file_error(
        f"{path}: neither a tokenizer.json, nor a SentencePiece model (.model), nor a GGUF file, "
        "nor a folder that holds one"
    )
