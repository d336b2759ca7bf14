"""The tiny tokenizer with marks for filling in the middle."""

from __future__ import annotations

from dataclasses import replace

import tokenizers
from helpers.tiny_text import tokenizer_data, tokenizer_json

from tidemill.text.tokenizer import Tokenizer

PREFIX, SUFFIX, MIDDLE, PAD, FILE = range(262, 267)
"""Ids of the marks."""

_MARKS = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|file_sep|>"]


def filling_tokenizer(marks: list[str] = _MARKS) -> Tokenizer:
    """Its marks have the ids from 262 on."""
    backend = tokenizers.Tokenizer.from_str(tokenizer_json().decode())
    backend.add_special_tokens(marks)
    return Tokenizer(replace(tokenizer_data(), tokenizer_json=backend.to_str().encode()))
