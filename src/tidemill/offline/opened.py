"""An opened model without its weights: file metadata, tokenizer and chat template."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tidemill.loading.checkpoint import open_model
from tidemill.loading.locate import locate
from tidemill.loading.parts import ModelFiles
from tidemill.offline.opened_text import OpenedText


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A model's files with its tokenizer and chat template; no weights are loaded.

    Attributes:
        files: the parsed model files.
        text: tokenizer, chat template and sampling defaults.
    """

    files: ModelFiles
    text: OpenedText

    @classmethod
    def open(cls, model: str | Path | None = None, backend: str | None = None) -> OpenedModel:
        """Open a folder, a GGUF file, a hub id or a bundled name; None is the bundled model.

        `backend` is the backend that would run it, or None; see `loading.checkpoint.open_model`.

        Raises:
            TidemillError: NOT_FOUND, MODEL_FILE, UNSUPPORTED; CONFIG without a bundled model.
        """
        path, name = locate(model)
        return cls.of(path, name, backend)

    @classmethod
    def of(cls, path: Path, name: str, backend: str | None = None) -> OpenedModel:
        """Open a model that is already located at `path`."""
        files = open_model(path, backend)
        return cls(files, OpenedText.of(path, name, files.tokenizer, files.generation))
