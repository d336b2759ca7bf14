"""JSON from untrusted files: strict, bounded, with the file named in every error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tidemill.base.errors import model_file_error
from tidemill.base.files import is_regular, open_regular
from tidemill.loading.mapped import MappedFile

MAX_JSON_BYTES = 256 * 2**20  # the largest real tokenizer.json is below 64 MiB


# What parsed JSON may take in memory: so many times the text, and a little that small files need.
_MEMORY_FACTOR = 4
_MEMORY_AT_LEAST = 64 * 2**20
# Bytes that Python takes for what each character of structure opens or parts, at most.
_STRUCTURE = {b"{": 240, b"[": 96, b",": 64, b":": 104}


def _check_memory(data: bytes, where: str) -> None:
    """MODEL_FILE for a text whose values would take many times its own size: a hostile one of
    empty lists takes twenty times it."""
    limit = _MEMORY_FACTOR * len(data) + _MEMORY_AT_LEAST
    if len(data) * max(_STRUCTURE.values()) <= limit:
        return
    need = len(data) + sum(data.count(char) * size for char, size in _STRUCTURE.items())
    if need > limit:
        raise model_file_error(
            f"{where}: {len(data)} bytes of JSON that could take {need} bytes of memory; no real "
            "model's file is like that"
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
        data: UTF-8 text.
        where: named in errors.

    Raises:
        TidemillError: MODEL_FILE when it is not valid JSON (NaN and Infinity are not), repeats a
            key, nests too deep or is not an object.
    """
    _check_memory(data, where)
    try:
        value = json.loads(
            data.decode("utf-8"), parse_constant=_no_constant, object_pairs_hook=_no_duplicates
        )
    except RecursionError:
        raise model_file_error(f"{where}: JSON nested too deep") from None
    except ValueError as error:  # includes decoding errors and numbers of absurd length
        raise model_file_error(f"{where}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise model_file_error(f"{where}: must hold a JSON object")
    return value


def read_bytes(path: Path) -> bytes:
    """A small file's content; MODEL_FILE when it is missing, unreadable or absurdly large."""
    try:
        with open_regular(path) as file:
            data = file.read(MAX_JSON_BYTES + 1)
    except OSError as error:
        raise model_file_error(f"{path}: cannot be read: {error.strerror}") from error
    if len(data) > MAX_JSON_BYTES:
        raise model_file_error(f"{path}: larger than {MAX_JSON_BYTES} bytes")
    return data


def is_present(path: Path) -> bool:
    """Whether a folder has such a file; MODEL_FILE when what has its name is no file."""
    try:
        return is_regular(path)
    except OSError as error:
        raise model_file_error(f"{path}: cannot be read: {error.strerror}") from error


def map_bytes(path: Path) -> memoryview:
    """The same, mapped: for a large file that may not be needed."""
    view = MappedFile(path, use="text").view
    if len(view) > MAX_JSON_BYTES:
        raise model_file_error(f"{path}: larger than {MAX_JSON_BYTES} bytes")
    return view


def read_object(path: Path) -> dict[str, Any]:
    """Parse the JSON object in a file; see `parse_object`."""
    return parse_object(read_bytes(path), path.name)


def read_optional_object(path: Path) -> dict[str, Any]:
    """The same; an absent file is an empty object."""
    return read_object(path) if is_present(path) else {}
