"""Pages of reference, from declarations in the code: commands, HTTP operations, Python names."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import click

import tidemill
from tidemill.cli.main import app_of
from tidemill.server.app import DIALECTS, OPERATORS
from tidemill.server.openapi import document_of


def pages() -> dict[str, str]:
    """Markdown by the page's name."""
    routes = (*(route for dialect in DIALECTS for route in dialect.endpoints), *OPERATORS)
    return {
        "commands": "".join(_commands()),
        "http": "".join(_http(document_of(tidemill.__version__, routes, DIALECTS))),
        "python": "".join(_python()),
    }


def _cell(text: str) -> str:
    """Text in a table's cell: one line, nothing of it read as a column or as markup."""
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;").strip()


def _commands() -> Iterator[str]:
    app = app_of([])
    yield "# Commands\n\nAs declared in the program; `tidemill COMMAND --help` has the same.\n"
    for name in app.list_commands(click.Context(app)):
        command = app_of([name]).commands[name]
        yield from _command(f"tidemill {name}", command, 2)


def _command(name: str, command: click.Command, level: int) -> Iterator[str]:
    context = click.Context(command, info_name=name)
    yield f"\n{'#' * level} {name}\n\n"
    yield f"```\n{name} {' '.join(command.collect_usage_pieces(context))}\n```\n\n"
    yield inspect.cleandoc(command.help or "").replace("\b", "").replace("<", "&lt;") + "\n"
    options = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    if options:
        yield "\n| flag, variable | |\n|---|---|\n"
    for option in options:
        flags = ", ".join(f"`{each}`" for each in (*option.opts, *option.secondary_opts))
        variables = (
            option.envvar if isinstance(option.envvar, str) else ", ".join(option.envvar or ())
        )
        variable = f"<br>`{variables}`" if variables else ""
        yield f"| {flags}{variable} | {_cell(option.help or '')} |\n"
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            yield from _command(f"{name} {each}", command.commands[each], level + 1)


def _http(api: Mapping[str, Any]) -> Iterator[str]:
    yield "# HTTP, from OpenAPI\n\nWhat `GET /openapi.json` describes, without its schemas.\n"
    by_tag: dict[str, list[tuple[str, str, Mapping[str, Any]]]] = {}
    for path, operations in api["paths"].items():
        for method, operation in operations.items():
            if isinstance(operation, dict) and "responses" in operation:
                tag = (operation.get("tags") or ["others"])[0]
                by_tag.setdefault(tag, []).append((method.upper(), path, operation))
    for tag, operations in by_tag.items():
        yield f"\n## {tag}\n\n| | | |\n|---|---|---|\n"
        for method, path, operation in operations:
            said = operation.get("summary") or operation.get("description") or ""
            statuses = ", ".join(sorted(operation["responses"]))
            yield f"| {method} `{path}` | {_cell(said)} | {statuses} |\n"


def _python() -> Iterator[str]:
    yield "# Python\n\nThe public names of the package `tidemill`.\n"
    for name in tidemill.__all__:
        thing = getattr(tidemill, name)
        yield f"\n## {name}\n\n"
        if inspect.isclass(thing):
            yield from _class(name, thing)


def _class(name: str, thing: type) -> Iterator[str]:
    try:
        signature = str(inspect.signature(thing))
    except ValueError:
        signature = ""
    if signature:
        yield f"```python\n{name}{signature}\n```\n\n"
    yield f"```text\n{inspect.getdoc(thing) or ''}\n```\n"
    for member, value in vars(thing).items():
        function = getattr(thing, member, None)
        if member.startswith("_") or not inspect.isfunction(function) or not value:
            continue
        yield f"\n### {name}.{member}\n\n```python\n{member}{inspect.signature(function)}\n```\n\n"
        yield f"```text\n{inspect.getdoc(function) or ''}\n```\n"
