"""Finds any model by name: a path, a name of the library, a bundled model, or the hub."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.base.errors import ErrorKind, TidemillError, config_error
from tidemill.library.home import default_home, has_models
from tidemill.library.manifest import EMPTY, Definition
from tidemill.loading.hub import Say
from tidemill.loading.hub_name import HubName, parse
from tidemill.loading.locate import bundled_models, existing, is_path
from tidemill.loading.locate import locate as locate_file

if TYPE_CHECKING:
    from tidemill.library.catalog import Library


@dataclass(frozen=True, slots=True)
class Located:
    """A model that can be opened.

    Attributes:
        path: its folder or file.
        name: its display name.
        definition: what the library adds to its files; nothing for any other model.
        digest: of a library's model: sha256 of its files and definition.
        base, licence: of a library's model: see its manifest.
    """

    path: Path
    name: str
    definition: Definition = EMPTY
    digest: str | None = None
    base: str = ""
    licence: str = ""


def locate(
    model: str | Path | None = None, say: Say | None = None, library: Library | None = None
) -> Located:
    """Find a model; one on the hub that is not in its cache is downloaded.

    A name of the library precedes everything that has the same spelling, except a path that begins
    with ``/``, ``./``, ``../`` or ``~`` and a bundled model.

    Args:
        model: a path, a name of the library, a bundled model's name, or a name on the hub; None is
            the bundled model.
        say: called with one line about each automatic choice.
        library: default: that of `home.default_home`.

    Raises:
        TidemillError: NOT_FOUND for an unknown name; MODEL_FILE for files of the library that are
            gone; CONFIG for an adapter; see also `loading.locate`.
    """
    if library is None and has_models(default_home()):
        # Imported here, because most starts name no model of the library.
        from tidemill.library.catalog import Library

        library = Library.open()
    named = isinstance(model, str) and model not in bundled_models()
    if library is not None and named and library.find(str(model)) is not None:
        entry = library.resolve(str(model))
        if entry.manifest.is_adapter:
            raise config_error(
                "model",
                f"{entry.name} is an adapter, which changes a model: serve its base with "
                f"--adapter NAME={entry.name}",
            )
        if os.path.exists(str(model)) and say is not None:
            say(f"{model} is the model of the library; the path of that name is ./{model}")
        made = entry.manifest
        return Located(
            entry.path,
            entry.name,
            entry.definition,
            entry.digest,
            made.base or "",
            made.licence or "",
        )
    try:
        path, name = locate_file(model, say)
    except TidemillError as error:
        near = [] if library is None or not named else library.near(str(model))
        if error.kind is not ErrorKind.NOT_FOUND or not near:
            raise
        message = f"{error.message}; the library has {near[0]}"
        raise TidemillError(error.kind, message, param=error.param) from None
    return Located(path, name)


def locate_adapter(text: str, folder: Path | None = None, library: Library | None = None) -> Path:
    """Absolute path of an adapter that is named by a path or by its name in the library.

    A path that exists precedes a name of that spelling.

    Args:
        text: the path or name.
        folder: what a path is relative to; default: the working folder.
        library: default: that of `home.default_home`.

    Raises:
        TidemillError: CONFIG, if there is neither, or the library's entry is a model; MODEL_FILE
            for files of the library that are gone.
    """
    path = ((folder or Path.cwd()) / Path(text).expanduser()).absolute()
    if path.exists() or is_path(text):
        if not path.exists():
            raise config_error("adapter", f"the adapter {path} does not exist")
        return path
    if library is None and has_models(default_home()):
        from tidemill.library.catalog import Library

        library = Library.open()
    if library is None or library.find(text) is None:
        raise config_error(
            "adapter",
            f"the adapter {path} does not exist, and the library has none of the name "
            f"{text[:200]!r} (`tidemill pull` gets one)",
        )
    entry = library.resolve(text)
    if entry.path.is_dir() and not entry.manifest.is_adapter:
        raise config_error("adapter", f"{entry.name} is a model of the library and no adapter")
    return entry.path


def remote_name(model: str | Path | None, library: Library | None = None) -> HubName | None:
    """The name on the hub that `locate` would take a model's name for; None for a model that is
    here, and for what is no name on the hub.

    Raises:
        TidemillError: CONFIG for the address of another site.
    """
    if not isinstance(model, str) or model in bundled_models() or is_path(model):
        return None
    if library is None and has_models(default_home()):
        from tidemill.library.catalog import Library

        library = Library.open()
    if library is not None and library.find(model) is not None:
        return None
    return None if existing(model) is not None else parse(model)
