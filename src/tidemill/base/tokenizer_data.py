"""What a model's files say about its text side, as plain data.

`loading/` fills it, `text/` uses it; neither imports the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Ids with which GGUF files say that there is no such token: -1, and that as 32 bits without a sign.
NO_TOKEN = (-1, 2**32 - 1)


@dataclass(frozen=True, slots=True)
class TokenizerData:
    """Source of a tokenizer and a chat template.

    Attributes:
        tokenizer_json: content of a Hugging Face tokenizer.json, or None; a view of the mapped file
            where there is one, since an engine may never read it.
        gguf: the ``tokenizer.*`` metadata of a GGUF file, or None; one of the two is set for a
            model that has a vocabulary.
        chat_template: the default chat template's Jinja source, or None.
        special: strings of special tokens by role (``bos_token``, ``eos_token``, ...).
        add_bos, add_eos: whether encoding plain text adds them; None leaves it to the tokenizer.
        named_templates: further templates by name (``tool_use``), where a model has them.
    """

    tokenizer_json: bytes | memoryview | None = None
    gguf: Mapping[str, Any] | None = None
    chat_template: str | None = None
    special: Mapping[str, str] = field(default_factory=dict)
    add_bos: bool | None = None
    add_eos: bool | None = None
    named_templates: Mapping[str, str] = field(default_factory=dict)
