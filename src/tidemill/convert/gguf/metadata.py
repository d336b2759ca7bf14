"""Vocabulary metadata of a GGUF file, for a model from a Hugging Face folder."""

from __future__ import annotations

import json
import re
from array import array
from typing import Any

from tidemill.base.errors import unsupported
from tidemill.base.text_lists import Texts
from tidemill.base.tokenizer_data import TokenizerData
from tidemill.loading.parts import ModelFiles

ROPE_TENSOR = "rope_freqs.weight"
_PREFIX = "tokenizer.ggml."
_SHOWN_SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
_BYTE, _BYTE_TOKEN = 6, re.compile(r"<0x[0-9A-F]{2}>")


def vocabulary(data: TokenizerData, files: ModelFiles, pre: str | None) -> dict[str, Any]:
    """The tokenizer.* keys of a model.

    Args:
        pre: name of the word rule (tokenizer.ggml.pre).

    Raises:
        TidemillError: UNSUPPORTED for a tokenizer that is neither byte-level BPE nor character BPE
            like Gemma 4's, and has no SentencePiece file.
    """
    given = data.gguf or {}
    found = {key: list(v) if isinstance(v, Texts | array) else v for key, v in given.items()}
    if not found:
        document = json.loads(bytes(data.tokenizer_json or b"{}"))
        found = _of_characters(document) or _byte_level(document, pre)
    if data.chat_template is not None:
        found["tokenizer.chat_template"] = data.chat_template
    for name, template in data.named_templates.items():
        found[f"tokenizer.chat_template.{name}"] = template
    if data.named_templates:
        found["tokenizer.chat_templates"] = list(data.named_templates)
    if files.bos_token_id is not None:
        found.setdefault(_PREFIX + "bos_token_id", files.bos_token_id)
    if files.eos_token_ids:
        found[_PREFIX + "eos_token_id"] = files.eos_token_ids[0]
    size = len(found[_PREFIX + "tokens"])
    missing = files.spec.vocab_size - size
    if missing > 0:  # embedding rows without a token
        found[_PREFIX + "tokens"] += [f"[PAD{size + i}]" for i in range(missing)]
        found[_PREFIX + "token_type"] += [5] * missing
        if _PREFIX + "scores" in found:
            found[_PREFIX + "scores"] += [0.0] * missing
    for key in ("precompiled_charsmap",):
        if isinstance(found.get(_PREFIX + key), bytes):
            found[_PREFIX + key] = list(found[_PREFIX + key])
    return found


def _byte_level(document: dict[str, Any], pre: str | None) -> dict[str, Any]:
    model = document.get("model") or {}
    text = json.dumps([document.get("pre_tokenizer"), document.get("decoder")])
    if model.get("type") != "BPE" or "ByteLevel" not in text or model.get("byte_fallback"):
        raise unsupported(
            "out",
            "the model's tokenizer.json is no byte-level BPE, and there is no tokenizer.model: "
            "its vocabulary is not written to GGUF; give a folder as OUT",
        )
    if pre is None:
        raise unsupported(
            "pre", "no known word rule cuts text as this tokenizer does: its vocabulary is not "
            "written to GGUF; give a folder as OUT",
        )  # fmt: skip
    return {_PREFIX + "model": "gpt2", _PREFIX + "pre": pre, **_merged(document)}


def _of_characters(document: dict[str, Any]) -> dict[str, Any]:
    """Metadata of BPE over the characters of the whole text, with visible spaces and a byte
    fallback; empty for any other."""
    model, spaces = document.get("model") or {}, document.get("normalizer")
    if model.get("type") != "BPE" or not model.get("byte_fallback") or spaces != _SHOWN_SPACES:
        return {}
    return {_PREFIX + "model": "gemma4", **_merged(document)}


def _merged(document: dict[str, Any]) -> dict[str, Any]:
    """Tokens, their types, and merges."""
    model = document["model"]
    tokens = {index: token for token, index in model["vocab"].items()}
    types = dict.fromkeys(tokens, 1)
    if model.get("byte_fallback"):
        types |= {i: _BYTE for i, token in tokens.items() if _BYTE_TOKEN.fullmatch(token)}
    for added in document.get("added_tokens", []):
        tokens[added["id"]] = added["content"]
        types[added["id"]] = 3 if added.get("special") else 4
    count = max(tokens) + 1
    merges = [m if isinstance(m, str) else " ".join(m) for m in model.get("merges", [])]
    return {
        _PREFIX + "tokens": [tokens.get(i, f"[PAD{i}]") for i in range(count)],
        _PREFIX + "token_type": [types.get(i, 5) for i in range(count)],
        _PREFIX + "merges": merges,
    }
