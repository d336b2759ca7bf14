"""A model's text side (tokenizer, chat template, defaults): all that the API process loads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tidemill.base.tokenizer_data import TokenizerData
from tidemill.contract.sampling import NEUTRAL
from tidemill.generation.preset import NO_PRESET, Preset
from tidemill.library.manifest import Definition
from tidemill.loading.generation import GenerationDefaults
from tidemill.loading.text_side import open_text
from tidemill.text.template import ChatTemplate
from tidemill.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class OpenedText:
    """A model's text side.

    Attributes:
        path: the model's folder or file.
        name: the name it is served under unless another is given.
        tokenizer, template: from the model's files.
        defaults: the sampling values that the model's authors recommend; others are absent.
        named_templates: sources of the model's additional chat templates (``tool_use``, ``rag``).
        preset: what a model of the library brings to every request.
    """

    path: Path
    name: str
    tokenizer: Tokenizer
    template: ChatTemplate
    defaults: dict[str, float | int]
    named_templates: Mapping[str, str]
    preset: Preset = NO_PRESET

    @classmethod
    def open(cls, model: str | Path | None = None) -> OpenedText:
        """Open the text side of a folder, a GGUF file, a hub id, a bundled name, or a
        tokenizer file; None is the bundled model. Weights and their config are not read.

        Raises:
            TidemillError: NOT_FOUND, MODEL_FILE, UNSUPPORTED; CONFIG without a bundled model.
        """
        files = open_text(model)
        return cls.of(files.path, files.name, files.tokenizer, files.generation)

    @classmethod
    def of(
        cls, path: Path, name: str, data: TokenizerData, generation: GenerationDefaults
    ) -> OpenedText:
        """Build the text side from data already read."""
        tokenizer = Tokenizer(data)
        named = data.named_templates
        template = ChatTemplate(data.chat_template, tokenizer.special, named.get("tool_use"))
        stated = {k: v for k, v in asdict(generation).items() if v is not None}
        return cls(path, name, tokenizer, template, stated, named)

    def defined(self, definition: Definition) -> OpenedText:
        """The same with what was set when a model of the library was created.

        Raises:
            TidemillError: the template is not valid.
        """
        own = {name: value for name, value in definition.sampling.items() if name in NEUTRAL}
        template = self.template
        if definition.chat_template is not None:
            template = ChatTemplate(definition.chat_template, self.tokenizer.special)
        preset = Preset(definition.system, definition.messages, definition.sampling)
        return replace(self, template=template, defaults={**self.defaults, **own}, preset=preset)
