"""Reads Ollama's Modelfile: instructions, one a line, with texts in quotes or triple quotes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tidemill.base.errors import config_error
from tidemill.library.definition.parameters import read_parameters
from tidemill.library.definition.recipe import (
    ROLES,
    Recipe,
    adapter_path,
    base_path,
    read_text,
)

_TRIPLE = '"""'
_KNOWN = ("FROM", "PARAMETER", "SYSTEM", "MESSAGE", "ADAPTER", "LICENSE", "TEMPLATE", "REQUIRES")
# Jinja's statements, and its expressions over what chat templates are given.
_JINJA = re.compile(r"\{%|\{\{-?\s*(?:messages|bos_token|eos_token|add_generation_prompt)\b")


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction: its name in capitals, its text, and the line it begins on."""

    name: str
    text: str
    line: int


def read_modelfile(path: Path) -> Recipe:
    """The recipe in a Modelfile. Paths in it are relative to its folder.

    Raises:
        TidemillError: CONFIG, naming file and line; also for a TEMPLATE in Go's syntax, and for
            instructions that are about Ollama's own engine.
    """
    return parse_modelfile(read_text(path, "file"), path)


def parse_modelfile(text: str, path: Path) -> Recipe:
    """The recipe in a Modelfile's text; see `read_modelfile`."""
    folder = path.absolute().parent
    base = template = system = licence = None
    messages: list[dict[str, str]] = []
    adapters: list[str] = []
    parameters: list[tuple[str, str]] = []
    notes: list[str] = []
    for item in instructions(text, path):
        where = f"{path}, line {item.line}"
        match item.name:
            case "FROM":
                if base is not None:
                    raise config_error("FROM", f"{where}: a second FROM; a model has one base")
                base = base_path(item.text, folder)
            case "SYSTEM":
                system = item.text
            case "TEMPLATE":
                template = jinja_template(item.text, where)
            case "LICENSE":
                licence = item.text if licence is None else f"{licence}\n\n{item.text}"
            case "ADAPTER":
                adapters.append(adapter_path(item.text, folder, where))
            case "MESSAGE":
                messages.append(_message(item.text, where))
            case "PARAMETER":
                name, _, value = item.text.partition(" ")
                read_parameters([(name, _unquoted(value.strip()))], where)  # names the line
                parameters.append((name, _unquoted(value.strip())))
            case "REQUIRES":
                notes.append(f"{where}: REQUIRES is a version of Ollama's and has no effect")
    definition, more = read_parameters(parameters, str(path))
    definition = msgspec.structs.replace(
        definition,
        system=system,
        chat_template=template,
        messages=tuple(messages),
        adapters=tuple(adapters),
    )
    return Recipe(base, definition, licence, (*notes, *more))


def instructions(text: str, path: Path) -> Iterator[Instruction]:
    """The instructions of a Modelfile.

    Raises:
        TidemillError: CONFIG, naming the line.
    """
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        name, _, rest = stripped.partition(" ")
        where = f"{path}, line {number}"
        if name.upper() in ("RENDERER", "PARSER"):
            raise config_error(
                name.upper(),
                f"{where}: {name.upper()} names a part of Ollama's; remove the line: the model's "
                "own chat template says how prompts and answers are written",
            )
        if name.upper() not in _KNOWN:
            raise config_error(
                "file", f"{where}: {name!r} is no instruction; there are {', '.join(_KNOWN)}"
            )
        rest = rest.strip()
        opening = rest.find(_TRIPLE)
        if opening >= 0 and rest.count(_TRIPLE) == 1:
            more = [rest]
            for _, following in lines:
                more.append(following)
                if _TRIPLE in following:
                    break
            else:
                raise config_error("file", f'{where}: the text after """ never ends with """')
            rest = "\n".join(more).rstrip()
        if not rest:
            raise config_error("file", f"{where}: {name.upper()} says nothing")
        text_of = rest if name.upper() in ("PARAMETER", "MESSAGE") else _unquoted(rest)
        yield Instruction(name.upper(), text_of, number)


def _unquoted(text: str) -> str:
    if len(text) >= 6 and text.startswith(_TRIPLE) and text.endswith(_TRIPLE):
        return text[3:-3]
    if len(text) >= 2 and text[0] == text[-1] == '"':
        return text[1:-1].replace('\\"', '"').replace("\\n", "\n")
    return text


def _message(text: str, where: str) -> dict[str, str]:
    role, _, content = text.partition(" ")
    if role.lower() not in ROLES:
        raise config_error(
            "MESSAGE", f"{where}: a message is of {', '.join(ROLES)}, not of {role!r}"
        )
    return {"role": role.lower(), "content": _unquoted(content.strip())}


def jinja_template(text: str, where: str) -> str:
    """A chat template.

    Raises:
        TidemillError: CONFIG: it is in Go's syntax.
    """
    if _JINJA.search(text):
        return text
    raise config_error(
        "TEMPLATE",
        f"{where}: TEMPLATE is in Go's syntax, which is not read: remove it, and the model's own "
        "chat template is used; or give one in Jinja's syntax (--chat-template)",
    )
