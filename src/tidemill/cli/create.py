"""`tidemill create`: a model of the library from another one, with settings of its own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidemill.cli.acting import JSON, print_json
from tidemill.cli.declared import argument, option

if TYPE_CHECKING:
    from tidemill.library.definition.recipe import Recipe

_USUAL_FILE = Path("Modelfile")


def create(
    name: str = argument(..., help="The name of the new model."),
    base: str | None = option(
        None,
        "--from",
        help="The model it is made from: a name of the library, a bundled one, or a source as of "
        "`tidemill pull`.",
    ),
    file: Path | None = option(
        None,
        "-f",
        "--file",
        help="A TOML file (.toml) or an Ollama Modelfile; flags take precedence. Without it and "
        "--from: ./Modelfile.",
    ),
    system: str | None = option(None, help="System message of conversations that have none."),
    parameter: tuple[str, ...] = option(
        (),
        "-p",
        "--parameter",
        help="NAME=VALUE: temperature, top_p, top_k, min_p, repetition_penalty, presence_penalty, "
        "frequency_penalty, seed, stop, max_tokens, max_model_len; repeatable.",
    ),
    chat_template: Path | None = option(
        None, help="File with a chat template (Jinja) instead of the model's own."
    ),
    adapter: tuple[str, ...] = option((), help="Path of a LoRA adapter; repeatable."),
    quantize: str | None = option(None, help="Quantize float weights at load: q8_0, q4_0 or int8."),
    licence: str | None = option(None, "--licence", "--license", help="Its licence."),
    as_json: bool = JSON,
) -> None:
    """Create a model from another: system message, sampling, chat template, adapters.

    The files are shared with the base; values of a request or a flag take precedence over the
    model's.
    """
    from tidemill.cli.pull import entry_document, progress_bar
    from tidemill.library.catalog import Library
    from tidemill.library.create import create as create_model
    from tidemill.library.definition.recipe import Recipe

    recipe = _of_flags(base, system, parameter, chat_template, adapter, quantize, licence)
    if file is None and base is None and _USUAL_FILE.is_file():
        file = _USUAL_FILE
    recipe = recipe.over(Recipe() if file is None else _of_file(file))
    check_template(recipe.definition.chat_template)
    for note in recipe.notes:
        print(note, file=sys.stderr)
    with progress_bar() as on_progress:
        entry = create_model(name, recipe, Library.open(), on_progress, check=check_adapters)
    if as_json:
        print_json(entry_document(entry) | {"base": recipe.base})
    else:
        click.echo(f"{entry.name} is in the library, made from {recipe.base}")


def _of_file(path: Path) -> Recipe:
    from tidemill.library.definition.modelfile import read_modelfile
    from tidemill.library.definition.toml_file import read_toml

    return (read_toml if path.suffix.lower() == ".toml" else read_modelfile)(path)


def _of_flags(
    base: str | None,
    system: str | None,
    parameters: tuple[str, ...],
    chat_template: Path | None,
    adapters: tuple[str, ...],
    quantize: str | None,
    licence: str | None,
) -> Recipe:
    from msgspec.structs import replace

    from tidemill.base.errors import config_error
    from tidemill.library.definition.parameters import read_parameters
    from tidemill.library.definition.recipe import (
        Recipe,
        adapter_path,
        check_quantize,
        read_text,
    )

    pairs = []
    for text in parameters:
        name, equals, value = text.partition("=")
        if not equals:
            raise config_error("parameter", f"--parameter takes NAME=VALUE, got {text!r}")
        pairs.append((name.strip(), value))
    definition, notes = read_parameters(pairs, "--parameter")
    definition = replace(
        definition,
        system=system,
        chat_template=None if chat_template is None else read_text(chat_template, "chat-template"),
        adapters=tuple(adapter_path(text, Path.cwd(), "--adapter") for text in adapters),
        quantize=None if quantize is None else check_quantize(quantize, "--quantize"),
    )
    return Recipe(base, definition, licence, notes)


def check_adapters(name: str, base: Path, adapters: tuple[str, ...]) -> None:
    """Raise for adapters that cannot be used with the model of a name, at a path."""
    from tidemill.base.errors import TidemillError, config_error
    from tidemill.loading.adapters.source import open_adapter
    from tidemill.loading.checkpoint import open_model

    model = open_model(base)
    for path in adapters:
        try:
            opened = open_adapter(Path(path), model)
        except TidemillError as error:
            message = f"the adapter {path} cannot be used with {name}: {error.message}"
            raise TidemillError(error.kind, message, param=error.param) from None
        if len(adapters) > 1 and opened.alone:
            raise config_error(
                "adapter",
                f"--adapter: {path} is not added up with other adapters: {opened.alone}; give it "
                "alone",
            )


def check_template(source: str | None) -> None:
    """Raise for a chat template that cannot be used."""
    if source is not None:
        from tidemill.text.template import ChatTemplate

        ChatTemplate(source, {})
