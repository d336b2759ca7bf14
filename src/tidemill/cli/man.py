"""`tidemill man`: manual pages, made from the declarations of the commands."""

from __future__ import annotations

import os
from pathlib import Path

import click

from tidemill.cli.declared import argument, option
from tidemill.cli.outputs import writing


def man(
    name: str | None = argument(None, help="A command; default: the page about all of them."),
    install: bool = option(
        False, "--install", help="Write every page where `man` finds it: man tidemill-serve."
    ),
    to: Path | None = option(None, help="Folder to write every page into, for packagers."),
) -> None:
    """Show the manual page of a command, or write all of them.

    In a terminal the page is shown by `man`; elsewhere it is printed as roff.
    """
    from tidemill.base.errors import config_error
    from tidemill.cli.main import app_of
    from tidemill.cli.manual import pages

    found = pages(app_of([]))
    if install or to is not None:
        folder = to or _usual_folder()
        with writing("--install" if to is None else "--to", folder):
            for page, text in found.items():
                (folder / f"{page}.1").write_text(text)
        click.echo(f"{len(found)} pages written to {folder}")
        return
    page = f"tidemill-{name}" if name else "tidemill"
    if page not in found:
        raise config_error("name", f"{name!r} is no command; `tidemill --help` lists them")
    _show(found[page])


def _usual_folder() -> Path:
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "man/man1"


def _show(text: str) -> None:
    import shutil
    import subprocess
    import sys

    viewer = shutil.which("man")
    if viewer is None or not sys.stdout.isatty():
        click.echo(text, nl=False)
        return
    subprocess.run([viewer, "--local-file", "-"], input=text, text=True, check=False)
