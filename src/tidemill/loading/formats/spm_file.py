"""SentencePiece models (tokenizer.model) converted to the metadata of a GGUF file.

Format: SentencePiece's sentencepiece_model.proto, the needed fields only: pieces with scores and
types (the numbers are GGUF's), the kind of model, special ids, normalization. Protocol buffers'
wire format: their encoding documentation.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tidemill.base.errors import TidemillError, model_file_error, unsupported
from tidemill.loading.mapped import MappedFile, in_file

_KINDS = {1: "t5", 2: "llama"}  # trainer_spec.model_type: unigram, BPE
_KEY = "tokenizer.ggml."


def read_file(path: Path) -> dict[str, Any]:
    """The vocabulary under GGUF's keys.

    Raises:
        TidemillError: MODEL_FILE for an invalid SentencePiece model, UNSUPPORTED for the word and
            character model types.
    """
    file = MappedFile(path)
    try:
        return _metadata(file.view)
    except TidemillError as error:
        raise in_file(error, path) from error


def _fields(data: memoryview) -> Iterator[tuple[int, Any]]:
    """(number, value) of a message: an integer, 4 or 8 bytes, or a submessage's bytes."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, position = _varint(data, position)
            yield number, value
            continue
        if wire == 2:
            length, position = _varint(data, position)
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
        else:
            raise model_file_error(f"not a SentencePiece model (wire type {wire})")
        if length > len(data) - position or not number:
            raise model_file_error("not a SentencePiece model, or truncated; fetch it again")
        yield number, data[position : position + length]
        position += length


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            break
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
    raise model_file_error("not a SentencePiece model, or truncated; fetch it again")


def _message(data: Any) -> dict[int, Any]:
    if not isinstance(data, memoryview):
        raise model_file_error("not a SentencePiece model")
    return dict(_fields(data))


def _metadata(view: memoryview) -> dict[str, Any]:
    tokens: list[str] = []
    scores: list[float] = []
    types: list[int] = []
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    for number, value in _fields(view):
        if number == 1:
            text, score, kind = _piece(value)
            tokens.append(text)
            scores.append(score)
            types.append(kind)
        elif number == 2:
            trainer = _message(value)
        elif number == 3:
            normalizer = _message(value)
    if not tokens:
        raise model_file_error("not a SentencePiece model: it holds no pieces")
    kind = trainer.get(3, 1)
    if kind not in _KINDS:
        raise unsupported(
            "model_type", "a SentencePiece model of words or characters; unigram and BPE are read"
        )
    found: dict[str, Any] = {
        _KEY + "model": _KINDS[kind],
        _KEY + "tokens": tokens,
        _KEY + "scores": scores,
        _KEY + "token_type": types,
        _KEY + "add_space_prefix": bool(normalizer.get(3, 1)),
        _KEY + "remove_extra_whitespaces": bool(normalizer.get(4, 1)),
        # The default of sentencepiece itself; other files of a model enable these tokens.
        _KEY + "add_bos_token": False,
        _KEY + "add_eos_token": False,
    }
    charsmap = normalizer.get(2)
    if isinstance(charsmap, memoryview) and len(charsmap):
        found[_KEY + "precompiled_charsmap"] = bytes(charsmap)
    for field, name, default in (
        (40, "unknown", 0),
        (41, "bos", 1),
        (42, "eos", 2),
        (43, "padding", -1),
    ):
        index = trainer.get(field, default)
        if isinstance(index, int) and 0 <= index < len(tokens):
            found[f"{_KEY}{name}_token_id"] = index
    return found


def _piece(value: Any) -> tuple[str, float, int]:
    fields = _message(value)
    text, score, kind = fields.get(1), fields.get(2), fields.get(3, 1)
    if not isinstance(text, memoryview) or not isinstance(kind, int) or not 1 <= kind <= 6:
        raise model_file_error("not a SentencePiece model: a piece without a text")
    if score is not None and (not isinstance(score, memoryview) or len(score) != 4):
        raise model_file_error("not a SentencePiece model: a score that is not a float")
    try:
        return str(text, "utf-8"), 0.0 if score is None else struct.unpack("<f", score)[0], kind
    except UnicodeDecodeError as error:
        raise model_file_error("a piece that is not UTF-8") from error
