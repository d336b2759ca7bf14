"""Reads a model's definition from a TOML file."""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from tidemill.base.errors import config_error
from tidemill.library.definition.parameters import read_parameters
from tidemill.library.definition.recipe import (
    ROLES,
    Recipe,
    adapter_path,
    base_path,
    check_quantize,
    read_text,
)


class _Message(msgspec.Struct, forbid_unknown_fields=True):
    role: str
    content: str


class _File(msgspec.Struct, forbid_unknown_fields=True, rename={"base": "from"}):
    """The keys of a file."""

    base: str | None = None
    system: str | None = None
    messages: tuple[_Message, ...] = ()
    parameters: dict[str, Any] = {}
    chat_template: str | None = None
    chat_template_file: str | None = None
    adapters: tuple[str, ...] = ()
    quantize: str | None = None
    licence: str | None = None
    license: str | None = None


def read_toml(path: Path) -> Recipe:
    """The recipe in a TOML file. Paths in it are relative to its folder.

    Raises:
        TidemillError: CONFIG, naming the file and the line or key.
    """
    where, folder = str(path), path.absolute().parent
    try:
        data = tomllib.loads(read_text(path, "file"))
    except tomllib.TOMLDecodeError as error:
        raise config_error("file", f"{where}: {error}") from error
    known = [field.encode_name for field in msgspec.structs.fields(_File)]
    for key in data:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise config_error(key, f"{where}: no key is called {key!r}; {hint}")
    try:
        file = msgspec.convert(data, _File)
    except msgspec.ValidationError as error:
        raise config_error("file", f"{where}: {error}") from error
    for message in file.messages:
        if message.role not in ROLES:
            raise config_error(
                "messages", f"{where}: a message is of {', '.join(ROLES)}, not of {message.role!r}"
            )
    if file.chat_template is not None and file.chat_template_file is not None:
        raise config_error(
            "chat_template", f"{where}: chat_template and chat_template_file exclude each other"
        )
    definition, notes = read_parameters(file.parameters.items(), where)
    template = file.chat_template
    if file.chat_template_file is not None:
        template = read_text(folder / file.chat_template_file, "chat_template_file")
    definition = msgspec.structs.replace(
        definition,
        system=file.system,
        messages=tuple(msgspec.to_builtins(message) for message in file.messages),
        chat_template=template,
        adapters=tuple(adapter_path(text, folder, where) for text in file.adapters),
        quantize=None if file.quantize is None else check_quantize(file.quantize, where),
    )
    base = None if file.base is None else base_path(file.base, folder)
    return Recipe(base, definition, file.licence or file.license, notes)
