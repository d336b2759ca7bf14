"""JSON from untrusted files: strict, bounded, with the file named in every error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tidemill.base.errors import model_file_error
from tidemill.base.files import is_regular, open_regular
from tidemill.loading.mapped import MappedFile

MAX_JSON_BYTES = 256 * 2**20  # the largest real tokenizer.json is below 64 MiB


# Memory limit of parsed JSON: a multiple of the text's size, plus a constant for small files.
_MEMORY_FACTOR = 4
_MEMORY_AT_LEAST = 64 * 2**20
# Upper bound of the bytes that Python allocates per structural character.
_STRUCTURE = {b"{": 240, b"[": 96, b",": 64, b":": 104}


def _check_memory(data: bytes, where: str) -> None:
    """MODEL_FILE for text whose values would take many times its size. A malicious text of empty
    lists takes twenty times its size."""
    limit = _MEMORY_FACTOR * len(data) + _MEMORY_AT_LEAST
    if len(data) * max(_STRUCTURE.values()) <= limit:
        return
    need = len(data) + sum(data.count(char) * size for char, size in _STRUCTURE.items())
    if need > limit:
        raise model_file_error(
            f"{where}: {len(data)} bytes of JSON that could take {need} bytes of memory; a real "
            "model's file does not"
        )


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"key {key[:80]!r} occurs twice")
        found[key] = value
    return found


def parse_object(data: bytes, where: str) -> dict[str, Any]:
    """Parse a JSON object.

    Args:
        data: UTF-8 text; a byte order mark, as editors on Windows write it, is skipped.
        where: named in errors.

    Raises:
        TidemillError: MODEL_FILE when it is not valid JSON (NaN and Infinity are not), repeats a
            key, nests too deep or is not an object.
    """
    _check_memory(data, where)
    try:
        value = json.loads(
            data.decode("utf-8-sig"), parse_constant=_no_constant, object_pairs_hook=_no_duplicates
        )
    except RecursionError:
        raise model_file_error(f"{where}: JSON nested too deep") from None
    except json.JSONDecodeError as error:
        cut = error.pos >= len(error.doc.rstrip()) or error.msg.startswith("Unterminated string")
        advice = "; it looks truncated: fetch it again" if cut else ""
        raise model_file_error(f"{where}: not valid JSON: {error}{advice}") from error
    except ValueError as error:  # includes decoding errors and overlong numbers
        raise model_file_error(f"{where}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise model_file_error(f"{where}: must hold a JSON object")
    return value


def read_bytes(path: Path) -> bytes:
    """A small file's content; MODEL_FILE when it is missing, unreadable or too large."""
    try:
        with open_regular(path) as file:
            data = file.read(MAX_JSON_BYTES + 1)
    except OSError as error:
        raise model_file_error(f"{path}: cannot be read: {error.strerror}") from error
    if len(data) > MAX_JSON_BYTES:
        raise model_file_error(f"{path}: larger than {MAX_JSON_BYTES} bytes")
    return data


def is_present(path: Path) -> bool:
    """Whether a folder has such a file; MODEL_FILE when that name is not a regular file."""
    try:
        return is_regular(path)
    except OSError as error:
        raise model_file_error(f"{path}: cannot be read: {error.strerror}") from error


def map_bytes(path: Path) -> memoryview:
    """As `read_bytes`, but mapped: for a large file that may not be needed."""
    view = MappedFile(path, use="text").view
    if len(view) > MAX_JSON_BYTES:
        raise model_file_error(f"{path}: larger than {MAX_JSON_BYTES} bytes")
    return view


def read_object(path: Path) -> dict[str, Any]:
    """Parse the JSON object in a file; see `parse_object`."""
    return parse_object(read_bytes(path), path.name)


def read_optional_object(path: Path) -> dict[str, Any]:
    """As `read_object`; a missing file is an empty object."""
    return read_object(path) if is_present(path) else {}
