"""Models that clients of a running server create."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.base.errors import bad_request

if TYPE_CHECKING:
    from threading import Event

    from tidemill.library.catalog import Library
    from tidemill.library.create import Rewrite
    from tidemill.library.definition.recipe import Recipe
    from tidemill.library.progress import Progress, Reporter
    from tidemill.server.host.source import Creation, OnPull

POLL_SECONDS = 0.2
"""Between two looks whether the client has gone."""


def create_asked(asked: Creation, library: Library, told: OnPull, cancel: Event) -> str:
    """Make a model; its name. See `library.create.create`."""
    from tidemill.library.create import create

    def progress(state: Progress) -> None:
        told(state.stage, state.done, state.total, state.message)

    recipe = _recipe(asked)
    for note in recipe.notes:
        told("resolving", 0, 0, note)
    rewrite = None if asked.quantize is None else _quantized(asked.quantize)
    return create(asked.name, recipe, library, progress, cancel, rewrite).name


def _recipe(asked: Creation) -> Recipe:
    from msgspec.structs import replace

    from tidemill.cli.create import check_template
    from tidemill.library.definition.modelfile import jinja_template
    from tidemill.library.definition.parameters import read_parameters
    from tidemill.library.definition.recipe import ROLES, Recipe

    template = None if asked.template is None else jinja_template(asked.template, "template")
    check_template(template)
    for i, message in enumerate(asked.messages):
        if message["role"] not in ROLES:
            raise bad_request(
                f"messages[{i}].role", f"a message is of {', '.join(ROLES)}, not {message['role']}"
            )
    definition, notes = read_parameters(asked.parameters.items(), "parameters")
    definition = replace(
        definition,
        system=asked.system,
        chat_template=template,
        messages=tuple(dict(message) for message in asked.messages),
    )
    return Recipe(asked.base, definition, asked.licence, notes, asked.files, asked.adapter)


def _quantized(kind: str) -> Rewrite:
    return partial(_quantize, kind)


def _quantize(kind: str, source: Path, out: Path, reporter: Reporter) -> None:
    """`tidemill quantize`, in a process of its own: this one imports no numpy, and what it takes is
    returned when it ends."""
    command = [sys.executable, "-P", "-m", "tidemill", "quantize", str(source), str(out)]
    process = subprocess.Popen(
        [*command, "--type", kind],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while True:
            try:
                _, said = process.communicate(timeout=POLL_SECONDS)
                break
            except subprocess.TimeoutExpired:
                reporter.check()
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
        for left in out.parent.glob(out.name + "*"):
            if process.returncode or left != out:
                left.unlink(missing_ok=True)
    if process.returncode:
        lines = [line for line in said.splitlines() if line.strip()]
        why = lines[-1].removeprefix("error: ") if lines else f"exit status {process.returncode}"
        raise bad_request("quantize", f"the weights cannot be written as {kind!r}: {why}")
