"""The text side of a GGUF file: vocabulary and chat templates from its metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidemill.base.text_lists import Texts
from tidemill.base.tokenizer_data import TokenizerData

_TEMPLATE = "tokenizer.chat_template"
_TEMPLATES = "tokenizer.chat_template."


def read_tokenizer(metadata: Mapping[str, Any]) -> TokenizerData:
    """The text side from a file's metadata."""
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
