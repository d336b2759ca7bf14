"""A model as the API side uses it: its files opened, its text side ready, no weights."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from tidemill.loading.checkpoint import open_model
from tidemill.loading.named import locate
from tidemill.loading.parts import ModelFiles
from tidemill.text.template import ChatTemplate
from tidemill.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A model's files with its text side ready; no weights are loaded.

    Attributes:
        files: what `loading` found.
        name: the name it is served under unless another is given.
        tokenizer, template: the text side.
        defaults: sampling values the model's makers recommend, only those they state.
    """

    files: ModelFiles
    name: str
    tokenizer: Tokenizer
    template: ChatTemplate
    defaults: dict[str, float | int]

    @classmethod
    def open(cls, model: str | Path | None = None, backend: str | None = None) -> OpenedModel:
        """Open a folder, a GGUF file, a hub id or a bundled name; None is the bundled model.

        `backend` is what will run it, if anything; see `loading.checkpoint.open_model`.

        Raises:
            TidemillError: NOT_FOUND, MODEL_FILE, UNSUPPORTED; CONFIG without a bundled model.
        """
        path, name = locate(model)
        files = open_model(path, backend)
        tokenizer = Tokenizer(files.tokenizer)
        template = ChatTemplate(files.tokenizer.chat_template, tokenizer.special)
        stated = {k: v for k, v in asdict(files.generation).items() if v is not None}
        return cls(files, name, tokenizer, template, stated)
